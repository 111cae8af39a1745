//! What the instructions do, with a portal of an emulated device or without.
//!
//! | | portal | other memory |
//! |---|---|---|
//! | ENQCMD | the queue takes it (ZF = 0) or not (ZF = 1) | nobody takes it: ZF = 1 |
//! | MOVDIR64B | the queue takes it, or it is lost | 64 bytes are stored |
//! | ENQCMDS | a program may not: general protection | the same |
//!
//! Source: Intel Software Developer's Manual, volume 2, the pages of these instructions.

use memferry_dsa::Submission;

use super::call::{Call, Kind, Registers};
use super::safe::{self, Fault};
use super::wait;
use crate::wiped;

/// CF, PF, AF, ZF, SF, OF: what the instructions set or clear.
pub(crate) const STATUS_FLAGS: u64 = CARRY | 1 << 2 | 1 << 4 | ZERO | 1 << 7 | 1 << 11;
pub(super) const CARRY: u64 = 1 << 0;
const ZERO: u64 = 1 << 6;

/// An instruction was executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// The status flags after it, if it changes them.
    pub(crate) flags: Option<u64>,
}

impl Outcome {
    pub(super) const QUIET: Outcome = Outcome { flags: None };

    pub(super) fn with(flag: u64, is_set: bool) -> Outcome {
        Outcome { flags: Some(if is_set { flag } else { 0 }) }
    }
}

/// Executes an instruction.
///
/// # Errors
/// [`Fault`]: what the processor would raise; nothing has happened.
#[inline]
pub(crate) fn emulate(call: &Call, registers: &impl Registers) -> Result<Outcome, Fault> {
    let operand = call.operand(registers);
    match call.kind {
        Kind::Enqcmd => enqcmd(operand, call.source(registers)),
        Kind::Movdir64b => movdir64b(operand, call.source(registers)),
        Kind::Enqcmds => Err(Fault::PROTECTION),
        Kind::Umonitor => wait::monitor(operand),
        Kind::Umwait => wait::wait(operand, deadline(registers), true),
        Kind::Tpause => wait::wait(operand, deadline(registers), false),
    }
}

/// EDX:EAX.
fn deadline(registers: &impl Registers) -> u64 {
    let half = |register| registers.get(register) & u64::from(u32::MAX);
    half(super::context::RDX) << 32 | half(super::context::RAX)
}

fn enqcmd(portal: u64, source: u64) -> Result<Outcome, Fault> {
    if !portal.is_multiple_of(64) {
        return Err(Fault::PROTECTION);
    }
    let mut words = [0; 8];
    safe::read_64(source, &mut words)?;
    // The processor puts the submitter there, and wants it empty.
    if words[0] as u32 != 0 {
        return Err(Fault::PROTECTION);
    }
    let Some(wiped) = wiped::get() else { return Err(Fault::PROTECTION) };
    let answer = match (wiped.portals.find(portal), wiped.process()) {
        (Some(at), Some(process)) => process.client.enqcmd(at, &mut words),
        _ => {
            safe::probe(portal)?;
            Submission::Retry
        }
    };
    Ok(Outcome::with(ZERO, answer == Submission::Retry))
}

fn movdir64b(target: u64, source: u64) -> Result<Outcome, Fault> {
    if !target.is_multiple_of(64) {
        return Err(Fault::PROTECTION);
    }
    let mut words = [0; 8];
    safe::read_64(source, &mut words)?;
    let wiped = wiped::get();
    let portal = wiped.and_then(|wiped| Some((wiped.portals.find(target)?, wiped.process()?)));
    match portal {
        Some((at, process)) => process.client.movdir64b(at, &mut words),
        None => safe::write_64(target, &words)?,
    }
    Ok(Outcome::QUIET)
}
