/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * hps: hot items of sparse windows move onto huge pages.
 *
 * What memcached's own files call. All of it is in hps.c, which also says how it works and why its locks suffice; README.md
 * is for who runs it. Without `-o hps` hps_enabled is false for ever, and nothing here does anything.
 */
#ifndef HPS_H
#define HPS_H

/* Set before the first worker thread starts, and never changed. */
extern bool hps_enabled;

/*
 * Pages that memcached's page mover has taken from a class so far: where items lie is read anew when this has changed.
 * Written with slabs_lock and the mover's own lock held, read with the latter.
 */
extern uint64_t hps_pages_moved;

/* Three bits of it_flags that memcached does not use. The item's lock protects them, as it does the others. */
/* It was fetched since hps.c last looked. */
#define ITEM_HPS_HIT 8192
/* How many looks in a row found it fetched, 0 to 3. */
#define ITEM_HPS_SCORE_SHIFT 14
#define ITEM_HPS_SCORE (3 << ITEM_HPS_SCORE_SHIFT)

enum hps_option { HPS_OPTION_OURS, HPS_OPTION_WRONG, HPS_OPTION_FOREIGN };

/* What follows `-o`, as "name" or "name=value": taken, wrong (which was said), or somebody else's. */
enum hps_option hps_option(const char *text);

/* Whether the options go together; if not, it says so. */
bool hps_check(bool preallocated, bool has_storage);

/* `-h`. */
void hps_usage(void);

/* Before any thread starts and after the last fork: reserves addresses, and blocks the tracker's signal in all threads. */
void hps_init(void);

/* Once the worker threads run: starts the thread that waits for the tracker. -1: it cannot be started. */
int hps_start(void);

/*
 * With slabs_lock held, from do_slabs_free(): keeps a chunk that lies in the arena. What is returned goes to the class: the
 * chunk if it is no such one, NULL for none; or, with `lend`, this one or another.
 */
item *hps_chunk_free(item *it, bool lend);

/* A free chunk of the arena for an item of the class, for want of any other; NULL if there is none. */
item *hps_last_chunk(unsigned int id);

/* With slabs_lock held: the pages that the arena has of a class, and how many of their chunks are free. */
unsigned int hps_class_pages(unsigned int id, uint32_t *chunks_free);

/* `stats hps` and `stats settings`. */
void hps_stats(ADD_STAT add_stats, void *c);
void hps_stats_settings(ADD_STAT add_stats, void *c);

#endif
