//! `cargo xtask asan`: AddressSanitizer and leak detection over the tests of the cache, the mover, pools and the layer
//! below.
//!
//! Engines, devices and guards hold raw pointers, which neither loom nor the borrow checker tracks. Left out are tests of
//! other modules, of forks (a child exits without destructors), and of benchmark counts (they have an own allocator).

use crate::sanitizer::{Sanitizer, Tests};
use crate::shell::Failure;

/// A lower optimisation level: the build takes half the time.
const LIGHTLY: &str = "profile.dev.package.memferry.opt-level=1";

/// Parts of the names of functions that allocate memory which leaks on purpose: memory that a lost device may still use,
/// forgotten values, and reader records of a test, which are never freed. The sanitizer identifies a leak by the stack of
/// its allocation.
const LEAKED_ON_PURPOSE: &[&str] = &[
    "nothing_is_freed_before_a_fence_has_run",
    "an_eviction_frees_what_no_guard_freed",
    "buffers_of_a_lost_device_are_leaked",
    "a_draft_survives_a_copy_that_fails",
    "cache_model_room::run",
    "forgotten_entries_only_cost_room",
    "a_short_soak_finds_nothing",
    "memferry_bench::cache::soak",
    "mover::jam",
    "buffers_in_flight_are_not_freed_whatever_happens_to_the_transfer",
    "a_scope_waits_for_copies_whose_handles_are_gone",
    "a_device_that_dies",
    "a_device_that_has_gone_is_an_error_once",
    "a_device_that_is_gone_is_an_error",
    "memferry_bench::dsa::load::threads::tests::Paged",
    "an_emulated_device_that_dies_with_work_in_it_is_survived",
    "an_injected_failure_does_not_hide_lost_buffers",
    "a_record_that_never_comes_is_given_up",
    "a_silent_device_costs_owned_buffers",
    "the_completer_burns_no_core",
    "a_copy_that_nobody_takes_is_handed_back_whole",
    "when_a_device_is_lost_the_buffers_are",
    "what_falls_back_and_fails_is_told",
    "another_generation_makes_its_own",
    "a_wiped_word_gets_a_new_generation",
    "a_remover_checks_records_of",
    "a_guard_keeps_its_record",
    "a_view_in_a_thread_local",
    "a_lost_descriptor_of_a_busy_queue_is_found",
    "an_engine_that_is_asked_all_the_same_copies_by_cpu",
    "panicking_payloads_are_contained",
    "a_dropped_driver_leaks_what_devices_have",
    "items_that_were_handed_out_are_waited_for",
    "members_without_a_record",
    DRIVER_RECORDS,
];

/// The source file of the records of a driver, which it never frees if a silent device may still write them.
pub(crate) const DRIVER_RECORDS: &str = "memferry-dsa/src/driver/queues.rs";

const RUNS: &[Tests] = &[
    Tests { package: "memferry", targets: &["--lib"], arguments: &["cache::", "mover::", "memory::"] },
    Tests {
        package: "memferry",
        targets: &["--test", "integration"],
        arguments: &["cache_", "mover", "ordered::", "engines::", "--skip", "children_"],
    },
    Tests { package: "memferry-dsa", targets: &["--lib"], arguments: &[] },
    Tests {
        package: "memferry-dsa",
        targets: &["--test", "integration"],
        arguments: &["client::", "driver::"],
    },
    Tests { package: "memferry-dsa-emulator", targets: &["--lib"], arguments: &[] },
    Tests {
        package: "memferry-dsa-emulator",
        targets: &["--test", "integration"],
        arguments: &["batch::", "operations::", "random::"],
    },
    Tests {
        package: "memferry-bench",
        targets: &["--lib", "--test", "cache_measure", "--test", "integration"],
        arguments: &[
            "--skip",
            "every_row_is_measured",
            "--skip",
            "papers::",
            "--skip",
            "calibrate::",
            "--skip",
            "model::",
        ],
    },
];

pub(crate) fn run() -> Result<(), Failure> {
    let lines: Vec<String> = LEAKED_ON_PURPOSE.iter().map(|name| format!("leak:{name}")).collect();
    let suppressions = Sanitizer::suppressions("asan", &lines)?;
    let asan = Sanitizer {
        name: "asan",
        rust_flags: "-Zsanitizer=address",
        configuration: &[LIGHTLY],
        variables: vec![
            // The standard library has no frame pointers.
            ("ASAN_OPTIONS", "detect_leaks=1:fast_unwind_on_malloc=0".into()),
            ("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", suppressions.display()).into()),
        ],
    };
    asan.run(RUNS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;

    /// A renamed test would no longer be excused.
    #[test]
    fn names_of_leaks_are_in_the_sources() {
        let sources = shell::root().join("crates");
        for name in LEAKED_ON_PURPOSE {
            if name.ends_with(".rs") {
                assert!(sources.join(name).is_file(), "there is no {name}");
                continue;
            }
            let name = name.rsplit("::").next().unwrap_or(name);
            let mut command = std::process::Command::new("grep");
            let found =
                command.args(["--recursive", "--quiet", "--include=*.rs", name]).arg(&sources).status();
            assert!(found.is_ok_and(|status| status.success()), "no source file contains {name}");
        }
    }
}
