/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/*
 * Counts refaults: pages of files that return after reclaim, by use. The kernel itself counts them where it finds a
 * shadow in the file's tree; no tracepoint reports that, and not every kernel lets programs attach to its functions. So
 * this program records reclaimed pages by a hash, and searches for inserted pages.
 *
 * The table is an array of small buckets: a reclaimed page replaces the oldest of its bucket. With an entry per page of
 * memory, a page is forgotten in 2 cases of 100 when a quarter of the memory was reclaimed after it, and in 14 of 100
 * when half of it was. Two processors may lose a mark to each other, and no more than that.
 *
 * A page is code when that part of the file is mapped executable, read-only data when it is mapped otherwise, and page
 * cache when it is not mapped, according to the tree that the kernel keeps of a file's mappings. The tree may change
 * meanwhile, since this program does not hold its lock; then the class of this page may be wrong, and nothing else is.
 */
#include "numbers.h"

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
enum { BPF_ANY = 0 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "kernel.h"
#include "refault_record.h"

#define VM_EXEC 4ul
#define PF_MEMALLOC 0x800u /* set for a task in reclaim */
#define PAGE_SHIFT 12
#define STACK 64u /* twice the greatest depth of such a tree */

struct rb_node {
	struct rb_node *rb_right;
	struct rb_node *rb_left;
} KERNEL;

struct rb_root {
	struct rb_node *rb_node;
} KERNEL;

struct rb_root_cached {
	struct rb_root rb_root;
} KERNEL;

struct inode {
	unsigned long i_ino;
} KERNEL;

struct address_space {
	struct inode *host;
	struct rb_root_cached i_mmap;
	unsigned long flags;
} KERNEL;

enum mapping_flags {
	AS_EXITING,
};

struct task_struct {
	unsigned int flags;
} KERNEL;

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	unsigned long vm_pgoff;
	struct {
		struct rb_node rb;
		unsigned long rb_subtree_last;
	} KERNEL shared;
} KERNEL;

struct mem_cgroup {
	struct cgroup_subsys_state css;
} KERNEL;

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct refault_filter);
} filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, REFAULT_MEMBERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REFAULT_CLASSES);
	__type(key, enum refault_class);
	__type(value, __u64);
} counts SEC(".maps");

/* Reclaimed pages: the bucket and the mark are parts of one hash. The loader sets the number of entries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct refault_bucket);
} evicted SEC(".maps");

struct stack {
	struct rb_node *nodes[STACK];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack);
} stacks SEC(".maps");

static const __u32 ZERO = 0;

static __always_inline void push(struct stack *stack, __u32 *top, struct rb_node *node)
{
	if (node && *top < STACK) {
		stack->nodes[*top & (STACK - 1)] = node;
		*top += 1;
	}
}

struct search {
	__u64 page;
	__u32 top;
	__u32 class;
};

/* The tree is in order of first pages, and each node knows the last page of all below it. */
static long check_mapping(__u32 step, void *context)
{
	struct search *search = context;
	struct stack *stack = bpf_map_lookup_elem(&stacks, &ZERO);

	if (!stack || search->top == 0)
		return 1;
	search->top -= 1;
	struct rb_node *node = stack->nodes[search->top & (STACK - 1)];
	struct vm_area_struct *area = (void *)node - bpf_core_field_offset(struct vm_area_struct, shared.rb);

	if (BPF_CORE_READ(area, shared.rb_subtree_last) < search->page)
		return 0;
	unsigned long first = BPF_CORE_READ(area, vm_pgoff);
	if (first <= search->page) {
		unsigned long bytes = BPF_CORE_READ(area, vm_end) - BPF_CORE_READ(area, vm_start);
		push(stack, &search->top, BPF_CORE_READ(node, rb_right));
		if (search->page - first < bytes >> PAGE_SHIFT) {
			search->class = REFAULT_READ_ONLY;
			if (BPF_CORE_READ(area, vm_flags) & VM_EXEC) {
				search->class = REFAULT_CODE;
				return 1;
			}
		}
	}
	push(stack, &search->top, BPF_CORE_READ(node, rb_left));
	return 0;
}

static __always_inline enum refault_class class_in(struct address_space *mapping, __u64 page)
{
	struct search search = { .page = page, .class = REFAULT_CACHE };
	struct stack *stack = bpf_map_lookup_elem(&stacks, &ZERO);

	if (stack) {
		push(stack, &search.top, BPF_CORE_READ(mapping, i_mmap.rb_root.rb_node));
		bpf_loop(REFAULT_STEPS_MAX, check_mapping, &search, 0);
	}
	return search.class;
}

/* Whether the group or one below it is charged; the lowest bits of the word are the pointer's type. */
static __always_inline int is_charged(struct folio *folio, __u64 group)
{
	struct mem_cgroup *charged = (void *)(BPF_CORE_READ(folio, memcg_data) & ~7ul);

	return charged && is_at_or_below(&charged->css, group);
}

struct pages {
	__u64 file;
	__u64 first;
	__u64 refaulted;
	__u32 buckets_mask;
};

/* Its address and its inode number: no other file in memory has both. */
static __always_inline __u64 file_of(struct address_space *mapping)
{
	return (unsigned long)mapping ^ BPF_CORE_READ(mapping, host, i_ino) << 48;
}

/* The finishing step of MurmurHash3, on a product that sets neighbours apart. */
static __always_inline __u64 hash_of(__u64 file, __u64 page)
{
	__u64 hash = file ^ (page + 1) * 0x9e3779b97f4a7c15ull;

	hash ^= hash >> 33;
	hash *= 0xff51afd7ed558ccdull;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53ull;
	return hash ^ hash >> 33;
}

static __always_inline struct refault_bucket *bucket_of(const struct pages *pages, __u32 nth, __u32 *mark)
{
	__u64 hash = hash_of(pages->file, pages->first + nth);
	__u32 bucket = (hash >> 32) & pages->buckets_mask;

	*mark = (__u32)hash | 1;
	return bpf_map_lookup_elem(&evicted, &bucket);
}

static long record_eviction(__u32 nth, void *context)
{
	__u32 mark;
	struct refault_bucket *bucket = bucket_of(context, nth, &mark);

	if (!bucket)
		return 1;
	for (__u32 way = REFAULT_WAYS - 1; way > 0; way--)
		bucket->marks[way] = bucket->marks[way - 1];
	bucket->marks[0] = mark;
	return 0;
}

static long find_eviction(__u32 nth, void *context)
{
	__u32 mark;
	struct pages *pages = context;
	struct refault_bucket *bucket = bucket_of(pages, nth, &mark);

	if (!bucket)
		return 1;
	for (__u32 way = 0; way < REFAULT_WAYS; way++) {
		if (bucket->marks[way] == mark) {
			bucket->marks[way] = 0;
			pages->refaulted += 1;
			return 0;
		}
	}
	return 0;
}

static __always_inline __u32 count_of(struct folio *folio)
{
	__u64 count = pages_of(folio);

	return count < REFAULT_FOLIO_PAGES_MAX ? count : REFAULT_FOLIO_PAGES_MAX;
}

/* Only reclaim is recorded, as in the kernel; truncation and removal on request are not. */
SEC("tp_btf/mm_filemap_delete_from_page_cache")
int removed(__u64 *context)
{
	struct folio *folio = (void *)context[0];
	struct task_struct *task = (void *)bpf_get_current_task();
	struct address_space *mapping = BPF_CORE_READ(folio, mapping);
	const struct refault_filter *wanted = bpf_map_lookup_elem(&filter, &ZERO);

	if (!wanted || !(BPF_CORE_READ(task, flags) & PF_MEMALLOC))
		return 0;
	if (BPF_CORE_READ(mapping, flags) >> bpf_core_enum_value(enum mapping_flags, AS_EXITING) & 1)
		return 0;
	struct pages pages = {
		.file = file_of(mapping),
		.first = BPF_CORE_READ(folio, index),
		.buckets_mask = wanted->buckets_mask,
	};
	bpf_loop(count_of(folio), record_eviction, &pages, 0);
	return 0;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int added(__u64 *context)
{
	const struct refault_filter *wanted = bpf_map_lookup_elem(&filter, &ZERO);
	struct folio *folio = (void *)context[0];
	struct address_space *mapping = BPF_CORE_READ(folio, mapping);
	__u32 process = bpf_get_current_pid_tgid() >> 32;

	if (!wanted)
		return 0;
	struct pages pages = {
		.file = file_of(mapping),
		.first = BPF_CORE_READ(folio, index),
		.buckets_mask = wanted->buckets_mask,
	};
	bpf_loop(count_of(folio), find_eviction, &pages, 0);
	if (!pages.refaulted)
		return 0;
	if (!wanted->all && !bpf_map_lookup_elem(&members, &process) &&
	    !(wanted->group && is_charged(folio, wanted->group)))
		return 0;
	enum refault_class class = class_in(mapping, pages.first);
	__u64 *count = bpf_map_lookup_elem(&counts, &class);
	if (count)
		*count += pages.refaulted;
	return 0;
}
