//! ThreadSanitizer over what threads share by atomics: rings, credits, records, the cache's readers and slots, and the
//! bytes that they publish.
//!
//! It reports a plain access that no chain of Release and Acquire orders, also where the hardware would have done the
//! right thing. Loom explores more orders, of models; here whole copies run, with the memory that they name.
//!
//! The precompiled standard library is not instrumented, so that the sanitizer does not see what its slow paths order: a
//! mutex under contention, a channel, a fence. [`FALSE_POSITIVES`] names them, and tests are chosen that share by atomics.

use crate::sanitizer::{Sanitizer, Tests};
use crate::shell::Failure;

/// The standard library is built without the sanitizer, which is another ABI in the eyes of the compiler. With our own flag
/// locks of the library spin.
const RUST_FLAGS: &str = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg memferry_tsan";

/// As in asan.rs: it is built faster.
const LIGHTLY: &[&str] = &[
    "profile.dev.package.memferry.opt-level=1",
    "profile.dev.package.memferry-dsa.opt-level=1",
    "profile.dev.package.memferry-dsa-emulator.opt-level=1",
];

/// Functions and files of the standard library, and what the sanitizer does not understand of each.
const FALSE_POSITIVES: &[(&str, &str)] = &[
    (
        "alloc::sync::Arc<*::drop",
        "the last owner of an Arc frees it after a fence, and fences are not modelled",
    ),
    ("alloc::sync::Weak<*::drop", "the same"),
    ("library/alloc/src/sync.rs", "the same, where it is inlined"),
    ("std::sync::once_lock::OnceLock<", "its value is published in code that is not instrumented"),
    ("library/std/src/sys/sync/once/", "the same, of a LazyLock"),
    ("std::sync::mpmc::", "blocks of a channel are handed over in code that is not instrumented"),
];

const RUNS: &[Tests] = &[
    // Records, credits, gates, the table of waits, generations of processes.
    Tests { package: "memferry-dsa", targets: &["--lib"], arguments: &[] },
    // Rings, register and counters of the device.
    Tests { package: "memferry-dsa-emulator", targets: &["--lib"], arguments: &[] },
    // Copies by a device in threads: the bytes go with the ring to the device and with the record back.
    Tests { package: "memferry-dsa-emulator", targets: &["--test", "threaded"], arguments: &[] },
    // The hit path, hazards, slots, latches, pools. Not the mover: its queues sleep on a condition.
    Tests { package: "memferry", targets: &["--lib"], arguments: &["cache::", "memory::", "sync::"] },
];

pub(crate) fn run() -> Result<(), Failure> {
    let lines: Vec<String> =
        (FALSE_POSITIVES.iter()).map(|(function, _)| format!("race:{function}")).collect();
    let suppressions = Sanitizer::suppressions("tsan", &lines)?;
    let tsan = Sanitizer {
        name: "tsan",
        rust_flags: RUST_FLAGS,
        configuration: LIGHTLY,
        variables: vec![("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()).into())],
    };
    tsan.run(RUNS)
}
