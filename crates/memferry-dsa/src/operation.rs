//! Operations and sets of operations.
//!
//! Source: Intel DSA Architecture Specification 3.0, chapter 8 (table of operations).

use std::fmt;

/// Lists the operations once and derives the enum, their order and their names from the list.
macro_rules! opcodes {
    ($($code:literal $opcode:ident $name:literal $about:literal)*) => {
        /// The operations of DSA 1.0.
        ///
        /// ```
        /// use memferry_dsa::{Opcode, UnknownOpcode};
        ///
        /// assert_eq!(Opcode::try_from(0x03), Ok(Opcode::Memmove));
        /// assert_eq!(Opcode::try_from(0xff), Err(UnknownOpcode(0xff)));
        /// ```
        ///
        /// Source: DSA specification, table of operations; `enum dsa_opcode` in `idxd.h`.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $about] $opcode = $code,)*
        }

        impl Opcode {
            /// Every operation, in the order of the codes.
            pub const ALL: [Opcode; [$($code,)*].len()] = [$(Opcode::$opcode,)*];

            /// The operation's name in the specification.
            pub fn name(self) -> &'static str {
                match self {
                    $(Opcode::$opcode => $name,)*
                }
            }
        }
    };
}

opcodes! {
    0x00 Noop "No-op" "Touches no memory and completes."
    0x01 Batch "Batch" "Processes an array of descriptors."
    0x02 Drain "Drain" "Waits for all descriptors submitted before it."
    0x03 Memmove "Memory Move" "Copies memory."
    0x04 Fill "Memory Fill" "Fills memory with a pattern."
    0x05 Compare "Compare" "Compares two regions."
    0x06 ComparePattern "Compare Pattern" "Compares a region with an 8-byte pattern."
    0x07 CreateDelta "Create Delta Record" "Records the differences of two regions."
    0x08 ApplyDelta "Apply Delta Record" "Applies the record of `CreateDelta`."
    0x09 Dualcast "Dualcast" "Copies one source to two targets."
    0x10 CrcGeneration "CRC Generation" "Computes a CRC."
    0x11 CopyCrc "Copy with CRC" "Copies and computes a CRC."
    0x12 DifCheck "DIF Check" "Checks the data integrity fields of a region."
    0x13 DifInsert "DIF Insert" "Copies and inserts data integrity fields."
    0x14 DifStrip "DIF Strip" "Copies without the data integrity fields."
    0x15 DifUpdate "DIF Update" "Copies and replaces the data integrity fields."
    0x20 CacheFlush "Cache Flush" "Flushes a region from the CPU's caches."
}

/// The operation of each code. A table, because the emulator looks up every descriptor.
static BY_CODE: [Option<Opcode>; 256] = {
    let mut by_code = [None; 256];
    let mut index = 0;
    while index < Opcode::ALL.len() {
        by_code[Opcode::ALL[index] as usize] = Some(Opcode::ALL[index]);
        index += 1;
    }
    by_code
};

/// A code that is not an operation of DSA 1.0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:#04x} is not an operation of DSA 1.0")]
pub struct UnknownOpcode(pub u8);

impl TryFrom<u8> for Opcode {
    type Error = UnknownOpcode;

    #[inline]
    fn try_from(code: u8) -> Result<Opcode, UnknownOpcode> {
        BY_CODE[usize::from(code)].ok_or(UnknownOpcode(code))
    }
}

/// A set of operations: the 256 bits of `op_cap` and `op_config`.
///
/// ```
/// use memferry_dsa::{Opcode, OperationSet};
///
/// let copies = OperationSet::of(&[Opcode::Memmove, Opcode::Dualcast]);
/// assert!(copies.contains(Opcode::Dualcast) && !copies.contains(Opcode::Fill));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OperationSet([u64; 4]);

impl OperationSet {
    /// The set with these bits: bit `n` of the first word is operation `n`.
    pub const fn from_words(words: [u64; 4]) -> OperationSet {
        OperationSet(words)
    }

    /// The set of these operations.
    pub const fn of(opcodes: &[Opcode]) -> OperationSet {
        let mut words = [0; 4];
        let mut index = 0;
        while index < opcodes.len() {
            let code = opcodes[index] as usize;
            words[code / 64] |= 1 << (code % 64);
            index += 1;
        }
        OperationSet(words)
    }

    /// The bits of the set, in the format of [`from_words`](Self::from_words).
    pub const fn to_words(self) -> [u64; 4] {
        self.0
    }

    /// Parses a bitmap of the driver, such as `op_cap`; `None` if the text has another format.
    ///
    /// Newer kernels print eight words of 32 bits, highest first, separated by commas (`%*pb`); older ones four words of
    /// 64 bits, lowest first, separated by blanks.
    ///
    /// ```
    /// use memferry_dsa::{Opcode, OperationSet};
    ///
    /// let new = OperationSet::from_sysfs("00000001,003f027d").expect("a bitmap");
    /// assert!(new.contains(Opcode::Memmove));
    /// assert_eq!(OperationSet::from_sysfs("0x1003f027d 0x0 0x0 0x0"), Some(new));
    /// ```
    pub fn from_sysfs(text: &str) -> Option<OperationSet> {
        let mut words = [0; 4];
        if text.contains(',') || !text.contains(char::is_whitespace) && !text.starts_with("0x") {
            let mut count = 0;
            for (index, digits) in text.rsplit(',').enumerate() {
                if digits.len() > 8 {
                    return None;
                }
                *words.get_mut(index / 2)? |= hexadecimal(digits)? << (32 * (index % 2));
                count += 1;
            }
            return (count > 0).then_some(OperationSet(words));
        }
        for (index, digits) in text.split_whitespace().enumerate() {
            *words.get_mut(index)? = hexadecimal(digits.strip_prefix("0x").unwrap_or(digits))?;
        }
        Some(OperationSet(words))
    }

    /// Formats the set as newer kernels print it and as `op_config` accepts it.
    pub fn to_sysfs(self) -> String {
        let halves = self.0.iter().rev().flat_map(|word| [(word >> 32) as u32, *word as u32]);
        halves.map(|half| format!("{half:08x}")).collect::<Vec<_>>().join(",")
    }

    /// The operations of both sets.
    pub const fn union(self, other: OperationSet) -> OperationSet {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        OperationSet([a | e, b | f, c | g, d | h])
    }

    /// The set without these operations.
    pub const fn without(self, opcodes: &[Opcode]) -> OperationSet {
        let OperationSet(mut words) = self;
        let OperationSet(removed) = OperationSet::of(opcodes);
        let mut index = 0;
        while index < words.len() {
            words[index] &= !removed[index];
            index += 1;
        }
        OperationSet(words)
    }

    /// Whether the operation is in the set.
    #[inline]
    pub fn contains(self, opcode: Opcode) -> bool {
        self.contains_code(opcode as u8)
    }

    /// Whether the operation with this code is in the set.
    #[inline]
    pub fn contains_code(self, code: u8) -> bool {
        self.0[usize::from(code / 64)] >> (code % 64) & 1 == 1
    }

    /// Whether all operations of this set are in `other`.
    pub fn is_subset_of(self, other: OperationSet) -> bool {
        self.0.iter().zip(other.0).all(|(mine, theirs)| mine & !theirs == 0)
    }
}

/// Parses digits without sign or prefix; `from_str_radix` would accept a sign.
pub(crate) fn hexadecimal(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

impl fmt::Debug for OperationSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codes = (0..=u8::MAX).filter(|code| self.contains_code(*code));
        f.debug_set().entries(codes.map(|code| format!("{code:#04x}"))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `op_cap` of Sapphire Rapids and Emerald Rapids.
    const OP_CAP: &str = "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f027d";

    #[test]
    fn op_cap_in_both_formats() {
        let new = OperationSet::from_sysfs(OP_CAP).unwrap();
        assert_eq!(new.to_words(), [0x1_003f_027d, 0, 0, 0]);
        assert_eq!(OperationSet::from_sysfs("0x1003f027d 0 0 0"), Some(new));
        assert_eq!(OperationSet::from_sysfs("0x1003f027d 0x0 0x0 0x0"), Some(new));
        assert_eq!(new.to_sysfs(), OP_CAP);
        assert!(new.contains(Opcode::CacheFlush) && !new.contains(Opcode::Batch));
        let names = Opcode::ALL.iter().filter(|&&opcode| new.contains(opcode));
        assert_eq!(names.count(), 14);
        assert_eq!(OperationSet::from_sysfs("00000001,003f027d"), Some(new), "leading words left out");
    }

    #[test]
    fn texts_that_are_not_bitmaps() {
        for text in ["", ",", "1,", "0x1,0", "123456789", "+1", "1 2 3 4 5", "g", "0,0,0,0,0,0,0,0,1", "- -"]
        {
            assert_eq!(OperationSet::from_sysfs(text), None, "{text:?}");
        }
    }
}
