//! The bytes of a slot's header, and the places of slots in the file.
//!
//! Each header is complete: a file with one intact header is readable. All numbers are little-endian.

use crc_fast::CrcAlgorithm;

use crate::storage::BLOCK_BYTES;

/// The checksum of headers and data: CRC-64/NVME, which finds every damage of up to 64 bits in a row, and misses others once
/// in 2^64.
pub(super) const CHECKSUM: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

/// The format of this file. A change of the meaning of any byte changes it.
pub(super) const FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"mfreplic";

/// Versions count up from 1, so no writer reaches this: a larger number is damage.
const VERSION_MAX: u64 = u64::MAX / 2;

/// The header on the medium.
///
/// | bytes | content |
/// |---|---|
/// | 0..8 | magic |
/// | 8..12 | format |
/// | 12..16 | the slot: 0 or 1 |
/// | 16..24 | id of the replica |
/// | 24..32 | capacity |
/// | 32..40 | version; 0 before the first write |
/// | 40..48 | size of the version |
/// | 48..56 | checksum of its bytes |
/// | 56..64 | checksum of bytes 0..56 |
pub(super) type Bytes = [u8; 64];

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Chosen at creation.
    pub(super) id: u64,
    pub(super) capacity_bytes: u64,
    pub(super) version: u64,
    pub(super) size_bytes: u64,
    pub(super) checksum: u64,
}

/// The state of a header on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Header(Header),
    /// Never written, or erased.
    Zeros,
    OtherFormat(u32),
    /// Torn by an interrupted write, or damaged later.
    Damaged,
    /// Not of a replica.
    Foreign,
}

impl Header {
    pub(super) fn to_bytes(self, slot: usize) -> Bytes {
        let mut bytes = [0; 64];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&(slot as u32).to_le_bytes());
        let words = [self.id, self.capacity_bytes, self.version, self.size_bytes, self.checksum];
        for (place, word) in bytes[16..56].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = crc_fast::checksum(CHECKSUM, &bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Interprets the bytes that are in the place of this slot's header.
    pub(super) fn parse(bytes: &Bytes, slot: usize) -> Found {
        if bytes == &[0; 64] {
            return Found::Zeros;
        }
        if bytes[0..8] != MAGIC {
            return Found::Foreign;
        }
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if half(8) != FORMAT {
            return Found::OtherFormat(half(8));
        }
        let header = Header {
            id: word(16),
            capacity_bytes: word(24),
            version: word(32),
            size_bytes: word(40),
            checksum: word(48),
        };
        let is_intact = word(56) == crc_fast::checksum(CHECKSUM, &bytes[..56])
            && half(12) as usize == slot
            && header.version <= VERSION_MAX
            && header.size_bytes <= header.capacity_bytes;
        if is_intact { Found::Header(header) } else { Found::Damaged }
    }
}

/// The places of the parts of a file with this capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) capacity_bytes: u64,
    /// The capacity, rounded up to blocks: no block has bytes of both slots.
    slot_bytes: u64,
}

/// The begin of the data. Each header has a block of its own.
pub(super) const DATA_OFFSET: u64 = 2 * BLOCK_BYTES as u64;

impl Layout {
    /// `None` if a file cannot be that large.
    pub(super) fn new(capacity_bytes: u64) -> Option<Layout> {
        let slot_bytes = capacity_bytes.checked_next_multiple_of(BLOCK_BYTES as u64)?;
        let total_bytes = slot_bytes.checked_mul(2)?.checked_add(DATA_OFFSET)?;
        // Offsets of files are signed.
        i64::try_from(total_bytes).ok()?;
        Some(Layout { capacity_bytes, slot_bytes })
    }

    pub(super) fn total_bytes(self) -> u64 {
        DATA_OFFSET + 2 * self.slot_bytes
    }

    pub(super) fn data_offset(self, slot: usize) -> u64 {
        DATA_OFFSET + slot as u64 * self.slot_bytes
    }
}

/// The offset of a slot's header.
pub(super) fn header_offset(slot: usize) -> u64 {
    slot as u64 * BLOCK_BYTES as u64
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    const HEADER: Header = Header { id: 5, capacity_bytes: 9000, version: 3, size_bytes: 9000, checksum: 77 };

    /// The format of files that exist: if this fails, [`FORMAT`] has to change.
    #[test]
    fn a_header_has_these_bytes() {
        let text: String = HEADER.to_bytes(1).iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "6d667265706c6963", // mfreplic
            "0100000001000000", // format 1, slot 1
            "0500000000000000", // id
            "2823000000000000", // capacity
            "0300000000000000", // version
            "2823000000000000", // size
            "4d00000000000000", // checksum of the data
        ];
        assert_eq!(text[..112], expected.concat());
        assert_eq!(crc_fast::checksum(CHECKSUM, b"123456789"), 0xae8b_1486_0a79_9888, "CRC-64/NVME");
        assert_eq!(Header::parse(&HEADER.to_bytes(1), 1), Found::Header(HEADER));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        for bit in 0..512 {
            let mut bytes = HEADER.to_bytes(0);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = Header::parse(&bytes, 0);
            let expected = match bit / 8 {
                0..8 => Found::Foreign,
                8..12 => Found::OtherFormat(FORMAT ^ 1 << (bit - 64)),
                _ => Found::Damaged,
            };
            assert_eq!(found, expected, "bit {bit}");
        }
    }

    /// A checksum proves only that the bytes are those that a program wrote.
    #[test]
    fn numbers_that_no_writer_makes_are_damage() {
        let longer = Header { size_bytes: 9001, ..HEADER };
        let last = Header { version: u64::MAX, ..HEADER };
        for bytes in [longer.to_bytes(0), last.to_bytes(0), HEADER.to_bytes(1)] {
            assert_eq!(Header::parse(&bytes, 0), Found::Damaged);
        }
        assert_eq!(Header::parse(&[0; 64], 0), Found::Zeros);
        assert_eq!(Header::parse(&[7; 64], 0), Found::Foreign);
    }

    #[test]
    fn slots_share_no_block() {
        for (capacity_bytes, second, total) in [(0, 8192, 8192), (1, 12_288, 16_384), (4097, 16_384, 24_576)]
        {
            let layout = Layout::new(capacity_bytes).unwrap();
            assert_eq!((layout.data_offset(0), layout.data_offset(1)), (8192, second));
            assert_eq!(layout.total_bytes(), total);
        }
        assert_eq!([u64::MAX, i64::MAX as u64, i64::MAX as u64 / 2].map(Layout::new), [None; 3]);
    }
}
