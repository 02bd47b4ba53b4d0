//! Only the hooks are exported; everything else of the library stays its own affair.

fn main() {
    println!("cargo:rerun-if-changed=exports.map");
    let map = std::env::current_dir().expect("the package's directory").join("exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmasu-preload.so");
    // Before all other libraries: none of them has begun, and malloc has not either.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // No start files: nothing in them that we use, and one import fewer to be resolved.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");
}
