/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Refaults: pages of files that return after reclaim, by use. One definition for both sides: the BPF program
 * includes it, and src/refaults.rs mirrors it, compared with the type information in the object by a test.
 */
#ifndef REFAULT_RECORD_H
#define REFAULT_RECORD_H

#define REFAULT_MEMBERS_MAX 65536u
#define REFAULT_WAYS 4u        /* reclaimed pages in one bucket */
#define REFAULT_STEPS_MAX 128u /* mappings of a file checked for one that has the page */
#define REFAULT_FOLIO_PAGES_MAX 512u

/* As the kernel ages them. */
enum refault_class {
	REFAULT_CODE,
	REFAULT_READ_ONLY,
	REFAULT_CACHE,
	REFAULT_CLASSES,
};

/* Pages that are counted: all, or the pages charged to a control group and below it, or pages inserted by members. */
struct refault_filter {
	__u64 group; /* id of a control group of the memory controller; 0: none */
	__u32 all;
	__u32 buckets_mask; /* number of buckets, a power of two, less one */
};

/* Marks of reclaimed pages, the newest first; 0 is none. */
struct refault_bucket {
	__u32 marks[REFAULT_WAYS];
};

#endif
