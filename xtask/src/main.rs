//! The chores of this repository, as `cargo xtask NAME`.
//!
//! Each chore calls cargo and other programs and prints each command line, so that you can repeat it by hand. The
//! dependencies are few and small, because CI builds this program first.
#![deny(unsafe_code)]

mod api;
mod asan;
mod background;
mod binaries;
mod c_library;
mod cargo_packages;
mod ci;
mod dist;
mod docs;
mod files;
mod fuzz;
mod licences;
mod lines;
mod links;
mod loom;
mod numa;
mod packages;
mod python;
mod redis;
mod sanitizer;
mod setup;
mod shell;
mod skips;
mod tsan;

use std::process::ExitCode;

use shell::{Failure, cargo};

const USAGE: &str = "\
usage: cargo xtask CHORE

  ci             every check that a change must pass; what .ci/run calls
  setup          installs what the other chores need, as root
  numa [FILTER]  tests on a machine with many NUMA nodes, in an emulated guest; --help tells more
  loom [FILTER]  model checking of the lock and atomics code (test names starting with loom_FILTER)
  links          checks that links of the documents lead to files and headings
  docs           runs the shell blocks of the README, the guides and the command pages
  api [--write | --check] [CRATE...]  prints the public API of the libraries, or keeps or compares it in docs/api
  packages       tries to publish the crates, without sending them, and builds the packages of the light crates
  licences       checks the licences of all dependencies against a list
  dist [--profile P] [--out DIR]  makes a Debian package, an archive with a static command, and a bill of materials
  dist --try     the same of the development build, unpacked and used as CI does
  c-header --write|--check  makes memferry.h of the C library from its crate, or compares it
  install-c --prefix DIR [--debug]  builds and installs the C library, for pkg-config and CMake
  python [ARGS]  builds the Python package as a wheel, installs it and runs its tests, with ARGS for pytest
  lines          lines of code by crate, without tests, comments and blank lines
  asan           tests of cache, mover and pools under AddressSanitizer, leaks included (nightly)
  tsan           tests of code that shares by atomics under ThreadSanitizer (nightly)
  fuzz TARGET [SECONDS]  one target of fuzz/, or `all` (nightly, cargo-fuzz)
  bench [ARGS]   `memferry bench ARGS`, release profile, all peers and protocols; without ARGS, `query`
";

fn main() -> ExitCode {
    memferry_guest::run_if_init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (chore, rest) = match arguments.split_first() {
        Some((chore, rest)) => (chore.as_str(), rest),
        None => ("", &[] as &[String]),
    };
    let outcome = match (chore, rest) {
        ("ci", []) => ci::run(),
        ("setup", []) => setup::run(),
        ("numa", [help]) if help == "--help" => {
            print!("{}", numa::USAGE);
            Ok(())
        }
        ("numa", _) => numa::run(rest),
        ("loom", []) => loom::run(""),
        ("loom", [filter]) => loom::run(filter),
        ("links", []) => links::run(),
        ("docs", []) => docs::run(),
        ("api", _) => api::run(rest),
        ("packages", []) => packages::run(),
        ("licences", []) => licences::run(),
        ("dist", [option]) if option == "--try" => dist::trial::run(),
        ("dist", _) => dist::run(rest),
        ("c-header", _) => c_library::header(rest),
        ("install-c", _) => c_library::install(rest),
        ("python", _) => python::run(rest),
        ("lines", []) => lines::run(),
        ("asan", []) => asan::run(),
        ("tsan", []) => tsan::run(),
        ("fuzz", [target]) => fuzz::run(target, None),
        ("fuzz", [target, seconds]) => fuzz::run(target, Some(seconds)),
        ("bench", _) => bench(rest),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask {chore}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &[String]) -> Result<(), Failure> {
    let default = ["query".to_owned()];
    let arguments = if arguments.is_empty() { &default } else { arguments };
    cargo(["run", "--release", "--package", "memferry-cli", "--features", "peers,postgres", "--", "bench"])
        .args(arguments)
        .run()
}
