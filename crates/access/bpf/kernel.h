/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Kernel data that several programs read: the size of a folio, and the ancestors of a control group. Include it after
 * bpf_helpers.h and bpf_core_read.h. The fields are found by name at load time.
 */
#ifndef KERNEL_H
#define KERNEL_H

#define KERNEL __attribute__((preserve_access_index))

#define GROUP_DEPTH_MAX 24u /* control groups above one that are checked */

struct address_space;

struct folio {
	struct address_space *mapping;
	unsigned long index;
	unsigned long _flags_1;
	unsigned long memcg_data;
} KERNEL;

/* Until Linux 6.5. */
struct folio___old {
	unsigned char _folio_order;
} KERNEL;

struct kernfs_node {
	__u64 id;
} KERNEL;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
} KERNEL;

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
} KERNEL;

enum pageflags {
	PG_head,
};

static __always_inline __u64 pages_of(struct folio *folio)
{
	unsigned long flags = 0;

	/* The first word of every folio: its type differs by kernel version. */
	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags >> bpf_core_enum_value(enum pageflags, PG_head) & 1))
		return 1;
	struct folio___old *old = (void *)folio;
	__u64 order = bpf_core_field_exists(old->_folio_order) ? BPF_CORE_READ(old, _folio_order)
	                                                       : BPF_CORE_READ(folio, _flags_1) & 0xff;
	return 1ull << (order & 31);
}

/* Checks the groups from this one up to the topmost. */
static __always_inline int is_at_or_below(struct cgroup_subsys_state *state, __u64 group)
{
	for (__u32 depth = 0; depth < GROUP_DEPTH_MAX && state; depth++) {
		if (BPF_CORE_READ(state, cgroup, kn, id) == group)
			return 1;
		state = BPF_CORE_READ(state, parent);
	}
	return 0;
}

#endif
