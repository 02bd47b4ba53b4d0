/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that registers itself to be watched, and times its notifications.
 *
 *     tracked MIB
 *
 * It has MIB MiB of pages of 4 KiB, all in memory. It prints `ready`, and answers a line with a line:
 *
 *     enable THRESHOLD PERIOD EVERY   registers to be watched, times in ms: result=, 0 when watched
 *     idle MS                         touches nothing until MS ms went by without a notification: waited_ms=
 *     touch PAGES                     touches PAGES pages again and again until notified of them and done with reading
 *                                     each: told_us= first_us= last_us= pages=, since the first touch
 *     work PAGES                      touches PAGES pages again and again in a thread, until the next `work`: working=
 *     stats                           rounds= notifications= lists=
 *
 * No window is promoted or split. A separate thread waits for notifications.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <masu.h>

enum { PAGE = 4096 };

static volatile char *memory;
static size_t pages;
static masu_track *track;

/* Findings of the waiting thread, by the clock; 0 for not yet. `listed` is of the last list. */
static _Atomic uint64_t told_ns, first_ns, last_ns, listed, notified;
/* Number of pages touched by the working thread. */
static _Atomic size_t working;

static _Noreturn void fail(const char *what, const char *why)
{
	fprintf(stderr, "tracked: cannot %s: %s\n", what, why);
	exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void sleep_ms(uint64_t ms)
{
	struct timespec time = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };
	nanosleep(&time, NULL);
}

static uint64_t seen;

static int decide(const struct masu_window *window, void *user)
{
	uint64_t none = 0;
	(void)user;
	atomic_compare_exchange_strong(&first_ns, &none, now_ns());
	seen += window->hot;
	return MASU_LEAVE;
}

static void *wait_for_the_tracker(void *unused)
{
	uint64_t active;
	(void)unused;
	while (masu_track_wait(track, -1, &active) == MASU_OK) {
		uint64_t none = 0;
		atomic_fetch_add(&notified, 1);
		atomic_compare_exchange_strong(&told_ns, &none, now_ns());
		seen = 0;
		masu_track_handle(track);
		listed = seen;
		none = 0;
		atomic_compare_exchange_strong(&last_ns, &none, now_ns());
	}
	return NULL;
}

static void *work(void *unused)
{
	(void)unused;
	for (;;) {
		size_t count = working;
		for (size_t page = 0; page < count; page++)
			memory[page * PAGE]++;
		if (count == 0)
			sleep_ms(10);
	}
	return NULL;
}

static void in_a_thread(void *(*what)(void *))
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, what, NULL) != 0)
		fail("start a thread", "pthread_create failed");
}

static void enable(unsigned long threshold, unsigned long period_ms, unsigned long every_ms)
{
	struct masu_track_settings settings;
	masu_track_settings_init(&settings, sizeof settings);
	settings.threshold_pages = threshold;
	settings.period_ms = (uint32_t)period_ms;
	settings.every_ms = (uint32_t)every_ms;
	int result = masu_track_new(&settings, &track);
	if (result == MASU_OK)
		masu_track_set_functions(track, decide, NULL, NULL);
	if (result == MASU_OK)
		result = masu_track_enable(track);
	if (result == MASU_OK)
		in_a_thread(wait_for_the_tracker);
	printf("result=%d\n", result);
}

/* An observation begun before the last touch of an earlier `touch` may still end. */
static void idle(unsigned long ms)
{
	uint64_t begun = now_ns(), quiet_since = begun, before = notified;
	while (now_ns() - quiet_since < ms * 1000000u) {
		sleep_ms(1);
		if (notified != before) {
			before = notified;
			quiet_since = now_ns();
		}
	}
	printf("waited_ms=%" PRIu64 "\n", (now_ns() - begun) / 1000000);
}

static void touch(size_t count)
{
	told_ns = first_ns = last_ns = 0;
	uint64_t begun = now_ns(), end = begun + 120000000000u;
	while (last_ns == 0) {
		for (size_t page = 0; page < count; page++)
			memory[page * PAGE]++;
		if (now_ns() > end)
			fail("be told of the touched pages", "nothing came for two minutes");
	}
	printf("told_us=%.1f first_us=%.1f last_us=%.1f pages=%" PRIu64 "\n", (double)(told_ns - begun) / 1e3,
	       (double)(first_ns - begun) / 1e3, (double)(last_ns - begun) / 1e3, listed);
}

static void stats(void)
{
	struct masu_track_counters counters = { .size = sizeof counters };
	if (track == NULL || masu_track_stats(track, &counters) != MASU_OK)
		fail("say how it went", "it is not watched");
	printf("rounds=%" PRIu64 " notifications=%" PRIu64 " lists=%" PRIu64 "\n", counters.rounds, counters.notifications,
	       counters.lists);
}

int main(int count, char **words)
{
	char line[128];
	unsigned long first, second, third;
	if (count != 2 || (pages = strtoul(words[1], NULL, 10) * 256) == 0)
		fail("start", "expected MIB");
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || madvise((void *)memory, pages * PAGE, MADV_NOHUGEPAGE) != 0)
		fail("start", "no memory");
	for (size_t page = 0; page < pages; page++)
		memory[page * PAGE] = 1;
	in_a_thread(work);
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) != NULL) {
		if (sscanf(line, "enable %lu %lu %lu", &first, &second, &third) == 3)
			enable(first, second, third);
		else if (sscanf(line, "idle %lu", &first) == 1)
			idle(first);
		else if (sscanf(line, "touch %lu", &first) == 1 && first >= 1 && first <= pages)
			touch(first);
		else if (sscanf(line, "work %lu", &first) == 1 && first <= pages)
			printf("working=%zu\n", working = first);
		else if (strcmp(line, "stats\n") == 0)
			stats();
		else
			fail("understand", line);
		fflush(stdout);
	}
	return 0;
}
