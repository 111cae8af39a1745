//! A machine whose files are broken somehow: the bytes are a list of changes to a whole recording.
#![no_main]

#[path = "../../crates/memferry/tests/fixtures/broken.rs"]
#[allow(dead_code)] // Each target uses some of it.
mod broken;

libfuzzer_sys::fuzz_target!(|data: &[u8]| broken::sysfs(data));
