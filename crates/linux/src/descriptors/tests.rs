use std::io::{Read, Seek, Write};

use proptest::prelude::*;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;

const READING: &str = "pos:\t4096\nflags:\t0100000\nmnt_id:\t24\nino:\t3\n";
const WRITING: &str = "pos:\t0\nflags:\t0140001\nmnt_id:\t24\nino:\t3\n";
const PLACE: &str = "pos:\t0\nflags:\t012000000\nmnt_id:\t24\n";

fn regular(inode: u64) -> About {
    About { device: (254, 0), inode, length: Bytes::mib(1), is_regular: true }
}

fn found(kernel: &FakeKernel) -> Result<Vec<OpenFile>, Error> {
    regular_files_by(kernel, Pid(42), |descriptor| match descriptor {
        7 => Err(Errno::NOENT),
        8 => Err(Errno::ACCESS), // FUSE, of another user
        66 => Err(Errno::SRCH),
        1 => Ok(About { is_regular: false, ..regular(1) }),
        other => Ok(regular(u64::from(other.unsigned_abs()))),
    })
}

fn with(files: &[(i32, &str)]) -> FakeKernel {
    files.iter().fold(FakeKernel::new(), |kernel, (descriptor, text)| {
        kernel.file(&format!("proc/42/fd/{descriptor}"), "").file(&format!("proc/42/fdinfo/{descriptor}"), text)
    })
}

#[test]
fn regular_files_are_found_with_their_offset_and_their_use() {
    let kernel = with(&[(10, WRITING), (3, READING), (1, READING), (4, PLACE)]);
    let reading = OpenFile {
        descriptor: 3,
        device: (254, 0),
        inode: 3,
        length: Bytes::mib(1),
        offset: Bytes(4096),
        reads: true,
        writes: false,
        direct: false,
    };
    let writing =
        OpenFile { descriptor: 10, inode: 10, offset: Bytes(0), reads: false, writes: true, direct: true, ..reading };
    assert_eq!(found(&kernel).unwrap(), [reading, writing]);
}

#[test]
fn a_file_that_is_closed_meanwhile_or_not_shown_is_left_out() {
    let kernel = with(&[(7, READING), (8, READING), (3, READING)]).file("proc/42/fd/5", "");
    let descriptors: Vec<i32> = found(&kernel).unwrap().iter().map(|file| file.descriptor).collect();
    assert_eq!(descriptors, [3]);
}

#[test]
fn a_process_that_ended_is_gone_and_one_of_somebody_else_denied() {
    assert!(found(&FakeKernel::new()).unwrap_err().is_gone());
    assert!(found(&with(&[(3, READING), (66, READING)])).unwrap_err().is_gone());
    let denied = FakeKernel::new().refusing("proc/42/fd", Errno::ACCESS);
    assert!(matches!(found(&denied), Err(Error::Denied(_))));
}

#[test]
fn what_is_malformed_is_named() {
    let error = found(&with(&[(3, "pos:\tfar\nflags:\t00\n")])).unwrap_err();
    let expected = "cannot understand /proc/42/fdinfo/3, pos: \"far\", expected a number of bytes";
    assert_eq!(error.to_string(), expected);
    let error = found(&with(&[(3, "pos:\t0\nflags:\t9\n")])).unwrap_err();
    let expected = "cannot understand /proc/42/fdinfo/3, flags: \"9\", expected flags in octal";
    assert_eq!(error.to_string(), expected);
    let error = found(&with(&[(3, "pos:\t0\n")])).unwrap_err();
    assert_eq!(error.to_string(), "cannot understand /proc/42/fdinfo/3: no line \"flags\"");
}

#[test]
fn lines_of_a_newer_kernel_are_left_out() {
    let newer = format!("new:\tx\nposition:\t7\n{READING}lock:\t1: FLOCK\n");
    assert_eq!(found(&with(&[(3, &newer)])), found(&with(&[(3, READING)])));
}

#[test]
fn our_own_file_is_found_and_opened_again_also_without_a_name() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"there").unwrap();
    let listed = regular_files(&Rooted::host(), Pid::own()).unwrap();
    let ours = listed.iter().find(|of| of.descriptor == file.as_raw_fd()).unwrap();
    assert_eq!((ours.offset, ours.length), (Bytes(5), Bytes(5)));
    assert!(ours.reads && ours.writes && !ours.direct);
    let mut again = reopen(Pid::own(), ours).unwrap();
    let mut text = String::new();
    again.read_to_string(&mut text).unwrap();
    assert_eq!(text, "there");
    assert!(again.write_all(b"x").is_err(), "for reading only");
    assert_eq!(file.stream_position().unwrap(), 5, "with an offset of its own");
}

#[test]
fn what_is_another_file_by_now_is_gone() {
    let file = tempfile::tempfile().unwrap();
    let listed = regular_files(&Rooted::host(), Pid::own()).unwrap();
    let ours = *listed.iter().find(|of| of.descriptor == file.as_raw_fd()).unwrap();
    assert!(reopen(Pid::own(), &OpenFile { inode: ours.inode + 1, ..ours }).unwrap_err().is_gone());
    let pipe = rustix::pipe::pipe().unwrap().0;
    let instead = OpenFile { descriptor: pipe.as_raw_fd(), ..ours };
    assert!(reopen(Pid::own(), &instead).unwrap_err().is_gone());
    assert!(reopen(Pid::own(), &OpenFile { descriptor: i32::MAX, ..ours }).unwrap_err().is_gone());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}", flags in "[0-7]{0,24}") {
        let _ = decode(3, regular(3), &text, "x");
        let _ = decode(3, regular(3), &format!("pos:\t1\nflags:\t{flags}\n"), "x");
    }
}
