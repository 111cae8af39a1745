//! Arbitrary descriptors and batches, over a fake address space that detects stray accesses.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    memferry_dsa_emulator::fuzz::descriptors(data);
});
