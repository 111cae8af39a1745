//! The replacement of `simd` on CPUs other than x86-64: its proofs are empty types, so no function can be called.

use super::delta::{Delta, DeltaError, Entry, Word};
use super::guard::STEP_BYTES;

macro_rules! absent {
    ($($name:ident)*) => {
        $(
            #[derive(Clone, Copy, Debug)]
            pub(super) enum $name {}

            impl $name {
                pub(super) fn detect() -> Option<$name> {
                    None
                }
            }
        )*
    };
}

absent!(Avx2 Avx512 Erms Pclmul Vpclmul Vpclmul512);

pub(super) fn fill(absent: Avx2, _pattern: u128, _target: &mut [u8]) {
    match absent {}
}

pub(super) fn fill_by_string(absent: Erms, _pattern: u64, _target: &mut [u8]) {
    match absent {}
}

pub(super) fn dualcast(absent: Avx2, _source: &[u8], _target_1: &mut [u8], _target_2: &mut [u8]) {
    match absent {}
}

pub(super) fn fill_around_caches(absent: Avx2, _pattern: u128, _target: &mut [u8]) {
    match absent {}
}

pub(super) fn compare_pattern(absent: Avx2, _pattern: u64, _data: &[u8]) -> Option<usize> {
    match absent {}
}

pub(super) fn create_delta(absent: Avx2, _old: &[Word], _new: &[Word], _delta: &mut [u8]) -> Delta {
    match absent {}
}

pub(super) fn create_delta_512(absent: Avx512, _old: &[Word], _new: &[Word], _delta: &mut [u8]) -> Delta {
    match absent {}
}

pub(super) fn apply_delta(absent: Avx2, _entries: &[Entry], _target: &mut [Word]) -> Result<(), DeltaError> {
    match absent {}
}

pub(super) fn fold_pclmul(absent: Pclmul, _: u16, _: &[u8; STEP_BYTES], _: &[[u8; STEP_BYTES]]) -> u16 {
    match absent {}
}

pub(super) fn fold_vpclmul(absent: Vpclmul, _: u16, _: &[u8; STEP_BYTES], _: &[[u8; STEP_BYTES]]) -> u16 {
    match absent {}
}

pub(super) fn fold_vpclmul_512(
    absent: Vpclmul512,
    _: u16,
    _: &[u8; STEP_BYTES],
    _: &[[u8; STEP_BYTES]],
) -> u16 {
    match absent {}
}
