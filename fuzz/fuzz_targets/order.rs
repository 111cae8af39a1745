//! Two clients that share a device; a hostile one writes arbitrary words into all memory that it can write.
#![no_main]

#[path = "../../crates/memferry-dsa-emulator/tests/fuzzed/mod.rs"]
#[allow(dead_code)] // Each target uses a part.
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::order::order(data));
