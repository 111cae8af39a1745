//! Embeds preload libraries: that of `memferry emulate` into `memferry-emulate`, those of `memferry offload` and `memferry
//! place` into `memferry-offload`.
//!
//! For example, `memferry-emulate` depends on `memferry-emulate-preload`, a package that is both an rlib and a cdylib. Cargo passes
//! the path of the rlib to rustc (`--extern`) and has the cdylib built beside it, with the same file name and the
//! extension `so`. Cargo tells that path to no build script, so a macro reads it: it runs inside rustc.
//!
//! Reasons, and the ways that were tried before: `docs/decisions/embedded-library.md`.

use std::env;
use std::path::{Path, PathBuf};

use proc_macro::TokenStream;

/// Expands to the bytes of the preload library of the named crate, as a `&[u8]` or a reference to an array:
/// `preload_library!(memferry_emulate_preload)`.
///
/// The slice is empty if rustc links nothing (`cargo check`, `cargo doc`), because cargo has not built the library
/// then.
#[proc_macro]
pub fn preload_library(name: TokenStream) -> TokenStream {
    let arguments: Vec<String> =
        env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let expression = match library(&name.to_string(), &arguments) {
        Ok(Some(path)) if path.is_file() => format!("include_bytes!({path:?})"),
        Ok(Some(path)) => error(&format!("there is no {}", path.display())),
        Ok(None) => "&[]".to_owned(),
        Err(problem) => error(&problem),
    };
    expression.parse().expect("the expression is Rust")
}

fn error(problem: &str) -> String {
    let text = format!(
        "cannot embed the preload library: {problem}; this version of cargo may lay out its files differently; adapt \
        crates/memferry-emulate-embed"
    );
    format!("compile_error!({text:?})")
}

/// The path of the library of a crate, from the arguments of rustc. `None`: rustc does not link.
fn library(crate_name: &str, arguments: &[String]) -> Result<Option<PathBuf>, String> {
    let links = |argument: &String| {
        argument.strip_prefix("--emit=").is_some_and(|kinds| kinds.split(',').any(|kind| kind == "link"))
    };
    if !arguments.iter().any(links) {
        return Ok(None);
    }
    let path = arguments.windows(2).filter(|pair| pair[0] == "--extern").find_map(|pair| {
        let (name, path) = pair[1].split_once('=')?;
        // Options such as `noprelude` precede the name.
        (name.rsplit(':').next() == Some(crate_name)).then(|| Path::new(path))
    });
    match path {
        Some(path) if path.extension().is_some_and(|extension| extension == "rlib") => {
            Ok(Some(path.with_extension("so")))
        }
        Some(path) => Err(format!("cargo passes {} and not an rlib", path.display())),
        None => Err(format!("cargo does not pass {crate_name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRELOAD: &str = "memferry_emulate_preload";

    fn found(arguments: &[&str]) -> Result<Option<PathBuf>, String> {
        library(PRELOAD, &arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_library_is_beside_the_rlib() {
        let rlib = format!("noprelude:{PRELOAD}=/target/deps/lib{PRELOAD}-1a2b.rlib");
        let library = PathBuf::from(format!("/target/deps/lib{PRELOAD}-1a2b.so"));
        let others = "--emit=dep-info,metadata,link --extern libc=/target/deps/liblibc.rlib --extern";
        let arguments: Vec<&str> = others.split(' ').chain([rlib.as_str()]).collect();
        assert_eq!(found(&arguments), Ok(Some(library)));
    }

    #[test]
    fn a_check_embeds_nothing() {
        assert_eq!(found(&["--emit=dep-info,metadata", "--extern", "x=y"]), Ok(None));
        assert_eq!(found(&[]), Ok(None));
    }

    #[test]
    fn another_layout_is_an_error() {
        let link = "--emit=link";
        assert!(found(&[link]).unwrap_err().contains(PRELOAD));
        let metadata = format!("{PRELOAD}=/target/deps/x.rmeta");
        assert!(found(&[link, "--extern", &metadata]).unwrap_err().contains("x.rmeta"));
    }
}
