//! The page of `masu serve` in a browser (chromium, headless): `live-tests/browser/look` checks what is visible.
//!
//! With `MASU_SCREENSHOTS=DIR` the pictures of the guide are written to that folder.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::programs::Running;
use super::run::{Folder, said};
use super::run_hard::compile;
use super::serve::Service;
use super::serve_page::{address_of, state};
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    serve_browser requires [Root, MasuCommand, Chromium, Python];
    the_page_shows_hostile_names_as_text_on_each_screen;
    the_page_shows_a_hot_set_where_it_is_and_what_a_rule_did [PageTableWalk, RemoteCollapse, HugePageModes, MemoryGroups, CCompiler];
};

/// Windows of the program's memory, and the hot ones of them.
const WINDOWS: usize = 32;
const HOT: std::ops::Range<usize> = 12..20;

/// Has memory of `v[1]` windows, and uses the windows from `v[2]` to `v[3]` until it is killed.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
int main(int c, char **v) {
    size_t w = 2 << 20, n = atoi(v[1]) * w;
    char *p = mmap(0, n + w, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = (char *)(((size_t)p + w - 1) & ~(w - 1));
    prctl(PR_SET_NAME, "<b>hot</b>");
    memset(p, 1, n);
    for (;;) for (size_t i = atoi(v[2]) * w; i < atoi(v[3]) * w; i += 4096) ((volatile char *)p)[i]++;
}
"#;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("browser")
}

/// No fault of a view, with these texts and further options; a picture where pictures are wanted.
fn holds(address: SocketAddr, view: &str, texts: &[&str], options: &[&str], picture: &str) -> Outcome {
    let mut look = Command::new(folder().join("look"));
    look.arg(format!("http://{address}/#{view}")).arg("--text").args(texts).args(options);
    if let Some(pictures) = std::env::var_os("MASU_SCREENSHOTS") {
        look.arg("--screenshot").arg(Path::new(&pictures).join(format!("{picture}.png")));
    }
    let looked = said(&mut look)?;
    assert_eq!((looked.code(), looked.out.as_str(), looked.err.as_str()), (0, "", ""), "{view}");
    Ok(())
}

/// Recorded answers with names that are HTML, in a narrow and in a wide window; each check of `look` fails on a page that
/// deserves it.
fn the_page_shows_hostile_names_as_text_on_each_screen(_: &Host) -> Outcome {
    let tested = said(&mut Command::new(folder().join("look_test.py")))?;
    assert_eq!(tested.code(), 0, "{}", tested.err);
    Ok(())
}

/// Heat of the program in a state.
fn heat(state: &Value) -> Vec<f64> {
    state["processes"][0]["heat"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// The hot windows of a program, if they are in a row.
fn hot(heat: &[f64]) -> Option<std::ops::Range<usize>> {
    let first = heat.iter().position(|part| *part > 0.5)?;
    let length = heat[first..].iter().take_while(|part| **part > 0.5).count();
    let is_rest_cold = heat.iter().filter(|part| **part > 0.5).count() == length;
    is_rest_cold.then_some(first..first + length)
}

fn the_page_shows_a_hot_set_where_it_is_and_what_a_rule_did(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let programs = Folder::make("serve-browser-programs")?;
    let program = compile(&programs, "cc", "program", PROGRAM, &[])?;
    let rule = format!(
        "[serve]\nlisten = \"127.0.0.1:0\"\nhistory = \"off\"\n\
         [[rule]]\nname = \"hot\"\nselect = {{ executable = \"{program}\" }}\nhuge = {{ mode = \"hot\" }}\n"
    );
    let of = Group::make("browser<img src=x onerror=alert(1)>")?;
    let service = Service::start("serve-browser", &rule)?;
    let address = address_of(&service, 0)?;
    let script = format!("echo 0 > '{}' && exec \"$@\"", of.procs().display());
    let numbers = [WINDOWS, HOT.start, HOT.end].map(|number| number.to_string());
    let running = Running::start(Command::new("/bin/sh").args(["-c", &script, "sh", &program]).args(numbers))?;
    let is_shown = |state: &Value| {
        let process = &state["processes"][0];
        process["promoted"].as_u64() >= Some(HOT.len() as u64) && hot(&heat(state)).is_some()
    };
    let shown = state(address, is_shown)?;
    assert_eq!(shown["processes"][0]["pid"].as_i64(), Some(running.pid().into()), "{shown}");
    let heat = heat(&shown);
    let found = hot(&heat).ok_or("not in a row")?;
    assert_eq!(found.len(), HOT.len(), "{heat:?}");
    assert!(found.start >= HOT.start && heat.len() - found.end >= WINDOWS - HOT.end, "{heat:?}");

    let drawn = format!(
        "((rects) => rects.length === {} && rects.every((rect, i) => Number(rect.getAttribute('x')) === {} + i))\
         ([...document.querySelectorAll('svg.heat rect')].filter((rect) => rect.getAttribute('fill-opacity') > 0.55))",
        HOT.len(),
        found.start
    );
    let did = format!("{} promoted", shown["processes"][0]["promoted"]);
    holds(address, "rules", &["hot", "<b>hot</b>", &did], &["--true", &drawn], "serve-rules")?;
    let group = of.path();
    let group = group.rsplit('/').next().ok_or("no name")?;
    holds(address, "groups", &[group], &[], "serve-groups")?;
    holds(address, "log", &["admitted", "<b>hot</b>"], &[], "serve-log")?;
    drop(running);
    service.ends()
}
