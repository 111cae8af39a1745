//! A machine with damaged files: the bytes are a list of changes to a complete recording.
#![no_main]

#[path = "../../crates/memferry/tests/integration/fixtures/broken.rs"]
#[allow(dead_code)] // Each target uses a part.
mod broken;

libfuzzer_sys::fuzz_target!(|data: &[u8]| broken::sysfs(data));
