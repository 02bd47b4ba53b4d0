/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Page-cache insertions, and their processes. One definition for both sides: the BPF program includes it, and
 * src/insertions/record.rs mirrors it, compared with the type information in the object by a test.
 */
#ifndef ARRIVAL_RECORD_H
#define ARRIVAL_RECORD_H

#define ARRIVAL_RING_BYTES (4u << 20)
#define ARRIVAL_MEMBERS_MAX 65536u
#define ARRIVAL_RUN_PAGES_MAX 512u /* a run of this length is reported at once: 2 MiB */

/* Some pages of one file, one after the other, that one process has brought in. */
struct arrival_run {
	__u64 inode;
	__u64 first; /* page of the file */
	__u64 pages;
	__u64 since_ns;   /* when its first page came, on the kernel's monotonic clock */
	__u32 device;     /* as the kernel numbers it: major << 20 | minor */
	__u32 generation; /* of the inode: tells a file from a later one with the same number */
	__u32 process;
	__u32 processor; /* whose open run it was */
};

/* Processes whose insertions are reported: all, or members, or the processes of a control group. */
struct arrival_wish {
	__u64 group; /* id of a control group of the memory controller; 0: none */
	__u32 everybody;
	__u32 unused;
};

enum arrival_member {
	ARRIVAL_MEMBER = 1,
	ARRIVAL_PARENT = 2, /* its children are members, itself is not */
};

#endif
