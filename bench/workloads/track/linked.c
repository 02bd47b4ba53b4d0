/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that works on a table of chained entries, for comparing its speed with libmasu and without.
 *
 *     linked ROUNDS
 *
 * Compiled with ASKS it asks to be watched, as a cooperating program does, and goes on without a tracker. It prints its
 * result: checksum= seconds=
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef ASKS
#include <masu.h>
#endif

enum { SLOTS = 1 << 16, ENTRIES = 1 << 17 };

struct entry {
	struct entry *next;
	uint64_t key, value;
};

static struct entry *slots[SLOTS];

static uint64_t scrambled(uint64_t place)
{
	place += 0x9e3779b97f4a7c15u;
	place = (place ^ (place >> 30)) * 0xbf58476d1ce4e5b9u;
	place = (place ^ (place >> 27)) * 0x94d049bb133111ebu;
	return place ^ (place >> 31);
}

static struct entry **slot_of(uint64_t key)
{
	return &slots[scrambled(key) % SLOTS];
}

static uint64_t one_round(uint64_t round)
{
	uint64_t sum = 0;
	for (uint64_t key = 0; key < ENTRIES; key++) {
		struct entry *entry = malloc(sizeof *entry), **slot = slot_of(key);
		if (entry == NULL)
			exit(2);
		*entry = (struct entry){ *slot, key, scrambled(key ^ round) };
		*slot = entry;
	}
	for (uint64_t key = 0; key < ENTRIES; key++)
		for (struct entry *entry = *slot_of(key); entry != NULL; entry = entry->next)
			sum += entry->key == key ? entry->value : 0;
	for (size_t slot = 0; slot < SLOTS; slot++) {
		while (slots[slot] != NULL) {
			struct entry *entry = slots[slot];
			slots[slot] = entry->next;
			free(entry);
		}
	}
	return sum;
}

int main(int count, char **words)
{
	uint64_t rounds = count > 1 ? strtoull(words[1], NULL, 10) : 1, sum = 0;
	struct timespec begun, ended;
#ifdef ASKS
	masu_track *track;
	if (masu_track_new(NULL, &track) != MASU_OK || masu_track_enable(track) != MASU_NO_TRACKER) {
		fprintf(stderr, "linked: there is a tracker, or no memory\n");
		return 2;
	}
#endif
	clock_gettime(CLOCK_MONOTONIC, &begun);
	for (uint64_t round = 0; round < rounds; round++)
		sum += one_round(round);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	printf("checksum=%" PRIu64 " seconds=%.6f\n", sum,
	       (double)(ended.tv_sec - begun.tv_sec) + (double)(ended.tv_nsec - begun.tv_nsec) / 1e9);
	return 0;
}
