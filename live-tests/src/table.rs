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
    walk::it_finds_exactly_the_pages_touched_after_a_clear needs [Root, PageTableWalk, HugePageModes];
    walk::it_finds_every_nth_page_of_a_window_whose_pages_are_not_all_there needs [Root, PageTableWalk, HugePageModes];
    walk::a_page_counts_in_every_look_from_the_one_that_saw_it_first needs [Root, PageTableWalk, HugePageModes];
    walk::a_huge_window_has_one_bit_for_all_its_pages needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    walk::pages_without_any_right_are_still_there needs [Root, PageTableWalk, HugePageModes];
    walk::memory_above_128_tib_is_found needs [Root, PageTableWalk, FiveLevels, HugePageModes];
    walk::windows_behind_holes_of_a_gib_and_of_512_gib_are_found needs [Root, PageTableWalk, HugePageModes];
    walk::more_windows_than_one_reading_holds_are_all_found needs [Root, PageTableWalk, HugePageModes];
    walk::the_walk_and_the_facts_agree_on_the_levels_of_the_page_tables needs [Root, PageTableWalk];
    walk::calibrating_twice_gives_the_same_answer needs [Root, PageTableWalk, HugePageModes];
    walk_changes::a_window_that_was_promoted_or_split_between_two_looks_starts_anew needs [Root, PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
    walk_changes::windows_come_and_go_with_their_mappings needs [Root, PageTableWalk, HugePageModes];
    walk_changes::mapping_moving_and_unmapping_during_looks_does_no_harm needs [Root, PageTableWalk, HugePageModes];
    walk_changes::after_exec_the_map_is_void needs [Root, PageTableWalk, HugePageModes];
    walk_changes::a_program_that_ended_is_gone_and_so_is_one_without_memory needs [Root, PageTableWalk];
    residency::each_kind_of_page_is_counted_as_what_it_is needs [Root, PageFrames, HugePageModes];
    residency::pages_that_a_fork_shares_are_shared_until_it_ends_or_writes needs [Root, PageFrames, HugePageModes];
    residency::a_huge_page_is_told_from_512_small_ones needs [Root, PageFrames, RemoteCollapse, RemoteAdvice, HugePageModes];
    residency::the_huge_zero_page_is_nobodys_memory needs [Root, PageFrames, HugePageModes];
    residency::guard_pages_are_counted_where_the_kernel_tells needs [Root, PageFrames, GuardPages, HugePageModes];
    residency::swapped_pages_are_counted needs [Root, PageFrames, Swap, RemoteAdvice, HugePageModes];
    residency::a_program_that_ended_is_gone needs [Root, PageFrames];
    act::a_dense_window_is_promoted_for_nothing needs [Root, RemoteCollapse, HugePageModes];
    act::a_sparse_window_is_promoted_only_within_the_budget needs [Root, RemoteCollapse, HugePageModes];
    act::demotion_returns_the_pages_that_hold_only_zeros needs [Root, RemoteCollapse, RemoteAdvice, HugePageModes];
    act::probing_clears_the_accessed_bit_and_the_next_touch_sets_it needs [Root, PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
    act::a_program_that_ends_half_way_is_gone needs [Root, RemoteCollapse, HugePageModes];
    act::a_program_that_execs_half_way_has_nothing_there_any_more needs [Root, RemoteCollapse, HugePageModes];
    act::a_window_that_was_huge_already_is_left_as_it_is needs [Root, RemoteCollapse, HugePageModes];
    act_hard::a_partly_unmapped_window_is_refused_and_unharmed needs [Root, RemoteCollapse, PageTableWalk, HugePageModes];
    act_hard::a_window_with_mixed_protections_is_refused_and_unharmed needs [Root, RemoteCollapse, PageTableWalk, HugePageModes];
    act_hard::a_locked_window_is_promoted_and_its_demotion_refused_without_harm needs [Root, RemoteCollapse, RemoteAdvice, HugePageModes];
    act_hard::reserved_huge_pages_are_left_alone needs [Root, ReservedHuge, RemoteCollapse, PageTableWalk, HugePageModes];
    act_hard::guard_pages_go_on_guarding needs [Root, GuardPages, RemoteCollapse, HugePageModes];
    act_hard::a_window_for_which_the_program_wants_no_huge_page_is_forbidden needs [Root, RemoteCollapse, HugePageModes];
    act_hard::a_program_that_forbids_huge_pages_gets_none needs [Root, RemoteCollapse, HugePageModes];
    act_hard::a_group_without_room_gets_no_huge_page needs [Root, MemoryGroups, RemoteCollapse, HugePageModes];
    act_shared::what_a_forked_child_shares_is_promoted_only_after_it_ended needs [Root, RemoteCollapse, HugePageModes];
    act_shared::what_the_kernel_merged_is_promoted_only_after_it_was_parted needs [Root, Ksm, RemoteCollapse, HugePageModes];
    act_shared::what_is_in_swap_stays_there_until_the_program_wants_it needs [Root, Swap, RemoteCollapse, RemoteAdvice, HugePageModes];
    attach::hot_dense_windows_become_huge_and_cold_and_sparse_ones_do_not needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach::idle_huge_windows_are_given_back needs [Root, PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
    attach::undo_splits_what_this_run_promoted needs [Root, PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
    attach::two_programs_share_one_masu needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach::a_dry_run_plans_the_same_and_changes_nothing needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach::shared_memory_and_files_are_left_alone_however_hot needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach_changes::a_program_that_execs_starts_anew needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach_changes::a_program_that_exits_ends_the_run_and_is_reported needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach_changes::of_two_programs_the_one_that_stays_is_served needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach_changes::windows_that_a_fork_shares_wait_until_it_ended needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach_changes::a_refusal_that_lasts_is_reported_and_not_repeated needs [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    attach_changes::memory_that_changes_all_the_time_is_never_damaged needs [Root, PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
    damon::it_sees_the_hot_part_and_not_the_cold_one needs [Root, DamonVaddr, HugePageModes];
    damon::attach_on_this_rung_promotes_the_hot_windows needs [Root, DamonVaddr, RemoteCollapse, HugePageModes];
    command::attach_promotes_and_reports_in_the_promised_words needs [Root, MasuCommand, PageTableWalk, RemoteCollapse, HugePageModes];
    command::undo_leaves_no_huge_window needs [Root, MasuCommand, PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
    command::a_dry_run_touches_nothing needs [Root, MasuCommand, PageTableWalk, RemoteCollapse, HugePageModes];
    command::pages_reports_in_the_promised_words needs [Root, MasuCommand, PageTableWalk, HugePageModes];
    command::ctrl_c_and_sigterm_end_with_the_report needs [Root, MasuCommand, PageTableWalk];
    command::a_broken_pipe_is_a_normal_end needs [Root, MasuCommand, PageTableWalk];
    command::a_program_that_ends_half_way_is_reported_with_status_1 needs [Root, MasuCommand, PageTableWalk];
    command_refusals::a_process_that_does_not_exist needs [MasuCommand];
    command_refusals::a_thread_of_the_kernel needs [MasuCommand, KernelThreads];
    command_refusals::a_thread_of_a_program needs [MasuCommand];
    command_refusals::a_program_that_has_ended_but_was_not_waited_for needs [MasuCommand];
    command_refusals::somebody_elses_program_and_no_privilege needs [Root, MasuCommand];
    command_refusals::a_32_bit_program needs [Root, MasuCommand, Programs32];
    command_refusals::a_program_that_forbids_huge_pages needs [Root, MasuCommand];
    command_refusals::a_program_that_another_masu_is_attached_to needs [Root, MasuCommand, PageTableWalk];
    command_refusals::fractions_out_of_range needs [MasuCommand];
    command_refusals::the_name_alone_shows_the_help needs [MasuCommand];
    command_refusals::one_bad_process_of_two_is_done_in_part needs [Root, MasuCommand, PageTableWalk];
    command_redis::redis_gets_huge_pages_within_the_budget_and_keeps_its_data needs [Root, MasuCommand, RedisServer, PageTableWalk, RemoteCollapse, HugePageModes];
};
