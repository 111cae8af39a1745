//! A storage target that sends reads with a CRC-32C of their data: NVMe/TCP with data digests.
//!
//! The target makes a header for each read, and the digest of its data, which a DSA computes in batches. Sending is not
//! part of the case: the publication's numbers say what a core works beside digests ([`cores_with_device`]).
//!
//! Source: Kuper et al. (2024), appendix C and figure 21. The header: NVMe/TCP transport specification 1.0, section 3.6.2.

use super::host::check;
use super::{CaseError, Host, Samples};
use crate::harness::Random;

const HEADER_BYTES: usize = 24;
/// Reads whose digests are requested together: "requests are batched when possible". Assumed.
const BATCH: usize = 8;

/// The unit that a target sends: a header, and the digest of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pdu {
    header: [u8; HEADER_BYTES],
    digest: u32,
}

impl Pdu {
    /// The header of data of a read. Its digest is missing.
    fn new(command: u16, data_bytes: u32) -> Pdu {
        const C2H_DATA: u8 = 0x07;
        const DATA_DIGEST: u8 = 1 << 1;
        const LAST_PDU: u8 = 1 << 2;
        const DIGEST_BYTES: u32 = 4;
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&[
            C2H_DATA,
            DATA_DIGEST | LAST_PDU,
            HEADER_BYTES as u8,
            HEADER_BYTES as u8,
        ]);
        header[4..8].copy_from_slice(&(HEADER_BYTES as u32 + data_bytes + DIGEST_BYTES).to_le_bytes());
        header[8..10].copy_from_slice(&command.to_le_bytes());
        header[16..20].copy_from_slice(&data_bytes.to_le_bytes());
        Pdu { header, digest: 0 }
    }
}

/// Blocks of a target, which are read in random order.
#[derive(Clone, Debug)]
pub struct StorageTarget {
    blocks: Vec<u8>,
    read_bytes: usize,
    random: Random,
}

impl StorageTarget {
    /// A target with so many blocks of the size of a read. The seed decides their bytes and the order of reads.
    pub fn new(blocks_count: usize, read_bytes: usize, seed: u64) -> StorageTarget {
        let mut random = Random(seed);
        let blocks =
            (0..blocks_count * read_bytes / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        StorageTarget { blocks, read_bytes, random }
    }

    /// Serves so many batches of reads. `other_ns`: the work for a read beside its digest, in virtual time.
    ///
    /// # Errors
    /// [`CaseError`], also if an initiator would refuse a digest.
    pub fn serve(&mut self, host: &Host, batches_count: usize, other_ns: f64) -> Result<Samples, CaseError> {
        let mut samples = Samples::default();
        let blocks_count = self.blocks.len() / self.read_bytes;
        for batch in 0..batches_count {
            let data: Vec<&[u8]> = (0..BATCH)
                .map(|_| &self.blocks[self.random.below(blocks_count) * self.read_bytes..][..self.read_bytes])
                .collect();
            let pdus = host.sample(&mut samples, BATCH, || -> Result<Vec<Pdu>, CaseError> {
                let mut pdus = host.work(other_ns * BATCH as f64, || -> Vec<Pdu> {
                    let command = |number: usize| (batch * BATCH + number) as u16;
                    (0..BATCH).map(|number| Pdu::new(command(number), self.read_bytes as u32)).collect()
                });
                for (pdu, digest) in pdus.iter_mut().zip(host.mover().digest(&data)?) {
                    pdu.digest = digest;
                }
                Ok(pdus)
            })?;
            // The initiator computes the digests again.
            for (pdu, data) in pdus.iter().zip(&data) {
                let expected = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data) as u32;
                check("digests", pdu.digest == expected, || {
                    format!("a digest is {:#010x} instead of {expected:#010x}", pdu.digest)
                })?;
            }
        }
        Ok(samples)
    }
}

/// The work of a core for a read beside its digest, in nanoseconds: a target that its network or disks limit needs `none`
/// cores without digests and `with_core` cores if these compute the digests, which takes `digest_ns` each.
pub(super) fn other_ns(none: f64, with_core: f64, digest_ns: f64) -> f64 {
    digest_ns / (with_core / none - 1.0)
}

/// The cores that such a target needs if a device computes the digests, and a request takes `request_ns` of a core.
///
/// ```
/// # use memferry_bench::cases::cores_with_device;
/// // A digest takes as long as everything else: a request takes a tenth of it.
/// assert_eq!(cores_with_device((2.0, 4.0), 100.0, 10.0), 2.2);
/// ```
pub fn cores_with_device((none, with_core): (f64, f64), digest_ns: f64, request_ns: f64) -> f64 {
    none * (1.0 + request_ns / other_ns(none, with_core, digest_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 3-12 of the specification: common header, then the fields of C2HData.
    #[test]
    fn the_header_is_that_of_the_specification() {
        let header = Pdu::new(0x1234, 16 << 10).header;
        assert_eq!(header[..4], [7, 0b110, 24, 24]);
        assert_eq!(u32::from_le_bytes(header[4..8].try_into().unwrap()), 24 + 16384 + 4);
        assert_eq!(header[8..16], [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!(u32::from_le_bytes(header[16..20].try_into().unwrap()), 16384);
    }
}
