//! The list of all live tests, and what each needs.

use libtest_mimic::Failed;

use crate::cases;
use crate::live::Live;
use crate::need::Need;

/// One test.
#[derive(Debug)]
pub struct LiveTest {
    /// Its module and its function: `collapse::a_touched_window_becomes_huge`.
    pub name: &'static str,
    /// What must be there for it to run.
    pub needs: &'static [Need],
    /// It.
    pub run: fn(&Live) -> Result<(), Failed>,
}

/// Names the test after its function, so that the two cannot differ.
macro_rules! tests {
    ($($module:ident :: $function:ident needs [$($need:ident),*];)*) => {
        &[$(LiveTest {
            name: concat!(stringify!($module), "::", stringify!($function)),
            needs: &[$(Need::$need),*],
            run: cases::$module::$function,
        }),*]
    };
}

/// All of them. A test that is not listed here is unused code, which the compiler reports.
pub const ALL: &[LiveTest] = tests! {
    toy::a_page_is_resident_once_it_was_touched_and_not_before needs [Root];
    toy::memory_that_was_changed_by_another_is_noticed needs [Root];
    toy::a_moved_mapping_still_checks needs [];
    toy::a_fork_shares_until_one_of_the_two_writes needs [];
    toy::refusals_and_faults_come_back_as_errors needs [];
    toy::the_process_id_stays_over_exec_and_the_memory_does_not needs [Root];
    toy::a_dropped_toy_leaves_no_process_behind needs [];
    toy::spinning_threads_touch_pages_until_they_rest needs [Root];
    knob::a_turned_knob_is_turned_back_also_after_a_kill needs [Root, HugePageModes];
    collapse::a_window_with_one_page_becomes_a_huge_page_and_keeps_its_content needs [Root, RemoteCollapse, HugePageModes];
    collapse::cold_on_one_page_splits_a_huge_page_and_keeps_its_content needs [Root, RemoteCollapse, RemoteAdvice, HugePageModes];
    pagemap::scan_and_table_name_the_same_pages needs [Root, PagemapScan];
    pagemap::soft_dirty_marks_exactly_the_pages_written_after_the_clear needs [Root, SoftDirty];
};
