//! `masu llc run` on machines with other accepted masks, other numbers of caches, and with code and data apart.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value;

use super::Outcome;
use super::llc_run::{Daemon, Place, Sharers, by_pid, config};
use super::run::Result;
use crate::host::{Host, LiveTest, tests};
use crate::target_process::TargetProcess;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    llc_run_machines requires [Root, Fuse, ResctrlEmulator, MasuCommand, RealProcessor];
    each_machine_is_divided_as_decided_and_put_back [PageFrames, Ksm];
    an_other_cache_has_masks_and_no_thread [PageFrames, Ksm];
    bandwidth_is_left_alone;
};

type Masks = BTreeMap<u64, String>;

/// Decided masks by group; the rest is the default group.
fn decided(event: &Value) -> Result<BTreeMap<String, Masks>> {
    let mut all = BTreeMap::new();
    for group in event["groups"].as_array().ok_or("no groups")? {
        let name = group["group"].as_str().ok_or("no name")?;
        let masks = group["masks"].as_array().ok_or("no masks")?.iter();
        let masks = masks.filter_map(|of| Some((of["cache"].as_u64()?, of["mask"].as_str()?.to_owned()))).collect();
        all.insert(if name == "the default group" { String::new() } else { name.to_owned() }, masks);
    }
    Ok(all)
}

/// The masks in a group's `schemata`, for each line of the last-level cache.
fn there(place: &Place, group: &str) -> Result<BTreeMap<String, Masks>> {
    let mut lines = BTreeMap::new();
    for line in place.file(&format!("{group}/schemata"))?.lines() {
        let (resource, masks) = line.trim().split_once(':').ok_or("no resource")?;
        let masks = masks.split(';').filter_map(|of| of.split_once('='));
        let masks =
            masks.filter_map(|(cache, mask)| Some((cache.parse().ok()?, mask.trim_start_matches('0').to_owned())));
        if resource.starts_with("L3") {
            lines.insert(resource.to_owned(), masks.collect());
        }
    }
    Ok(lines)
}

/// From the first write to the last: Intel's masks, also of two ways and more, AMD's, code and data apart, devices with a class.
fn each_machine_is_divided_as_decided_and_put_back(_: &Host) -> Outcome {
    let sharers = Sharers::start(33)?;
    let machines: [(&[&str], &[&str]); 6] = [
        (&["--machine", "broadwell-20"], &["L3"]),
        (&["--machine", "haswell-20"], &["L3"]),
        (&["--machine", "amd-16"], &["L3"]),
        (&["--machine", "cdp"], &["L3CODE", "L3DATA"]),
        (&["--machine", "two-sockets"], &["L3"]),
        (&["--machine", "skylake-11", "--paired-ways", "0"], &["L3"]),
    ];
    for (machine, resources) in machines {
        let place = Place::make(machine)?;
        let before = place.state()?;
        let arguments = place.with(&sharers.config())?;
        let mut daemon = Daemon::start(&arguments)?;
        let decided = decided(&daemon.until_event("decided")?)?;
        daemon.until_filled()?;
        let groups: Vec<&str> = decided.keys().map(String::as_str).collect();
        assert_eq!(groups, ["", "masu-one", "masu-shared.live", "masu-two"], "{machine:?}");
        for (group, masks) in &decided {
            let expected: BTreeMap<String, Masks> =
                resources.iter().map(|resource| ((*resource).to_owned(), masks.clone())).collect();
            assert_eq!(there(&place, group)?, expected, "{machine:?}: {group}");
        }
        let (end, said) = daemon.end(Some(Signal::INT))?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{machine:?}");
        assert_eq!((&end["unmerged_pages"], &end["failures"]), (&0.into(), &0.into()), "{machine:?}");
        assert_eq!(place.state()?, before, "{machine:?}");
    }
    Ok(())
}

/// This host has a cache 0 and no cache 7: the shared partition is in both, and a thread in one.
fn an_other_cache_has_masks_and_no_thread(_: &Host) -> Outcome {
    let sharers = Sharers::start(34)?;
    let place = Place::make(&["--machine", "two-sockets", "--caches", "0,7"])?;
    let before = place.state()?;
    let arguments = place.with(&sharers.config())?;
    let mut daemon = Daemon::start(&arguments)?;
    let filled = daemon.until_filled()?;
    assert_eq!(filled["cache"], 0);
    let masks = there(&place, "masu-shared.live")?;
    assert_eq!(masks["L3"], [(0, "30000".to_owned()), (7, "30000".to_owned())].into());
    let without = daemon.heard.iter().find(|event| event["event"] == "without").ok_or("nothing is missed")?;
    assert_eq!(
        (&without["what"], &without["why"]),
        (&"warm shared partitions in cache 7".into(), &"no CPU of this host uses it".into())
    );
    assert_eq!(place.file("masu-shared.live/tasks")?.lines().count(), 1);
    daemon.end(Some(Signal::TERM))?;
    assert_eq!(place.state()?, before);
    // A program that runs on the CPUs of one of them has the ways of the rest in the other.
    let one_sided = sharers.config().replacen("name = \"one\"", "name = \"one\"\nl3 = [0]", 1);
    let mut daemon = Daemon::start(&place.with(&one_sided)?)?;
    let decided = decided(&daemon.until_event("decided")?)?;
    assert_eq!(decided["masu-one"][&7], decided[""][&7], "{decided:?}");
    assert_ne!(decided["masu-one"][&0], decided[""][&0], "{decided:?}");
    daemon.end(Some(Signal::TERM))?;
    assert_eq!(place.state()?, before);
    Ok(())
}

/// Mounted with `mba_MBps`: the lines of memory bandwidth stay as they are. Combined ways are reported.
fn bandwidth_is_left_alone(_: &Host) -> Outcome {
    let (one, two) = (TargetProcess::start()?, TargetProcess::start()?);
    let place = Place::make(&["--machine", "skylake-11", "-o", "mba_MBps"])?;
    let before = place.state()?;
    let bandwidth = |group: &str| -> Result<Option<String>> {
        let text = place.file(&format!("{group}/schemata"))?;
        Ok(text.lines().find(|line| line.trim().starts_with("MB:")).map(str::to_owned))
    };
    let of_all = bandwidth("")?;
    assert!(of_all.is_some());
    let programs = config(&[("one", by_pid(&one)), ("two", by_pid(&two))]);
    let top = programs.replace("name = \"one\"", "name = \"one\"\nmask = \"200\"");
    let mut daemon = Daemon::start(&place.with(&top)?)?;
    let differs = daemon.until_event("differs")?;
    assert_eq!((&differs["asked"], &differs["found"]), (&"200".into(), &"600".into()), "{differs}");
    assert_eq!(bandwidth("masu-one")?, of_all);
    assert_eq!(daemon.end(Some(Signal::TERM))?.1.code(), 0);
    assert_eq!(place.state()?, before);
    Ok(())
}
