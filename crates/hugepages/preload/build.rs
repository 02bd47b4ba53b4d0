//! Exports only the hooks; all other symbols of the library stay private.

fn main() {
    println!("cargo:rerun-if-changed=exports.map");
    let map = std::env::current_dir().expect("the package's directory").join("exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmasu-preload.so");
    // Before all other libraries: none of them has begun, and malloc has not either.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // No start files: we use nothing in them, and one import fewer is resolved.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
}
