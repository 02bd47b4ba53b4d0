/*
 * masu: decisions of a program about its own pages.
 *
 *     masu_track *track;
 *     uint64_t active;
 *     masu_track_new(NULL, &track);
 *     masu_track_set_functions(track, NULL, my_compact, NULL);
 *     if (masu_track_enable(track) == MASU_OK)
 *         while (masu_track_wait(track, -1, &active) == MASU_OK)
 *             masu_track_handle(track);
 *
 * A tracker (`masu track`, run by root) observes the accesses to the program's pages. It sends the program a signal
 * with the number of active pages. The program fetches their list, and decides for each window of 2 MiB: leave it,
 * have it made one huge page, or move its hot objects elsewhere, onto the huge pages of an arena. Without a tracker
 * masu_track_enable() returns MASU_NO_TRACKER, and nothing is done. Link with -lmasu; `pkg-config masu` has the
 * other flags. masu(3) has explanations and examples.
 *
 * Functions return MASU_OK or another MASU_ number, unless their comment differs; none prints, none ends the
 * program. They may be called from any thread. None may be called in a signal handler of the program's own. After
 * fork(2) a child's context does nothing (MASU_FORKED). A program that calls exec(2) without fork disables tracking
 * first; its descriptors are closed. The library stays loaded after dlclose(3). A thread in one of these functions
 * is not cancelled (pthread_cancel(3)) before it returns.
 */

/*
 * Marks of a program's sections: their begin and end.
 *
 * Under `masu run --local … --sections marked` each section, by its number, has its own transfer size, which follows
 * its working set: the rule of Midorikawa and Uchiyama, "Adaptive Page Size Control for Remote Page Swapping"
 * (2012). Elsewhere these calls do nothing, and no library has to be linked for them.
 *
 *     swpin_countstart(3);
 *     for (...) ...            // a loop nest that runs again and again
 *     swpin_refresh(3);
 *
 * Begin and end of section `section` (0 to 255). The pages fetched from the store in between decide its next
 * transfer size. The library that masu loads defines both functions. Without it they are null, and the macros call
 * nothing.
 */
#ifdef __cplusplus
extern "C" {
#endif
extern void swpin_countstart(int section) __attribute__((weak));
extern void swpin_refresh(int section) __attribute__((weak));
#ifdef __cplusplus
}
#endif
#define swpin_countstart(section) (swpin_countstart ? swpin_countstart(section) : (void)0)
#define swpin_refresh(section) (swpin_refresh ? swpin_refresh(section) : (void)0)
