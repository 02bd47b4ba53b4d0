/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread that waits for the tracker: the usual way.
 *
 *     cc wait.c -o wait $(pkg-config --cflags --libs masu) -lpthread
 *     masu track &                      as root
 *     ./wait 10                         for ten seconds
 *
 * The program touches one page in each of 64 windows all the time: too little for a huge page, and enough for a call of
 * compact. It also touches all pages of 8 windows, which the tracker makes huge.
 */
#define _GNU_SOURCE 1
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <masu.h>

enum { SPARSE = 64, DENSE = 8, PAGE = 4096, PAGES = 512, WINDOW = PAGE * PAGES };

static volatile int over;

/* Hot objects of these windows could be moved elsewhere. Here they are only counted. The list covers all of the
 * program's memory: a window of its stacks may be among them. */
static void compact(const struct masu_window *windows, size_t count, void *user)
{
    size_t pages = 0;
    (void)user;
    for (size_t n = 0; n < count; n++)
        pages += windows[n].hot;
    printf("%zu windows are worth compacting, with %zu active pages\n", count, pages);
}

static void *wait_for_the_tracker(void *context)
{
    masu_track *track = context;
    uint64_t active;
    int result;
    while ((result = masu_track_wait(track, -1, &active)) == MASU_OK) {
        printf("%" PRIu64 " pages are active\n", active);
        masu_track_handle(track);
    }
    if (!over)
        fprintf(stderr, "wait: not tracked any more: %s; going on without\n", masu_result_text(result));
    return NULL;
}

int main(int argc, char **argv)
{
    int seconds = argc > 1 ? atoi(argv[1]) : 5;
    masu_track *track;
    pthread_t waiter;

    char *memory = mmap(NULL, (size_t)(SPARSE + DENSE + 1) * WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("wait: cannot get memory");
        return 1;
    }
    memory += (WINDOW - (uintptr_t)memory % WINDOW) % WINDOW;

    int result = masu_track_new(NULL, &track);
    if (result == MASU_OK) {
        masu_track_set_functions(track, NULL, compact, NULL);
        result = masu_track_enable(track);
    }
    if (result == MASU_REFUSED)
        fprintf(stderr, "wait: not tracked: %s\n", masu_track_reason(track));
    else if (result != MASU_OK)
        fprintf(stderr, "wait: not tracked: %s; going on without\n", masu_result_text(result));
    int tracked = result == MASU_OK && pthread_create(&waiter, NULL, wait_for_the_tracker, track) == 0;

    volatile char *touched = memory;
    for (time_t end = time(NULL) + seconds; time(NULL) < end;) {
        for (size_t window = 0; window < SPARSE; window++)
            touched[window * WINDOW]++;
        for (size_t page = 0; page < DENSE * PAGES; page++)
            touched[(size_t)SPARSE * WINDOW + page * PAGE]++;
        usleep(1000);
    }

    struct masu_track_counters counters;
    counters.size = sizeof counters;
    if (masu_track_stats(track, &counters) == MASU_OK)
        printf("notified %" PRIu64 " times; %" PRIu64 " windows were made huge\n", counters.notifications, counters.promoted);
    over = 1;
    masu_track_disable(track); /* which ends the wait */
    if (tracked)
        pthread_join(waiter, NULL);
    masu_track_free(track);
    return 0;
}
