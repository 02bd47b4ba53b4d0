/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Common parts of the programs in this folder: a clock, a checksum over every bit of a result, the two lines that a
 * benchmark reads, and sections that a program marks (only when compiled with -DMARKED; outside `masu run` the marks do
 * nothing).
 */
#ifndef TASK_H
#define TASK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now_s(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* A pseudo-random number from an index: data that can be made again instead of being kept. */
static inline uint64_t scrambled(uint64_t place)
{
	place += 0x9e3779b97f4a7c15u;
	place = (place ^ (place >> 30)) * 0xbf58476d1ce4e5b9u;
	place = (place ^ (place >> 27)) * 0x94d049bb133111ebu;
	return place ^ (place >> 31);
}

/* Number from 0 up to 1. */
static inline double fraction(uint64_t place)
{
	return (double)(scrambled(place) >> 11) / 9007199254740992.0;
}

/* Any single wrong bit of the `bytes` bytes at `data` changes the sum. `bytes` is a multiple of 8. */
static inline uint64_t checksum(const void *data, size_t bytes)
{
	const uint64_t *words = data;
	uint64_t sum = bytes;
	for (size_t at = 0; at < bytes / 8; at++)
		sum = (sum ^ words[at]) * 0x100000001b3u + (sum >> 47);
	return sum;
}

/* The lines that a benchmark reads. */
static inline void report(uint64_t sum, double elapsed_s)
{
	printf("checksum=%016llx\nelapsed_s=%.6f\n", (unsigned long long)sum, elapsed_s);
	fflush(stdout);
}

/* Ends the program when its own result is wrong. */
static inline void require(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "wrong result: %s\n", what);
		exit(1);
	}
}

/* The first argument as a number of repetitions, or `usual`. */
static inline long repetitions(int count, char **words, long usual)
{
	long wanted = count > 1 ? strtol(words[1], NULL, 10) : usual;
	if (wanted < 1) {
		fprintf(stderr, "%s: expected 1 or more repetitions\n", words[0]);
		exit(2);
	}
	return wanted;
}

#ifdef MARKED
extern void swpin_countstart(int id) __attribute__((weak));
extern void swpin_refresh(int id) __attribute__((weak));
#define SECTION_BEGINS(id) (swpin_countstart ? swpin_countstart(id) : (void)0)
#define SECTION_ENDS(id) (swpin_refresh ? swpin_refresh(id) : (void)0)
#else
#define SECTION_BEGINS(id) ((void)(id))
#define SECTION_ENDS(id) ((void)(id))
#endif

#endif
