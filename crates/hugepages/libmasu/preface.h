/*
 * masu: a program has a say about its pages.
 *
 *     masu_track *track;
 *     uint64_t active;
 *     masu_track_new(NULL, &track);
 *     masu_track_set_functions(track, NULL, my_compact, NULL);
 *     if (masu_track_enable(track) == MASU_OK)
 *         while (masu_track_wait(track, -1, &active) == MASU_OK)
 *             masu_track_handle(track);
 *
 * A tracker (`masu track`, run by root) watches which pages of the program are touched. It tells the program by a signal how
 * many are active; the program fetches the list, and decides for each window of 2 MiB: leave it, have it made one huge page,
 * or move what is hot in it elsewhere, onto the huge pages of an arena. Without a tracker masu_track_enable() says so, and
 * nothing is done. Link with -lmasu; `pkg-config masu` knows the rest. masu(3) explains, with examples.
 *
 * Functions return MASU_OK or another MASU_ number, unless they say otherwise; none prints, none ends the program. They may be
 * called from any thread. None may be called in a signal handler of the program's own. After fork(2) a child's context does
 * nothing (MASU_FORKED). A program that calls exec(2) without fork disables tracking first; its descriptors are closed. The library
 * stays loaded after dlclose(3). A thread in one of these functions is not cancelled (pthread_cancel(3)) before it returns.
 */

/*
 * For programs that tell masu where their parts begin and end.
 *
 * Under `masu run --local … --sections marked` each part, by the number that the program gives it, gets a unit of transfer of
 * its own that follows its working set: the rule of Midorikawa and Uchiyama, "Adaptive Page Size Control for Remote Page
 * Swapping" (2012). Everywhere else these calls do nothing, and nothing has to be linked for them.
 *
 *     swpin_countstart(3);
 *     for (...) ...            // a loop nest that is run again and again
 *     swpin_refresh(3);
 *
 * Section `section` (0 to 255) begins; and ends: what it brought from the store decides its next unit. The library that masu
 * loads has them. Without it they are null, and the macros call nothing.
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
