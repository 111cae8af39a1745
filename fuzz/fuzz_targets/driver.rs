//! Any requests, completions, faults, full queues and queues that are gone, for the driver.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    memferry_dsa_emulator::fuzz::driver(data);
});
