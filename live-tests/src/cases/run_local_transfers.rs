//! `masu run --local`: transfers whose memory exceeds the pins of one call.

use super::Outcome;
use super::programs;
use super::run::{Folder, said};
use super::run_local::{self, built, paged};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_transfers requires [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    a_blocking_write_above_the_pins_has_its_whole_count;
    a_receive_of_all_bytes_above_the_pins_waits_for_all;
    getrandom_above_the_pins_fills_all;
    a_signal_ends_a_transfer_with_the_bytes_so_far [RealProcessor];
    a_stop_between_parts_loses_no_bytes [Shell];
    a_reader_that_goes_ends_a_transfer_with_the_bytes_so_far;
    a_nonblocking_write_above_the_pins_stays_short;
    a_read_of_an_endless_device_has_its_whole_count;
    a_write_above_the_pins_ends_at_the_limit_of_file_sizes;
    a_buffer_beyond_all_memory_is_refused_as_a_whole;
    a_short_message_comes_into_a_buffer_above_the_pins [RealProcessor];
    a_message_above_the_pins_is_never_cut;
    python_prints_more_than_the_pins [Shell];
};

/// Runs the part without masu, and with each local size on each backend. An eighth of these is below 12 MB, the bytes
/// of a transfer.
fn right(host: &Host, part: &str) -> Outcome {
    right_at(host, part, &["16MiB", "2MiB"])
}

fn right_at(host: &Host, part: &str, sizes: &[&str]) -> Outcome {
    let folder = Folder::make("local-transfers")?;
    let program = built(&folder, "transfers", include_str!("../../programs/transfers.c"))?;
    run_local::right(host, &program, part, sizes)
}

/// write, send and writev, to a pipe, a UNIX and a TCP socket; the other end compares each byte.
fn a_blocking_write_above_the_pins_has_its_whole_count(host: &Host) -> Outcome {
    right(host, "whole")
}

/// MSG_WAITALL; also where the sender ends before.
fn a_receive_of_all_bytes_above_the_pins_waits_for_all(host: &Host) -> Outcome {
    right(host, "receive")
}

fn getrandom_above_the_pins_fills_all(host: &Host) -> Outcome {
    right(host, "random")
}

/// With and without SA_RESTART, at slow and fast timers: counts agree with the other end, and registers stay.
fn a_signal_ends_a_transfer_with_the_bytes_so_far(host: &Host) -> Outcome {
    right(host, "interrupted")
}

fn a_stop_between_parts_loses_no_bytes(host: &Host) -> Outcome {
    right(host, "stopped")
}

/// The next write returns EPIPE; SIGPIPE comes where the kernel sends it.
fn a_reader_that_goes_ends_a_transfer_with_the_bytes_so_far(host: &Host) -> Outcome {
    right(host, "broken")
}

fn a_nonblocking_write_above_the_pins_stays_short(host: &Host) -> Outcome {
    right(host, "nonblocking")
}

/// /dev/zero, /dev/full and /dev/urandom; and a write to /dev/null.
fn a_read_of_an_endless_device_has_its_whole_count(host: &Host) -> Outcome {
    right(host, "endless")
}

/// RLIMIT_FSIZE, also where a part ends there. SIGXFSZ comes with the next write.
fn a_write_above_the_pins_ends_at_the_limit_of_file_sizes(host: &Host) -> Outcome {
    right(host, "limited")
}

fn a_buffer_beyond_all_memory_is_refused_as_a_whole(host: &Host) -> Outcome {
    right(host, "refused")
}

/// Of UNIX and UDP sockets; it is there, awaited, interrupted, or does not come.
fn a_short_message_comes_into_a_buffer_above_the_pins(host: &Host) -> Outcome {
    right(host, "messages")
}

/// At the smallest size it is refused, and stays.
fn a_message_above_the_pins_is_never_cut(host: &Host) -> Outcome {
    right_at(host, "long", &["16MiB", "1MiB"])
}

/// Its `print` ignores the count of a write.
fn python_prints_more_than_the_pins(_: &Host) -> Outcome {
    const BYTES: usize = 40_000_000;
    let Some(python) = programs::python() else {
        println!("SKIP: python3 is not installed");
        return Ok(());
    };
    let print = format!("print('x' * {BYTES})");
    let said = said(&mut paged(&["--local", "64MiB"], &[python.to_str().ok_or("no text")?, "-c", &print])?)?;
    assert_eq!((said.code(), said.out.len()), (0, BYTES + 1), "{}", said.err);
    Ok(())
}
