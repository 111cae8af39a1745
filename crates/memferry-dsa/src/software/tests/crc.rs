//! CRC-32C and guards, bit by bit.

use proptest::prelude::*;

use super::super::guard::{Guard, portable};
use super::super::{CrcMode, copy_crc, crc32c};
use super::{SIZES, at_skew, pattern, size};

const MODES: [CrcMode; 4] = [
    CrcMode { bypass_inversion: false, bypass_data_reflection: false },
    CrcMode { bypass_inversion: true, bypass_data_reflection: false },
    CrcMode { bypass_inversion: false, bypass_data_reflection: true },
    CrcMode { bypass_inversion: true, bypass_data_reflection: true },
];

/// The register of the specification's appendix A, bit by bit.
fn crc_naive(seed: u32, data: &[u8], mode: CrcMode) -> u32 {
    let mut register = if mode.bypass_inversion { seed } else { (!seed).reverse_bits() };
    for byte in data {
        let byte = if mode.bypass_data_reflection { *byte } else { byte.reverse_bits() };
        for bit in (0..8).rev() {
            let out = register >> 31 ^ u32::from(byte >> bit & 1);
            register = register << 1 ^ if out == 1 { 0x1edc_6f41 } else { 0 };
        }
    }
    if mode.bypass_inversion { register } else { !register.reverse_bits() }
}

pub(super) fn guard_naive(seed: u16, data: &[u8]) -> u16 {
    let mut register = seed;
    for byte in data {
        for bit in (0..8).rev() {
            let out = register >> 15 ^ u16::from(byte >> bit & 1);
            register = register << 1 ^ if out == 1 { 0x8bb7 } else { 0 };
        }
    }
    register
}

/// Check values: with a mode from the specification's table 8-19, else published ones.
#[test]
fn check_values() {
    let digits = b"123456789";
    let [plain, bypass_inversion, bypass_reflection, both] = MODES;
    assert_eq!(crc32c(0, digits, plain), 0xe306_9283);
    assert_eq!(crc32c(crc32c(0, &digits[..4], plain), &digits[4..], plain), 0xe306_9283);
    assert_eq!(crc32c(0xdead_beef, digits, plain), 0xdd05_f9cd);
    assert_eq!(crc32c(0, digits, bypass_reflection), 0xa8f0_22a0);
    assert_eq!(crc32c(0, digits, bypass_inversion), 0x045f_c71a);
    assert_eq!(crc32c(0, digits, both), 0xc052_a8c8);
    assert_eq!(crc32c(0, &[0; 32], plain), 0x8a91_36aa);
    assert_eq!(crc32c(0, &[0xff; 32], plain), 0x62a8_ab43);
    let ascending: Vec<u8> = (0..32).collect();
    assert_eq!(crc32c(0, &ascending, plain), 0x46dd_794e);
    assert_eq!(crc32c(0, &[0; 4096], plain), 0x98f9_4189);
    assert_eq!(crc32c(0, &[0xff; 4096], plain), 0x25c1_fe13);
}

#[test]
fn guard_check_values() {
    let ascending: Vec<u8> = (0..4096).map(|at| at as u8).collect();
    for (name, guard) in Guard::all() {
        let crc = |seed, data: &[u8]| guard.crc(seed, data);
        assert_eq!(crc(0, b"123456789"), 0xd0db, "{name}");
        assert_eq!(crc(0, &[0; 512]), 0, "{name}");
        assert_eq!(crc(0, &[0xff; 512]), 0xe6a1, "{name}");
        assert_eq!(crc(0, &ascending[..512]), 0x4f10, "{name}");
        assert_eq!(crc(0xffff, &[0; 512]), 0x72bb, "{name}");
        assert_eq!(crc(0xffff, &ascending[..512]), 0x3dab, "{name}");
        assert_eq!(crc(0, &ascending), 0x8f6d, "{name}");
    }
}

#[test]
fn guards_of_all_sizes_and_alignments() {
    eprintln!(
        "ways to compute guards: {:?}",
        Guard::all().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
    for size in SIZES.into_iter().chain([520, 640, 4104]) {
        let data = pattern(size, 5);
        for skew in [0, 1, 7, 8, 15, 31, 33, 63] {
            let expected = guard_naive(0xabcd, &data);
            at_skew(&data, skew, |data| {
                for (name, guard) in Guard::all() {
                    assert_eq!(guard.crc(0xabcd, data), expected, "{name}, {size} bytes at {skew}");
                }
                assert_eq!(portable(0xabcd, data), expected);
            });
        }
    }
}

proptest! {
    #[test]
    fn crc_like_the_bits(size in size(), skew in 0..64usize, seed in any::<u32>(), mode in 0..4usize, fresh in any::<bool>()) {
        let (mode, seed) = (MODES[mode], if fresh { 0 } else { seed });
        let data = pattern(size, seed.into());
        let expected = crc_naive(seed, &data, mode);
        at_skew(&data, skew, |data| assert_eq!(crc32c(seed, data, mode), expected));
        let mut crc = 0;
        let copy = at_skew(&vec![0; size], skew, |target| crc = copy_crc(&data, target, seed, mode));
        prop_assert_eq!((crc, copy), (expected, data));
    }

    #[test]
    fn crc_chains(size in size(), cut in any::<prop::sample::Index>(), seed in any::<u32>(), mode in 0..4usize) {
        let mode = MODES[mode];
        let data = pattern(size, 6);
        let (first, second) = data.split_at(cut.index(size + 1));
        prop_assert_eq!(crc32c(crc32c(seed, first, mode), second, mode), crc32c(seed, &data, mode));
    }

    #[test]
    fn guard_like_the_bits(data in prop::collection::vec(any::<u8>(), 0..1500), seed in any::<u16>()) {
        let expected = guard_naive(seed, &data);
        for (name, guard) in Guard::all() {
            prop_assert_eq!(guard.crc(seed, &data), expected, "{}", name);
        }
    }
}
