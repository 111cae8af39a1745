//! Descriptors from the bytes of a fuzzer.

use memferry_dsa::{Descriptor, Opcode};

use super::{ARENA, ARENA_BYTES, LIST, MEMBERS_MAX};

/// Bytes of a fuzzer, followed by zeros.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// The next descriptor: unchanged, or bent towards a valid one.
    pub(super) fn descriptor(&mut self) -> Descriptor {
        let bend = self.byte();
        let mut words = std::array::from_fn(|_| self.word());
        if bend == 0 {
            return Descriptor::from_words(words);
        }
        let in_arena = |word: u64| ARENA.0 + word % ARENA_BYTES;
        let opcode = Opcode::ALL[usize::from(bend) % Opcode::ALL.len()];
        // Some of the meaningful flags survive, and most descriptors request a record.
        let meaningful = 0x2
            | match opcode {
                Opcode::Noop | Opcode::Batch => 0,
                Opcode::Drain => 0x3_0000,
                Opcode::Compare | Opcode::ComparePattern | Opcode::CreateDelta => 0x80,
                Opcode::CrcGeneration | Opcode::CopyCrc => 0x7_0000,
                _ => 0x2000,
            };
        let flags =
            (words[0] >> 32) as u32 & if bend & 0x80 != 0 { meaningful } else { 0x1_0080 & meaningful };
        let record = if bend & 0x60 == 0 { 0 } else { 0xc };
        words[0] = u64::from((flags & !0xc) | record | u32::from(opcode as u8) << 24) << 32;
        words[1] = if record != 0 { in_arena(words[1]) & !31 } else { 0 };
        for address in [2, 3] {
            let is_pattern = matches!((opcode, address), (Opcode::Fill, 2) | (Opcode::ComparePattern, 3));
            words[address] = match (opcode, address) {
                _ if is_pattern => words[address],
                (Opcode::Noop, _) => 0,
                (Opcode::Drain, _) if flags >> (14 + address) & 1 == 0 => 0,
                (Opcode::CacheFlush, 2) => 0,
                (Opcode::Batch | Opcode::CrcGeneration | Opcode::DifCheck, 3) => 0,
                (Opcode::Batch, _) => LIST.0 + words[address] % MEMBERS_MAX * 64,
                // The last byte of a page's first word is the first offset, and zeros follow: the offsets descend.
                (Opcode::ApplyDelta, 2) if bend & 0x60 == 0x60 => in_arena(words[address]) & !0xfff | 7,
                _ => in_arena(words[address]) & if bend & 0x20 != 0 { !7 } else { !0 },
            };
        }
        let own: [u64; 3] = match opcode {
            Opcode::Compare | Opcode::ComparePattern => [words[5] & 1, 0, 0],
            Opcode::CreateDelta => [in_arena(words[5]), words[6] % 2000, words[7] & 0xff],
            Opcode::ApplyDelta => [words[5] % 20 * 10 + 10, 0, 0],
            Opcode::Dualcast => [in_arena(words[5]) & !0xfff | words[3] & 0xfff, 0, 0],
            Opcode::CrcGeneration | Opcode::CopyCrc if flags & 1 << 16 != 0 => {
                [0, in_arena(words[6]) & !3, 0]
            }
            Opcode::CrcGeneration | Opcode::CopyCrc => [words[5] & 0xffff_ffff, 0, 0],
            Opcode::DifCheck | Opcode::DifStrip => [words[5] & 0xf_00ff, words[6], 0],
            Opcode::DifInsert => [words[5] & 0xf_9000, 0, words[7]],
            Opcode::DifUpdate => [words[5] & 0xf_f8ff, words[6], words[7]],
            _ => [0; 3],
        };
        words[5..].copy_from_slice(&own);
        let block = u64::from(Descriptor::from_words(words).dif_format().block.bytes());
        words[4] = match opcode {
            Opcode::Noop | Opcode::Drain => 0,
            Opcode::Batch => words[4] % (MEMBERS_MAX / 2),
            Opcode::DifInsert => words[4] % 9 * block,
            Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => words[4] % 9 * (block + 8),
            Opcode::CreateDelta | Opcode::ApplyDelta => words[4] % 1200 * 8,
            _ => words[4] % 12_000,
        };
        // One in eight has a wrong bit.
        let wrong = u16::from_le_bytes([self.byte(), self.byte()]);
        if wrong >> 13 == 1 {
            words[usize::from(wrong) % 8] ^= 1 << (wrong >> 3 & 63);
        }
        Descriptor::from_words(words)
    }
}
