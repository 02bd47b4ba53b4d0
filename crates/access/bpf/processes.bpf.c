/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * Reports processes that are started, execute a program, enter a control group, or end: the process number alone. User
 * space reads the rest, so that an event that is lost costs time and nothing else.
 *
 * Runs in the path of fork, exec, exit and of moves between groups; threads are not reported.
 *
 * No vmlinux.h: the fields below are found by name at load time.
 */
#include "numbers.h"

enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_RB_NO_WAKEUP = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "kernel.h"

#define RING_BYTES (128 * 1024) /* 8,192 events */

typedef struct {
	int counter;
} KERNEL atomic_t;

struct signal_struct {
	atomic_t live;
} KERNEL;

struct task_struct {
	__s32 pid;
	__s32 tgid;
	struct signal_struct *signal;
} KERNEL;

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} changed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline int report(__s32 process)
{
	if (bpf_ringbuf_output(&changed, &process, sizeof(process), BPF_RB_NO_WAKEUP)) {
		__u32 key = 0;
		__u64 *count = bpf_map_lookup_elem(&lost, &key);

		if (count)
			__sync_fetch_and_add(count, 1);
	}
	return 0;
}

/* (parent, child) */
SEC("tp_btf/sched_process_fork")
int masu_fork(__u64 *arguments)
{
	struct task_struct *child = (void *)arguments[1];
	__s32 process = BPF_CORE_READ(child, tgid);

	return BPF_CORE_READ(child, pid) == process ? report(process) : 0;
}

/* (task, old thread number, program) */
SEC("tp_btf/sched_process_exec")
int masu_exec(__u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];

	return report(BPF_CORE_READ(task, tgid));
}

/* (task), after the count of living threads fell */
SEC("tp_btf/sched_process_exit")
int masu_exit(__u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];

	return BPF_CORE_READ(task, signal, live.counter) ? 0 : report(BPF_CORE_READ(task, tgid));
}

/* (group, path, first task, whether all its threads go) */
SEC("tp_btf/cgroup_attach_task")
int masu_attach(__u64 *arguments)
{
	struct task_struct *task = (void *)arguments[2];

	return report(BPF_CORE_READ(task, tgid));
}
