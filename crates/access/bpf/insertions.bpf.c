/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * Reports page-cache insertions of selected processes: by reading, by writing, by touching a mapping, and by the
 * kernel's readahead for them. A page that was in the cache before is not reported.
 *
 * Runs in the path of every insertion: checks the process, and joins consecutive pages on a processor to one run. A run
 * goes to the ring when the next page does not follow, or when it is long; the open run is in `open_runs`, where user
 * space can read it at any time. When the ring is full a run is dropped and counted.
 *
 * A second ring has the insertions of the other processes, when they are wanted: servers and kernel threads read for
 * the selected ones. It is a ring of its own, so that no other process can fill the first.
 *
 * Two processes that insert pages on one processor, one preempted by the other (kernels before about Linux 6.13 do not
 * allow this here), may make a common run: not all of its pages are new. User space must do no harm by acting on it.
 *
 * No vmlinux.h: the fields below are found by name at load time.
 */
#include "numbers.h"

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
enum { BPF_MAP_TYPE_LRU_HASH = 9, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_ANY = 0, BPF_RB_NO_WAKEUP = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "insertion_record.h"
#include "kernel.h"

struct super_block {
	__u32 s_dev;
} KERNEL;

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	__u32 i_generation;
} KERNEL;

struct address_space {
	struct inode *host;
} KERNEL;

struct css_set {
	struct cgroup_subsys_state *subsys[1];
} KERNEL;

typedef struct {
	int counter;
} KERNEL atomic_t;

struct signal_struct {
	atomic_t live;
} KERNEL;

struct task_struct {
	unsigned int flags;
	__s32 tgid;
	__u64 start_time;
	struct task_struct *group_leader;
	struct task_struct *real_parent;
	char comm[16];
	struct css_set *cgroups;
	struct signal_struct *signal;
} KERNEL;

#define PF_KTHREAD 0x00200000u

enum cgroup_subsys_id {
	memory_cgrp_id,
};

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct insertion_filter);
} filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INSERTION_MEMBERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} members SEC(".maps");

/* Of the selected processes, and of the others. */
enum { SELECTED, OTHERS, SIDES };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SIDES);
	__type(key, __u32);
	__type(value, struct insertion_run);
} open_runs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SIDES);
	__type(key, __u32);
	__type(value, __u64);
} lost_pages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, INSERTION_INSERTERS_MAX);
	__type(key, __u32);
	__type(value, struct inserter);
} inserters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, INSERTION_RING_BYTES);
} runs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, INSERTION_OTHERS_RING_BYTES);
} other_runs SEC(".maps");

static const __u32 ZERO = 0;

/* Checks the groups from the process's own up to the topmost. */
static int is_in_group(struct task_struct *task, __u64 group)
{
	__u64 memory = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state *state = 0;
	__u64 offset = bpf_core_field_offset(struct css_set, subsys) + memory * sizeof(state);

	bpf_probe_read_kernel(&state, sizeof(state), (void *)set + offset);
	return is_at_or_below(state, group);
}

static int is_selected(const struct insertion_filter *wanted, __u32 process)
{
	if (wanted->all)
		return 1;
	__u32 *member = bpf_map_lookup_elem(&members, &process);
	if (member && *member == INSERTION_MEMBER)
		return 1;
	return wanted->group && is_in_group((void *)bpf_get_current_task(), wanted->group);
}

/* Notes the current process. Once for each of its runs. */
static void note_inserter(__u32 process)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct inserter now = {
		.start_ns = BPF_CORE_READ(task, group_leader, start_time),
		.of_kernel = !!(BPF_CORE_READ(task, flags) & PF_KTHREAD),
		.parent = BPF_CORE_READ(task, group_leader, real_parent, tgid),
	};
	const struct inserter *known = bpf_map_lookup_elem(&inserters, &process);

	if (known && known->start_ns == now.start_ns)
		return;
	BPF_CORE_READ_STR_INTO(&now.name, task, group_leader, comm);
	bpf_map_update_elem(&inserters, &process, &now, BPF_ANY);
}

static void report(const struct insertion_run *run, __u32 side)
{
	void *ring = side == SELECTED ? (void *)&runs : (void *)&other_runs;

	if (bpf_ringbuf_output(ring, (void *)run, sizeof(*run), BPF_RB_NO_WAKEUP) == 0)
		return;
	__u64 *lost = bpf_map_lookup_elem(&lost_pages, &side);
	if (lost)
		*lost += run->pages;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int added(__u64 *context)
{
	const struct insertion_filter *wanted = bpf_map_lookup_elem(&filter, &ZERO);
	__u32 process = bpf_get_current_pid_tgid() >> 32, side = SELECTED;

	if (!wanted)
		return 0;
	if (!is_selected(wanted, process)) {
		if (!wanted->others)
			return 0;
		side = OTHERS;
	}
	struct folio *folio = (void *)context[0];
	struct inode *inode = BPF_CORE_READ(folio, mapping, host);
	struct insertion_run now = {
		.inode = BPF_CORE_READ(inode, i_ino),
		.first = BPF_CORE_READ(folio, index),
		.pages = pages_of(folio),
		.device = BPF_CORE_READ(inode, i_sb, s_dev),
		.generation = BPF_CORE_READ(inode, i_generation),
		.process = process,
		.processor = bpf_get_smp_processor_id(),
	};
	struct insertion_run *run = bpf_map_lookup_elem(&open_runs, &side);
	if (!run)
		return 0;
	if (run->pages && run->inode == now.inode && run->device == now.device && run->generation == now.generation &&
	    run->process == process && run->first + run->pages == now.first && run->pages < INSERTION_RUN_PAGES_MAX) {
		run->pages += now.pages;
		return 0;
	}
	if (run->pages)
		report(run, side);
	if (side == OTHERS)
		note_inserter(process);
	now.since_ns = bpf_ktime_get_ns();
	*run = now;
	return 0;
}

/* A child of a member is a member. */
SEC("tp_btf/sched_process_fork")
int forked(__u64 *context)
{
	struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
	__u32 from = BPF_CORE_READ(parent, tgid), to = BPF_CORE_READ(child, tgid), member = INSERTION_MEMBER;

	if (from != to && bpf_map_lookup_elem(&members, &from))
		bpf_map_update_elem(&members, &to, &member, BPF_ANY);
	return 0;
}

/* Process ids are reused. Not when the first thread exits: others may go on, or replace the program (exec). */
SEC("tp_btf/sched_process_exit")
int exited(__u64 *context)
{
	struct task_struct *task = (void *)context[0];
	__u32 process = BPF_CORE_READ(task, tgid);

	if (BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&members, &process);
	return 0;
}
