//! `cargo xtask tsan`: ThreadSanitizer over code that shares data by atomics: rings, credits, records, readers and slots
//! of the cache, and the bytes that they publish.
//!
//! It reports a plain access that no chain of Release and Acquire orders, even if the hardware ordered it. Loom explores
//! more orders, but of models; here whole copies run on real memory.
//!
//! The precompiled standard library is not instrumented: the sanitizer does not see the ordering of its slow paths (a
//! contended mutex, a channel, a fence). [`FALSE_POSITIVES`] lists them; the chosen tests share data by atomics only.

use crate::sanitizer::{Sanitizer, Tests};
use crate::shell::Failure;

/// The compiler treats the sanitizer as a different ABI; the standard library is built without it. The flag
/// `memferry_tsan` makes our locks spin.
const RUST_FLAGS: &str = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg memferry_tsan";

/// As in asan.rs: the build is faster.
const LIGHTLY: &[&str] = &[
    "profile.dev.package.memferry.opt-level=1",
    "profile.dev.package.memferry-dsa.opt-level=1",
    "profile.dev.package.memferry-dsa-emulator.opt-level=1",
];

/// Functions and files of the standard library, and the ordering that the sanitizer misses in each.
const FALSE_POSITIVES: &[(&str, &str)] = &[
    (
        "alloc::sync::Arc<*::drop",
        "the last owner of an Arc frees it after a fence, which the sanitizer does not model",
    ),
    ("alloc::sync::Weak<*::drop", "the same"),
    ("library/alloc/src/sync.rs", "the same, where it is inlined"),
    ("std::sync::once_lock::OnceLock<", "code that is not instrumented publishes its value"),
    ("library/std/src/sys/sync/once/", "the same, of a LazyLock"),
    ("std::sync::mpmc::", "code that is not instrumented hands over the blocks of a channel"),
];

const RUNS: &[Tests] = &[
    // Records, credits, generations of processes.
    Tests { package: "memferry-dsa", targets: &["--lib"], arguments: &[] },
    // Rings, register and counters of the device.
    Tests { package: "memferry-dsa-emulator", targets: &["--lib"], arguments: &[] },
    // Copies by a device in threads: the ring passes the bytes to the device, the completion record passes them back.
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
