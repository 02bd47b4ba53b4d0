//! `masu run --local` beside those who wish it ill: the program with masu's secrets, other users, a server that lies.

use std::os::unix::process::CommandExt;

use super::Outcome;
use super::redis::Redis;
use super::run::said;
use super::run_local::paged;
use crate::live::Live;

/// A user without privileges. It needs no name.
const SOMEBODY: u32 = 4001;

/// Of an ordinary user: root may read everything.
pub fn a_stores_password_stays_with_masu(_: &Live) -> Outcome {
    const LOOK: &str =
        "env; /bin/sh -c env; cat /proc/$PPID/environ /proc/$PPID/task/*/environ; head -c 1 /proc/$PPID/mem";
    let redis = Redis::start_with("local-secret", &["--requirepass", "hunter22"])?;
    let mut run = paged(&["--local", "4MiB", "--store", &redis.url()], &["/bin/sh", "-c", LOOK])?;
    let said = said(run.env("MASU_STORE_PASSWORD", "hunter22").uid(SOMEBODY).gid(SOMEBODY))?;
    assert!(said.out.contains("MASU_PAGER=") && !said.out.contains("MASU_STORE"), "{said:?}");
    assert!(!said.out.contains("hunter22") && !said.err.contains("hunter22"), "{said:?}");
    assert!(said.err.matches("ermission denied").count() >= 3, "masu is open to its program: {said:?}");
    Ok(())
}
