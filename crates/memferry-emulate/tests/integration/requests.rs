//! Random requests, also ones that no kernel makes. `cargo xtask fuzz requests` runs more of them.

/// The sequence is fixed, so a failure can be repeated.
#[test]
fn any_request_is_answered() {
    for seed in 1..=60u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let bytes: Vec<u8> = (0..2000).map(next).collect();
        memferry_emulate::fuzz::requests(&bytes);
    }
}
