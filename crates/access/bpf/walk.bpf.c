/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * Reads the accessed (or dirty) and present bits of every page of one process: an iterator over a single task that walks its page
 * tables through the kernel's direct map, one 4 KiB table a read, and packs 512 entries into two masks.
 *
 * Takes no lock. A table that is freed while it is read gives garbage, so a reading is a hint; user space checks it
 * again through an interface that locks. Runs without a pause (on kernels without preemption), so one reading is
 * limited to WALK_RECORDS_MAX windows and user space asks again from `next`.
 *
 * No vmlinux.h: the fields below are found by name at load time.
 */
#include "numbers.h"

enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
#define BPF_F_MMAPABLE 1024

#include <bpf/bpf_helpers.h>

#include "walk_record.h"

#define KERNEL __attribute__((preserve_access_index))

struct mm_struct {
	void *pgd;
} KERNEL;

struct task_struct {
	struct mm_struct *mm;
} KERNEL;

struct bpf_iter__task {
	struct task_struct *task;
} KERNEL;

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walk_request);
} request SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walk_answer);
} answer SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WALK_RECORDS_MAX);
	__type(key, __u32);
	__type(value, struct window_record);
} records SEC(".maps");

struct table {
	__u64 entries[512];
};

struct tables {
	struct table middle; /* of the GiB being walked: one entry for 2 MiB */
	struct table last;   /* of the window being walked: one entry for 4 KiB */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tables);
} scratch SEC(".maps");

#define ENTRY_PRESENT 0x001ull
#define ENTRY_ACCESSED 0x020ull
#define ENTRY_DIRTY 0x040ull
#define ENTRY_LARGE 0x080ull
#define ENTRY_PROTNONE 0x100ull /* present for the kernel though not for the processor (NUMA hinting, PROT_NONE) */
#define ENTRY_SPECIAL 0x200ull  /* present, but of no process: zero pages (a huge one since Linux 6.17), of a device */
#define ENTRY_TABLE 0x000ffffffffff000ull
#define SAVED_DIRTY_SHIFT 58 /* the dirty bit of an entry that may not be written, since Linux 6.6 */

#define MIDDLE_SHIFT 21 /* 2 MiB */
#define UPPER_SHIFT 30  /* 1 GiB */

struct walker {
	struct walk_request *request;
	struct walk_answer *answer;
	struct tables *tables;
	__u64 top;       /* virtual address of the topmost table */
	__u64 at;        /* user address of the current step */
	__u64 middle_of; /* which GiB `tables->middle` holds, plus one; 0: none */
};

static __always_inline __u64 word_at(__u64 address)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)address);
	return word;
}

static __always_inline __u64 index_of(__u64 address, __u32 shift)
{
	return (address >> shift) & 511;
}

static __always_inline __u64 table_under(__u64 entry, __u64 direct_map)
{
	return direct_map + (entry & ENTRY_TABLE);
}

/*
 * The table whose entries stand for 2 MiB each, for the GiB around `address`; 0 where there is none. `*skip` is then
 * the shift of the level that was empty.
 */
static __always_inline __u64 middle_table(__u64 top, __u64 address, __u64 direct_map, __u32 levels, __u32 *skip)
{
	__u64 table = top;
	__u64 entry;

	if (levels == 5) {
		*skip = 48;
		entry = word_at(table + index_of(address, 48) * 8);
		if (!(entry & ENTRY_PRESENT))
			return 0;
		table = table_under(entry, direct_map);
	}
	*skip = 39;
	entry = word_at(table + index_of(address, 39) * 8);
	if (!(entry & ENTRY_PRESENT))
		return 0;
	*skip = UPPER_SHIFT;
	entry = word_at(table_under(entry, direct_map) + index_of(address, UPPER_SHIFT) * 8);
	if (!(entry & ENTRY_PRESENT) || (entry & ENTRY_LARGE)) /* a page of 1 GiB belongs to hugetlbfs: not ours */
		return 0;
	return table_under(entry, direct_map);
}

/*
 * Bit by bit, for the rare entries that are present for the kernel alone (PROT_NONE, NUMA hinting) and for entries of
 * the zero page. The latter are left out: clear_refs skips them, so they would always be accessed, and a split
 * huge page leaves many behind.
 */
static __always_inline __u64 present_one_by_one(const __u64 *entries)
{
	__u64 there = 0;

#pragma unroll
	for (int bit = 0; bit < 8; bit++) {
		__u64 entry = entries[bit];
		__u64 present = (entry | (entry >> 8)) & 1, special = (entry >> 9) & 1;

		there |= (present & ~special) << bit;
	}
	return there;
}

/*
 * Both bits of an entry are kept with one mask and moved with one shift: four entries beside each other put their
 * present bits into bits 0 to 3 and their accessed bits into bits 5 to 8. Eight entries a turn: with more, the compiler
 * runs out of registers, then of stack.
 */
static __always_inline void pack(struct window_record *record, const struct table *table)
{
	__u8 *accessed = (__u8 *)record->accessed, *present = (__u8 *)record->present;

#pragma clang loop unroll(disable)
	for (int byte = 0; byte < 64; byte++) {
		const __u64 *entries = &table->entries[byte * 8];
		__u64 low = 0, high = 0, any = 0, young, there;

#pragma unroll
		for (int bit = 0; bit < 4; bit++) {
			__u64 first = entries[bit], second = entries[bit + 4];

			low |= (first & (ENTRY_PRESENT | ENTRY_ACCESSED)) << bit;
			high |= (second & (ENTRY_PRESENT | ENTRY_ACCESSED)) << bit;
			any |= first | second;
		}
		there = (low & 15) | (high & 15) << 4;
		young = (low >> 5 & 15) | (high >> 5 & 15) << 4;
		if (any & (ENTRY_PROTNONE | ENTRY_SPECIAL))
			there = present_one_by_one(entries);
		accessed[byte] = young & there;
		present[byte] = there;
	}
}

/* The same with the dirty bits, slowly: for the few windows with lazily freed pages. */
static __always_inline void pack_written(struct window_record *record, const struct table *table)
{
	__u8 *written = (__u8 *)record->accessed, *present = (__u8 *)record->present;

#pragma clang loop unroll(disable)
	for (int byte = 0; byte < 64; byte++) {
		const __u64 *entries = &table->entries[byte * 8];
		__u64 there = present_one_by_one(entries), dirty = 0;

#pragma unroll
		for (int bit = 0; bit < 8; bit++)
			dirty |= ((entries[bit] / ENTRY_DIRTY | entries[bit] >> SAVED_DIRTY_SHIFT) & 1) << bit;
		written[byte] = dirty & there;
		present[byte] = there;
	}
}

static __always_inline void fill(struct window_record *record, __u64 value)
{
	for (int word = 0; word < 8; word++)
		record->accessed[word] = value;
}

/* One step of the walk: a window, or a hole as large as the level that is empty. 1 ends the loop. */
static long step(__u32 unused, struct walker *walker)
{
	struct walk_request *req = walker->request;
	struct window_record *record;
	__u64 at = walker->at, entry, middle;
	__u32 skip = MIDDLE_SHIFT, slot;

	if (at >= req->end)
		return 1;
	if (walker->middle_of != (at >> UPPER_SHIFT) + 1) {
		middle = middle_table(walker->top, at, req->direct_map, req->levels, &skip);
		if (!middle || bpf_probe_read_kernel(&walker->tables->middle, sizeof(struct table), (void *)middle)) {
			walker->at = ((at >> skip) + 1) << skip;
			return 0;
		}
		walker->middle_of = (at >> UPPER_SHIFT) + 1;
	}

	walker->at = at + (1ull << MIDDLE_SHIFT);
	entry = walker->tables->middle.entries[index_of(at, MIDDLE_SHIFT)];
	if (!(entry & (ENTRY_PRESENT | ENTRY_PROTNONE)))
		return 0;
	if ((entry & (ENTRY_LARGE | ENTRY_SPECIAL)) == (ENTRY_LARGE | ENTRY_SPECIAL))
		return 0;
	slot = walker->answer->records;
	record = bpf_map_lookup_elem(&records, &slot);
	if (!record) { /* full: go on from here next time */
		walker->at = at;
		return 1;
	}
	walker->answer->records = slot + 1;
	record->start = at;
	if (entry & ENTRY_LARGE) {
		record->flags = WINDOW_HUGE;
		fill(record, entry & (req->mode == WALK_WRITTEN ? ENTRY_DIRTY : ENTRY_ACCESSED) ? ~0ull : 0);
		for (int word = 0; word < 8; word++)
			record->present[word] = ~0ull;
		return 0;
	}
	record->flags = 0;
	if (bpf_probe_read_kernel(&walker->tables->last, sizeof(struct table),
	                          (void *)table_under(entry, req->direct_map))) {
		record->flags = WINDOW_UNREADABLE;
		fill(record, 0);
		for (int word = 0; word < 8; word++)
			record->present[word] = 0;
		return 0;
	}
	if (req->mode == WALK_WRITTEN)
		pack_written(record, &walker->tables->last);
	else
		pack(record, &walker->tables->last);
	return 0;
}

struct calibration {
	struct walk_request *request;
	struct walk_answer *answer;
	__u64 top;
};

/* Tries one candidate for the base of the direct map: is the magic word where it would be? 1 ends the loop. */
static long try_candidate(__u32 number, struct calibration *calibration)
{
	struct walk_request *req = calibration->request;
	__u64 base = ((calibration->top >> UPPER_SHIFT) - number) << UPPER_SHIFT;
	__u64 in_window = req->start & ((1ull << MIDDLE_SHIFT) - 1);
	__u64 middle, entry, page;
	__u32 skip;

	middle = middle_table(calibration->top, req->start, base, req->levels, &skip);
	if (!middle)
		return 0;
	entry = word_at(middle + index_of(req->start, MIDDLE_SHIFT) * 8);
	if (!(entry & ENTRY_PRESENT))
		return 0;
	page = (table_under(entry, base) & ~((1ull << MIDDLE_SHIFT) - 1)) + in_window;
	if (!(entry & ENTRY_LARGE)) {
		entry = word_at(table_under(entry, base) + index_of(req->start, 12) * 8);
		if (!(entry & ENTRY_PRESENT))
			return 0;
		page = table_under(entry, base);
	}
	if (word_at(page) != req->magic)
		return 0;
	calibration->answer->direct_map = base;
	return 1;
}

SEC("iter/task")
int walk(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct walk_request *req;
	struct walk_answer *ans;
	struct tables *tables;
	struct mm_struct *mm;
	__u64 top = 0;
	__u32 zero = 0;

	req = bpf_map_lookup_elem(&request, &zero);
	ans = bpf_map_lookup_elem(&answer, &zero);
	tables = bpf_map_lookup_elem(&scratch, &zero);
	if (!task || !req || !ans || !tables)
		return 0;
	ans->tasks = 1;
	mm = task->mm;
	if (!mm)
		return 0;
	/* Read, not loaded: the verifier allows arithmetic with a number, but not with a pointer. */
	bpf_probe_read_kernel(&top, sizeof(top), &mm->pgd);
	ans->address_space = top;

	if (req->mode == WALK_CALIBRATE) {
		struct calibration calibration = { .request = req, .answer = ans, .top = top };

		bpf_loop(req->candidates, try_candidate, &calibration, 0);
		return 0;
	}

	struct walker walker = {
		.request = req,
		.answer = ans,
		.tables = tables,
		.top = top,
		.at = req->start,
	};

	/* Empty slots are steps too: the rest after this number of steps is for the next run, from `next`. */
	bpf_loop(8 * WALK_RECORDS_MAX, step, &walker, 0);
	ans->next = walker.at < req->end ? walker.at : req->end;
	return 0;
}
