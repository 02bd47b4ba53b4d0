/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sorts records of 32 bytes by their keys with a merge sort that halves until the pieces are small: streams of all
 * lengths. The left half is copied aside and merged back, so the extra memory is half of the records' size.
 *
 * -DRECORDS=8000000. Argument: number of repetitions (each from the same disorder).
 *
 * Verified: in order, each record's content belongs to its key, and the set of keys is unchanged.
 */
#include <string.h>

#include "task.h"

#ifndef RECORDS
#define RECORDS 8000000
#endif

typedef struct {
	uint64_t key, content[3];
} Record;

static Record records[RECORDS], aside[RECORDS / 2 + 1];

enum { SMALL = 12 };

static void insert(Record *from, size_t length)
{
	for (size_t at = 1; at < length; at++) {
		Record moved = from[at];
		size_t to = at;
		for (; to > 0 && from[to - 1].key > moved.key; to--)
			from[to] = from[to - 1];
		from[to] = moved;
	}
}

static void sort(Record *from, size_t length)
{
	if (length <= SMALL) {
		insert(from, length);
		return;
	}
	size_t half = length / 2;
	sort(from, half);
	sort(from + half, length - half);
	memcpy(aside, from, half * sizeof *from);
	size_t left = 0, right = half, to = 0;
	while (left < half && right < length)
		from[to++] = from[right].key < aside[left].key ? from[right++] : aside[left++];
	memcpy(from + to, aside + left, (half - left) * sizeof *from);
}

static void disorder(void)
{
	for (uint64_t at = 0; at < RECORDS; at++) {
		uint64_t key = scrambled(at);
		records[at] = (Record){ key, { scrambled(key), scrambled(key + 1), scrambled(key + 2) } };
	}
}

int main(int count, char **words)
{
	long wanted = repetitions(count, words, 1);
	double elapsed = 0.0;
	for (long nth = 0; nth < wanted; nth++) {
		disorder();
		double begun = now_s();
		sort(records, RECORDS);
		elapsed += now_s() - begun;
	}
	uint64_t found = 0, expected = 0;
	for (uint64_t at = 0; at < RECORDS; at++) {
		const Record *it = &records[at];
		require(at == 0 || records[at - 1].key <= it->key, "out of order");
		for (uint64_t nth = 0; nth < 3; nth++)
			require(it->content[nth] == scrambled(it->key + nth), "a record's content is not that of its key");
		found += scrambled(it->key ^ 0x5555);
		expected += scrambled(scrambled(at) ^ 0x5555);
	}
	require(found == expected, "keys were lost");
	report(checksum(records, sizeof records), elapsed);
	return 0;
}
