/*
 * A cooperating program, for tests: `track_client PART` does one thing with libmasu, and ends with "right", or prints the error.
 * MASU_TRACK holds the socket of the tracker; the caller sets it.
 *
 * Longer than 600 lines because virtual machines get each test program as one file; each part is independent.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "masu.h"

enum { PAGE = 4096, PAGES = 512, WINDOW = PAGE * PAGES };

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: not %s (errno %d)\n", __LINE__, #condition, errno); \
            fflush(stdout); \
            _exit(1); \
        } \
    } while (0)

static volatile char *memory;
static size_t windows;

/* Allocates `count` windows, aligned; every page written. */
static void get_memory(size_t count)
{
    char *start = mmap(NULL, (count + 1) * WINDOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    start += (WINDOW - (uintptr_t)start % WINDOW) % WINDOW;
    memory = start;
    windows = count;
    for (size_t page = 0; page < count * PAGES; page++)
        memory[page * PAGE] = (char)page;
}

/* Pages touched continuously in each window: the first `hot_pages`, or all. */
static volatile size_t hot_pages = 2;
static volatile int rests;

/*
 * A page whose translation stays in the TLB looks untouched: an emulated processor, and a real one with nothing else to do, keeps
 * the few of these programs for minutes. When more than 33 pages lose a right at once, all of the address space is flushed.
 */
static void forget_translations(void)
{
    static char *some;
    const size_t bytes = 64 * PAGE;
    if (some == NULL) {
        some = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        CHECK(some != MAP_FAILED);
    }
    CHECK(mprotect(some, bytes, PROT_READ) == 0 && mprotect(some, bytes, PROT_READ | PROT_WRITE) == 0);
    for (size_t page = 0; page < 64; page++)
        some[page * PAGE]++;
}

static void *touch(void *nothing)
{
    while (!rests) {
        for (size_t page = 0; page < hot_pages; page++)
            for (size_t window = 0; window < windows; window++)
                (void)memory[window * WINDOW + page * PAGE];
        forget_translations();
        usleep(500);
    }
    return nothing;
}

static pthread_t toucher;

static void begin_touching(void)
{
    CHECK(pthread_create(&toucher, NULL, touch, NULL) == 0);
}

static masu_track *made(int32_t delivery, uint64_t threshold)
{
    masu_track_settings settings;
    masu_track *track = NULL;
    masu_track_settings_init(&settings, sizeof settings);
    settings.delivery = delivery;
    settings.threshold_pages = threshold;
    settings.period_ms = 200;
    CHECK(masu_track_new(&settings, &track) == MASU_OK && track != NULL);
    return track;
}

static int64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Bytes of `memory` on huge pages, as the kernel counts them. */
static size_t huge_bytes(void)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    int ours = 0;
    size_t sum = 0, kib;
    CHECK(smaps != NULL);
    while (fgets(line, sizeof line, smaps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            ours = start < (uintptr_t)memory + windows * WINDOW && end > (uintptr_t)memory;
        else if (ours && sscanf(line, "AnonHugePages: %zu kB", &kib) == 1)
            sum += kib * 1024;
    }
    fclose(smaps);
    return sum;
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static int handlers(void)
{
    int count = 0;
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++) {
        struct sigaction now;
        CHECK(sigaction(signal, NULL, &now) == 0);
        count += now.sa_handler != SIG_DFL;
    }
    return count;
}

static int blocked(void)
{
    sigset_t now;
    int count = 0;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
        count += sigismember(&now, signal);
    return count;
}

/* ---- without a tracker */

static void invalid(void)
{
    masu_track *track = made(MASU_BY_WAITING, 1);
    masu_track_settings settings;
    masu_track_counters counters = { .size = sizeof counters };
    masu_arena_settings arena_settings;
    masu_arena_counters arena_counters = { .size = sizeof arena_counters };
    masu_arena *arena = NULL;
    masu_page page;
    size_t count;
    void *place;

    CHECK(masu_abi() == MASU_ABI);
    for (int result = -20; result < 20; result++)
        CHECK(strlen(masu_result_text(result)) > 3);
    masu_track_settings_init(NULL, 8);
    masu_arena_settings_init(NULL, 8);
    CHECK(masu_track_new(NULL, NULL) == MASU_INVALID);
    CHECK(masu_track_enable(NULL) == MASU_INVALID);
    CHECK(masu_track_disable(NULL) == MASU_INVALID);
    CHECK(masu_track_set_functions(NULL, NULL, NULL, NULL) == MASU_INVALID);
    CHECK(masu_track_set_notify(NULL, NULL, NULL) == MASU_INVALID);
    CHECK(masu_track_wait(NULL, 0, NULL) == MASU_INVALID);
    CHECK(masu_track_handle(NULL) == MASU_INVALID);
    CHECK(masu_track_fetch(NULL, NULL, 0, &count) == MASU_INVALID);
    CHECK(masu_track_fetch(track, NULL, 0, NULL) == MASU_INVALID);
    CHECK(masu_track_fetch(track, NULL, 1, &count) == MASU_INVALID);
    CHECK(masu_track_stats(NULL, &counters) == MASU_INVALID && masu_track_stats(track, NULL) == MASU_INVALID);
    CHECK(masu_track_free(NULL) == MASU_OK);
    CHECK(strlen(masu_track_reason(NULL)) > 3 && strlen(masu_track_reason(track)) > 3);

#define BAD(field, value) \
    masu_track_settings_init(&settings, sizeof settings); \
    settings.field = value; \
    CHECK(masu_track_new(&settings, &track) == MASU_INVALID)
    BAD(size, 0);
    BAD(size, sizeof settings + 8);
    BAD(pid, -1);
    BAD(signal, 9);
    BAD(delivery, 7);
    BAD(threshold_pages, 0);
    BAD(period_ms, 9);
    BAD(period_ms, 600001);
    BAD(hot_rate, -1);
    BAD(hot_fraction, 0);
    BAD(hot_fraction, 1.5);
    BAD(max_extra_rss, -1);

    /* A program that was built with an older header has a shorter structure. */
    masu_track_settings_init(&settings, sizeof settings);
    settings.size = offsetof(masu_track_settings, hot_rate);
    settings.hot_rate = -1;
    masu_track *older;
    CHECK(masu_track_new(&settings, &older) == MASU_OK && masu_track_free(older) == MASU_OK);
    counters.size = offsetof(masu_track_counters, lists);
    counters.lists = 77;
    CHECK(masu_track_stats(track, &counters) == MASU_OK && counters.lists == 77 && counters.enabled == 0);
    counters.size = 4;
    CHECK(masu_track_stats(track, &counters) == MASU_INVALID);

    /* Not enabled. */
    CHECK(masu_track_disable(track) == MASU_NOT_ENABLED);
    CHECK(masu_track_wait(track, 0, NULL) == MASU_NOT_ENABLED);
    CHECK(masu_track_handle(track) == MASU_NOT_ENABLED);
    CHECK(masu_track_fetch(track, &page, 1, &count) == MASU_NOT_ENABLED && count == 0);
    CHECK(masu_track_free(track) == MASU_OK);
    CHECK(hps_disable_track() == MASU_NOT_ENABLED && hps_wait_signal(0) == MASU_NOT_ENABLED);
    CHECK(hps_set_functions(NULL, NULL) == MASU_OK && hps_enable_track(1, 5) == MASU_INVALID);

    masu_arena_settings_init(&arena_settings, sizeof arena_settings);
    CHECK(masu_arena_new(NULL, NULL, &arena) == MASU_INVALID && masu_arena_new(&arena_settings, NULL, NULL) == MASU_INVALID);
    CHECK(masu_arena_new(&arena_settings, NULL, &arena) == MASU_INVALID);
    arena_settings.bytes = UINT64_MAX;
    CHECK(masu_arena_new(&arena_settings, NULL, &arena) == MASU_INVALID);
    arena_settings.bytes = (uint64_t)1 << 50;
    CHECK(masu_arena_new(&arena_settings, NULL, &arena) == MASU_NO_MEMORY && arena == NULL);
    masu_arena_free(NULL);
    CHECK(masu_arena_window(NULL, &place) == MASU_INVALID && masu_arena_alloc(NULL, 1, 1, &place) == MASU_INVALID);
    CHECK(masu_arena_contains(NULL, &page) == 0 && masu_arena_stats(NULL, &arena_counters) == MASU_INVALID);
}

/* Nothing is done, and nothing stays. */
static void alone(void)
{
    int before[] = { descriptors(), handlers(), blocked() };
    masu_track *track = made(MASU_BY_WAITING, 1);
    CHECK(masu_track_enable(track) == MASU_NO_TRACKER);
    CHECK(masu_track_enable(track) == MASU_NO_TRACKER);
    CHECK(masu_track_wait(track, 10, NULL) == MASU_NOT_ENABLED);
    CHECK(hps_enable_track(1, MASU_BY_WAITING) == MASU_NO_TRACKER);
    CHECK(descriptors() == before[0] && handlers() == before[1] && blocked() == before[2]);
    CHECK(masu_track_free(track) == MASU_OK);
    CHECK(access("/proc/self/task", F_OK) == 0);
    int tasks = 0;
    DIR *folder = opendir("/proc/self/task");
    while (readdir(folder))
        tasks++;
    CHECK(tasks == 3);
}

static int windows_seen;

static int see(const masu_window *window, void *nothing)
{
    (void)nothing;
    /* Each listed page is readable, whatever the tracker says. */
    uint64_t sum = 0;
    for (uint32_t page = 0; page < window->hot; page++)
        sum += window->pages[page].address;
    CHECK(window->hot <= PAGES && sum + 1 != 0);
    windows_seen++;
    return MASU_LEAVE;
}

/* A tracker that lies. The caller knows the lie and judges the outcome. */
static void lied(void)
{
    int before = descriptors();
    masu_track *track = made(MASU_BY_WAITING, 1);
    CHECK(masu_track_set_functions(track, see, NULL, NULL) == MASU_OK);
    int result = masu_track_enable(track);
    printf("enable %d", result);
    if (result == MASU_OK) {
        result = masu_track_handle(track);
        printf(" handle %d windows %d wait %d", result, windows_seen, masu_track_wait(track, 0, NULL));
    }
    printf("\n");
    CHECK(masu_track_free(track) == MASU_OK);
    CHECK(descriptors() == before);
}

/* ---- the arena */

static void arena(void)
{
    masu_arena_settings settings;
    masu_arena *arena;
    masu_arena_counters counters = { .size = sizeof counters };
    void *last = NULL, *object;

    masu_arena_settings_init(&settings, sizeof settings);
    settings.bytes = 3 * WINDOW + 1;
    settings.small_pages_too = 1;
    CHECK(masu_arena_new(&settings, NULL, &arena) == MASU_OK);
    CHECK(masu_arena_stats(arena, &counters) == MASU_OK && counters.windows_most == 4 && counters.windows == 0);
    CHECK(masu_arena_alloc(arena, 0, 8, &object) == MASU_INVALID);
    CHECK(masu_arena_alloc(arena, WINDOW + 1, 8, &object) == MASU_INVALID);
    CHECK(masu_arena_alloc(arena, 8, 3, &object) == MASU_INVALID);
    CHECK(masu_arena_alloc(arena, 8, 8192, &object) == MASU_INVALID);
    CHECK(masu_arena_alloc(arena, 8, 8, NULL) == MASU_INVALID && masu_arena_window(arena, NULL) == MASU_INVALID);

    size_t objects = 0;
    int result;
    while ((result = masu_arena_alloc(arena, 1000, 64, &object)) == MASU_OK) {
        CHECK((uintptr_t)object % 64 == 0 && (uintptr_t)object / WINDOW == ((uintptr_t)object + 999) / WINDOW);
        CHECK(masu_arena_contains(arena, object) && masu_arena_contains(arena, (char *)object + 999));
        CHECK(last == NULL || (char *)object >= (char *)last + 1000);
        for (size_t byte = 0; byte < 1000; byte++)
            CHECK(((char *)object)[byte] == 0);
        memset(object, 1, 1000);
        last = object;
        objects++;
    }
    CHECK(result == MASU_NO_HUGE_PAGE && objects == 4 * (WINDOW / 1024));
    CHECK(!masu_arena_contains(arena, &objects) && !masu_arena_contains(arena, NULL));
    CHECK(masu_arena_stats(arena, &counters) == MASU_OK);
    CHECK(counters.windows == 4 && counters.refused == 1 && counters.used_bytes == objects * 1000);
    CHECK(counters.windows_hugetlb + counters.windows_thp + counters.windows_small == 4);
    printf("hugetlb %" PRIu64 " thp %" PRIu64 " small %" PRIu64 "\n", counters.windows_hugetlb, counters.windows_thp, counters.windows_small);
    masu_arena_free(arena);

    masu_arena_settings_init(&settings, sizeof settings);
    settings.bytes = 2 * WINDOW;
    settings.small_pages_too = 1;
    CHECK(masu_arena_new(&settings, NULL, &arena) == MASU_OK);
    CHECK(masu_arena_window(arena, &object) == MASU_OK && (uintptr_t)object % WINDOW == 0);
    memset(object, 1, WINDOW);
    CHECK(masu_arena_window(arena, &last) == MASU_OK && last == (char *)object + WINDOW);
    CHECK(((char *)last)[0] == 0 && masu_arena_window(arena, &last) == MASU_NO_HUGE_PAGE);
    masu_arena_free(arena);
}

/* ---- with a tracker */

/* Twice, and not at all; each time all is as it was. */
static void twice(void)
{
    int before[] = { descriptors(), handlers(), blocked() };
    masu_track *track = made(MASU_BY_WAITING, 1), *other = made(MASU_BY_WAITING, 1);
    for (int round = 0; round < 5; round++) {
        CHECK(masu_track_enable(track) == MASU_OK);
        CHECK(handlers() == before[1] + 1 && blocked() == before[2] + 1);
        CHECK(masu_track_enable(track) == MASU_ALREADY);
        /* A process is watched only once. */
        CHECK(masu_track_enable(other) == MASU_REFUSED && strstr(masu_track_reason(other), "already") != NULL);
        masu_track_counters counters = { .size = sizeof counters };
        CHECK(masu_track_stats(track, &counters) == MASU_OK && counters.enabled == 1 && counters.signal >= SIGRTMIN);
        CHECK(masu_track_disable(track) == MASU_OK);
        CHECK(masu_track_disable(track) == MASU_NOT_ENABLED);
        CHECK(descriptors() == before[0] && handlers() == before[1] && blocked() == before[2]);
    }
    CHECK(masu_track_enable(track) == MASU_OK && masu_track_free(track) == MASU_OK);
    CHECK(masu_track_free(other) == MASU_OK);
    CHECK(descriptors() == before[0] && handlers() == before[1] && blocked() == before[2]);

    /* A signal that the program uses itself is left to it. */
    masu_track_settings settings;
    masu_track_settings_init(&settings, sizeof settings);
    settings.signal = SIGRTMIN + 1;
    signal(SIGRTMIN + 1, SIG_IGN);
    CHECK(masu_track_new(&settings, &track) == MASU_OK);
    CHECK(masu_track_enable(track) == MASU_REFUSED && strstr(masu_track_reason(track), "signal") != NULL);
    signal(SIGRTMIN + 1, SIG_DFL);
    CHECK(masu_track_enable(track) == MASU_OK && masu_track_free(track) == MASU_OK);
}

/* The list names the pages that are touched, and no others of that memory. */
static void list(void)
{
    get_memory(64);
    hot_pages = 100;
    begin_touching();
    masu_track *track = made(MASU_BY_WAITING, 64 * 100);
    CHECK(masu_track_enable(track) == MASU_OK);
    int right = 0;
    for (int round = 0; round < 20 && !right; round++) {
        uint64_t active = 0;
        size_t count = 0, found = 0, none;
        CHECK(masu_track_wait(track, 20000, &active) == MASU_OK && active >= 64 * 100);
        CHECK(masu_track_fetch(track, NULL, 0, &count) == MASU_TOO_SMALL && count >= 64 * 100);
        masu_page *pages = calloc(count, sizeof *pages);
        CHECK(masu_track_fetch(track, pages, count - 1, &count) == MASU_TOO_SMALL);
        CHECK(masu_track_fetch(track, pages, count, &count) == MASU_OK);
        int only_those = 1;
        for (size_t n = 0; n < count; n++) {
            CHECK(pages[n].address % PAGE == 0 || pages[n].address == 0);
            uint64_t offset = pages[n].address - (uintptr_t)memory;
            if (offset < windows * WINDOW) {
                only_those &= offset % WINDOW / PAGE < hot_pages && pages[n].count > 0 && pages[n].rate > 0;
                found++;
            }
        }
        /* The first rounds may see earlier writes. */
        right = only_those && found == 64 * 100;
        /* Each list is given once. */
        int again = masu_track_fetch(track, pages, count, &none);
        CHECK((again == MASU_NOTHING && none == 0) || again == MASU_OK || again == MASU_TOO_SMALL);
        free(pages);
    }
    CHECK(right);
    rests = 1;
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(track) == MASU_OK);
}

/* The program decides: a sparse window is promoted, dense ones are left. */
static int decide(const masu_window *window, void *user)
{
    CHECK(window->hot >= 1 && window->hot <= 512 && window->resident >= window->hot);
    CHECK(window->suggested == MASU_PROMOTE || window->suggested == MASU_COMPACT);
    CHECK(window->pages[0].address >= window->address && window->pages[0].address < window->address + WINDOW);
    ++*(int *)user;
    if (window->address == (uintptr_t)memory + 5 * WINDOW)
        return MASU_PROMOTE;
    return window->address == (uintptr_t)memory + 6 * WINDOW ? 12345 : MASU_LEAVE;
}

static void decides(void)
{
    int asked = 0;
    get_memory(8);
    hot_pages = 300;
    begin_touching();
    masu_track *track = made(MASU_BY_WAITING, 100);
    CHECK(masu_track_set_functions(track, decide, NULL, &asked) == MASU_OK);
    CHECK(masu_track_enable(track) == MASU_OK);
    for (int64_t end = now_ms() + 30000; huge_bytes() == 0 && now_ms() < end;)
        if (masu_track_wait(track, 1000, NULL) == MASU_OK)
            CHECK(masu_track_handle(track) >= 0);
    CHECK(asked > 0 && huge_bytes() == WINDOW);
    for (int round = 0; round < 3; round++)
        if (masu_track_wait(track, 1000, NULL) == MASU_OK)
            CHECK(masu_track_handle(track) >= 0);
    CHECK(huge_bytes() == WINDOW);
    masu_track_counters counters = { .size = sizeof counters };
    CHECK(masu_track_stats(track, &counters) == MASU_OK && counters.promoted == 1);
    CHECK(counters.verdicts[MASU_PROMOTE] >= 1 && counters.verdicts[MASU_LEAVE] >= 7);

    /* Without its word the rule decides. */
    CHECK(masu_track_set_functions(track, NULL, NULL, NULL) == MASU_OK);
    for (int64_t end = now_ms() + 60000; huge_bytes() < 8 * WINDOW && now_ms() < end;)
        usleep(50000);
    CHECK(huge_bytes() == 8 * WINDOW);
    rests = 1;
    pthread_join(toucher, NULL);
    for (size_t page = 0; page < windows * PAGES; page++)
        CHECK(memory[page * PAGE] == (char)page);
    CHECK(masu_track_free(track) == MASU_OK);
}

/* Callbacks that call back, and that take their time. */
static masu_track *calling;
static volatile int compacted, slow_ms;

static void compact(const masu_window *list, size_t count, void *user)
{
    masu_track_counters counters = { .size = sizeof counters };
    uint64_t active;
    size_t pages;
    (void)user;
    CHECK(count > 0 && list[0].hot > 0);
    for (size_t n = 1; n < count; n++)
        CHECK(list[n].address > list[n - 1].address);
    CHECK(masu_track_enable(calling) == MASU_BUSY && masu_track_disable(calling) == MASU_BUSY);
    CHECK(masu_track_handle(calling) == MASU_BUSY && masu_track_fetch(calling, NULL, 0, &pages) == MASU_BUSY);
    CHECK(masu_track_stats(calling, &counters) == MASU_BUSY && masu_track_wait(calling, 0, &active) <= MASU_OK);
    CHECK(masu_track_set_functions(calling, NULL, NULL, NULL) == MASU_BUSY && masu_track_free(calling) == MASU_BUSY);
    usleep(slow_ms * 1000);
    compacted++;
}

static void back(void)
{
    get_memory(32);
    begin_touching();
    calling = made(MASU_BY_WAITING, 32);
    CHECK(masu_track_set_functions(calling, NULL, compact, NULL) == MASU_OK && masu_track_enable(calling) == MASU_OK);
    slow_ms = 1000;
    for (int round = 0; round < 3; round++) {
        CHECK(masu_track_wait(calling, 30000, NULL) == MASU_OK);
        CHECK(masu_track_handle(calling) >= 0);
    }
    CHECK(compacted >= 2);
    /* While it took its time the signals were one: the tracker waits for the list to be fetched. */
    masu_track_counters counters = { .size = sizeof counters };
    CHECK(masu_track_stats(calling, &counters) == MASU_OK && counters.notifications <= 5);
    rests = 1;
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(calling) == MASU_OK);
}

/* A copy of a registered program does nothing with its parent's context, and may have one of its own. */
static void forked(void)
{
    masu_track *track = made(MASU_BY_WAITING, 1);
    get_memory(8);
    begin_touching();
    CHECK(masu_track_enable(track) == MASU_OK && hps_enable_track(1, MASU_BY_WAITING) == MASU_REFUSED);
    pid_t child = fork();
    if (child == 0) {
        size_t count;
        masu_track_counters counters = { .size = sizeof counters };
        CHECK(masu_track_enable(track) == MASU_FORKED && masu_track_disable(track) == MASU_FORKED);
        CHECK(masu_track_wait(track, 1000, NULL) == MASU_FORKED && masu_track_handle(track) == MASU_FORKED);
        CHECK(masu_track_fetch(track, NULL, 0, &count) == MASU_FORKED && masu_track_stats(track, &counters) == MASU_FORKED);
        CHECK(masu_track_free(track) == MASU_OK);
        masu_track *own = made(MASU_BY_WAITING, 1);
        CHECK(masu_track_enable(own) == MASU_OK && masu_track_wait(own, 1000, NULL) >= MASU_OK);
        CHECK(masu_track_free(own) == MASU_OK);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int round = 0; round < 2; round++) {
        CHECK(masu_track_wait(track, 20000, NULL) == MASU_OK && masu_track_handle(track) >= MASU_OK);
    }
    rests = 1;
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(track) == MASU_OK);
}

/* A handler, while all threads use the context as fast as they can. */
static volatile uint64_t notified, notified_active;

static void notify(uint64_t active, void *user)
{
    CHECK(user == &compacted && active >= 8 && errno != -1);
    notified++;
    notified_active = active;
    CHECK(masu_track_disable(calling) == MASU_BUSY && masu_track_free(calling) == MASU_BUSY);
}

static void *use(void *nothing)
{
    masu_track_counters counters = { .size = sizeof counters };
    while (!rests) {
        errno = 4711;
        for (volatile int n = 0; n < 100000; n++) { }
        CHECK(errno == 4711);
        CHECK(masu_track_stats(calling, &counters) == MASU_OK);
        CHECK(masu_track_handle(calling) >= MASU_OK);
        CHECK(masu_track_wait(calling, 0, NULL) == MASU_INVALID);
    }
    return nothing;
}

static void handler(void)
{
    pthread_t users[3];
    get_memory(8);
    begin_touching();
    calling = made(MASU_BY_HANDLER, 8);
    CHECK(masu_track_set_notify(calling, notify, (void *)&compacted) == MASU_OK);
    CHECK(masu_track_enable(calling) == MASU_OK);
    for (int n = 0; n < 3; n++)
        CHECK(pthread_create(&users[n], NULL, use, NULL) == 0);
    for (int64_t end = now_ms() + 60000; notified < 10 && now_ms() < end;)
        usleep(10000);
    rests = 1;
    for (int n = 0; n < 3; n++)
        pthread_join(users[n], NULL);
    pthread_join(toucher, NULL);
    CHECK(notified >= 10 && notified_active >= 8);

    /* Without a notify function the handler does all of it. */
    rests = 0;
    slow_ms = 0;
    begin_touching();
    CHECK(masu_track_set_notify(calling, NULL, NULL) == MASU_OK);
    CHECK(masu_track_set_functions(calling, NULL, compact, NULL) == MASU_OK);
    for (int64_t end = now_ms() + 60000; compacted < 3 && now_ms() < end;)
        usleep(10000);
    CHECK(compacted >= 3);
    rests = 1;
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(calling) == MASU_OK);
}

/* The paper's functions. */
static volatile int paper_decided, paper_compacted;

static int paper_decide(const masu_window *window)
{
    paper_decided++;
    return window->hot >= 128 ? MASU_PROMOTE : MASU_COMPACT;
}

static void paper_compact(const masu_window *list, size_t count)
{
    CHECK(count > 0 && list != NULL && hps_disable_track() == MASU_BUSY);
    paper_compacted++;
}

static void paper(void)
{
    get_memory(8);
    begin_touching();
    CHECK(hps_set_functions(paper_decide, paper_compact) == MASU_OK);
    CHECK(hps_enable_track(8, MASU_BY_WAITING) == MASU_OK && hps_enable_track(8, MASU_BY_WAITING) == MASU_ALREADY);
    CHECK(hps_wait_signal(30000) >= 8 && paper_decided >= 8 && paper_compacted == 1);
    CHECK(hps_disable_track() == MASU_OK && hps_disable_track() == MASU_NOT_ENABLED);
    CHECK(hps_wait_signal(0) == MASU_NOT_ENABLED);
    paper_compacted = 0;
    CHECK(hps_enable_track(0, MASU_BY_HANDLER) == MASU_OK);
    for (int64_t end = now_ms() + 60000; paper_compacted == 0 && now_ms() < end;)
        usleep(10000);
    CHECK(paper_compacted > 0 && hps_wait_signal(0) == MASU_INVALID);
    /* While a handler may be running. */
    CHECK(hps_set_functions(NULL, NULL) == MASU_OK && hps_disable_track() == MASU_OK);
    rests = 1;
    pthread_join(toucher, NULL);
}

/* A thread that does not block the signal gets it first; the one that waits is woken all the same. */
static void *spin(void *nothing)
{
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    while (!rests)
        sched_yield();
    return nothing;
}

static void *wait_in_thread(void *track)
{
    uint64_t active = 0;
    for (int round = 0; round < 3; round++) {
        CHECK(masu_track_wait(track, 30000, &active) == MASU_OK && active > 0);
        CHECK(masu_track_handle(track) >= MASU_OK);
    }
    return NULL;
}

static void *wait_to_the_end(void *track)
{
    int result;
    while ((result = masu_track_wait(track, -1, NULL)) == MASU_OK) { }
    CHECK(result == MASU_NOT_ENABLED);
    return NULL;
}

static void stray(void)
{
    pthread_t spinner, waiter;
    masu_track *track = made(MASU_BY_WAITING, 1);
    get_memory(4);
    begin_touching();
    CHECK(pthread_create(&spinner, NULL, spin, NULL) == 0);
    CHECK(masu_track_enable(track) == MASU_OK);
    CHECK(pthread_create(&waiter, NULL, wait_in_thread, track) == 0);
    usleep(20000);
    CHECK(masu_track_wait(track, 0, NULL) == MASU_BUSY);
    pthread_join(waiter, NULL);
    /* Disabling ends a wait. */
    CHECK(pthread_create(&waiter, NULL, wait_to_the_end, track) == 0);
    usleep(50000);
    CHECK(masu_track_disable(track) == MASU_OK);
    pthread_join(waiter, NULL);
    /* A thread that is cancelled while it waits leaves nothing behind. */
    CHECK(masu_track_enable(track) == MASU_OK);
    CHECK(pthread_create(&waiter, NULL, wait_to_the_end, track) == 0);
    usleep(50000);
    pthread_cancel(waiter);
    CHECK(masu_track_disable(track) == MASU_OK);
    pthread_join(waiter, NULL);
    rests = 1;
    pthread_join(spinner, NULL);
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(track) == MASU_OK);
}

/* Replaces the program by exec, while signals may be on their way: the new one goes on. */
static void replaced(char *self)
{
    masu_track_settings settings;
    masu_track *track;
    masu_track_settings_init(&settings, sizeof settings);
    settings.period_ms = 10;
    settings.delivery = MASU_BY_HANDLER;
    get_memory(2);
    begin_touching();
    CHECK(masu_track_new(&settings, &track) == MASU_OK && masu_track_enable(track) == MASU_OK);
    masu_track_counters counters = { .size = sizeof counters };
    for (int64_t end = now_ms() + 20000; counters.notifications == 0 && now_ms() < end;)
        CHECK(masu_track_stats(track, &counters) == MASU_OK);
    CHECK(counters.notifications > 0);
    execl(self, self, "rest", (char *)NULL);
    CHECK(!"exec");
}

/* Reports when it is watched, and when the tracker has ended; then asks for the next one until there is one. */
static void outlives(void)
{
    masu_track *track = made(MASU_BY_WAITING, 1);
    get_memory(4);
    begin_touching();
    CHECK(masu_track_enable(track) == MASU_OK);
    int result;
    while ((result = masu_track_wait(track, -1, NULL)) == MASU_OK) {
        CHECK((result = masu_track_handle(track)) >= MASU_OK || result == MASU_NO_TRACKER);
        printf("watched\n");
        fflush(stdout);
    }
    CHECK(result == MASU_NO_TRACKER && masu_track_handle(track) == MASU_NO_TRACKER);
    printf("alone\n");
    fflush(stdout);
    for (int64_t end = now_ms() + 60000; (result = masu_track_enable(track)) == MASU_NO_TRACKER && now_ms() < end;)
        usleep(20000);
    CHECK(result == MASU_OK && masu_track_wait(track, 30000, NULL) == MASU_OK && masu_track_handle(track) >= MASU_OK);
    rests = 1;
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(track) == MASU_OK);
}

/* Only root may register another process. */
static void others(void)
{
    masu_track_settings settings;
    masu_track *track;
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        /* Lives as long as its parent, and without the parent's output pipe. */
        fclose(stdout);
        fclose(stderr);
        get_memory(4);
        hot_pages = 400;
        begin_touching();
        while (getppid() == parent)
            usleep(10000);
        _exit(0);
    }
    masu_track_settings_init(&settings, sizeof settings);
    settings.period_ms = 200;
    settings.pid = child;
    CHECK(masu_track_new(&settings, &track) == MASU_OK);
    CHECK(masu_track_enable(track) == MASU_OK && masu_track_wait(track, 30000, NULL) == MASU_OK);
    CHECK(masu_track_disable(track) == MASU_OK);
    CHECK(setresuid(65534, 65534, 65534) == 0);
    CHECK(masu_track_enable(track) == MASU_REFUSED && strstr(masu_track_reason(track), "root") != NULL);
    CHECK(masu_track_free(track) == MASU_OK);
    settings.pid = 0;
    CHECK(masu_track_new(&settings, &track) == MASU_OK && masu_track_enable(track) == MASU_OK && masu_track_free(track) == MASU_OK);
}

/* A callback that takes windows, while another thread does, too: neither waits for the other for ever. */
static masu_arena *filled;
static pthread_t taker;

static void *take_windows(void *nothing)
{
    void *window;
    for (int n = 0; n < 200; n++)
        CHECK(masu_arena_window(filled, &window) == MASU_NO_HUGE_PAGE);
    return nothing;
}

static void fill(const masu_window *list, size_t count, void *user)
{
    void *window;
    (void)list, (void)count, (void)user;
    if (!compacted)
        CHECK(pthread_create(&taker, NULL, take_windows, NULL) == 0);
    for (int n = 0; n < 200; n++)
        CHECK(masu_arena_window(filled, &window) == MASU_NO_HUGE_PAGE && masu_arena_alloc(filled, 64, 64, &window) == MASU_NO_HUGE_PAGE);
    compacted++;
}

/* Two windows are granted: for an arena, or for promotion. */
static void limited(void)
{
    masu_arena_settings settings;
    masu_arena *arena;
    masu_arena_counters counters = { .size = sizeof counters };
    masu_track *track = made(MASU_BY_WAITING, 1);
    void *window;
    CHECK(masu_track_enable(track) == MASU_OK);
    masu_arena_settings_init(&settings, sizeof settings);
    settings.bytes = 8 * WINDOW;
    settings.no_hugetlb = 1;
    CHECK(masu_arena_new(&settings, track, &arena) == MASU_OK);
    CHECK(masu_arena_window(arena, &window) == MASU_OK && masu_arena_window(arena, &window) == MASU_OK);
    CHECK(masu_arena_window(arena, &window) == MASU_NO_HUGE_PAGE);
    CHECK(masu_arena_stats(arena, &counters) == MASU_OK && counters.windows == 2 && counters.refused == 1 && counters.windows_thp == 2);
    /* The limit is the context's, not each arena's; and a callback is no way around it. */
    masu_arena *second;
    CHECK(masu_arena_new(&settings, track, &second) == MASU_OK && masu_arena_window(second, &window) == MASU_NO_HUGE_PAGE);
    masu_arena_free(second);
    CHECK(masu_arena_window(arena, &window) == MASU_NO_HUGE_PAGE);
    filled = arena;
    CHECK(masu_track_set_functions(track, NULL, fill, NULL) == MASU_OK);
    get_memory(8);
    hot_pages = 2;
    begin_touching();
    while (!compacted)
        CHECK(masu_track_wait(track, 30000, NULL) == MASU_OK && masu_track_handle(track) >= MASU_OK);
    rests = 1;
    pthread_join(taker, NULL);
    pthread_join(toucher, NULL);
    rests = 0;
    masu_arena_free(arena);
    CHECK(masu_track_set_functions(track, NULL, NULL, NULL) == MASU_OK);

    hot_pages = 400;
    begin_touching();
    for (int64_t end = now_ms() + 30000; huge_bytes() < 2 * WINDOW && now_ms() < end;)
        usleep(50000);
    usleep(1500000);
    CHECK(huge_bytes() == 2 * WINDOW);
    masu_track_counters told = { .size = sizeof told };
    CHECK(masu_track_stats(track, &told) == MASU_OK && told.promoted >= 2 && told.refused >= 6);
    rests = 1;
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(track) == MASU_OK);
}

/* Two programs and one limit: the one that saves more has the windows in the end, though it came later. */
static void weak(void)
{
    masu_track *track = made(MASU_BY_WAITING, 1);
    get_memory(2);
    CHECK(masu_track_enable(track) == MASU_OK);
    int held = 0;
    for (int64_t end = now_ms() + 120000; now_ms() < end;) {
        /* Few more than make a window hot, once or twice in each observation. */
        for (size_t page = 0; page < 140; page++)
            for (size_t window = 0; window < windows; window++)
                memory[window * WINDOW + page * PAGE]++;
        forget_translations();
        usleep(100000);
        if (!held && huge_bytes() == 2 * WINDOW) {
            held = 1;
            printf("held\n");
            fflush(stdout);
        } else if (held && huge_bytes() == 0) {
            held = 2;
            break;
        }
    }
    CHECK(held == 2);
    CHECK(masu_track_free(track) == MASU_OK);
}

static void strong(void)
{
    masu_track *track = made(MASU_BY_WAITING, 1);
    get_memory(8);
    hot_pages = PAGES;
    begin_touching();
    CHECK(masu_track_enable(track) == MASU_OK);
    for (int64_t end = now_ms() + 120000; huge_bytes() < 2 * WINDOW && now_ms() < end;)
        usleep(50000);
    usleep(3000000);
    CHECK(huge_bytes() == 2 * WINDOW);
    rests = 1;
    pthread_join(toucher, NULL);
    CHECK(masu_track_free(track) == MASU_OK);
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    if (!strcmp(part, "invalid")) invalid();
    else if (!strcmp(part, "alone")) alone();
    else if (!strcmp(part, "lied")) lied();
    else if (!strcmp(part, "arena")) arena();
    else if (!strcmp(part, "twice")) twice();
    else if (!strcmp(part, "list")) list();
    else if (!strcmp(part, "decides")) decides();
    else if (!strcmp(part, "back")) back();
    else if (!strcmp(part, "forked")) forked();
    else if (!strcmp(part, "handler")) handler();
    else if (!strcmp(part, "paper")) paper();
    else if (!strcmp(part, "stray")) stray();
    else if (!strcmp(part, "replaced")) replaced(argv[0]);
    else if (!strcmp(part, "rest")) sleep(1);
    else if (!strcmp(part, "outlives")) outlives();
    else if (!strcmp(part, "others")) others();
    else if (!strcmp(part, "limited")) limited();
    else if (!strcmp(part, "weak")) weak();
    else if (!strcmp(part, "strong")) strong();
    else CHECK(!"a part");
    printf("right\n");
    return 0;
}
