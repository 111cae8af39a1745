//! Two clients that share a device; a hostile one writes arbitrary words into all memory that it can write.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    memferry_dsa_emulator::fuzz::order(data);
});
