//! Builds the libraries that programs load, and lays them beside the programs that cargo builds, where `masu` looks for them.
//!
//! Each is a workspace of its own (`crates/libmasu/preload`, `crates/libmasu/pager`), so a second cargo builds it. They are
//! built as for release in every profile: what tests run is what users run.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    build("preload", &["../src"], &[("libmasu_preload.so", "libmasu-preload.so")]);
    build("pager", &["../../paging/src", "../../paging/Cargo.toml"], &[("libmasu_pager.so", "libmasu-pager.so")]);
    build("api", &["../src"], &[("libmasu.so", "libmasu.so"), ("libmasu.a", "libmasu.a")]);
}

/// Builds the library of a folder, which is made of what lies there and in `also`; what comes of it gets the names that
/// people know it by.
fn build(name: &str, also: &[&str], made: &[(&str, &str)]) {
    let library = Path::new("../libmasu").join(name);
    for source in ["src", "build.rs", "exports.map", "Cargo.toml", "Cargo.lock"].iter().chain(also) {
        println!("cargo:rerun-if-changed={}", library.join(source).display());
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where"));
    let target = out.join(name);
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
    assert!(status.success(), "building the library libmasu/{name} failed");
    for (built, place) in made {
        let built = target.join("release").join(built);
        let place = beside_the_programs(&out).join(place);
        // Not written over: it may be mapped by a program that runs.
        let new = place.with_extension("new");
        std::fs::copy(&built, &new)
            .and_then(|_| std::fs::rename(&new, &place))
            .expect("the target directory is writable");
    }
}

/// `target/debug` of `target/debug/build/libmasu-1234/out`.
fn beside_the_programs(out: &Path) -> &Path {
    out.ancestors().nth(3).expect("a build script's directory lies three below the programs")
}
