//! A machine profile with pieces of it replaced, or any text.
#![no_main]

#[path = "../../crates/memferry/tests/fixtures/broken.rs"]
#[allow(dead_code)] // Each target uses some of it.
mod broken;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    broken::profile(data);
});
