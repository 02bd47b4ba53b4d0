use linux::fake::FakeKernel;
use rustix::io::Errno;

use super::*;

const HEAP: u64 = 0x10_0000;
const STACK: u64 = 0x90_0000;

fn page(address: u64, nth: u64, frame: u64) -> MergedPage {
    MergedPage { address: Address(address + nth * 4096), frame }
}

/// `smaps` of a process with a heap and a stack of 16 pages each, all in memory, of which KSM merged so many.
fn smaps(heap_kib: u64, stack_kib: u64) -> String {
    let mapping = |start: u64, ksm_kib: u64| {
        let end = start + 16 * 4096;
        format!(
            "{start:x}-{end:x} rw-p 00000000 00:00 0 \nRss: 64 kB\nAnonymous: 64 kB\nKSM: {ksm_kib} kB\n\
             AnonHugePages: 0 kB\nSwap: 0 kB\nLocked: 0 kB\n"
        )
    };
    mapping(HEAP, heap_kib) + &mapping(STACK, stack_kib)
}

/// 7 runs a program of its own, and 8 is its child, which has run no other. 9 runs another program. KSM merged frame 70
/// of 7, 8 and 9, and both pages of frame 71 of 9. Frames 80 and 81 are shared by fork, 81 in the stack.
fn scan(flag: impl Fn(u64) -> bool) -> Vec<(Pid, Found)> {
    let pages = [
        (7, vec![page(HEAP, 0, 70), page(HEAP, 1, 80), page(STACK, 0, 81)]),
        (8, vec![page(HEAP, 0, 70), page(HEAP, 1, 80), page(STACK, 0, 81)]),
        (9, vec![page(HEAP, 5, 70), page(HEAP, 6, 71), page(HEAP, 7, 71)]),
    ];
    let with_flag = |pages: Vec<MergedPage>| pages.into_iter().filter(|page| flag(page.frame)).collect();
    pages.into_iter().map(|(pid, pages)| (Pid(pid), Found { open: with_flag(pages), ..Found::default() })).collect()
}

fn merged(found: &[(Pid, Found)]) -> Vec<(i32, u64)> {
    found.iter().flat_map(|(pid, of)| of.open.iter().map(|page| (pid.0, page.frame))).collect()
}

fn is_forked(pid: Pid) -> bool {
    pid == Pid(8)
}

#[test]
fn a_kernel_that_flags_every_anonymous_page_gives_the_same_merged_pages_as_one_that_flags_merged_ones() {
    let expected = [(7, 70), (8, 70), (9, 70), (9, 71), (9, 71)];
    // 6.18: the flag alone.
    assert_eq!(merged(&scan(|frame| matches!(frame, 70 | 71))), expected);
    // 6.12: the flag everywhere. smaps has no merged page in the mappings of 80 and 81.
    let kernel = FakeKernel::new().file("proc/7/smaps", &smaps(0, 0)).file("proc/8/smaps", &smaps(0, 0));
    let mut found = scan(|_| true);
    assert_eq!(keep_merged(&kernel, is_forked, &mut found), Pages(0));
    assert_eq!(merged(&found), expected);
}

#[test]
fn in_a_mapping_with_merged_and_other_pages_a_page_shared_by_fork_is_undecided() {
    let kernel = FakeKernel::new().file("proc/7/smaps", &smaps(4, 0)).file("proc/8/smaps", &smaps(4, 0));
    let mut found = scan(|_| true);
    // Frame 80 in two processes. Frame 81 lies in the stack, which has no merged page.
    assert_eq!(keep_merged(&kernel, is_forked, &mut found), Pages(2));
    assert_eq!(merged(&found), [(7, 70), (8, 70), (9, 70), (9, 71), (9, 71)]);
}

#[test]
fn in_a_mapping_with_merged_pages_alone_a_page_shared_by_fork_is_merged() {
    let kernel = FakeKernel::new().file("proc/7/smaps", &smaps(64, 0)).file("proc/8/smaps", &smaps(64, 0));
    let mut found = scan(|_| true);
    assert_eq!(keep_merged(&kernel, is_forked, &mut found), Pages(0));
    assert_eq!(merged(&found), [(7, 70), (7, 80), (8, 70), (8, 80), (9, 70), (9, 71), (9, 71)]);
}

#[test]
fn one_readable_process_decides_and_contradictions_do_not() {
    let refusing = FakeKernel::new().refusing("proc/7/smaps", Errno::ACCESS).file("proc/8/smaps", &smaps(0, 0));
    let mut found = scan(|frame| frame == 80);
    assert_eq!((keep_merged(&refusing, is_forked, &mut found), merged(&found)), (Pages(0), vec![]));
    // KSM merged the page between the two reads.
    let changed = FakeKernel::new().file("proc/7/smaps", &smaps(0, 0)).file("proc/8/smaps", &smaps(64, 0));
    let mut found = scan(|frame| frame == 80);
    assert_eq!((keep_merged(&changed, is_forked, &mut found), merged(&found)), (Pages(2), vec![]));
    // Neither can be read.
    let mut found = scan(|frame| frame == 80);
    assert_eq!((keep_merged(&FakeKernel::new(), is_forked, &mut found), merged(&found)), (Pages(2), vec![]));
}

#[test]
fn a_page_that_an_earlier_scan_found_merged_stays_merged_with_its_new_sharers() {
    let mut found = scan(|frame| frame == 80);
    found[0].1.known = std::mem::take(&mut found[0].1.open);
    assert_eq!(keep_merged(&FakeKernel::new(), is_forked, &mut found), Pages(0));
    assert_eq!(merged(&found), [(8, 80)]);
}
