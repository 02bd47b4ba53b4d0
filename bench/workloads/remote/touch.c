/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Cost of one touch of a page: each touch is timed by itself, and the times are printed as one line of JSON.
 *
 * -DPAGE=4096: bytes for each touch. Arguments:
 *
 * touch first PAGES: untouched pages, each once.
 * touch load PAGES PASSES, touch store PAGES PASSES: all pages are written, and touched once more untimed; then PASSES
 * passes are timed. Each pass, the first and the last included, has the same scattered order, so that a page comes up
 * again after all others.
 *
 * In a pass, a touch that takes less than THERE_NS found its page there: it is counted separately, and is not part of
 * the fault times. The samples lie on the stack, which masu does not page.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <x86intrin.h>

#include "task.h"

#ifndef PAGE
#define PAGE 4096
#endif
#define WORDS (PAGE / 8)
#define THERE_NS 1000.0

/* Times in steps of less than 1 %: 128 to each power of two of ticks. */
#define STEPS_LOG2 7
#define STEPS (1u << STEPS_LOG2)
#define BUCKETS (STEPS * 40)

struct counted {
	uint64_t touches, there, faults;
	double sum_ticks;
	uint32_t buckets[BUCKETS];
};

static size_t bucket_of(uint64_t ticks)
{
	if (ticks < STEPS)
		return ticks;
	unsigned int power = 63 - (unsigned int)__builtin_clzll(ticks) - STEPS_LOG2;
	size_t bucket = ((size_t)(power + 1) << STEPS_LOG2) + ((ticks >> power) - STEPS);
	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* The middle of a bucket. */
static double ticks_of(size_t bucket)
{
	if (bucket < STEPS)
		return (double)bucket;
	unsigned int power = (unsigned int)(bucket >> STEPS_LOG2) - 1;
	double width = (double)(1ull << power);
	return (double)(STEPS + bucket % STEPS) * width + width / 2;
}

static double quantile(const struct counted *counted, double part)
{
	uint64_t wanted = (uint64_t)(part * (double)counted->faults), seen = 0;
	for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
		seen += counted->buckets[bucket];
		if (seen > wanted)
			return ticks_of(bucket);
	}
	return 0;
}

/* Length of a tick of the counter in ns: measured between two moments 20 ms apart. */
static double ns_of_a_tick(void)
{
	double begun = now_s(), now;
	uint64_t ticks = __rdtsc();
	do
		now = now_s();
	while (now - begun < 0.02);
	return (now - begun) * 1e9 / (double)(__rdtsc() - ticks);
}

/* The pages in an order that jumps about, the same in each pass: a step that has no factor in common with their number. */
static uint64_t step_for(uint64_t pages)
{
	for (uint64_t step = pages * 618 / 1000 | 1;; step += 2) {
		uint64_t a = step, b = pages;
		while (b) {
			uint64_t rest = a % b;
			a = b;
			b = rest;
		}
		if (a == 1)
			return step;
	}
}

/* Not inlined: the touches have one place in the program. */
__attribute__((noinline)) static void pass(volatile uint64_t *data, uint64_t pages, int store, double there_ticks,
					   struct counted *counted)
{
	uint64_t step = step_for(pages), page = 0;
	for (uint64_t nth = 0; nth < pages; nth++, page = (page + step) % pages) {
		volatile uint64_t *word = data + page * WORDS;
		unsigned int processor;
		_mm_lfence();
		uint64_t begun = __rdtsc();
		_mm_lfence();
		if (store)
			*word = begun;
		else
			(void)*word;
		_mm_lfence();
		uint64_t took = __rdtscp(&processor) - begun;
		if (!counted)
			continue;
		counted->touches++;
		if ((double)took < there_ticks) {
			counted->there++;
			continue;
		}
		counted->faults++;
		counted->sum_ticks += (double)took;
		counted->buckets[bucket_of(took)]++;
	}
}

/* Half of each page is noise and half is zeros: no two pages are alike, and compression halves them. */
static uint64_t word_of(uint64_t at)
{
	return at % WORDS < WORDS / 2 ? scrambled(at) : 0;
}

static void fill(uint64_t *data, uint64_t pages)
{
	uint64_t step = step_for(pages), page = 0;
	for (uint64_t nth = 0; nth < pages; nth++, page = (page + step) % pages)
		for (uint64_t at = page * WORDS; at < (page + 1) * WORDS; at++)
			data[at] = word_of(at);
}

/* The first word of a page is the number written by the pass. */
static void check(const uint64_t *data, uint64_t pages)
{
	uint64_t step = step_for(pages), page = 0;
	for (uint64_t nth = 0; nth < pages; nth++, page = (page + step) % pages)
		for (uint64_t at = page * WORDS + 1; at < (page + 1) * WORDS; at++)
			require(data[at] == word_of(at), "a page's content");
}

int main(int count, char **words)
{
	int first = count == 3 && !strcmp(words[1], "first");
	int store = first || (count == 4 && !strcmp(words[1], "store"));
	long pages = count > 2 ? strtol(words[2], NULL, 10) : 0;
	long passes = count == 4 ? strtol(words[3], NULL, 10) : 1;
	if (pages < 2 || passes < 1 || (!store && (count != 4 || strcmp(words[1], "load")))) {
		fprintf(stderr, "usage: touch first PAGES | touch load|store PAGES PASSES\n");
		return 2;
	}
	struct counted counted;
	memset(&counted, 0, sizeof counted);
	double tick_ns = ns_of_a_tick(), there_ticks = first ? 0 : THERE_NS / tick_ns;
	uint64_t *data = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED) {
		perror("touch: mmap");
		return 1;
	}
	madvise(data, (size_t)pages * PAGE, MADV_NOHUGEPAGE);
	if (!first) {
		fill(data, (uint64_t)pages);
		pass(data, (uint64_t)pages, store, there_ticks, NULL);
	}
	struct rusage before, after;
	getrusage(RUSAGE_SELF, &before);
	for (long nth = 0; nth < passes; nth++)
		pass(data, (uint64_t)pages, store, there_ticks, &counted);
	getrusage(RUSAGE_SELF, &after);
	if (!first)
		check(data, (uint64_t)pages);
	double p50 = quantile(&counted, 0.5) * tick_ns, p99 = quantile(&counted, 0.99) * tick_ns;
	double mean = counted.faults ? counted.sum_ticks / (double)counted.faults * tick_ns : 0;
	printf("{\"touches\":%" PRIu64 ",\"there\":%" PRIu64 ",\"p50_ns\":%.0f,\"p99_ns\":%.0f,\"mean_ns\":%.0f,"
	       "\"minor_faults\":%ld,\"major_faults\":%ld}\n",
	       counted.touches, counted.there, p50, p99, mean, after.ru_minflt - before.ru_minflt,
	       after.ru_majflt - before.ru_majflt);
	return 0;
}
