//! Binds the library's own calls to its own functions: another library may replace them as well, and call this one.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
