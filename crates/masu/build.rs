//! Builds the libraries that programs load, and puts them beside the programs that cargo builds: `masu` looks there.
//!
//! Each library is a cargo workspace of its own, built by a second cargo, in the release profile always: tests run the
//! code that users run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A library: its folder, the crate it shares with masu, and the installed names of its files.
struct Library {
    folder: &'static str,
    shares: &'static str,
    files: &'static [(&'static str, &'static str)],
}

const LIBRARIES: [Library; 3] = [
    Library {
        folder: "../hugepages/preload",
        shares: "../hugepages/contract",
        files: &[("libmasu_preload.so", "libmasu-preload.so")],
    },
    Library {
        folder: "../hugepages/libmasu",
        shares: "../hugepages/contract",
        files: &[("libmasu.so", "libmasu.so"), ("libmasu.a", "libmasu.a")],
    },
    Library {
        folder: "../farmem/agent",
        shares: "../farmem/engine",
        files: &[("libmasu_pager.so", "libmasu-pager.so")],
    },
];

fn main() {
    LIBRARIES.iter().for_each(build);
}

fn build(library: &Library) {
    let folder = Path::new(library.folder);
    for source in ["src", "build.rs", "exports.map", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", folder.join(source).display());
    }
    for source in ["src", "Cargo.toml"] {
        println!("cargo:rerun-if-changed={}/{source}", library.shares);
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = out.join(folder.file_name().expect("a folder has a name"));
    let cargo = std::env::var_os("CARGO").expect("cargo sets CARGO");
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--quiet", "--locked", "--manifest-path"]);
    build.arg(folder.join("Cargo.toml")).arg("--target-dir").arg(&target);
    // The settings of the outer build (a static C library, coverage) do not apply to this library.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_BUILD_RUSTFLAGS", "RUSTC_WRAPPER"]
    {
        build.env_remove(name);
    }
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "building the library {} failed", library.folder);
    for (built, name) in library.files {
        let built = target.join("release").join(built);
        let installed = beside_the_programs(&out).join(name);
        // Replaced by rename, not overwritten: a running program may have mapped the file.
        let new = installed.with_extension("new");
        std::fs::copy(&built, &new)
            .and_then(|_| std::fs::rename(&new, &installed))
            .expect("the target directory is writable");
    }
}

/// `target/debug` of `target/debug/build/masu-1234/out`.
fn beside_the_programs(out: &Path) -> &Path {
    out.ancestors().nth(3).expect("a build script's directory lies three below the programs")
}
