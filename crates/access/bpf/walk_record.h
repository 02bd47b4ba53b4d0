/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Request and answer of the page-table walk. One definition for both sides: the BPF program includes it,
 * and src/walk/record.rs mirrors it, compared with the type information in the object by a test.
 */
#ifndef WALK_RECORD_H
#define WALK_RECORD_H

#define WALK_RECORDS_MAX 2048 /* windows in one reading: 4 GiB of small pages, about a millisecond without a pause */

enum walk_mode {
	WALK_READ = 0,      /* fill records from `start` on */
	WALK_CALIBRATE = 1, /* search for `magic` at `start` under each candidate for the base of the direct map */
	WALK_WRITTEN = 2,   /* as WALK_READ, with the dirty bits in place of the accessed bits */
};

struct walk_request {
	__u64 start;      /* first user address, a multiple of 2 MiB (in WALK_CALIBRATE: of 4 KiB) */
	__u64 end;        /* first address after it */
	__u64 direct_map; /* kernel address of physical address 0 */
	__u64 magic;      /* WALK_CALIBRATE: the word at `start` */
	__u32 candidates; /* WALK_CALIBRATE: number of GiB to try below the page table's own address */
	__u32 levels;     /* 4 or 5 */
	__u32 mode;       /* enum walk_mode */
	__u32 unused;
};

struct walk_answer {
	__u64 address_space; /* identifies the address space, new after exec; 0: none */
	__u64 next;          /* start of the next run; equals `end` when all was read */
	__u64 direct_map;    /* WALK_CALIBRATE: the base under which the magic word was found, or 0 */
	__u32 records;       /* number of records that were filled */
	__u32 tasks;         /* 0: the process has ended */
};

#define WINDOW_HUGE 1u       /* mapped by one entry: one accessed bit for 2 MiB, present is full */
#define WINDOW_UNREADABLE 2u /* its page table went away while it was read */

struct window_record {
	__u64 start; /* user address, a multiple of 2 MiB */
	__u64 flags;
	__u64 accessed[8]; /* bit n of word m: page 64m+n was walked to since the last clear */
	__u64 present[8];
};

#endif
