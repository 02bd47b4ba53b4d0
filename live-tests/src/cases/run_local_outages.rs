//! `masu run --local` when servers of its store die or sleep under the program: stored data survives, so the program
//! waits, goes on, and finds every byte.

use std::time::Duration;

use super::Outcome;
use super::programs::Said;
use super::redis::{Cluster, Redis, wait_until};
use super::run::{Folder, Report, Result};
use super::run_local::{Talking, memory_checker, paged, stress};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_outages requires [MasuCommand, PagerLibrary, UserFaults, CCompiler, RedisServer];
    a_cluster_whose_master_is_killed_is_waited_for;
    a_cluster_that_sleeps_and_wakes_with_another_master_is_waited_for;
    a_redis_that_was_killed_and_comes_back_with_its_data_is_waited_for;
};

/// Outage of one server, or of all of them.
const GONE: Duration = Duration::from_secs(10);

/// A program with 2 MiB of local memory and nearly all of its 16 MiB stored, which waits; then it works for `seconds`.
fn full(store: &str, report: &Report, folder: &Folder, seconds: &str) -> Result<Talking> {
    let options = ["--local", "2MiB", "--store", store, "--report", report.path(), "--json"];
    let mut talking = Talking::start(paged(&options, &[&memory_checker(folder)?, "16", seconds])?)?;
    talking.hears("rest")?;
    talking.says()?;
    talking.hears("full")?;
    Ok(talking)
}

/// The program found all its data, and masu has reported the outage.
fn survived(said: &Said) {
    assert_eq!((said.code(), said.out.as_str()), (0, "right\n"), "{said:?}");
    assert!(said.err.contains("has not served for") && said.err.contains("is back after"), "{said:?}");
}

/// The time that it waited for pages is in the report, the outage's with it.
fn waited_at_least(report: &Report, least: Duration) -> Outcome {
    let report = report.read()?;
    let stalled = report["stall_s"].as_f64().ok_or_else(|| format!("no stall_s: {report}"))?;
    assert!(stalled >= least.as_secs_f64(), "{report}");
    Ok(())
}

/// Checks that there are three masters as before, and no data in them.
fn nothing_is_left(cluster: &Cluster) -> Outcome {
    let left = cluster.servers.iter().filter(|server| server.is_master()).map(|master| master.ask(&["DBSIZE"]));
    assert_eq!(left.collect::<std::io::Result<Vec<_>>>()?, [":0", ":0", ":0"]);
    Ok(())
}

/// Two programs at once: one that reads each of its pages once more at the end, and one that uses memory in every way.
/// A third of their pages is with the master, and the stored ones are with its replica.
fn a_cluster_whose_master_is_killed_is_waited_for(_: &Host) -> Outcome {
    let mut cluster = Cluster::start("local-cluster-killed")?;
    let (folder, report) = (Folder::make("local-cluster-killed-programs")?, Report::new("local-cluster-killed"));
    let mut talking = full(&cluster.url(), &report, &folder, "7")?;
    let (stress, at) = (stress(&folder)?, folder.0.to_str().ok_or("a path that is no text")?);
    let arguments = ["--seconds", "8", "--threads", "3", "--mib", "32", "--seed", "21", "--without", "altstack"];
    let command = [&[stress.as_str(), "--folder", at], &arguments[..]].concat();
    let stressed = Talking::start(paged(&["--local", "2MiB", "--store", &cluster.url()], &command)?)?;
    talking.says()?;
    std::thread::sleep(Duration::from_secs(1));
    let keys = cluster.servers[0].ask(&["DBSIZE"])?;
    assert!(keys.strip_prefix(':').is_some_and(|keys| keys.parse::<u32>().is_ok_and(|keys| keys > 50)), "{keys}");
    cluster.servers[0].kill()?;
    let (said, stressed) = (talking.ends()?, stressed.ends()?);
    survived(&said);
    // The replica in its place has none itself. Programs wrote there.
    assert!(said.err.contains("one server without replica"), "{said:?}");
    waited_at_least(&report, Duration::from_secs(2))?;
    assert!(stressed.code() == 0 && stressed.out.ends_with(" wrong=0\n"), "{stressed:?}");
    nothing_is_left(&cluster)
}

/// One of its masters sleeps longer than the others, which vote for its replica; then it wakes, with old pages and old
/// orders.
fn a_cluster_that_sleeps_and_wakes_with_another_master_is_waited_for(_: &Host) -> Outcome {
    let cluster = Cluster::start("local-cluster-asleep")?;
    let (folder, report) = (Folder::make("local-cluster-asleep-program")?, Report::new("local-cluster-asleep"));
    let mut talking = full(&cluster.url(), &report, &folder, "12")?;
    talking.says()?;
    std::thread::sleep(Duration::from_millis(500));
    cluster.servers.iter().try_for_each(Redis::sleep)?;
    std::thread::sleep(GONE);
    let (sleeper, replica) = (&cluster.servers[0], &cluster.servers[3]);
    cluster.servers[1..].iter().try_for_each(Redis::wake)?;
    wait_until("a replica is master", || replica.is_master())?;
    std::thread::sleep(Duration::from_millis(300));
    sleeper.wake()?;
    survived(&talking.ends()?);
    waited_at_least(&report, GONE)?;
    wait_until("the sleeper is a replica", || !sleeper.is_master())?;
    nothing_is_left(&cluster)
}

/// Killed in the midst of writes. Its log is with the kernel, and survives it.
fn a_redis_that_was_killed_and_comes_back_with_its_data_is_waited_for(_: &Host) -> Outcome {
    let options = ["--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"];
    let mut redis = Redis::start_with("local-redis-back", &options)?;
    let (folder, report) = (Folder::make("local-redis-back-program")?, Report::new("local-redis-back"));
    let mut talking = full(&redis.url(), &report, &folder, "1")?;
    talking.says()?;
    std::thread::sleep(Duration::from_millis(500));
    redis.kill()?;
    std::thread::sleep(GONE);
    redis.run_again()?;
    survived(&talking.ends()?);
    waited_at_least(&report, GONE - Duration::from_secs(1))?;
    assert_eq!(redis.ask(&["DBSIZE"])?, ":0");
    Ok(())
}
