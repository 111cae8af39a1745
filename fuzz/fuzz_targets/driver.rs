//! Any requests, completions, faults, full queues and queues that are gone, for the driver.
#![no_main]

#[path = "../../crates/memferry-dsa/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed::driver(data);
});
