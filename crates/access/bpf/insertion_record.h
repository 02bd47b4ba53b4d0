/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Page-cache insertions, and their processes. One definition for both sides: the BPF program includes it, and
 * src/insertions/record.rs mirrors it, compared with the type information in the object by a test.
 */
#ifndef INSERTION_RECORD_H
#define INSERTION_RECORD_H

#define INSERTION_RING_BYTES (4u << 20)
#define INSERTION_MEMBERS_MAX 65536u
#define INSERTION_OTHERS_RING_BYTES (1u << 20)
#define INSERTION_INSERTERS_MAX 4096u
#define INSERTION_RUN_PAGES_MAX 512u /* a run of this length is reported at once: 2 MiB */

/* Consecutive pages of one file, inserted by one process. */
struct insertion_run {
	__u64 inode;
	__u64 first; /* page of the file */
	__u64 pages;
	__u64 since_ns;   /* insertion of its first page, on the kernel's monotonic clock */
	__u32 device;     /* as the kernel numbers it: major << 20 | minor */
	__u32 generation; /* of the inode: distinguishes a file from a later one with the same number */
	__u32 process;
	__u32 processor; /* that had the open run */
};

/* Processes whose insertions are reported: all, or members, or the processes of a control group. */
struct insertion_filter {
	__u64 group; /* id of a control group of the memory controller; 0: none */
	__u32 all;
	__u32 others; /* 1: the insertions of all other processes go to the second ring */
};

/* A process with insertions in the second ring. It may have ended when user space looks. */
struct inserter {
	__u64 start_ns; /* distinguishes it from a later one with the same pid */
	__u8 name[16];  /* of its first thread */
	__u32 of_kernel;
	__u32 parent; /* process that started it, or has taken it over */
};

enum insertion_member {
	INSERTION_MEMBER = 1,
	INSERTION_PARENT = 2, /* its children are members; the process itself is not */
};

#endif
