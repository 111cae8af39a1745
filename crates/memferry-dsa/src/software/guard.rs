//! The guard of a data integrity field: CRC-16/T10-DIF of a block.
//!
//! The CRC is the remainder of the block, as a polynomial, times x^16. Vectors compute it by folding. 16 bytes that are
//! followed by d more bits stand for X(x) * x^d. Since only the remainder matters, the two halves of X are multiplied by
//! the remainders of x^(d+64) and x^d, and added d bits further on.
//!
//! ```text
//! portable            16 tables: the remainder of each byte at each of 16 positions
//! PCLMULQDQ           8 vectors of 16 bytes fold 128 bytes at a time
//! VPCLMULQDQ          4 vectors of 32 bytes, with AVX-512 2 of 64 bytes, do the same
//! ```
//!
//! Source: V. Gopal, E. Ozturk, J. Guilford et al., *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction*, Intel, 2009; DSA specification, appendix B.

use super::simd;

/// The polynomial of CRC-16/T10-DIF.
///
/// Source: DSA specification, appendix B.
pub(super) const POLYNOMIAL: u64 = 0x1_8bb7;

/// Bytes in a step of the folding.
pub(super) const STEP_BYTES: usize = 128;

/// A method of computing guards.
#[derive(Clone, Copy, Debug)]
pub(super) enum Guard {
    Portable,
    Pclmul(simd::Pclmul),
    Vpclmul(simd::Vpclmul),
    Vpclmul512(simd::Vpclmul512),
}

impl Guard {
    /// The fastest method of this CPU.
    pub(super) fn best() -> Guard {
        simd::Vpclmul512::detect()
            .map(Guard::Vpclmul512)
            .or_else(|| simd::Vpclmul::detect().map(Guard::Vpclmul))
            .or_else(|| simd::Pclmul::detect().map(Guard::Pclmul))
            .unwrap_or(Guard::Portable)
    }

    /// All methods of this CPU, with their names.
    #[cfg(test)]
    pub(super) fn all() -> Vec<(&'static str, Guard)> {
        let mut all = vec![("portable", Guard::Portable)];
        all.extend(simd::Pclmul::detect().map(|proof| ("pclmulqdq", Guard::Pclmul(proof))));
        all.extend(simd::Vpclmul::detect().map(|proof| ("vpclmulqdq", Guard::Vpclmul(proof))));
        all.extend(
            simd::Vpclmul512::detect().map(|proof| ("vpclmulqdq, 512 bits", Guard::Vpclmul512(proof))),
        );
        all
    }

    /// The CRC of `data` after `seed`.
    #[inline]
    pub(super) fn crc(self, seed: u16, data: &[u8]) -> u16 {
        let (steps, rest) = data.as_chunks::<STEP_BYTES>();
        let [first, steps @ ..] = steps else {
            return portable(seed, data);
        };
        let crc = match self {
            Guard::Portable => return portable(seed, data),
            Guard::Pclmul(proof) => simd::fold_pclmul(proof, seed, first, steps),
            Guard::Vpclmul(proof) => simd::fold_vpclmul(proof, seed, first, steps),
            Guard::Vpclmul512(proof) => simd::fold_vpclmul_512(proof, seed, first, steps),
        };
        portable(crc, rest)
    }
}

/// `TABLES[k][b]`: the CRC of byte `b` followed by `k` zero bytes.
static TABLES: [[u16; 256]; 16] = tables();

const fn tables() -> [[u16; 256]; 16] {
    let mut tables = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        tables[0][byte] = remainder(byte as u64, 16);
        byte += 1;
    }
    let mut place = 1;
    while place < 16 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[place - 1][byte];
            tables[place][byte] = crc << 8 ^ tables[0][(crc >> 8) as usize];
            byte += 1;
        }
        place += 1;
    }
    tables
}

/// The CRC for every CPU.
pub(super) fn portable(seed: u16, data: &[u8]) -> u16 {
    let (pieces, rest) = data.as_chunks::<16>();
    let (halves, rest) = rest.as_chunks::<8>();
    let mut crc = seed;
    for piece in pieces {
        crc = piece_crc(crc, piece);
    }
    for piece in halves {
        crc = piece_crc(crc, piece);
    }
    for byte in rest {
        crc = crc << 8 ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)];
    }
    crc
}

#[inline]
fn piece_crc<const N: usize>(crc: u16, piece: &[u8; N]) -> u16 {
    let mut piece = *piece;
    piece[0] ^= (crc >> 8) as u8;
    piece[1] ^= crc as u8;
    piece.iter().enumerate().fold(0, |crc, (at, byte)| crc ^ TABLES[N - 1 - at][usize::from(*byte)])
}

/// The remainder of `polynomial` * x^`power`.
pub(super) const fn remainder(polynomial: u64, power: u32) -> u16 {
    divide(polynomial, power).1 as u16
}

/// Quotient, of which the lowest 64 terms are kept, and remainder of `polynomial` * x^`power`.
pub(super) const fn divide(polynomial: u64, power: u32) -> (u64, u64) {
    let (mut quotient, mut rest) = (0, 0);
    let mut at = 64 + power;
    while at > 0 {
        at -= 1;
        let term = if at >= power { polynomial >> (at - power) & 1 } else { 0 };
        rest = rest << 1 | term;
        quotient <<= 1;
        if rest >> 16 == 1 {
            rest ^= POLYNOMIAL;
            quotient |= 1;
        }
    }
    (quotient, rest)
}
