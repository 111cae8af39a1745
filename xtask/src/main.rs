//! The chores of this repository, as `cargo xtask NAME`.
//!
//! Each chore is a few calls of cargo and other programs: what is run is printed, so that it can be repeated by hand.
//! Few and small dependencies, because continuous integration builds this first.
#![deny(unsafe_code)]

mod asan;
mod beside;
mod ci;
mod fuzz;
// Process 1 of a guest and the parent of QEMU talk to the kernel.
#[allow(unsafe_code, reason = "mount, reap, exit through a port; prctl before exec")]
mod guest;
mod links;
mod loom;
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
  links          links of the documents lead to files and headings
  asan           tests of cache, mover and pools under AddressSanitizer, leaks included (nightly)
  tsan           tests of what threads share by atomics under ThreadSanitizer (nightly)
  fuzz TARGET [SECONDS]  one target of fuzz/, or `all` (nightly, cargo-fuzz)
  bench [ARGS]   `memferry bench ARGS`, release profile, all peers; without ARGS, `query`
";

fn main() -> ExitCode {
    if guest::init::is_init() {
        guest::init::run();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (chore, rest) = match arguments.split_first() {
        Some((chore, rest)) => (chore.as_str(), rest),
        None => ("", &[] as &[String]),
    };
    let outcome = match (chore, rest) {
        ("ci", []) => ci::run(),
        ("setup", []) => setup::run(),
        ("numa", [help]) if help == "--help" => {
            print!("{}", guest::USAGE);
            Ok(())
        }
        ("numa", _) => guest::run(rest),
        ("loom", []) => loom::run(""),
        ("loom", [filter]) => loom::run(filter),
        ("links", []) => links::run(),
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
    cargo(["run", "--release", "--package", "memferry-cli", "--features", "peers", "--", "bench"])
        .args(arguments)
        .run()
}
