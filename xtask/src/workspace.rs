//! Root of the workspace, and the folder for build output.

use std::path::{Path, PathBuf};

/// The folder of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(Path::to_path_buf).unwrap_or(manifest)
}

/// Cargo's output folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// A path as a person at the root of the workspace would write it.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Makes cargo build with the features of `cargo test --workspace`: of all packages, and of the dependencies of tests,
/// since an example may use them, too. With other features rustls and all above it would be built once more.
pub const AS_FOR_TESTS: [&str; 3] = ["--workspace", "--example", "transfer"];
