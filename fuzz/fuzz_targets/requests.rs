//! Requests to the driver's files, as a broken kernel might make them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_emulate::fuzz::requests(data));
