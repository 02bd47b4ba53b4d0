//! Builds `libmasu-preload.so` and lays it beside the programs that cargo builds, where `masu` looks for it.
//!
//! The library is a workspace of its own (`crates/libmasu/preload`), so a second cargo builds it. It is built as for release
//! in every profile: what tests run is what users run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's name, where it is found and installed.
const NAME: &str = "libmasu-preload.so";

fn main() {
    let library = Path::new("../libmasu/preload");
    for name in ["src", "build.rs", "exports.map", "Cargo.toml", "Cargo.lock", "../src"] {
        println!("cargo:rerun-if-changed={}", library.join(name).display());
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where"));
    let target = out.join("preload");
    let cargo = std::env::var_os("CARGO").expect("cargo says which");
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--quiet", "--locked", "--manifest-path"]);
    build.arg(library.join("Cargo.toml")).arg("--target-dir").arg(&target);
    // What was set for the programs around it (a static C library, coverage) is not for this one.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_BUILD_RUSTFLAGS", "RUSTC_WRAPPER"]
    {
        build.env_remove(name);
    }
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "building {NAME} failed");
    let built = target.join("release/libmasu_preload.so");
    let place = beside_the_programs(&out).join(NAME);
    // Not written over: it may be mapped by a program that runs.
    let new = place.with_extension("so.new");
    std::fs::copy(&built, &new).and_then(|_| std::fs::rename(&new, &place)).expect("the target directory is writable");
}

/// `target/debug` of `target/debug/build/libmasu-1234/out`.
fn beside_the_programs(out: &Path) -> &Path {
    out.ancestors().nth(3).expect("a build script's directory lies three below the programs")
}
