//! Two processes that share a device, one of which writes anything into the memory that it can write.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    memferry_dsa_emulator::fuzz::order(data);
});
