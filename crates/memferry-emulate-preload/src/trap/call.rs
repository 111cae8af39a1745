//! The instructions that are emulated: decoded, with their operands as sums of registers.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, MemorySize, Register};

use super::{context, safe};

/// Longest instruction.
const BYTES_MAX: usize = 15;

/// Registers of the program.
pub(crate) trait Registers {
    /// A general register by its number.
    fn get(&self, register: context::Register) -> u64;
    /// RFLAGS.
    fn flags(&self) -> u64;
    fn set_flags(&mut self, flags: u64);
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Enqcmd,
    /// Of the kernel: a program may not.
    Enqcmds,
    Movdir64b,
    Umonitor,
    Umwait,
    Tpause,
}

/// An instruction at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) bytes: u8,
    /// The register with the portal's address, the address to watch, or the control bits.
    register: u8,
    /// Addresses have 32 bits.
    is_narrow: bool,
    source: Source,
}

/// The memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Source {
    base: Option<u8>,
    index: Option<u8>,
    scale: u8,
    displacement: u64, // of an operand relative to RIP: the address
    segment: Option<Segment>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Segment {
    Fs,
    Gs,
}

/// Decodes what is at `address`; `None` if it is no instruction of those.
pub(crate) fn at(address: u64) -> Option<Call> {
    let mut bytes = [0; BYTES_MAX];
    // The last instruction of a mapping ends before its last page does.
    let in_page = (4096 - address % 4096) as usize;
    let count = match safe::read(address, &mut bytes) {
        Ok(()) => BYTES_MAX,
        Err(_) if in_page < BYTES_MAX => {
            safe::read(address, &mut bytes[..in_page]).ok()?;
            in_page
        }
        Err(_) => return None,
    };
    Call::decode(&bytes[..count], address)
}

impl Call {
    pub(crate) fn decode(bytes: &[u8], address: u64) -> Option<Call> {
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let (kind, is_narrow) = match instruction.code() {
            Code::Enqcmd_r64_m512 => (Kind::Enqcmd, false),
            Code::Enqcmd_r32_m512 => (Kind::Enqcmd, true),
            Code::Enqcmds_r64_m512 => (Kind::Enqcmds, false),
            Code::Enqcmds_r32_m512 => (Kind::Enqcmds, true),
            Code::Movdir64b_r64_m512 => (Kind::Movdir64b, false),
            Code::Movdir64b_r32_m512 => (Kind::Movdir64b, true),
            Code::Umonitor_r64 => (Kind::Umonitor, false),
            Code::Umonitor_r32 => (Kind::Umonitor, true),
            Code::Umwait_r32 | Code::Umwait_r64 => (Kind::Umwait, false),
            Code::Tpause_r32 | Code::Tpause_r64 => (Kind::Tpause, false),
            _ => return None,
        };
        Some(Call {
            kind,
            bytes: instruction.len() as u8,
            register: number(instruction.op0_register())?,
            is_narrow,
            source: Source::of(&instruction)?,
        })
    }

    /// What the register operand says: an address, or control bits.
    #[inline]
    pub(crate) fn operand(&self, registers: &impl Registers) -> u64 {
        self.cut(registers.get(self.register.into()))
    }

    /// The address of the memory operand.
    #[inline]
    pub(crate) fn source(&self, registers: &impl Registers) -> u64 {
        let Source { base, index, scale, displacement, segment } = self.source;
        let value = |register: Option<u8>| register.map_or(0, |register| registers.get(register.into()));
        let offset =
            value(base).wrapping_add(value(index).wrapping_mul(scale.into())).wrapping_add(displacement);
        let start = segment.map_or(0, |segment| crate::sys::segment_base(segment == Segment::Gs));
        self.cut(offset).wrapping_add(start)
    }

    /// Whether its operands can be found without a system call.
    pub(crate) fn is_plain(&self) -> bool {
        self.source.segment.is_none()
    }

    fn cut(&self, address: u64) -> u64 {
        if self.is_narrow { address & u64::from(u32::MAX) } else { address }
    }
}

impl Source {
    fn of(instruction: &Instruction) -> Option<Source> {
        if instruction.memory_size() == MemorySize::Unknown {
            return Some(Source { base: None, index: None, scale: 1, displacement: 0, segment: None });
        }
        let register = |register: Register| match register {
            Register::None | Register::RIP | Register::EIP => Some(None),
            register => number(register).map(Some),
        };
        Some(Source {
            base: register(instruction.memory_base())?,
            index: register(instruction.memory_index())?,
            scale: instruction.memory_index_scale() as u8,
            displacement: instruction.memory_displacement64(),
            segment: match instruction.memory_segment() {
                Register::FS => Some(Segment::Fs),
                Register::GS => Some(Segment::Gs),
                _ => None,
            },
        })
    }
}

/// The number of a general register of 32 or 64 bits.
fn number(register: Register) -> Option<u8> {
    [Register::EAX, Register::RAX].into_iter().find_map(|first| {
        let number = (register as u32).checked_sub(first as u32)?;
        u8::try_from(number).ok().filter(|number| *number < 16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers with values that cannot be mistaken for each other's.
    struct Fake;

    impl Registers for Fake {
        fn get(&self, register: context::Register) -> u64 {
            0x1_0000_0000 + ((register as u64 + 1) << 16)
        }
        fn flags(&self) -> u64 {
            0
        }
        fn set_flags(&mut self, _: u64) {}
    }

    /// (bytes, what it is, its register operand, its memory operand), from an assembler.
    #[test]
    fn operands() {
        const AT: u64 = 0x40_0000;
        let r = |register: usize| Fake.get(register);
        let cases: &[(&[u8], Kind, u64, u64)] = &[
            // enqcmd rax, [rdx]
            (&[0xf2, 0x0f, 0x38, 0xf8, 0x02], Kind::Enqcmd, r(0), r(2)),
            // enqcmd r9, [r12 + r13*4 - 8]
            (&[0xf2, 0x47, 0x0f, 0x38, 0xf8, 0x4c, 0xac, 0xf8], Kind::Enqcmd, r(9), r(12) + 4 * r(13) - 8),
            // enqcmds rax, [rdx]
            (&[0xf3, 0x0f, 0x38, 0xf8, 0x02], Kind::Enqcmds, r(0), r(2)),
            // movdir64b rsi, [rip + 0x100]
            (&[0x66, 0x0f, 0x38, 0xf8, 0x35, 0, 1, 0, 0], Kind::Movdir64b, r(6), AT + 9 + 0x100),
            // movdir64b eax, [edx]
            (&[0x67, 0x66, 0x0f, 0x38, 0xf8, 0x02], Kind::Movdir64b, r(0) & 0xffff_ffff, r(2) & 0xffff_ffff),
            // movdir64b rcx, [rsp + 0x40]
            (&[0x66, 0x0f, 0x38, 0xf8, 0x4c, 0x24, 0x40], Kind::Movdir64b, r(1), r(4) + 0x40),
            // umonitor rax
            (&[0xf3, 0x0f, 0xae, 0xf0], Kind::Umonitor, r(0), 0),
            // umonitor r10
            (&[0xf3, 0x41, 0x0f, 0xae, 0xf2], Kind::Umonitor, r(10), 0),
            // umwait ecx
            (&[0xf2, 0x0f, 0xae, 0xf1], Kind::Umwait, r(1), 0),
            // tpause r8d
            (&[0x66, 0x41, 0x0f, 0xae, 0xf0], Kind::Tpause, r(8), 0),
        ];
        for (bytes, kind, operand, source) in cases {
            let call = Call::decode(bytes, AT).unwrap_or_else(|| panic!("{bytes:x?}"));
            assert_eq!((call.kind, usize::from(call.bytes)), (*kind, bytes.len()), "{bytes:x?}");
            assert_eq!((call.operand(&Fake), call.source(&Fake)), (*operand, *source), "{bytes:x?}");
        }
    }

    #[test]
    fn others_are_left_alone() {
        for bytes in [
            &[0x0f, 0x0b][..],                     // ud2
            &[0xcc],                               // int3
            &[0xf3, 0x0f, 0xae, 0x02],             // rdfsbase's neighbour with a memory operand
            &[0x0f, 0x38, 0xf9, 0x02],             // movdiri
            &[0xf2, 0x0f, 0x38, 0xf8, 0xc2],       // enqcmd with a register for a source
            &[0xf2, 0x0f, 0x38],                   // cut short
            &[0xf0, 0xf2, 0x0f, 0x38, 0xf8, 0x02], // locked
        ] {
            assert_eq!(Call::decode(bytes, 0x1000), None, "{bytes:x?}");
        }
    }
}
