//! Only the functions that a program may call are exported; all other symbols of the library are hidden.

fn main() {
    println!("cargo:rerun-if-changed=exports.map");
    let map = std::env::current_dir().expect("the package's directory").join("exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmasu-pager.so");
    // Before all other libraries: none of them has begun, and malloc has not either.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // No start files: they have nothing that the library uses, and one import fewer to be resolved.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
}
