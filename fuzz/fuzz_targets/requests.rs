//! Arbitrary FUSE requests to the driver's files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_emulate::fuzz::requests(data));
