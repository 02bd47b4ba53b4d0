/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Made by `cargo xtask header` from crates/hugepages/libmasu; changed there. */

#ifndef MASU_H
#define MASU_H

#include <stddef.h>
#include <stdint.h>

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


/* Version of this interface. Programs linked with one run with every later library of the same soname. */
#define MASU_ABI 1

/* Done. */
#define MASU_OK 0

/* Nothing to report: the time is up, or there is no new list. */
#define MASU_NOTHING 1

/* An argument is NULL where that is not allowed, or out of its bounds. */
#define MASU_INVALID (-1)

/* Enabled already. */
#define MASU_ALREADY (-2)

/* Not enabled. */
#define MASU_NOT_ENABLED (-3)

/* There is no tracker, or it has ended. The program goes on as without one. */
#define MASU_NO_TRACKER (-4)

/* The tracker refused; masu_track_reason() has the reason. */
#define MASU_REFUSED (-5)

/* Called from a callback of this same context, or while another thread waits with it. */
#define MASU_BUSY (-6)

/* This is a forked child; the context belongs to its parent. Make a new one. */
#define MASU_FORKED (-7)

/* No memory available. */
#define MASU_NO_MEMORY (-8)

/* No huge page available, or the limit on huge pages is reached. */
#define MASU_NO_HUGE_PAGE (-9)

/* The buffer is smaller than the list; the required size was written. */
#define MASU_TOO_SMALL (-10)

/* The kernel returned an error, in errno. */
#define MASU_SYSTEM (-11)

/* Leave the window as it is. */
#define MASU_LEAVE 0

/* Pass the window's active pages to the compact callback, which moves their hot objects elsewhere. */
#define MASU_COMPACT 1

/* Make the window one huge page; the tracker does it. */
#define MASU_PROMOTE 2

/* A thread waits for notifications in masu_track_wait(). */
#define MASU_BY_WAITING 0

/* Notifications call the program in a signal handler. */
#define MASU_BY_HANDLER 1

/* An arena. Made by masu_arena_new(). */
typedef struct masu_arena masu_arena;

/* A program that is watched, or can be. Made by masu_track_new(). */
typedef struct masu_track masu_track;

/* Settings of an arena: memory on huge pages to move objects into. */
typedef struct masu_arena_settings {
    /* Bytes of this structure in the program's header. */
    size_t size;
    /* Largest size in bytes; rounded up to whole windows of 2 MiB. Memory is taken only on request. */
    uint64_t bytes;
    /* 1: give small pages where no huge page is available. Default 0: MASU_NO_HUGE_PAGE. */
    int32_t small_pages_too;
    /*
     * 1: take no page from the hugetlb pool. Default 0: the pool first, if there is one. Set 1 in a program whose
     * forked children go on using its memory: a copy of such a page takes another one, and where the pool has none
     * the child is killed by SIGBUS.
     */
    int32_t no_hugetlb;
} masu_arena_settings;

/* Contents of an arena. */
typedef struct masu_arena_counters {
    /* Bytes of this structure in the program's header. */
    size_t size;
    /* Largest number of windows. */
    uint64_t windows_most;
    /* Windows in use. */
    uint64_t windows;
    /* Windows in use from the hugetlb pool. */
    uint64_t windows_hugetlb;
    /* Windows in use given as transparent huge pages. The kernel may have split them since; `masu stat` counts. */
    uint64_t windows_thp;
    /* Windows in use on small pages. */
    uint64_t windows_small;
    /* Failed requests for windows: none available, or the limit reached. */
    uint64_t refused;
    /* Bytes handed out by masu_arena_alloc(). */
    uint64_t used_bytes;
} masu_arena_counters;

/* Session parameters. masu_track_settings_init() fills in the defaults. */
typedef struct masu_track_settings {
    /* Bytes of this structure in the program's header. */
    size_t size;
    /* Process to watch; default 0, the caller. Only root may name another. */
    int32_t pid;
    /* Real-time signal to use; default 0, an unused one. */
    int32_t signal;
    /* MASU_BY_WAITING, the default, or MASU_BY_HANDLER. */
    int32_t delivery;
    /* Number of active pages from which to notify. Default: 1. */
    uint64_t threshold_pages;
    /* Length of one observation, 10 to 600000. Default: 1280. */
    uint32_t period_ms;
    /* Least time from the beginning of one observation to that of the next. Default: 0, as fast as the tracker goes. */
    uint32_t every_ms;
    /* Page walks per second from which a page is active. Default: 0.1. */
    double hot_rate;
    /* Fraction of a window's 512 pages that must be active for a huge page. Default: 0.25, the paper's example. */
    double hot_fraction;
    /* Memory that promotion may add, as a fraction of the program's memory. Default: 0.01. */
    double max_extra_rss;
} masu_track_settings;

/* An active page: at least `hot_rate` page walks per second. */
typedef struct masu_page {
    /* Start address. */
    uint64_t address;
    /* Scans of the last observation that found it accessed: the paper's acscount. */
    uint32_t count;
    /* Page walks per second: accesses that missed the TLB. */
    float rate;
} masu_page;

/* A window: 2 MiB of address space, 512 pages of 4 KiB, at least one of them active and none on a huge page. */
typedef struct masu_window {
    /* Start address. */
    uint64_t address;
    /* Its active pages, in order of address. Valid until the callback returns. */
    const struct masu_page *pages;
    /* Number of its active pages. */
    uint32_t hot;
    /* Number of its 512 pages in memory. */
    uint32_t resident;
    /* Page walks per second of all its pages: a huge page would save these. */
    float walks;
    /* Suggestion of the default rule: MASU_PROMOTE with at least `hot_fraction` of 512 active, else MASU_COMPACT. */
    int32_t suggested;
} masu_window;

/* Decides on a window: MASU_LEAVE, MASU_COMPACT or MASU_PROMOTE; anything else leaves it. */
typedef int (*masu_decide)(const struct masu_window *window, void *user);

/*
 * Moves the hot objects of these windows elsewhere, such as into an arena. The windows are in order of address and
 * valid until it returns.
 */
typedef void (*masu_compact)(const struct masu_window *windows, size_t count, void *user);

/*
 * Called in a signal handler with the number of active pages. May call functions of signal-safety(7), and none of
 * masu's.
 */
typedef void (*masu_notify)(uint64_t active, void *user);

/* Totals since the start. */
typedef struct masu_track_counters {
    /* Bytes of this structure in the program's header. */
    size_t size;
    /* 1 while a tracker watches, else 0. */
    int32_t enabled;
    /* Signal in use, 0 when none is. */
    int32_t signal;
    /* Signals that arrived. */
    uint64_t notifications;
    /* Lists that were fetched. */
    uint64_t lists;
    /* Windows with a verdict, by verdict: left, compacted, promoted. */
    uint64_t verdicts[3];
    /* Tracker: observations. */
    uint64_t rounds;
    /* Tracker: windows made huge. */
    uint64_t promoted;
    /* Tracker: windows split again. */
    uint64_t demoted;
    /* Tracker: promotions refused by the kernel, the memory budget or a limit. */
    uint64_t refused;
    /* Tracker: memory that promotion holds beyond the earlier resident memory. */
    uint64_t extra_rss_bytes;
} masu_track_counters;

/* Decides on a window, as masu_decide. */
typedef int (*hps_decide)(const struct masu_window *window);

/* Compacts, as masu_compact. */
typedef void (*hps_compact)(const struct masu_window *windows, size_t count);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 * Fills in the defaults: the hugetlb pool first, transparent huge pages otherwise, never small pages. `bytes` has no
 * default. `size` is sizeof *settings.
 */
void masu_arena_settings_init(struct masu_arena_settings *settings, size_t size);

/*
 * Makes an arena. With an enabled context, its windows count against the tracker's limit on huge pages for the
 * program and its user; NULL for none. The context must outlive the arena.
 * Returns MASU_OK, MASU_INVALID, MASU_NO_MEMORY.
 */
int masu_arena_new(const struct masu_arena_settings *settings, struct masu_track *track, struct masu_arena **arena);

/* Frees it with all objects in it. NULL is allowed. */
void masu_arena_free(struct masu_arena *arena);

/*
 * One more window: 2 MiB, aligned to 2 MiB, filled with zeros, on a huge page.
 * Returns MASU_OK, MASU_NO_HUGE_PAGE when the arena is full, no huge page is available, or the limit is reached,
 * MASU_INVALID, MASU_BUSY when called in a signal handler that interrupts another such call.
 */
int masu_arena_window(struct masu_arena *arena, void **window);

/*
 * Memory for an object of `bytes`, at most 2 MiB, aligned to `align`, a power of two up to 4096; it never crosses a
 * window. It is freed with the arena.
 * Returns MASU_OK, MASU_NO_HUGE_PAGE and MASU_BUSY as masu_arena_window(), MASU_INVALID.
 */
int masu_arena_alloc(struct masu_arena *arena, size_t bytes, size_t align, void **object);

/* 1 if the address lies in the arena, else 0. */
int masu_arena_contains(const struct masu_arena *arena, const void *address);

/* Contents of the arena. `stats->size` is sizeof *stats. */
int masu_arena_stats(struct masu_arena *arena, struct masu_arena_counters *stats);

/* Version of the library's interface: MASU_ABI of the header that it was built with. */
int masu_abi(void);

/* Text of a result. For every number; never NULL. */
const char *masu_result_text(int result);

/* Fills in the defaults, `settings->size` too. `size` is sizeof *settings. */
void masu_track_settings_init(struct masu_track_settings *settings, size_t size);

/*
 * Makes a context, not enabled yet. With `settings` NULL it has the defaults. Several may be enabled at a time, each
 * for another process.
 * Returns MASU_OK, MASU_INVALID for values out of their bounds, MASU_NO_MEMORY.
 */
int masu_track_new(const struct masu_track_settings *settings, struct masu_track **track);

/*
 * Disables it, if need be, and frees it. NULL is allowed. Not from a callback: returns MASU_BUSY there. In a forked
 * child it frees the child's copy.
 */
int masu_track_free(struct masu_track *track);

/*
 * Sets the functions that masu_track_handle() calls; each may be NULL. `decide` is called for each window; without
 * it the tracker decides by its default rule, as `masu attach` does. `compact` gets the windows to be compacted.
 * `user` is passed on. Also allowed while enabled; from a callback of the same context MASU_BUSY.
 */
int masu_track_set_functions(struct masu_track *track, masu_decide decide, masu_compact compact, void *user);

/*
 * With MASU_BY_HANDLER: calls `notify` in the signal handler, and does no more. Without it the handler fetches,
 * decides and compacts at once, which is for programs whose functions may run in a signal handler. NULL removes it.
 */
int masu_track_set_notify(struct masu_track *track, masu_notify notify, void *user);

/*
 * Makes the tracker watch. With MASU_BY_WAITING the signal is blocked in this thread, and in threads that it starts
 * from then on. After the tracker ended, another call connects to the one that runs now.
 * Returns MASU_OK, MASU_ALREADY, MASU_NO_TRACKER, MASU_REFUSED, MASU_BUSY.
 */
int masu_track_enable(struct masu_track *track);

/*
 * Makes the tracker stop watching. No signal comes after it; the signal has its default action again, and is
 * unblocked if masu_track_enable() had blocked it in this thread. Huge pages stay.
 * Returns MASU_OK, MASU_NOT_ENABLED, MASU_BUSY.
 */
int masu_track_disable(struct masu_track *track);

/*
 * Waits for a notification, `timeout_ms` at most, or without end if that is negative, and writes the number of
 * active pages. One thread at a time; others may use the context meanwhile, and masu_track_disable() ends the wait.
 * Returns MASU_OK, MASU_NOTHING when the time is up, MASU_NOT_ENABLED, MASU_NO_TRACKER when it has ended, MASU_BUSY,
 * MASU_INVALID for a context with MASU_BY_HANDLER.
 */
int masu_track_wait(struct masu_track *track, int timeout_ms, uint64_t *active);

/*
 * The list of active pages, in order of address, and their number. Each list is returned once, the latest one. With
 * a buffer that is too small nothing is lost: call again with one for `*count` pages.
 * Returns MASU_OK, MASU_NOTHING when there is no new list, MASU_TOO_SMALL, MASU_NOT_ENABLED, MASU_NO_TRACKER.
 */
int masu_track_fetch(struct masu_track *track, struct masu_page *pages, size_t capacity, size_t *count);

/*
 * Fetches the latest list, decides for each window, tells the tracker, and has the program compact. To be called
 * after masu_track_wait(), or after `notify`. Callbacks run in this thread, before it returns.
 * Returns MASU_OK, MASU_NOTHING when there is no new list, MASU_NOT_ENABLED, MASU_NO_TRACKER, MASU_BUSY.
 */
int masu_track_handle(struct masu_track *track);

/* Totals since the start. `stats->size` is sizeof *stats. */
int masu_track_stats(struct masu_track *track, struct masu_track_counters *stats);

/* Text of the reason for the last MASU_REFUSED. Never NULL; valid for ever. */
const char *masu_track_reason(struct masu_track *track);

/*
 * Watches the program from now on, and notifies when `threshold_pages` of its pages are active (0: when one is). With
 * MASU_BY_HANDLER the functions are called in a signal handler; with MASU_BY_WAITING in the thread that calls
 * hps_wait_signal().
 * Returns MASU_OK, MASU_INVALID, MASU_ALREADY, MASU_NO_TRACKER, MASU_REFUSED, MASU_NO_MEMORY, MASU_BUSY, MASU_FORKED.
 */
int hps_enable_track(uint64_t threshold_pages, int delivery);

/*
 * Stops watching the program. To be called when a program has compacted enough (section 4.1.1), since being watched
 * costs it TLB misses.
 * Returns MASU_OK, MASU_NOT_ENABLED, MASU_BUSY, MASU_FORKED.
 */
int hps_disable_track(void);

/*
 * Sets the program's functions: `decide` for each window, and `compact` with all windows to be compacted. NULL for
 * the default rule, and for not compacting. Before or while it is enabled; from within one of them MASU_BUSY, and
 * nothing is changed.
 */
int hps_set_functions(hps_decide decide, hps_compact compact);

/*
 * Waits for a notification, `timeout_ms` at most, or without end if that is negative; then fetches the list,
 * decides, and compacts. Returns the number of active pages, 0 when the time is up, or a negative result as
 * masu_track_wait().
 */
int64_t hps_wait_signal(int timeout_ms);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MASU_H */
