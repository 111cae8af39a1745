//! The JSON of a recording as somebody might send it.
#![no_main]

#[path = "../../crates/memferry/tests/fixtures/broken.rs"]
#[allow(dead_code)] // Each target uses some of it.
mod broken;

libfuzzer_sys::fuzz_target!(|data: &[u8]| broken::json(data));
