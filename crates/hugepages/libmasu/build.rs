//! Exports only the declarations of `masu.h`, under a version: a program linked with that version finds them, or is
//! told that the library has another.

fn main() {
    println!("cargo:rerun-if-changed=exports.map");
    let map = std::env::current_dir().expect("the package's directory").join("exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmasu.so.0");
    // A handler may be running when a program unloads the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
