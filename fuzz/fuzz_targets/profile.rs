//! A machine profile with parts replaced, or arbitrary text.
#![no_main]

#[path = "../../crates/memferry/tests/integration/fixtures/broken.rs"]
#[allow(dead_code)] // Each target uses a part.
mod broken;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    broken::profile(data);
});
