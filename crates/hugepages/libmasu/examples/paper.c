/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The four functions of the paper (Shimizu and Yamada, section 5.2, table 1), used as its memcached uses them: a
 * thread waits for the signal, each window is decided on, and hot items in sparse windows are moved to huge pages.
 * When nothing is left to move, the program unregisters from the tracker (section 4.1.1).
 *
 *     cc paper.c -o paper $(pkg-config --cflags --libs masu) -lpthread
 *     masu track &                      as root
 *     ./paper
 *
 * The program has 64 windows of items, one item to a page, and uses 64 items of each window all the time: more pages
 * than the TLB holds.
 */
#define _GNU_SOURCE 1
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <masu.h>

enum { WINDOWS = 64, PAGE = 4096, PAGES = 512, WINDOW = PAGE * PAGES, HOT = 64, ITEM = 512 };

typedef struct item {
    uint64_t number;
    uint64_t uses;
    char text[ITEM - 16];
} item;

static char *pages;                  /* first place of the items: item N on page N */
static item *items[WINDOWS * PAGES]; /* present place */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static masu_arena *arena;
static size_t moved;
static atomic_int over;

/* The paper's example: from a quarter of 512 pages on a huge page, below that the program compacts. */
static int decide(const struct masu_window *window)
{
    return window->hot >= PAGES / 4 ? MASU_PROMOTE : MASU_COMPACT;
}

/* Moves the items of active pages into the arena. The library cannot do that, since it does not know the program's data
 * (section 5.2.2). */
static void compact(const struct masu_window *windows, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        if (windows[n].address - (uintptr_t)pages >= (uint64_t)WINDOWS * WINDOW)
            continue; /* a stack, or memory of a library */
        for (size_t page = 0; page < windows[n].hot; page++) {
            uint64_t address = windows[n].pages[page].address;
            size_t number = (address - (uintptr_t)pages) / PAGE;
            void *room;
            if ((uintptr_t)items[number] != address || masu_arena_alloc(arena, ITEM, 64, &room) != MASU_OK)
                continue; /* moved already, or no huge page is left */
            pthread_mutex_lock(&lock);
            memcpy(room, items[number], ITEM);
            items[number] = (item *)room;
            pthread_mutex_unlock(&lock);
            madvise((void *)(uintptr_t)address, PAGE, MADV_DONTNEED); /* the old place is no longer used */
            moved++;
        }
    }
}

static void *wait_for_signals(void *nothing)
{
    for (int idle = 0; idle < 2;) {
        size_t before = moved;
        int64_t active = hps_wait_signal(5000);
        if (active < 0) {
            fprintf(stderr, "paper: not tracked any more: %s\n", masu_result_text((int)active));
            return nothing;
        }
        printf("%" PRId64 " pages are active; %zu items moved\n", active, moved - before);
        idle = moved == before ? idle + 1 : 0;
    }
    hps_disable_track();
    printf("nothing is left to compact; not watched any more\n");
    over = 1;
    return nothing;
}

int main(void)
{
    pthread_t waiter;
    struct masu_arena_settings settings;
    char *start = (char *)mmap(NULL, (size_t)(WINDOWS + 1) * WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    masu_arena_settings_init(&settings, sizeof settings);
    settings.bytes = 16 * WINDOW;
    if (start == MAP_FAILED || masu_arena_new(&settings, NULL, &arena) != MASU_OK)
        return perror("paper: cannot get memory"), 1;
    pages = start + (WINDOW - (uintptr_t)start % WINDOW) % WINDOW;
    for (size_t n = 0; n < WINDOWS * PAGES; n++) {
        items[n] = (item *)(pages + n * PAGE);
        items[n]->number = n;
    }

    hps_set_functions(decide, compact);
    int result = hps_enable_track(1, MASU_BY_WAITING);
    if (result != MASU_OK || pthread_create(&waiter, NULL, wait_for_signals, NULL) != 0)
        return fprintf(stderr, "paper: not tracked: %s\n", masu_result_text(result)), 1;
    for (time_t end = time(NULL) + 60; !over && time(NULL) < end; usleep(100)) {
        pthread_mutex_lock(&lock);
        for (size_t hot = 0; hot < HOT; hot++)
            for (size_t n = hot * (PAGES / HOT); n < WINDOWS * PAGES; n += PAGES) {
                if (items[n]->number != n)
                    return fprintf(stderr, "paper: item %zu is lost\n", n), 1;
                items[n]->uses++;
            }
        pthread_mutex_unlock(&lock);
    }
    hps_disable_track();
    pthread_join(waiter, NULL);
    masu_arena_free(arena);
    return 0;
}
