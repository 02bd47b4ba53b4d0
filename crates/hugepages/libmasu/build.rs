//! Only what `masu.h` declares is exported, under a version: programs that were linked with it find it, or are told that it
//! is another.

fn main() {
    println!("cargo:rerun-if-changed=exports.map");
    let map = std::env::current_dir().expect("the package's directory").join("exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmasu.so.0");
    // A handler may be on its way when a program unloads it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
