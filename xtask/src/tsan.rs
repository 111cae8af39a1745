//! `cargo xtask tsan`: ThreadSanitizer over code that shares data by atomics: rings, credits, records, readers and slots
//! of the cache, and the bytes that they publish.
//!
//! It reports a plain access that no chain of Release and Acquire orders, even if the hardware ordered it. Loom explores
//! more orders, but of models; here whole copies run on real memory.
//!
//! The precompiled standard library is not instrumented: the sanitizer does not see the ordering of its slow paths (a
//! contended mutex, a channel, a fence). `xtask/suppressions/tsan` lists them; the chosen tests share data by atomics only.

use crate::sanitizer::{self, Sanitizer, Tests};
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
    let suppressions = sanitizer::suppressions("tsan");
    let tsan = Sanitizer {
        name: "tsan",
        rust_flags: RUST_FLAGS,
        configuration: LIGHTLY,
        variables: vec![("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()).into())],
    };
    tsan.run(RUNS)
}
