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
    trim::thin_windows_shrink_to_what_was_touched_and_keep_their_content needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::dense_windows_are_left_as_they_are needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::a_window_is_not_split_while_it_is_being_filled needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::a_single_byte_anywhere_makes_a_page_not_zero needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::looking_brings_nothing_into_memory needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::windows_that_a_fork_shares_and_locked_ones_are_left_alone needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::a_window_that_fills_up_after_it_was_split_is_promoted_again needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::a_program_that_execs_is_trimmed_anew_and_one_that_ends_is_gone needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    trim::what_a_look_and_a_count_cost needs [Root, PageFrames, RemoteAdvice, RemoteCollapse, HugePageModes];
    damon::it_sees_the_hot_part_and_not_the_cold_one needs [Root, DamonVaddr, HugePageModes];
    damon::attach_on_this_rung_promotes_the_hot_windows needs [Root, DamonVaddr, RemoteCollapse, HugePageModes];
    count::each_window_counts_as_what_became_of_it needs [Root, PageFrames, RemoteCollapse, RemoteAdvice, HugePageModes];
    count::a_collapsed_window_is_reserved_and_allocated needs [Root, PageFrames, RemoteCollapse, HugePageModes];
    count::a_window_that_was_torn_is_downgraded needs [Root, PageFrames, HugePageModes, PagemapScan];
    count::a_process_that_forbids_huge_pages_has_none_reserved needs [Root, PageFrames, HugePageModes];
    count::on_a_host_that_gives_to_all_everything_is_reserved needs [Root, PageFrames, HugePageModes];
    count::smaller_sizes_are_counted_by_size needs [Root, PageFrames, SmallHugePages, HugePageModes];
    injection::a_sleeping_process_sleeps_on needs [Root];
    injection::a_call_that_is_never_restarted_is_made_again needs [Root];
    injection::a_process_that_waits_for_input_gets_it needs [Root];
    injection::a_computation_comes_out_the_same needs [Root, RealProcessor];
    injection::no_signal_is_lost needs [Root, RealProcessor];
    injection::a_stopped_process_stays_stopped needs [Root, RealProcessor];
    injection::a_process_that_ends_meanwhile_is_gone needs [Root];
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
    command_stat::stat_of_a_process_says_what_became_of_its_windows needs [Root, MasuCommand, PageFrames, HugePageModes];
    command_stat::stat_of_the_host_names_its_counters_its_free_blocks_and_the_processes needs [Root, MasuCommand, PageFrames, HugePageModes];
    command_stat::watching_ends_with_the_process needs [Root, MasuCommand, PageFrames, HugePageModes];
    command_stat::without_privileges_the_reason_is_not_known needs [Root, MasuCommand, PagemapScan, HugePageModes];
    command_stat::set_switches_huge_pages_off_and_on needs [Root, MasuCommand, PageFrames, RemoteAdvice, HugePageModes];
    command_stat::set_leaves_traced_and_filtered_programs_alone needs [Root, MasuCommand];
    command_stat::set_names_the_word_that_it_does_not_understand needs [Root, MasuCommand];
    command_redis::redis_gets_huge_pages_within_the_budget_and_keeps_its_data needs [Root, MasuCommand, RedisServer, PageTableWalk, RemoteCollapse, HugePageModes];
    run::every_kind_of_private_memory_is_huge_from_the_first_touch needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run::without_the_library_nothing_is_huge needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run::what_malloc_gives_is_huge needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run::with_no_align_mappings_lie_where_the_kernel_puts_them needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run::stacks_are_huge_when_asked_for needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run::text_is_huge_when_asked_for needs [Root, MasuCommand, PreloadLibrary, HugePageModes, CCompiler];
    run::smaller_sizes_serve_what_is_too_small_for_a_window needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run::half_of_a_window_can_go_and_the_rest_stays needs [Root, MasuCommand, PreloadLibrary, HugePageModes, PageFrames];
    run::what_is_touched_thinly_comes_back_within_seconds needs [Root, MasuCommand, PreloadLibrary, HugePageModes, PageFrames, RemoteAdvice, RemoteCollapse];
    run::memory_that_many_threads_change_is_never_damaged needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::it_ends_as_the_program_ends needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::what_cannot_be_started_has_a_status_of_its_own needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::its_input_and_its_output_are_its_own needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::its_surroundings_are_as_without_masu needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::each_signal_reaches_it_exactly_once needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::signals_that_are_ignored_at_the_start_stay_ignored needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::stopping_and_continuing_the_group_works needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::when_masu_is_killed_the_program_lives_on needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::on_a_terminal_there_is_a_report_and_the_program_has_the_terminal needs [Root, MasuCommand, PreloadLibrary, HugePageModes, Script];
    run_behaviour::the_report_goes_where_it_is_wanted needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::programs_end_in_all_ways_that_there_are needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::a_program_in_a_chroot_goes_on needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::children_are_served_unless_that_is_not_wanted needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::more_children_than_seats_all_run needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_behaviour::a_pid_namespace_of_its_own_is_no_confusion needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::a_refused_growth_takes_nothing_of_other_threads needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::memory_that_began_small_is_huge_once_it_is_large needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::threads_that_free_their_own_handle_are_no_trouble needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::a_program_that_shuts_itself_in_is_left_alone needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::a_long_list_of_arguments_does_not_harm_the_stack needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::a_script_without_a_first_line_is_run_by_the_shell needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::off_is_off_within_another_run needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_dangers::alignment_is_switched_in_a_running_program needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_hard::a_preloaded_library_that_is_not_there_is_remarked needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_hard::another_library_that_interposes_mmap_does_no_harm needs [Root, MasuCommand, PreloadLibrary, HugePageModes, CCompiler];
    run_hard::a_static_program_is_served_from_outside needs [Root, MasuCommand, PreloadLibrary, HugePageModes, CCompiler, PageTableWalk, RemoteCollapse];
    run_hard::a_sanitized_program_is_served_from_outside needs [Root, MasuCommand, PreloadLibrary, HugePageModes, CCompiler, PageTableWalk, RemoteCollapse];
    run_hard::a_program_with_another_c_library_is_served_from_outside needs [Root, MasuCommand, PreloadLibrary, HugePageModes, Musl, PageTableWalk, RemoteCollapse];
    run_hard::a_set_uid_program_is_refused needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_hard::where_huge_pages_are_off_it_is_served_from_outside needs [Root, MasuCommand, PreloadLibrary, HugePageModes, PageTableWalk, RemoteCollapse];
    run_hard::tight_limits_make_no_difference needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_hard::a_group_with_a_limit_is_kept needs [Root, MasuCommand, PreloadLibrary, HugePageModes, MemoryGroups];
    run_hard::garbage_in_the_environment_does_no_harm needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_hard::children_that_the_c_library_does_not_hear_of_do_no_harm needs [Root, MasuCommand, PreloadLibrary, HugePageModes, CCompiler];
    run_hard::data_that_is_run_can_still_be_run needs [Root, MasuCommand, PreloadLibrary, HugePageModes, CCompiler];
    run_hard::without_privileges_it_is_served_and_the_report_says_what_is_missing needs [Root, MasuCommand, PreloadLibrary, HugePageModes];
    run_programs::other_allocators_get_huge_pages needs [Root, MasuCommand, PreloadLibrary, HugePageModes, Allocators];
    run_programs::stress_ng_finds_its_memory_as_it_left_it needs [Root, MasuCommand, PreloadLibrary, HugePageModes, StressNg];
    run_programs::python_with_threads_and_children_says_the_same needs [Root, MasuCommand, PreloadLibrary, HugePageModes, Python];
    run_local::a_program_that_checks_each_byte_finds_none_wrong needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local::a_program_that_checks_each_byte_finds_a_wrong_one needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local::local_memory_is_never_more_than_was_given needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local::a_paged_program_ends_and_talks_as_without_masu needs [MasuCommand, PagerLibrary, UserFaults, Shell];
    run_local::a_fork_works_while_all_fits_and_is_refused_and_reported_when_not needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local::a_fork_brings_back_what_fits needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local::copies_of_a_program_find_none_wrong needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local::what_cannot_work_on_paged_memory_is_not_there_for_the_program needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local::a_programs_own_bus_errors_reach_its_own_handler needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local::facts_tells_that_programs_can_be_paged needs [MasuCommand, UserFaults];
    run_local_children::hundreds_of_children_are_paged_with_few_open_files needs [MasuCommand, PagerLibrary, UserFaults, Shell];
    run_local_children::masu_alone_may_have_more_open_files needs [MasuCommand, PagerLibrary, UserFaults, Shell];
    run_local_children::without_terms_a_program_ends_unless_masu_is_gone needs [MasuCommand, PagerLibrary, Shell];
    run_local_children::a_child_that_cannot_begin_does_not_end_the_run needs [MasuCommand, PagerLibrary, UserFaults, Shell];
    run_local_children::a_first_program_that_cannot_begin_is_named needs [MasuCommand, PagerLibrary, UserFaults, Shell];
    run_local_hard::memory_that_is_given_up_over_a_hole_reads_as_zeros needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local_hard::a_call_that_handlers_interrupt_is_made_all_the_same needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::a_message_is_sent_whole_or_refused needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::a_copy_with_a_stack_of_its_own_runs_on_it needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local_hard::lengths_beyond_all_memory_do_no_harm needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::what_lies_beside_moved_memory_stays_what_it_was needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local_hard::small_memory_that_grows_is_paged_as_a_whole needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local_hard::a_move_that_fails_leaves_nothing_behind needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local_hard::memory_that_is_freed_in_part_reads_as_it_was_or_as_zeros needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::bus_errors_beside_paged_memory_are_the_programs_own needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::a_direct_read_into_many_pieces_is_whole needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::a_long_buffer_is_brought_as_far_as_it_is_filled needs [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    run_local_hard::a_call_that_is_made_in_parts_is_one_to_the_program needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::pages_of_zeros_are_kept_nowhere needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::pages_of_zeros_leave_before_others needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::pages_that_the_kernel_moves_about_are_not_lost needs [Root, Compaction, MasuCommand, PagerLibrary, UserFaults, CPrograms, RealProcessor];
    run_local_hard::exec_takes_more_arguments_than_can_be_pinned needs [MasuCommand, PagerLibrary, UserFaults, CPrograms, Shell];
    run_local_profile::a_second_run_begins_with_what_the_first_one_learned needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_profile::a_program_in_a_pid_namespace_is_known_as_itself needs [Root, MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_profile::no_profile_is_kept_where_none_is_wanted needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_profile::who_has_no_privilege_is_paged_and_has_a_profile needs [Root, MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_profile::a_broken_profile_is_ignored_and_replaced needs [Root, MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_refusals::local_memory_that_cannot_be_given_is_refused needs [MasuCommand, PagerLibrary, Shell];
    run_local_refusals::stores_that_cannot_be_used_are_refused_with_their_name needs [MasuCommand, PagerLibrary, Shell];
    run_local_refusals::a_redis_that_does_not_let_masu_in_is_refused_with_the_way_out needs [MasuCommand, PagerLibrary, Shell, RedisServer];
    run_local_refusals::programs_that_cannot_be_paged_are_refused_with_the_reason needs [Root, MasuCommand, PagerLibrary, CCompiler];
    run_local_refusals::a_program_of_another_c_library_is_refused needs [MasuCommand, PagerLibrary, Musl];
    run_local_refusals::a_program_that_is_not_there_has_its_usual_status needs [MasuCommand, PagerLibrary, Shell];
    run_local_report::the_report_has_the_promised_words needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_report::sections_that_are_marked_get_units_of_their_own needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_report::what_faults_is_named_by_function_file_and_line needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_report::what_a_library_has_beyond_its_data_is_paged needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_stores::a_redis_keeps_the_pages_and_is_left_empty needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::a_redis_is_read_ahead_and_written_behind needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::pages_that_were_changed_in_the_file_are_found needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_stores::pages_that_are_gone_from_the_file_are_found needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_stores::pages_that_were_changed_in_redis_are_found needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::pages_that_a_redis_forgot_are_found needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::a_redis_that_is_silent_for_a_while_is_waited_for needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::a_redis_that_stays_silent_ends_the_program_after_the_time_that_was_said needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::a_store_that_is_full_ends_the_program_with_its_name needs [Root, MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_stores::a_redis_that_is_full_ends_the_program_with_its_name needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::with_a_file_the_program_outlives_masu needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_stores::with_redis_the_program_ends_when_masu_is_killed needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_stores::ctrl_c_ends_it_and_leaves_nothing_in_the_store needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_outages::a_cluster_whose_master_is_killed_is_waited_for needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_outages::a_cluster_that_sleeps_and_wakes_with_another_master_is_waited_for needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_outages::a_redis_that_was_killed_and_comes_back_with_its_data_is_waited_for needs [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    run_local_programs::python_counts_the_same needs [MasuCommand, PagerLibrary, UserFaults, Python];
    run_local_programs::sort_sorts_the_same needs [MasuCommand, PagerLibrary, UserFaults, Shell];
    run_local_programs::sqlite_answers_the_same needs [MasuCommand, PagerLibrary, UserFaults, Sqlite];
    run_local_programs::the_c_compiler_makes_the_same_file needs [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    run_local_programs::what_make_install_lays_down_is_enough needs [MasuCommand, PagerLibrary, PreloadLibrary, UserFaults, CCompiler, Make];
    run_local_programs::a_redis_larger_than_local_memory_keeps_every_key needs [MasuCommand, PagerLibrary, UserFaults, RedisServer];
    run_library::it_needs_little_and_shows_only_its_hooks needs [PreloadLibrary];
};
