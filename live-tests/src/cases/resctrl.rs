//! Rules of resctrl, tried by system calls on the emulator of several machines.
//!
//! The same rules are tried on the kernel's own file system where it is mounted (`resctrl_host.rs`), as far as that
//! disturbs no other user. Tests that need other users' ways, classes, counters or CPUs run on the emulator alone:
//! exclusive groups, the initial state of a new group, exhausted classes and counters, limbo, giving CPUs away,
//! `io_alloc` and locked regions. For those the kernel's document and its source are the only evidence. None of the
//! rules has been tried on a machine with the hardware yet.

mod counters;
mod emulator;
mod ends;
mod files;
mod mount;
mod schemata;
mod tasks;

use std::fs;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::process::Signal;

use super::Outcome;
use super::programs::{Running, TIME_LIMIT};
use crate::host::{Host, LiveTest, tests};
pub(crate) use emulator::Emulator;
use emulator::{is_mounted, mounts_at, program};
pub use ends::{
    a_connection_that_is_cut_off_is_an_error, a_mount_that_fails_leaves_nothing_behind,
    one_emulator_listens_at_a_socket, what_was_ignored_at_the_start_stays_so_and_nobody_need_listen,
};
pub(crate) use mount::{Mount, Shown, Trial};

/// Tests of this folder, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    resctrl requires [Root, Fuse, ResctrlEmulator];
    files_have_the_kernels_rights_and_no_size;
    what_is_only_read_is_not_opened_for_writing;
    files_come_and_go_with_their_group_alone;
    groups_are_made_in_the_root_and_in_mon_groups_alone;
    only_groups_are_removed;
    an_open_file_of_a_removed_group_answers_no_more;
    a_write_is_one_command_of_a_page_at_most;
    the_lock_on_the_root_keeps_others_out;
    the_status_is_that_of_the_last_command;
    a_command_without_a_newline_is_none;
    a_monitoring_group_moves_and_nothing_else_does [Shell];
    any_part_can_be_written_and_the_rest_stays;
    what_is_not_understood_is_named;
    an_unknown_cache_is_refused;
    a_mask_is_within_all_ways;
    a_mask_has_no_holes_unless_the_machine_takes_them;
    a_mask_is_long_enough;
    several_lines_are_taken_together_or_not_at_all;
    size_is_that_of_the_ways;
    exclusive_is_refused_while_others_have_the_ways;
    an_exclusive_group_keeps_its_ways_from_all_others;
    a_new_group_gets_the_first_run_of_what_is_open;
    when_everything_is_exclusive_there_is_no_space;
    one_thread_moves_for_each_id;
    zero_is_the_thread_that_writes;
    a_child_begins_where_its_parent_is [Shell];
    a_list_stops_at_the_first_that_cannot_be_moved [Shell];
    what_is_no_thread_is_refused;
    only_root_and_its_owner_move_a_thread [Shell];
    a_monitoring_group_takes_only_what_its_control_group_has [Shell];
    cpus_that_cannot_be_given_are_refused;
    cpus_are_of_one_group;
    classes_are_used_up_and_come_back;
    counters_are_used_up_and_come_back_out_of_limbo;
    a_counter_shows_a_number_or_says_why_not;
    a_control_group_counts_all_that_is_in_it;
    nodes_of_a_cache_count_apart_and_together;
    code_and_data_have_masks_of_their_own;
    bandwidth_is_rounded_up_to_a_step;
    ways_that_come_together_are_read_back_together;
    devices_have_the_highest_class_while_they_have_a_mask;
    a_region_is_locked_step_by_step_and_each_obstacle_is_named [Shell];
    where_prefetchers_cannot_be_stopped_nothing_is_locked;
    reading_may_begin_anywhere;
    the_threshold_is_a_number_up_to_the_caches_size;
    the_mount_ends_with_the_emulator;
    the_mount_says_what_it_is;
    it_mounts_on_nothing_but_an_empty_directory;
    it_can_be_told_what_its_counters_show;
    what_was_ignored_at_the_start_stays_so_and_nobody_need_listen [Shell];
    a_connection_that_is_cut_off_is_an_error;
    one_emulator_listens_at_a_socket;
    a_mount_that_fails_leaves_nothing_behind;
};

/// Machines with different accepted masks, numbers of caches, and with code and data apart or not.
const MACHINES: [&[&str]; 5] = [
    &["--machine", "broadwell-20", "--allow-other"],
    &["--machine", "haswell-20", "--allow-other"],
    &["--machine", "amd-16", "--allow-other"],
    &["--machine", "two-sockets", "--caches", "0,3", "--allow-other"],
    &["--machine", "cdp", "--allow-other"],
];
const SKYLAKE: &[&[&str]] = &[&["--machine", "skylake-11"]];
const AMD: &[&[&str]] = &[&["--machine", "amd-16", "--classes", "4"]];
const NODES: &[&[&str]] = &[&["--machine", "snc-2"]];
const CDP: &[&[&str]] = &[&["--machine", "cdp"]];
const HASWELL: &[&[&str]] = &[&["--machine", "haswell-20"], &["--min-ways", "3"]];
const NOT_LOCKING: &[&[&str]] = &[&["--machine", "skylake-11"], &["--machine", "haswell-20"], &["--machine", "amd-16"]];
const ONE: &[&[&str]] = &[&[]];
const COUNTING: &[&[&str]] = &[&[], &["--machine", "two-sockets", "--caches", "0,3"], &["--machine", "cdp"]];
const FEW_CLASSES: &[&[&str]] =
    &[&["--classes", "4"], &["--machine", "cdp", "--classes", "8"], &["--machine", "haswell-20"]];
const FEW_COUNTERS: &[&[&str]] = &[&["--rmids", "3"]];
const EIGHT_CPUS: &[&[&str]] = &[&["--cpus", "0-7"]];
const NOT_SHARED: &[&[&str]] = &[
    &["--shareable", "0"],
    &["--shareable", "0", "-o", "cdp"],
    &["--machine", "haswell-20", "--shareable", "0"],
    &["--machine", "amd-16"],
];

/// Tries a rule on each of these machines, each of which must show it.
fn on_each(machines: &[&[&str]], rule: fn(&Mount) -> Trial) -> Outcome {
    for machine in machines {
        let mount = Mount::emulated(machine)?;
        match rule(&mount) {
            Ok(Shown::Kept) => (),
            Ok(Shown::Not(why)) => return Err(format!("{machine:?} does not show it: {why}").into()),
            Err(failed) => return Err(with_machine(machine, &failed)),
        }
    }
    Ok(())
}

fn with_machine(machine: &[&str], failed: &Failed) -> Failed {
    format!("{machine:?}: {}", failed.message().unwrap_or("failed")).into()
}

/// A test of the rule's name on machines of the emulator, and a function for the kernel's own file system.
macro_rules! rules {
    ($($module:ident :: $rule:ident on $machines:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($module), ".rs` says whose rule it is.")]
            fn $rule(_: &Host) -> Outcome {
                on_each(&$machines, $module::$rule)
            }
        )*

        /// All rules by name.
        pub(crate) const RULES: &[(&str, fn(&Mount) -> Trial)] = &[$((stringify!($rule), $module::$rule)),*];
    };
}

rules! {
    files::files_have_the_kernels_rights_and_no_size on MACHINES;
    files::what_is_only_read_is_not_opened_for_writing on MACHINES;
    files::files_come_and_go_with_their_group_alone on ONE;
    files::groups_are_made_in_the_root_and_in_mon_groups_alone on MACHINES;
    files::only_groups_are_removed on ONE;
    files::an_open_file_of_a_removed_group_answers_no_more on ONE;
    files::a_write_is_one_command_of_a_page_at_most on MACHINES;
    files::reading_may_begin_anywhere on ONE;
    files::the_lock_on_the_root_keeps_others_out on ONE;
    files::the_status_is_that_of_the_last_command on ONE;
    files::a_command_without_a_newline_is_none on ONE;
    files::a_monitoring_group_moves_and_nothing_else_does on ONE;
    schemata::any_part_can_be_written_and_the_rest_stays on MACHINES;
    schemata::what_is_not_understood_is_named on MACHINES;
    schemata::an_unknown_cache_is_refused on MACHINES;
    schemata::a_mask_is_within_all_ways on MACHINES;
    schemata::a_mask_has_no_holes_unless_the_machine_takes_them on MACHINES;
    schemata::a_mask_is_long_enough on HASWELL;
    schemata::several_lines_are_taken_together_or_not_at_all on MACHINES;
    schemata::size_is_that_of_the_ways on MACHINES;
    schemata::exclusive_is_refused_while_others_have_the_ways on MACHINES;
    schemata::an_exclusive_group_keeps_its_ways_from_all_others on MACHINES;
    schemata::a_new_group_gets_the_first_run_of_what_is_open on MACHINES;
    schemata::when_everything_is_exclusive_there_is_no_space on NOT_SHARED;
    tasks::one_thread_moves_for_each_id on ONE;
    tasks::zero_is_the_thread_that_writes on ONE;
    tasks::a_child_begins_where_its_parent_is on ONE;
    tasks::a_list_stops_at_the_first_that_cannot_be_moved on ONE;
    tasks::what_is_no_thread_is_refused on ONE;
    tasks::only_root_and_its_owner_move_a_thread on MACHINES;
    tasks::a_monitoring_group_takes_only_what_its_control_group_has on ONE;
    tasks::cpus_that_cannot_be_given_are_refused on ONE;
    tasks::cpus_are_of_one_group on EIGHT_CPUS;
    counters::classes_are_used_up_and_come_back on FEW_CLASSES;
    counters::counters_are_used_up_and_come_back_out_of_limbo on FEW_COUNTERS;
    counters::a_counter_shows_a_number_or_says_why_not on MACHINES;
    counters::a_control_group_counts_all_that_is_in_it on COUNTING;
    counters::nodes_of_a_cache_count_apart_and_together on NODES;
    counters::code_and_data_have_masks_of_their_own on CDP;
    counters::bandwidth_is_rounded_up_to_a_step on SKYLAKE;
    counters::ways_that_come_together_are_read_back_together on SKYLAKE;
    counters::devices_have_the_highest_class_while_they_have_a_mask on AMD;
    counters::a_region_is_locked_step_by_step_and_each_obstacle_is_named on ONE;
    counters::where_prefetchers_cannot_be_stopped_nothing_is_locked on NOT_LOCKING;
    counters::the_threshold_is_a_number_up_to_the_caches_size on ONE;
}

/// No mount is left, however the emulator ends: by itself, by a signal, killed, or unmounted by others, also while it
/// is used.
fn the_mount_ends_with_the_emulator(host: &Host) -> Outcome {
    let ignored = linux::signals::ignored(host.files())?;
    let all = [Signal::TERM, Signal::INT, Signal::HUP, Signal::KILL];
    // Signals ignored by these tests themselves are ignored by it, too.
    for signal in all.into_iter().filter(|signal| !ignored.contains(signal.as_raw())) {
        for is_used in [false, true] {
            let mut emulator = Emulator::start(&[])?;
            let root = emulator.root();
            let open = is_used.then(|| fs::File::open(root.join("schemata"))).transpose()?;
            emulator.running().ok_or("it has ended")?.signal(signal)?;
            let said = emulator.said()?;
            let deadline = Instant::now() + TIME_LIMIT;
            while is_mounted(&root) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(!is_mounted(&root), "{signal:?} {is_used}");
            assert_eq!(said.err, "", "{signal:?}");
            if signal != Signal::KILL {
                assert_eq!(said.code(), 0, "{signal:?}");
                assert!(!emulator.socket().exists());
            }
            drop(open);
        }
    }
    let mut emulator = Emulator::start(&[])?;
    rustix::mount::unmount(emulator.root(), rustix::mount::UnmountFlags::empty())?;
    assert_eq!(emulator.said()?.code(), 0);
    Ok(())
}

/// In /proc/mounts it has its own type, so that it is not taken for the kernel's.
fn the_mount_says_what_it_is(_: &Host) -> Outcome {
    let mut emulator = Emulator::start(&["--machine", "two-sockets"])?;
    let root = emulator.root();
    assert_eq!(mounts_at(&root)?, [("fuse.resctrl".to_owned(), "resctrl".to_owned())]);
    emulator.running().ok_or("it has ended")?.signal(Signal::TERM)?;
    let said = emulator.said()?;
    let line =
        format!("resctrl-emulator: 2 caches of 20 ways, 16 classes at {}; Ctrl-C or umount ends it\n", root.display());
    assert_eq!(said.out, line);
    Ok(())
}

/// A directory that is used for something else stays as it is.
fn it_mounts_on_nothing_but_an_empty_directory(_: &Host) -> Outcome {
    let emulator = Emulator::start(&[])?;
    let root = emulator.root();
    let refused = |directory: &std::path::Path, why: &str| -> Outcome {
        let said = Running::start(program()?.arg(directory))?.said()?;
        let line = format!("resctrl-emulator: cannot mount at {}: {why}", directory.display());
        assert_eq!((said.first_line(), said.code()), (line.as_str(), 2));
        Ok(())
    };
    refused(&root, "something is mounted there already")?;
    refused(root.parent().ok_or("no parent")?, "it is not empty")?;
    refused(std::path::Path::new("/none"), "no such file or directory (ENOENT)")?;
    assert!(root.join("schemata").exists());
    Ok(())
}

/// `--tell`, and errors in its input.
fn it_can_be_told_what_its_counters_show(_: &Host) -> Outcome {
    let emulator = Emulator::start(&[])?;
    let tell = |line: &str| {
        Ok::<_, Failed>(Running::start(program()?.arg("--tell").arg(emulator.socket()).arg(line))?.said()?)
    };
    let said = tell("occupancy . 0 4711")?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    assert_eq!(fs::read_to_string(emulator.root().join("mon_data/mon_L3_00/llc_occupancy"))?, "4711\n");
    let said = tell("occupancy none 0 1")?;
    assert_eq!((said.code(), said.first_line().ends_with("none: no such group")), (2, true), "{}", said.err);
    Ok(())
}
