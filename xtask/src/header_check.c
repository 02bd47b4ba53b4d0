/* Prints the values of the kernel's headers, for `cargo xtask header-check`: lines `name number` or `skip name why`. */
#include <asm/unistd.h>
#include <linux/fs.h>
#include <linux/ioctl.h>
#include <linux/kernel-page-flags.h>
#include <linux/mman.h>
#include <linux/perf_event.h>
#include <linux/prctl.h>
#include <linux/ptrace.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <stdio.h>

#define CONSTANT(name) printf(#name " %lld\n", (long long)(name))
#define SIZE(type) printf("sizeof(" #type ") %zu\n", sizeof(struct type))
#define FIELD(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field))

int main(void)
{
	CONSTANT(MADV_COLD);
	CONSTANT(MADV_PAGEOUT);
#ifdef MADV_COLLAPSE
	CONSTANT(MADV_COLLAPSE);
#else
	puts("skip MADV_COLLAPSE these headers are older than Linux 6.1");
#endif
	CONSTANT(__NR_process_madvise);
	CONSTANT(__NR_pidfd_open);
#ifdef __NR_cachestat
	CONSTANT(__NR_cachestat);
	SIZE(cachestat_range);
	FIELD(cachestat_range, off);
	FIELD(cachestat_range, len);
	SIZE(cachestat);
	FIELD(cachestat, nr_cache);
	FIELD(cachestat, nr_dirty);
	FIELD(cachestat, nr_writeback);
	FIELD(cachestat, nr_evicted);
	FIELD(cachestat, nr_recently_evicted);
#else
	puts("skip cachestat these headers are older than Linux 6.5");
#endif
	CONSTANT(SYNC_FILE_RANGE_WRITE);
	CONSTANT(KPF_LRU);
	CONSTANT(KPF_ACTIVE);
	CONSTANT(KPF_SLAB);
	CONSTANT(KPF_BUDDY);
	CONSTANT(KPF_MMAP);
	CONSTANT(KPF_ANON);
	CONSTANT(KPF_SWAPBACKED);
	CONSTANT(KPF_HUGE);
	CONSTANT(KPF_UNEVICTABLE);
	CONSTANT(KPF_NOPAGE);
	CONSTANT(KPF_OFFLINE);
	CONSTANT(KPF_PGTABLE);
	CONSTANT(KPF_COMPOUND_HEAD);
	CONSTANT(KPF_COMPOUND_TAIL);
	CONSTANT(KPF_KSM);
	CONSTANT(KPF_THP);
	CONSTANT(KPF_ZERO_PAGE);
	CONSTANT(PR_SET_THP_DISABLE);
	CONSTANT(__NR_prctl);
	CONSTANT(PR_SET_SYSCALL_USER_DISPATCH);
	CONSTANT(PR_SYS_DISPATCH_OFF);
	CONSTANT(PR_SYS_DISPATCH_ON);
	CONSTANT(__NR_perf_event_open);
	CONSTANT(PERF_TYPE_HARDWARE);
	CONSTANT(PERF_TYPE_SOFTWARE);
	CONSTANT(PERF_COUNT_HW_CPU_CYCLES);
	CONSTANT(PERF_COUNT_HW_INSTRUCTIONS);
	CONSTANT(PERF_COUNT_HW_CACHE_MISSES);
	CONSTANT(PERF_COUNT_HW_STALLED_CYCLES_BACKEND);
	CONSTANT(PERF_COUNT_SW_TASK_CLOCK);
	CONSTANT(PERF_FORMAT_TOTAL_TIME_ENABLED);
	CONSTANT(PERF_FORMAT_TOTAL_TIME_RUNNING);
	CONSTANT(PERF_FLAG_FD_CLOEXEC);
	CONSTANT(PERF_ATTR_SIZE_VER0);
	FIELD(perf_event_attr, type);
	FIELD(perf_event_attr, size);
	FIELD(perf_event_attr, config);
	FIELD(perf_event_attr, sample_period);
	FIELD(perf_event_attr, sample_type);
	FIELD(perf_event_attr, read_format);
	FIELD(perf_event_attr, wakeup_events);
	FIELD(perf_event_attr, bp_type);
	FIELD(perf_event_attr, bp_addr);
	CONSTANT(__NR_userfaultfd);
	CONSTANT(UFFD_API);
	CONSTANT(UFFDIO_API);
	CONSTANT(UFFD_USER_MODE_ONLY);
	CONSTANT(UFFD_FEATURE_SIGBUS);
#ifdef UFFD_FEATURE_WP_ASYNC
	CONSTANT(UFFD_FEATURE_WP_ASYNC);
#else
	puts("skip UFFD_FEATURE_WP_ASYNC these headers are older than Linux 6.7");
#endif
#ifdef UFFD_FEATURE_MOVE
	CONSTANT(UFFD_FEATURE_MOVE);
#else
	puts("skip UFFD_FEATURE_MOVE these headers are older than Linux 6.8");
#endif
	SIZE(uffdio_api);
	FIELD(uffdio_api, api);
	FIELD(uffdio_api, features);
	FIELD(uffdio_api, ioctls);
	CONSTANT(PTRACE_GETSIGMASK);
	CONSTANT(PTRACE_SETSIGMASK);
	CONSTANT(PTRACE_EVENT_STOP);
#ifdef PTRACE_GET_RSEQ_CONFIGURATION
	CONSTANT(PTRACE_GET_RSEQ_CONFIGURATION);
	SIZE(ptrace_rseq_configuration);
	FIELD(ptrace_rseq_configuration, rseq_abi_pointer);
#else
	puts("skip PTRACE_GET_RSEQ_CONFIGURATION these headers are older than Linux 5.13");
#endif
#ifdef PAGEMAP_SCAN
	CONSTANT(PAGEMAP_SCAN);
	CONSTANT(PAGE_IS_WPALLOWED);
	CONSTANT(PAGE_IS_WRITTEN);
	CONSTANT(PAGE_IS_FILE);
	CONSTANT(PAGE_IS_PRESENT);
	CONSTANT(PAGE_IS_SWAPPED);
	CONSTANT(PAGE_IS_PFNZERO);
	CONSTANT(PAGE_IS_HUGE);
	SIZE(page_region);
	FIELD(page_region, start);
	FIELD(page_region, end);
	FIELD(page_region, categories);
	SIZE(pm_scan_arg);
	FIELD(pm_scan_arg, size);
	FIELD(pm_scan_arg, flags);
	FIELD(pm_scan_arg, start);
	FIELD(pm_scan_arg, end);
	FIELD(pm_scan_arg, walk_end);
	FIELD(pm_scan_arg, vec);
	FIELD(pm_scan_arg, vec_len);
	FIELD(pm_scan_arg, max_pages);
	FIELD(pm_scan_arg, category_inverted);
	FIELD(pm_scan_arg, category_mask);
	FIELD(pm_scan_arg, category_anyof_mask);
	FIELD(pm_scan_arg, return_mask);
#else
	puts("skip PAGEMAP_SCAN these headers are older than Linux 6.7");
#endif
	return 0;
}
