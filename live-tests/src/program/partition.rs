//! A program that is killed while it divides the cache, and one with threads that start and end.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use linux::Rooted;
use linux::journal::HostSettings;
use linux::resctrl::{Changes, Group, Resctrl, Schemata};
use units::{WayMask, Ways};

use super::Wrong;

/// The ways that `partition` takes from the default group: the lowest two, which every machine takes as a mask.
pub(crate) const TAKEN: WayMask = WayMask::run(0, Ways(2));

/// Takes ways from the default group and makes a group `masu-web` of them.
pub(crate) fn make(changes: &mut Changes<'_, '_, Rooted>) -> Result<linux::resctrl::OwnGroup, Wrong> {
    let web = Group::own("web")?;
    let info = changes.resctrl().info()?;
    let (resources, domains) = (info.l3_resources(), changes.resctrl().domains()?);
    let full = info.l3().ok_or("no cache to divide")?.rules.full;
    changes.write(&Group::DEFAULT, &Schemata::uniform(&resources, &domains, full.without(TAKEN)))?;
    let own = changes.make(&web, &mut |_| false)?;
    changes.write(&own, &Schemata::uniform(&resources, &domains, TAKEN))?;
    Ok(own)
}

/// Divides the cache of the file system at `root`, with its journal in `journal`, reports this, and waits to be killed.
pub(super) fn partition(root: &str, journal: &str) -> Result<(), Wrong> {
    let host = Rooted::host();
    let resctrl = Resctrl::at(&host, root)?;
    let mut settings = HostSettings::open(&host, Path::new(journal))?;
    let mut changes = resctrl.change(&mut settings, &mut |_| false)?;
    let _own = make(&mut changes)?;
    drop(changes);
    println!("done=1");
    until_input_ends()
}

/// Keeps `count` threads alive at any time; each makes another after a millisecond and ends.
pub(super) fn comers(count: u64) -> Result<(), Wrong> {
    for _ in 0..count {
        std::thread::spawn(come_and_go);
    }
    println!("done=1");
    until_input_ends()
}

fn come_and_go() {
    std::thread::sleep(Duration::from_millis(1));
    std::thread::spawn(come_and_go);
}

fn until_input_ends() -> Result<(), Wrong> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
