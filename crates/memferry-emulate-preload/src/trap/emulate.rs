//! Emulation of the instructions, on portals and on other memory.
//!
//! | | portal | other memory |
//! |---|---|---|
//! | ENQCMD | the queue accepts (ZF = 0) or answers Retry (ZF = 1) | ZF = 1 |
//! | MOVDIR64B | the queue accepts the descriptor, or it is lost | 64 bytes are stored |
//! | ENQCMDS | general protection: it is privileged | the same |
//!
//! Source: Intel Software Developer's Manual, volume 2, the pages of these instructions.

use memferry_dsa::Submission;

use super::guarded::{self, Fault};
use super::instruction::{Instruction, Mnemonic, Registers};
use super::wait;
use crate::fork_local;

/// The flags that the instructions set or clear: CF, PF, AF, ZF, SF, OF.
const STATUS_FLAGS: u64 = CARRY | 1 << 2 | 1 << 4 | ZERO | 1 << 7 | 1 << 11;
pub(super) const CARRY: u64 = 1 << 0;
const ZERO: u64 = 1 << 6;

/// The status flags after an instruction; `None` if it does not change them.
pub(super) type NewFlags = Option<u64>;

/// All status flags are clear, except for `flag` if it `is_set`.
pub(super) fn only(flag: u64, is_set: bool) -> NewFlags {
    Some(if is_set { flag } else { 0 })
}

/// Executes an instruction, and sets the status flags.
///
/// # Errors
/// [`Fault`]: the processor would raise it. The instruction has had no effect.
#[inline]
pub(crate) fn emulate(instruction: &Instruction, registers: &mut impl Registers) -> Result<(), Fault> {
    let operand = instruction.operand(registers);
    let flags = match instruction.mnemonic {
        Mnemonic::Enqcmd => enqcmd(operand, instruction.source(registers)),
        Mnemonic::Movdir64b => movdir64b(operand, instruction.source(registers)),
        Mnemonic::Enqcmds => Err(Fault::PROTECTION),
        Mnemonic::Umonitor => wait::monitor(operand),
        Mnemonic::Umwait => wait::wait(operand, deadline(registers), true),
        Mnemonic::Tpause => wait::wait(operand, deadline(registers), false),
    }?;
    if let Some(flags) = flags {
        registers.set_flags(registers.flags() & !STATUS_FLAGS | flags);
    }
    Ok(())
}

/// The deadline of UMWAIT and TPAUSE: EDX:EAX.
fn deadline(registers: &impl Registers) -> u64 {
    let half = |register| registers.get(register) & u64::from(u32::MAX);
    half(super::context::RDX) << 32 | half(super::context::RAX)
}

fn enqcmd(portal: u64, source: u64) -> Result<NewFlags, Fault> {
    if !portal.is_multiple_of(64) {
        return Err(Fault::PROTECTION);
    }
    let mut words = [0; 8];
    guarded::read_64(source, &mut words)?;
    // The processor writes PASID and privilege there, and faults if the program has.
    if words[0] as u32 != 0 {
        return Err(Fault::PROTECTION);
    }
    let Some(local) = fork_local::get() else { return Err(Fault::PROTECTION) };
    let answer = match (local.portals.find(portal), local.process()) {
        (Some(at), Some(process)) => process.client.enqcmd(at, &mut words),
        _ => {
            guarded::probe(portal)?;
            Submission::Retry
        }
    };
    Ok(only(ZERO, answer == Submission::Retry))
}

fn movdir64b(target: u64, source: u64) -> Result<NewFlags, Fault> {
    if !target.is_multiple_of(64) {
        return Err(Fault::PROTECTION);
    }
    let mut words = [0; 8];
    guarded::read_64(source, &mut words)?;
    let local = fork_local::get();
    let portal = local.and_then(|local| Some((local.portals.find(target)?, local.process()?)));
    match portal {
        Some((at, process)) => process.client.movdir64b(at, &mut words),
        None => guarded::write_64(target, &words)?,
    }
    Ok(None)
}
