//! Processes of a run that outlive its program and are not paged: the copies that a program makes of itself by fork when
//! it goes into the background, and programs that were left out.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use farmem::report::StillRunning;
use farmem_engine::handshake::SECRET_VARIABLE;
use linux::{Error, KernelFiles, Pid, environ, maps, processes, stat, status};
use units::cast::saturated;

/// Time for the whole search, which delays masu's end.
const SEARCH_WITHIN: Duration = Duration::from_millis(300);

/// A process that ends within this time ends with the program.
const ENDS_WITHIN: Duration = Duration::from_millis(50);

/// Processes that are named.
const NAMED_MAX: usize = 8;

/// A run, as its processes show it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Value of [`SECRET_VARIABLE`] in the environment of its programs.
    pub secret: &'a str,
    /// Start of the path of the shared segment in the mappings of its programs, which a forked copy keeps.
    pub segment: &'a str,
    /// Start, in ticks ([`stat::now_ticks`]).
    pub begun: u64,
}

impl Run<'_> {
    /// Processes that run on and are not among `paged`, at most a second after the end of the program. Without the right
    /// to read a process, it is not found.
    pub fn rest(self, files: &impl KernelFiles, paged: &BTreeSet<u32>) -> Vec<StillRunning> {
        let until = Instant::now() + SEARCH_WITHIN;
        let mut all = processes::processes(files).unwrap_or_default();
        all.retain(|pid| *pid != Pid::own());
        let of_run = |pid: &Pid| {
            let begun_since = || stat::stat(files, *pid).is_ok_and(|stat| self.began(&stat));
            !paged.contains(&saturated(pid.0)) && Instant::now() < until && begun_since() && self.has(files, *pid)
        };
        let found: Vec<Pid> = all.into_iter().filter(of_run).collect();
        if found.is_empty() {
            return Vec::new();
        }
        std::thread::sleep(ENDS_WITHIN);
        let runs_on = |pid: Pid| {
            let stat =
                stat::stat(files, pid).ok().filter(|stat| self.began(stat) && !matches!(stat.state, 'Z' | 'X'))?;
            let name = status::status(files, pid).ok()?.name;
            Some(StillRunning { process: saturated(pid.0), program: name, forked: stat.forked })
        };
        found.into_iter().filter_map(runs_on).collect()
    }

    fn began(self, stat: &stat::Stat) -> bool {
        // masu's own helpers have its mappings.
        stat.start_ticks >= self.begun && !stat.of_kernel && stat.parent != Pid::own()
    }

    fn has(self, files: &impl KernelFiles, pid: Pid) -> bool {
        let is_ours = |mapping: &maps::Mapping| mapping.path.bytes().starts_with(self.segment.as_bytes());
        let maps_segment = || Ok::<_, Error>(maps::maps(files, pid)?.iter().any(is_ours));
        environ::has(files, pid, SECRET_VARIABLE, self.secret).is_ok_and(|has| has)
            || maps_segment().is_ok_and(|has| has)
    }
}

/// Line about them; `None` if there is none.
pub fn line(rest: &[StillRunning]) -> Option<String> {
    let named: Vec<String> =
        rest.iter().take(NAMED_MAX).map(|one| format!("{} ({})", one.process, one.program)).collect();
    let (processes, run) = if rest.len() == 1 { ("process", "runs") } else { ("processes", "run") };
    let more = rest.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!rest.is_empty()).then(|| {
        format!(
            "{} {processes} of the run still {run}, not paged and not limited by --local: {}{more}",
            rest.len(),
            named.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use linux::Untrusted;
    use linux::fake::FakeKernel;

    use super::*;

    const RUN: Run<'_> = Run { secret: "5ec", segment: "/memfd:masu-segment-7 ", begun: 100 };

    fn process(kernel: FakeKernel, pid: i32, start: u64, environ: &str, path: &str) -> FakeKernel {
        let stat = format!("{pid} (x) S 1 1 1 0 -1 64 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 0\n");
        let status = format!(
            "Name:\tx{pid}\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t1\nTracerPid:\t0\n\
             Uid:\t0\t0\t0\t0\nThreads:\t1\nCapEff:\t0000000000000000\n"
        );
        let maps = format!("1000-2000 rw-s 00000000 00:01 5 {path}\n");
        kernel
            .file(&format!("proc/{pid}/stat"), &stat)
            .file(&format!("proc/{pid}/status"), &status)
            .file(&format!("proc/{pid}/environ"), environ)
            .file(&format!("proc/{pid}/maps"), &maps)
    }

    #[test]
    fn processes_of_the_run_that_are_not_paged_are_found() {
        let ours = format!("{SECRET_VARIABLE}=5ec\0");
        let mut kernel = process(FakeKernel::new(), 11, 100, &ours, "");
        kernel = process(kernel, 12, 101, "title", "/memfd:masu-segment-7 (deleted)");
        kernel = process(kernel, 13, 102, &ours, "/memfd:masu-segment-7 (deleted)");
        kernel = process(kernel, 14, 103, "other", "/memfd:masu-segment-77 (deleted)");
        kernel = process(kernel, 15, 99, &ours, "");
        let rest = RUN.rest(&kernel, &BTreeSet::from([13]));
        let found: Vec<_> = rest.iter().map(|one| (one.process, one.program.to_string(), one.forked)).collect();
        assert_eq!(found, [(11, "x11".to_owned(), true), (12, "x12".to_owned(), true)]);
    }

    #[test]
    fn the_line_names_some_with_escaped_names_and_counts_all() {
        let one = |process| StillRunning { process, program: Untrusted::new(*b"a\nb"), forked: true };
        assert_eq!(line(&[]), None);
        let said = line(&[one(7)]).unwrap();
        assert_eq!(said, "1 process of the run still runs, not paged and not limited by --local: 7 (a\\x0ab)");
        let many: Vec<_> = (1..=10).map(one).collect();
        assert!(line(&many).unwrap().ends_with(", 8 (a\\x0ab) and 2 more"));
    }
}
