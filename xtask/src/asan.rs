//! AddressSanitizer, with its look for leaks, over the tests of what hands memory about: cache, mover, pools, and the
//! layer below. Needs nightly; a target directory of its own, because everything is built anew.
//!
//! What loom's models and the borrow checker cannot see are raw pointers that engines, devices and guards hold. Tests of
//! other modules, of forks (a child ends without its destructors) and of the figures that benchmarks count (an allocator
//! of their own) are left out.

use crate::shell::{Failure, nightly, target_directory};

/// The sanitizer wants it named, so that build scripts and macros are built without.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The tests need no speed, and with it they take twice as long to build.
const LIGHTLY: &str = "profile.dev.package.memferry.opt-level=1";

/// Tests in which something is leaked on purpose: what a lost device may still use, what is forgotten, readers of a test's
/// own, which live for ever as a process' do. Leaks are known by who allocated them, so the tests are named, by
/// a part of their names.
const LEAKED_ON_PURPOSE: &[&str] = &[
    "nothing_is_concluded_until_a_fence_has_happened",
    "what_no_guard_lets_go_of_is_caught_up_with",
    "buffers_of_a_lost_device_are_leaked",
    "a_draft_survives_a_copy_that_fails",
    "cache_model_room::run",
    "forgotten_entries_only_cost_room",
    "a_short_soak_finds_nothing",
    "memferry::cache::measure::soak",
    "mover::jam",
    "buffers_in_flight_are_not_freed_whatever_happens_to_the_transfer",
    "a_scope_waits_for_copies_whose_handles_are_gone",
    "a_device_that_dies",
    "a_device_that_has_gone_is_an_error_once",
    "a_device_that_is_gone_is_an_error",
    "memferry_dsa::measure::load::threads::tests::Paged",
    "an_emulated_device_that_dies_with_work_in_it_is_survived",
    "an_injected_failure_does_not_hide_lost_buffers",
    "a_record_that_never_comes_is_given_up",
    "a_silent_device_costs_owned_buffers",
    "the_completer_burns_no_core",
    "a_copy_that_nobody_takes_is_handed_back_whole",
    "when_a_device_is_lost_the_buffers_are",
    "what_falls_back_and_fails_is_told",
    "another_generation_makes_its_own",
    "a_wiped_word_gets_a_new_number",
];

/// Package, then what of it: cargo's choice of targets, and the tests in them.
const RUNS: &[(&str, &[&str], &[&str])] = &[
    ("memferry", &["--lib"], &["cache::", "mover::", "memory::"]),
    (
        "memferry",
        &["--test", "cache_*", "--test", "mover*", "--test", "ordered", "--test", "engines"],
        &["--skip", "children_", "--skip", "every_row_is_measured"],
    ),
    ("memferry-dsa", &["--lib", "--test", "client", "--test", "batch", "--test", "operations"], &[]),
];

/// Runs all of them, also after one failed.
pub(crate) fn run() -> Result<(), Failure> {
    let directory = target_directory().join("asan");
    let suppressions = directory.join("leaked-on-purpose");
    let text: String = LEAKED_ON_PURPOSE.iter().map(|name| format!("leak:{name}\n")).collect();
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(&suppressions, text))
        .map_err(|error| Failure(format!("{} cannot be written: {error}", suppressions.display())))?;
    let failed: Vec<String> = (RUNS.iter())
        .filter_map(|(package, targets, tests)| {
            let mut command = nightly();
            command
                .env("CARGO_TARGET_DIR", &directory)
                .env("RUSTFLAGS", "-Zsanitizer=address")
                // Frame pointers end in the standard library.
                .env("ASAN_OPTIONS", "detect_leaks=1:fast_unwind_on_malloc=0")
                .env("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", suppressions.display()))
                .args(["test", "--locked", "--no-fail-fast", "--target", TARGET])
                .args(["--config", LIGHTLY, "--package", package])
                .args(*targets)
                .arg("--")
                .args(*tests);
            eprintln!("$ {command:?}");
            match command.status() {
                Ok(status) if status.success() => None,
                Ok(status) => Some(format!("{package} {targets:?}: {status}")),
                Err(error) => Some(format!("{package} {targets:?}: {error}")),
            }
        })
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "{}; if nightly is missing: rustup toolchain install nightly --profile minimal",
        failed.join(", ")
    )))
}
