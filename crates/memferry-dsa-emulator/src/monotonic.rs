//! The monotonic clock, which is the same for all processes of a machine.

#![allow(unsafe_code)]

/// Nanoseconds of `CLOCK_MONOTONIC`. Async-signal-safe.
///
/// Source: clock_gettime(2), signal-safety(7).
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the one timespec that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
