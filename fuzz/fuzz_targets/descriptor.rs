//! Arbitrary descriptors and batches, over a fake address space that detects stray accesses.
#![no_main]

#[path = "../../crates/memferry-dsa-emulator/tests/fuzzed/mod.rs"]
#[allow(dead_code)] // Each target uses a part.
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed::descriptors(data);
});
