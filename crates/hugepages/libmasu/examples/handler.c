/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A signal handler that only wakes the main loop, and a main loop that fetches the list: for programs that wait for
 * other events as well, and have no thread to spare.
 *
 *     cc handler.c -o handler $(pkg-config --cflags --libs masu)
 *     masu track &                      as root
 *     ./handler 10                      for ten seconds
 *
 * The program decides itself: its table is to be huge where it is used, against the rule if need be, and nothing
 * else is. It uses the first 48 of the table's 64 windows, in each of them 96 pages of 512, which the rule would
 * leave.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <masu.h>

enum { TABLE = 64, USED = 48, HOT = 96, PAGE = 4096, PAGES = 512, WINDOW = PAGE * PAGES };

static char *table;
static int told[2]; /* a pipe: the handler writes, the main loop reads */

/* In a signal handler: only calls that signal-safety(7) allows. A full pipe wakes the main loop already. The library
 * keeps errno. */
static void notify(uint64_t active, void *user)
{
    ssize_t written = write(told[1], &active, sizeof active);
    (void)written, (void)user;
}

/* Called for each window with active pages, in the thread that calls masu_track_handle(). */
static int decide(const struct masu_window *window, void *user)
{
    (void)user;
    return window->address - (uintptr_t)table < (uint64_t)TABLE * WINDOW ? MASU_PROMOTE : MASU_LEAVE;
}

/* The program's work: pages far apart, more than the TLB holds. */
static void work(void)
{
    for (size_t page = 0; page < HOT; page++)
        for (size_t window = 0; window < USED; window++)
            ((volatile char *)table)[window * WINDOW + page * 5 * PAGE]++;
}

static int watched(masu_track **track)
{
    struct masu_track_settings settings;
    masu_track_settings_init(&settings, sizeof settings);
    settings.delivery = MASU_BY_HANDLER;
    settings.max_extra_rss = 1.0; /* limits the program's own verdicts, too: here the table may double */
    int result = masu_track_new(&settings, track);
    if (result != MASU_OK)
        return result;
    masu_track_set_functions(*track, decide, NULL, NULL);
    masu_track_set_notify(*track, notify, NULL);
    return masu_track_enable(*track);
}

int main(int argc, char **argv)
{
    int seconds = argc > 1 ? atoi(argv[1]) : 5;
    masu_track *track = NULL;

    table = mmap(NULL, (size_t)(TABLE + 1) * WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED || pipe2(told, O_CLOEXEC | O_NONBLOCK) != 0) {
        perror("handler: cannot begin");
        return 1;
    }
    table += (WINDOW - (uintptr_t)table % WINDOW) % WINDOW;
    for (size_t page = 0; page < (size_t)TABLE * PAGES; page += 2)
        table[page * PAGE] = 1;

    int result = watched(&track);
    if (result != MASU_OK)
        fprintf(stderr, "handler: not tracked: %s; going on without\n",
                result == MASU_REFUSED ? masu_track_reason(track) : masu_result_text(result));

    for (time_t end = time(NULL) + seconds; time(NULL) < end;) {
        struct pollfd waits = { .fd = told[0], .events = POLLIN };
        uint64_t active;
        work();
        if (poll(&waits, 1, 1) < 0 && errno != EINTR) /* the signal itself interrupts it */
            break;
        while (read(told[0], &active, sizeof active) == (ssize_t)sizeof active) {
            result = masu_track_handle(track);
            printf("%" PRIu64 " pages are active: %s\n", active, masu_result_text(result));
        }
    }

    struct masu_track_counters counters;
    counters.size = sizeof counters;
    if (masu_track_stats(track, &counters) == MASU_OK)
        printf("notified %" PRIu64 " times; left %" PRIu64 ", asked for %" PRIu64 " huge windows; %" PRIu64 " were made\n",
               counters.notifications, counters.verdicts[MASU_LEAVE], counters.verdicts[MASU_PROMOTE], counters.promoted);
    masu_track_free(track);
    return 0;
}
