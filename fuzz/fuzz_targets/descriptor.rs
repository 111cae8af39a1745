//! Any descriptors, and batches of any members, over a fake address space that catches stray accesses.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    memferry_dsa_emulator::fuzz::descriptors(data);
});
