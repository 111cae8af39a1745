//! Call sites that trapped once are patched, so that they do not trap again.
//!
//! ```text
//! site:        enqcmd rax, [rdx]   ─▶   jmp trampoline (5 bytes; what is left of the instruction is never executed)
//! trampoline:  skip the red zone; call enter; jmp behind the site
//! enter:       save all registers and flags; submit; restore, with the flags that the instruction sets
//! slow way:    restore; ud2, which traps: a fault, say, is raised there, for the site
//! ```
//!
//! Other threads execute the site meanwhile. In this order each of them sees the instruction, a breakpoint (then the
//! handler emulates it), or the jump:
//!
//! ```text
//! int3 over the first byte ─ membarrier ─ the other four bytes ─ membarrier ─ the first byte ─ membarrier
//! ```
//!
//! Instructions of four bytes (UMONITOR, UMWAIT, TPAUSE on low registers) have no room for a jump, and keep their trap:
//! they wait anyway. So do sites whose code cannot be written, or near which there is no room, and all sites if
//! membarrier fails or the thread has a shadow stack. If a step fails in the middle, the breakpoint stays or is restored: it
//! traps like the instruction.
//!
//! Source: Intel SDM, volume 3, "Handling Self- and Cross-Modifying Code"; membarrier(2); `text_poke_bp` in Linux.

mod enter;
mod place;
mod sites;
mod trampoline;
mod write;

use std::sync::atomic::Ordering;

pub(crate) use self::sites::site_at;
use self::sites::{SITES, Stage};
use self::write::{Linux, System};
use crate::process;
use crate::trap::call::{Call, Kind, Registers};
use crate::trap::context::{Context, RSP};
use crate::wiped;

/// Bytes of a jump.
const JUMP: usize = 5;

/// Patches a site that has trapped, if that is wanted and possible. It stays as it is otherwise.
pub(crate) fn try_patch(address: u64, call: &Call) {
    // Trampolines keep what code of the baseline may change: SSE registers. A build that uses more keeps the traps.
    if cfg!(target_feature = "avx") || process::keeps_traps() {
        return;
    }
    // ENQCMDS is a fault each time, which only the handler raises.
    if usize::from(call.bytes) < JUMP || !call.is_plain() || call.kind == Kind::Enqcmds {
        return;
    }
    let Some(wiped) = wiped::get().filter(|wiped| !wiped.is_borrowed()) else { return };
    // Somebody else's turn. The site traps again and gets another.
    if wiped.is_patching.swap(true, Ordering::Acquire) {
        return;
    }
    let _ = patch(&Linux, address, call);
    wiped.is_patching.store(false, Ordering::Release);
}

/// `None`: not done, and the site is as it was, or traps.
fn patch(system: &impl System, address: u64, call: &Call) -> Option<()> {
    // A failing membarrier mostly fails each time, so it is tried before anything is written.
    if !system.can_patch() || !system.synchronize() {
        return None;
    }
    let site = match sites::find(address) {
        // Its code has been replaced since.
        Some(site) if SITES[site].call() == Some(*call) => site,
        Some(_) => return None,
        None => sites::add(address, call)?,
    };
    let trampoline = match SITES[site].trampoline() {
        0 => {
            let place = place::near(address)?;
            let code = trampoline::code(place, site, address + u64::from(call.bytes))?;
            system.write(place, &code)?;
            SITES[site].set_trampoline(place);
            place
        }
        place => place,
    };
    let jump = trampoline::jump(address, trampoline)?;
    SITES[site].set_stage(Stage::Patching);
    let patched = poke(system, address, &jump);
    // A site that could not be written to its end has its breakpoint, which the handler takes for the instruction.
    let stage = match patched {
        Poked::Done => Stage::Patched,
        Poked::Not => Stage::Trapping,
        Poked::Half => Stage::Patching,
    };
    SITES[site].set_stage(stage);
    Some(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Poked {
    Done,
    Not,
    Half,
}

const INT3: u8 = 0xcc;

/// Writes a jump over an instruction that other threads may be executing.
fn poke(system: &impl System, address: u64, jump: &[u8; JUMP]) -> Poked {
    if system.write(address, &[INT3]).is_none() {
        return Poked::Not;
    }
    // All threads must have seen a write before the next one.
    if !system.synchronize() || system.write(address + 1, &jump[1..]).is_none() || !system.synchronize() {
        return Poked::Half;
    }
    if system.write(address, &jump[..1]).is_none() {
        return Poked::Half;
    }
    if !system.synchronize() {
        // A thread that sees the jump may take it, the trampoline is complete; other threads see the breakpoint.
        let _ = system.write(address, &[INT3]);
        return Poked::Half;
    }
    Poked::Done
}

/// If the program is at the slow way out of a trampoline: puts it back to the site; what is there.
pub(crate) fn slow_way_of(context: &mut Context) -> Option<Call> {
    let address = context.instruction();
    let place = place::of(address)?;
    if address != place + trampoline::SLOW_WAY {
        return None;
    }
    let site = SITES.get(trampoline::site_of(place) as usize)?;
    context.set(RSP, context.get(RSP).wrapping_add(trampoline::RED_ZONE));
    context.jump(site.address());
    site.call()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Five bytes of code at address 0, and a system that fails from some point on.
    struct Failing {
        code: RefCell<[u8; JUMP]>,
        synchronizes: Cell<u32>,
        writes: Cell<u32>,
    }

    impl System for Failing {
        fn can_patch(&self) -> bool {
            true
        }

        fn write(&self, address: u64, bytes: &[u8]) -> Option<()> {
            self.writes.set(self.writes.get().checked_sub(1)?);
            let at = address as usize;
            self.code.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            Some(())
        }

        fn synchronize(&self) -> bool {
            let left = self.synchronizes.get();
            self.synchronizes.set(left.saturating_sub(1));
            left > 0
        }
    }

    const OLD: [u8; JUMP] = [0xf2, 0x0f, 0x38, 0xf8, 0x02];
    const NEW: [u8; JUMP] = [0xe9, 1, 2, 3, 4];

    fn poked(synchronizes: u32, writes: u32) -> (Poked, [u8; JUMP]) {
        let code = RefCell::new(OLD);
        let system = Failing { code, synchronizes: Cell::new(synchronizes), writes: Cell::new(writes) };
        let poked = poke(&system, 0, &NEW);
        (poked, system.code.into_inner())
    }

    /// The answers of membarrier were not looked at: the jump was written whatever other threads had seen.
    #[test]
    fn a_membarrier_that_fails_in_the_middle() {
        let trap = |code: [u8; JUMP]| [INT3, code[1], code[2], code[3], code[4]];
        assert_eq!(poked(0, 9), (Poked::Half, trap(OLD)));
        assert_eq!(poked(1, 9), (Poked::Half, trap(NEW)));
        assert_eq!(poked(2, 9), (Poked::Half, trap(NEW)));
        assert_eq!(poked(3, 9), (Poked::Done, NEW));
        assert_eq!(poked(9, 0), (Poked::Not, OLD));
        assert_eq!(poked(9, 1), (Poked::Half, trap(OLD)));
        assert_eq!(poked(9, 2), (Poked::Half, trap(NEW)));
    }
}
