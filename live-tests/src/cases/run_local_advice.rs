//! `masu run --local`: advice on memory (madvise(2)) does what it does without masu.

use std::process::Command;

use super::Outcome;
use super::run::{Folder, Result, said};
use super::run_local::{backends, built, paged};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_advice requires [MasuCommand, PagerLibrary, UserFaults, CPrograms];
    guard_pages_stay_until_they_are_removed [RealProcessor];
    advice_has_the_kernels_answers;
};

/// Output of the part without masu, and then of each backend that this kernel has, with less local memory than the part
/// uses and with more: then new pages get new frames.
fn outputs(host: &Host, part: &str) -> Result<(String, Vec<String>)> {
    let folder = Folder::make("local-advice")?;
    let program = built(&folder, "advice", include_str!("../../programs/advice.c"))?;
    let plain = said(Command::new(&program).arg(part))?;
    assert!(plain.code() == 0 && plain.out.ends_with("right\n"), "without masu: {plain:?}");
    let mut all = Vec::new();
    for (backend, local) in backends(host).into_iter().flat_map(|backend| [(backend, "2MiB"), (backend, "64MiB")]) {
        let options = ["--backend", backend, "--local", local, "--unit", "64KiB"];
        let said = said(&mut paged(&options, &[&program, part])?)?;
        assert!(said.code() == 0 && said.out.ends_with("right\n"), "{part} at {local}, backend {backend}: {said:?}");
        all.push(said.out);
    }
    Ok((plain.out, all))
}

/// Neither a fault beside them nor a system call maps anything over them.
fn guard_pages_stay_until_they_are_removed(host: &Host) -> Outcome {
    outputs(host, "guard")?;
    Ok(())
}

/// On paged memory, at holes in it, on ranges that are none, and for advice that no kernel knows.
fn advice_has_the_kernels_answers(host: &Host) -> Outcome {
    let (kernel, all) = outputs(host, "answers")?;
    assert!(kernel.lines().count() > 500, "{kernel}");
    for paged in all {
        let differ = kernel.lines().zip(paged.lines()).filter(|(kernel, paged)| kernel != paged);
        let first: Vec<_> = differ.take(20).collect();
        assert!(first.is_empty() && kernel == paged, "without masu, and paged: {first:#?}");
    }
    Ok(())
}
