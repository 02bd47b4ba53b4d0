/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Random updates of one static table (RandomAccess in the HPC Challenge): all words are equally likely, so no page size
 * and no prefetch can help; the worst case. Verified by a replay: XOR undoes itself.
 *
 * -DLOG2_WORDS=24: the table's size. Argument: thousands of updates.
 */
#include "task.h"

#ifndef LOG2_WORDS
#define LOG2_WORDS 24
#endif
#define WORDS (1ul << LOG2_WORDS)

static uint64_t table[WORDS];

static void update(uint64_t count)
{
	for (uint64_t nth = 0; nth < count; nth++) {
		uint64_t random = scrambled(nth);
		table[random >> (64 - LOG2_WORDS)] ^= random;
	}
}

int main(int count, char **words)
{
	uint64_t updates = (uint64_t)repetitions(count, words, 2000) * 1000;
	for (uint64_t at = 0; at < WORDS; at++)
		table[at] = scrambled(~at);
	double begun = now_s();
	update(updates);
	double elapsed = now_s() - begun;
	uint64_t sum = checksum(table, sizeof table);
	update(updates);
	for (uint64_t at = 0; at < WORDS; at++)
		require(table[at] == scrambled(~at), "the table after the replay");
	report(sum, elapsed);
	return 0;
}
