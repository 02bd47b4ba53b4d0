//! `masu run --local`: calls that need special care in a pager.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::Outcome;
use super::programs::Running;
use super::run::{Folder, Report, Result, said};
use super::run_local::{backends, built, paged};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_hard requires [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    memory_that_is_given_up_over_a_hole_reads_as_zeros;
    a_call_that_handlers_interrupt_is_made_all_the_same [RealProcessor];
    a_message_is_sent_whole_or_refused [RealProcessor];
    a_copy_with_a_stack_of_its_own_runs_on_it;
    lengths_beyond_all_memory_do_no_harm [RealProcessor];
    what_lies_beside_moved_memory_stays_what_it_was;
    small_memory_that_grows_is_paged_as_a_whole;
    a_move_that_fails_leaves_nothing_behind;
    memory_that_is_freed_in_part_reads_as_it_was_or_as_zeros [RealProcessor];
    bus_errors_beside_paged_memory_are_the_programs_own [RealProcessor];
    a_direct_read_into_many_pieces_is_whole [RealProcessor];
    a_long_buffer_is_brought_as_far_as_it_is_filled;
    a_call_that_is_made_in_parts_is_one_to_the_program [RealProcessor];
    pages_of_zeros_are_kept_nowhere [RealProcessor];
    pages_of_zeros_leave_before_others [RealProcessor];
    pages_that_the_kernel_moves_about_are_not_lost [Root, Compaction, RealProcessor];
    executable_memory_leaves_and_comes_back [RealProcessor];
    exec_takes_more_arguments_than_can_be_pinned [Shell];
    a_program_that_may_not_read_the_time_stamp_counter_is_paged [RealProcessor];
};

/// Runs the part with `local` memory, and without masu, where it must be right, too.
fn right(host: &Host, part: &str, local: &str) -> Result<(String, serde_json::Value)> {
    right_in(host, part, local, "auto")
}

/// The same with a transfer size of `unit`, on each backend that this kernel has. Returns the output and the report of
/// the best.
fn right_in(host: &Host, part: &str, local: &str, unit: &str) -> Result<(String, serde_json::Value)> {
    let folder = Folder::make("local-hard")?;
    let hard = built(&folder, "hard", include_str!("../../programs/hard.c"))?;
    let plain = said(Command::new(&hard).arg(part))?;
    assert!(plain.code() == 0 && plain.out.ends_with("right\n"), "without masu: {plain:?}");
    let mut best = None;
    for backend in backends(host) {
        let report = Report::new("local-hard");
        let options = ["--backend", backend, "--local", local, "--unit", unit, "--report", report.path(), "--json"];
        let said = said(&mut paged(&options, &[&hard, part])?)?;
        assert!(said.code() == 0 && said.out.ends_with("right\n"), "{part} at {local}, backend {backend}: {said:?}");
        best.get_or_insert((said.out, report.read()?));
    }
    best.ok_or_else(|| "this kernel has no backend".into())
}

/// Neither the store's old bytes nor a fault without end.
fn memory_that_is_given_up_over_a_hole_reads_as_zeros(host: &Host) -> Outcome {
    let (_, report) = right(host, "hole", "2MiB")?;
    assert!(report["bytes_out"].as_u64().is_some_and(|bytes| bytes > 4 << 20), "it was in the store: {report}");
    Ok(())
}

/// Their memory stays, and their vectors are their own.
fn a_call_that_handlers_interrupt_is_made_all_the_same(host: &Host) -> Outcome {
    right(host, "interrupted", "2MiB")?;
    Ok(())
}

/// A part of a message would be another message.
fn a_message_is_sent_whole_or_refused(host: &Host) -> Outcome {
    let (refused, report) = right(host, "message", "1MiB")?;
    assert_eq!(refused, "refused right\n");
    assert!(report["notes"][0].as_str().is_some_and(|note| note.contains("refused")), "{report}");
    let (sent, _) = right(host, "message", "4MiB")?;
    assert_eq!(sent, "sent right\n");
    Ok(())
}

/// The kernel puts it there, and our own frame must not be looked for there.
fn a_copy_with_a_stack_of_its_own_runs_on_it(host: &Host) -> Outcome {
    right(host, "stack", "64MiB")?;
    Ok(())
}

/// The ranges are neither walked nor taken for existing memory.
fn lengths_beyond_all_memory_do_no_harm(host: &Host) -> Outcome {
    right(host, "lengths", "2MiB")?;
    Ok(())
}

/// The kernel takes mappings merged with a moved one out of the userfaultfd, unless the merge is prevented.
fn what_lies_beside_moved_memory_stays_what_it_was(host: &Host) -> Outcome {
    right(host, "neighbours", "2MiB")?;
    Ok(())
}

/// Neither of the mapping to be moved, nor of the memory at its target.
fn a_move_that_fails_leaves_nothing_behind(host: &Host) -> Outcome {
    right(host, "gone", "2MiB")?;
    Ok(())
}

/// As far as the kernel takes it.
fn memory_that_is_freed_in_part_reads_as_it_was_or_as_zeros(host: &Host) -> Outcome {
    right(host, "freed", "2MiB")?;
    Ok(())
}

/// One mapping to the program is one to the kernel.
fn small_memory_that_grows_is_paged_as_a_whole(host: &Host) -> Outcome {
    right(host, "grows", "2MiB")?;
    Ok(())
}

/// A neighbour page's state is not taken for the page's own.
fn bus_errors_beside_paged_memory_are_the_programs_own(host: &Host) -> Outcome {
    right_in(host, "beside", "2MiB", "64KiB")?;
    Ok(())
}

/// The kernel pins all of it first, and the device writes later: also to pages evicted meanwhile.
fn a_direct_read_into_many_pieces_is_whole(host: &Host) -> Outcome {
    right(host, "direct", "7MiB")?;
    Ok(())
}

/// Calls do not change their arguments, either.
fn a_long_buffer_is_brought_as_far_as_it_is_filled(host: &Host) -> Outcome {
    right(host, "buffers", "2MiB")?;
    let (_, report) = right(host, "buffers", "128MiB")?;
    // An eighth of local memory would be 16 MiB; 8 are the program's own.
    assert!(report["paged_bytes"].as_u64().is_some_and(|bytes| bytes < 12 << 20), "{report}");
    Ok(())
}

/// Calls on streams, on files without a known length, and on more than may be local.
fn a_call_that_is_made_in_parts_is_one_to_the_program(host: &Host) -> Outcome {
    right(host, "parts", "2MiB")?;
    Ok(())
}

/// Pages of zeros are not written, and their earlier contents do not come back.
fn pages_of_zeros_are_kept_nowhere(host: &Host) -> Outcome {
    let (_, report) = right(host, "zeros", "2MiB")?;
    // One page of 64 is not zeros in two of three rounds, and 8 MiB are the program's own.
    assert!(report["paged_bytes"].as_u64().is_some_and(|bytes| bytes > 40 << 20), "{report}");
    assert!(report["bytes_out"].as_u64().is_some_and(|bytes| bytes < 12 << 20), "{report}");
    Ok(())
}

/// Where zero pages are the whole excess, no other page is evicted.
fn pages_of_zeros_leave_before_others(host: &Host) -> Outcome {
    // 20 MiB that are not zeros, and 12 that are.
    let (_, report) = right(host, "spare", "24MiB")?;
    assert!(report["paged_bytes"].as_u64().is_some_and(|bytes| bytes > 30 << 20), "{report}");
    // Only at the end all zero pages are read, and some of the rest is evicted for them.
    assert!(report["bytes_out"].as_u64().is_some_and(|bytes| bytes < 1 << 20), "{report}");
    Ok(())
}

/// The kernel moves no page between memory of two protections.
fn executable_memory_leaves_and_comes_back(host: &Host) -> Outcome {
    let (_, report) = right(host, "executable", "4MiB")?;
    // Five passes through 16 MiB, and two through 8.
    assert!(report["bytes_out"].as_u64().is_some_and(|bytes| bytes > 48 << 20), "{report}");
    assert!(report["notes"].as_array().is_none_or(Vec::is_empty), "beyond local memory: {report}");
    assert!(report["peak_resident_bytes"].as_u64().is_some_and(|bytes| bytes <= 4 << 20), "{report}");
    Ok(())
}

/// The kernel returns EFAULT for evicted arguments, before anything has happened.
fn exec_takes_more_arguments_than_can_be_pinned(host: &Host) -> Outcome {
    right(host, "arguments", "4MiB")?;
    Ok(())
}

/// The kernel may report a page that it just moved as already present, and it does so for pages that another part of it
/// holds. On 6.18.44 without the check in `Uffd::move_frames`, one run of this in three fails.
fn pages_that_the_kernel_moves_about_are_not_lost(host: &Host) -> Outcome {
    let folder = Folder::make("local-holes")?;
    let hard = built(&folder, "hard", include_str!("../../programs/hard.c"))?;
    let holes = Running::start(Command::new(&hard).args(["holes", "6"]).stdin(Stdio::null()))?;
    // The best, which moves them wherever the kernel can.
    let (backend, report) = (backends(host)[0], Report::new("local-holes"));
    let options = ["--backend", backend, "--local", "50%", "--report", report.path(), "--json"];
    let said = said(&mut paged(&options, &[&hard, "streams", "5"])?)?;
    assert!(said.code() == 0 && said.out == "right\n", "{said:?}");
    let report = report.read()?;
    assert_eq!(report["backend"], backend, "{report}");
    assert!(report["bytes_out"].as_u64().is_some_and(|bytes| bytes > 256 << 20), "little was paged: {report}");
    let holes = holes.said()?;
    assert!(holes.code() == 0 && holes.out == "right\n", "{holes:?}");
    Ok(())
}

/// The pager reads it in the program's threads, and measures their waits by the kernel's clock then.
fn a_program_that_may_not_read_the_time_stamp_counter_is_paged(host: &Host) -> Outcome {
    let begun = Instant::now();
    let (_, report) = right(host, "counter", "2MiB")?;
    let (waited, took) = (report["stall_s"].as_f64(), begun.elapsed().as_secs_f64());
    // Of two threads, one after the other.
    assert!(waited.is_some_and(|waited| waited > 0.0 && waited < took), "of {took} s: {report}");
    Ok(())
}
