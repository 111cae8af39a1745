//! The emulated instructions, decoded, with operands as sums of registers.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction as Decoded, MemorySize, Register};

use super::{context, guarded};

/// The longest instruction of x86.
const BYTES_MAX: usize = 15;

/// The registers of the program.
pub(crate) trait Registers {
    /// Returns a general register by its number.
    fn get(&self, register: context::Register) -> u64;
    /// Returns RFLAGS.
    fn flags(&self) -> u64;
    /// Sets RFLAGS.
    fn set_flags(&mut self, flags: u64);
}

/// Which instruction it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mnemonic {
    Enqcmd,
    /// Privileged: it faults in a program.
    Enqcmds,
    Movdir64b,
    Umonitor,
    Umwait,
    Tpause,
}

/// A decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    pub(crate) mnemonic: Mnemonic,
    pub(crate) bytes: u8,
    /// The register with the portal's address, the address to watch, or the control bits.
    register: u8,
    /// Whether addresses have 32 bits.
    is_narrow: bool,
    source: MemoryOperand,
}

/// The memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MemoryOperand {
    base: Option<u8>,
    index: Option<u8>,
    scale: u8,
    displacement: u64, // the address itself, if the operand is relative to RIP
    segment: Option<Segment>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Segment {
    Fs,
    Gs,
}

/// Decodes the instruction at `address`. `None`: it is not an emulated one.
pub(crate) fn at(address: u64) -> Option<Instruction> {
    let mut bytes = [0; BYTES_MAX];
    // The last instruction of a mapping ends before its last page does.
    let in_page = (4096 - address % 4096) as usize;
    let count = match guarded::read(address, &mut bytes) {
        Ok(()) => BYTES_MAX,
        Err(_) if in_page < BYTES_MAX => {
            guarded::read(address, &mut bytes[..in_page]).ok()?;
            in_page
        }
        Err(_) => return None,
    };
    Instruction::decode(&bytes[..count], address)
}

impl Instruction {
    pub(crate) fn decode(bytes: &[u8], address: u64) -> Option<Instruction> {
        let decoded = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let (mnemonic, is_narrow) = match decoded.code() {
            Code::Enqcmd_r64_m512 => (Mnemonic::Enqcmd, false),
            Code::Enqcmd_r32_m512 => (Mnemonic::Enqcmd, true),
            Code::Enqcmds_r64_m512 => (Mnemonic::Enqcmds, false),
            Code::Enqcmds_r32_m512 => (Mnemonic::Enqcmds, true),
            Code::Movdir64b_r64_m512 => (Mnemonic::Movdir64b, false),
            Code::Movdir64b_r32_m512 => (Mnemonic::Movdir64b, true),
            Code::Umonitor_r64 => (Mnemonic::Umonitor, false),
            Code::Umonitor_r32 => (Mnemonic::Umonitor, true),
            Code::Umwait_r32 | Code::Umwait_r64 => (Mnemonic::Umwait, false),
            Code::Tpause_r32 | Code::Tpause_r64 => (Mnemonic::Tpause, false),
            _ => return None,
        };
        Some(Instruction {
            mnemonic,
            bytes: decoded.len() as u8,
            register: number(decoded.op0_register())?,
            is_narrow,
            source: MemoryOperand::of(&decoded)?,
        })
    }

    /// The value of the register operand: an address, or control bits.
    #[inline]
    pub(crate) fn operand(&self, registers: &impl Registers) -> u64 {
        self.cut(registers.get(self.register.into()))
    }

    /// The address of the memory operand.
    #[inline]
    pub(crate) fn source(&self, registers: &impl Registers) -> u64 {
        let MemoryOperand { base, index, scale, displacement, segment } = self.source;
        let value = |register: Option<u8>| register.map_or(0, |register| registers.get(register.into()));
        let offset =
            value(base).wrapping_add(value(index).wrapping_mul(scale.into())).wrapping_add(displacement);
        let start = segment.map_or(0, |segment| crate::sys::segment_base(segment == Segment::Gs));
        self.cut(offset).wrapping_add(start)
    }

    /// Whether its operands can be computed without a system call.
    pub(crate) fn is_plain(&self) -> bool {
        self.source.segment.is_none()
    }

    fn cut(&self, address: u64) -> u64 {
        if self.is_narrow { address & u64::from(u32::MAX) } else { address }
    }
}

impl MemoryOperand {
    fn of(decoded: &Decoded) -> Option<MemoryOperand> {
        if decoded.memory_size() == MemorySize::Unknown {
            return Some(MemoryOperand { base: None, index: None, scale: 1, displacement: 0, segment: None });
        }
        let register = |register: Register| match register {
            Register::None | Register::RIP | Register::EIP => Some(None),
            register => number(register).map(Some),
        };
        Some(MemoryOperand {
            base: register(decoded.memory_base())?,
            index: register(decoded.memory_index())?,
            scale: decoded.memory_index_scale() as u8,
            displacement: decoded.memory_displacement64(),
            segment: match decoded.memory_segment() {
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

    /// Registers with distinct values.
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

    /// (bytes, mnemonic, register operand, memory operand), from an assembler.
    #[test]
    fn operands() {
        const AT: u64 = 0x40_0000;
        let r = |register: usize| Fake.get(register);
        let cases: &[(&[u8], Mnemonic, u64, u64)] = &[
            // enqcmd rax, [rdx]
            (&[0xf2, 0x0f, 0x38, 0xf8, 0x02], Mnemonic::Enqcmd, r(0), r(2)),
            // enqcmd r9, [r12 + r13*4 - 8]
            (
                &[0xf2, 0x47, 0x0f, 0x38, 0xf8, 0x4c, 0xac, 0xf8],
                Mnemonic::Enqcmd,
                r(9),
                r(12) + 4 * r(13) - 8,
            ),
            // enqcmds rax, [rdx]
            (&[0xf3, 0x0f, 0x38, 0xf8, 0x02], Mnemonic::Enqcmds, r(0), r(2)),
            // movdir64b rsi, [rip + 0x100]
            (&[0x66, 0x0f, 0x38, 0xf8, 0x35, 0, 1, 0, 0], Mnemonic::Movdir64b, r(6), AT + 9 + 0x100),
            // movdir64b eax, [edx]
            (
                &[0x67, 0x66, 0x0f, 0x38, 0xf8, 0x02],
                Mnemonic::Movdir64b,
                r(0) & 0xffff_ffff,
                r(2) & 0xffff_ffff,
            ),
            // movdir64b rcx, [rsp + 0x40]
            (&[0x66, 0x0f, 0x38, 0xf8, 0x4c, 0x24, 0x40], Mnemonic::Movdir64b, r(1), r(4) + 0x40),
            // umonitor rax
            (&[0xf3, 0x0f, 0xae, 0xf0], Mnemonic::Umonitor, r(0), 0),
            // umonitor r10
            (&[0xf3, 0x41, 0x0f, 0xae, 0xf2], Mnemonic::Umonitor, r(10), 0),
            // umwait ecx
            (&[0xf2, 0x0f, 0xae, 0xf1], Mnemonic::Umwait, r(1), 0),
            // tpause r8d
            (&[0x66, 0x41, 0x0f, 0xae, 0xf0], Mnemonic::Tpause, r(8), 0),
        ];
        for (bytes, mnemonic, operand, source) in cases {
            let instruction = Instruction::decode(bytes, AT).unwrap_or_else(|| panic!("{bytes:x?}"));
            assert_eq!(
                (instruction.mnemonic, usize::from(instruction.bytes)),
                (*mnemonic, bytes.len()),
                "{bytes:x?}"
            );
            assert_eq!(
                (instruction.operand(&Fake), instruction.source(&Fake)),
                (*operand, *source),
                "{bytes:x?}"
            );
        }
    }

    #[test]
    fn other_instructions_are_not_decoded() {
        for bytes in [
            &[0x0f, 0x0b][..],                     // ud2
            &[0xcc],                               // int3
            &[0xf3, 0x0f, 0xae, 0x02],             // rdfsbase's neighbour with a memory operand
            &[0x0f, 0x38, 0xf9, 0x02],             // movdiri
            &[0xf2, 0x0f, 0x38, 0xf8, 0xc2],       // enqcmd with a register for a source
            &[0xf2, 0x0f, 0x38],                   // cut short
            &[0xf0, 0xf2, 0x0f, 0x38, 0xf8, 0x02], // locked
        ] {
            assert_eq!(Instruction::decode(bytes, 0x1000), None, "{bytes:x?}");
        }
    }
}
