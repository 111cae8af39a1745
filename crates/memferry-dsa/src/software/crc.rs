//! CRC Generation and Copy with CRC: CRC-32C, over data in either order of bits.
//!
//! ```text
//!                          plain                bypass_inversion
//! register before          reverse(!seed)       seed
//! register after = c       !reverse(c)          c
//!
//! data bits                lowest first; with bypass_data_reflection: highest first
//! ```
//!
//! The register shifts to the left. For data with the lowest bits first, this and the usual implementations keep it
//! reversed.
//!
//! The data is not padded: appendix A mentions padding with zeros to whole words, but neither Intel's DML nor the NVMe/TCP
//! targets that use the device pad. The results of the bypass modes follow the specification's table 8-19 and DML; they
//! have not been compared with silicon.
//!
//! Source: DSA specification 8.3.12, 8.3.13 and appendix A.

use std::sync::LazyLock;

use crc_fast::{CrcAlgorithm, CrcParams, Digest};

use super::PIECE_BYTES;

/// The inversion and reflection of seed, data and result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct CrcMode {
    /// Neither invert nor reflect seed and result: they are the raw register.
    pub bypass_inversion: bool,
    /// Process the highest bit of each data byte first.
    pub bypass_data_reflection: bool,
}

/// The polynomial of CRC-32C, without its highest bit.
///
/// Source: DSA specification, appendix A: 0x11EDC6F41.
const POLYNOMIAL: u64 = 0x1edc_6f41;

/// The same CRC without reflection. Computed once, since the constants of a polynomial take microseconds.
static FORWARD: LazyLock<CrcParams> = LazyLock::new(|| {
    // The check value is that of "123456789" from a register of zero; crc-fast keeps it for its own tests.
    CrcParams::new("CRC-32C, not reflected", 32, POLYNOMIAL, 0, false, 0, 0xc052_a8c8)
});

/// The CRC of `data`. Seed 0 starts a new CRC in plain mode; in every mode, a result as the seed continues that CRC.
pub fn crc32c(seed: u32, data: &[u8], mode: CrcMode) -> u32 {
    if seed == 0 && mode == CrcMode::default() {
        // Preparing any other register takes crc-fast some 25 ns.
        return crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, data) as u32;
    }
    let mut crc = Crc::new(seed, mode);
    crc.update(data);
    crc.result()
}

/// Copies `source` to `target` and returns its CRC, reading the source from memory once.
///
/// # Panics
/// If the lengths differ.
pub fn copy_crc(source: &[u8], target: &mut [u8], seed: u32, mode: CrcMode) -> u32 {
    assert_eq!(source.len(), target.len(), "source and target differ in length");
    let mut crc = Crc::new(seed, mode);
    for (source, target) in source.chunks(PIECE_BYTES).zip(target.chunks_mut(PIECE_BYTES)) {
        crc.update(source);
        target.copy_from_slice(source);
    }
    crc.result()
}

/// A CRC in progress.
struct Crc {
    digest: Digest,
    mode: CrcMode,
}

impl Crc {
    fn new(seed: u32, mode: CrcMode) -> Crc {
        let register = if mode.bypass_inversion { seed } else { (!seed).reverse_bits() };
        let digest = if mode.bypass_data_reflection {
            Digest::new_with_params(CrcParams { init_algorithm: register.into(), ..*FORWARD })
        } else {
            Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, register.reverse_bits().into())
        };
        Crc { digest, mode }
    }

    fn update(&mut self, data: &[u8]) {
        self.digest.update(data);
    }

    fn result(&self) -> u32 {
        let state = self.digest.get_state() as u32; // the state has 32 bits
        let register = if self.mode.bypass_data_reflection { state } else { state.reverse_bits() };
        if self.mode.bypass_inversion { register } else { !register.reverse_bits() }
    }
}
