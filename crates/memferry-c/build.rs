//! Sets the name by which programs load the shared library. It has the minor version: until 1.0 each one may change the
//! binary interface.

fn main() {
    let version = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libmemferry.so.{}.{}",
        version("MAJOR"),
        version("MINOR")
    );
    println!("cargo:rerun-if-changed=build.rs");
}
