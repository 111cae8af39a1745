//! Patches call sites that have trapped once, so that they do not trap again.
//!
//! ```text
//! site:        enqcmd rax, [rdx]   ─▶   jmp trampoline (5 bytes; the rest of the instruction is never executed)
//! trampoline:  skip the red zone; call enter; jmp behind the site
//! enter:       save all registers and flags; submit; restore, with the flags that the instruction sets
//! slow path:   restore; ud2, which traps: the handler raises faults there, in the name of the site
//! ```
//!
//! Other threads may execute the site at the same time. In this order each of them sees the instruction, a breakpoint
//! (then the handler emulates the instruction), or the jump:
//!
//! ```text
//! int3 over the first byte ─ membarrier ─ the other four bytes ─ membarrier ─ the first byte ─ membarrier
//! ```
//!
//! Some sites keep their trap: instructions of four bytes (UMONITOR, UMWAIT, TPAUSE on low registers), which are too
//! short for a jump and wait anyway; code that cannot be written; code without free address space in reach of a jump.
//! All sites keep it if membarrier fails or the thread has a shadow stack. If a step fails in the middle, the
//! breakpoint stays or is restored: it traps like the instruction.
//!
//! Source: Intel SDM, volume 3, "Handling Self- and Cross-Modifying Code"; membarrier(2); `text_poke_bp` in Linux.

mod enter;
mod sites;
mod slots;
mod system;
mod trampoline;

use std::sync::atomic::Ordering;

pub(crate) use self::sites::site_at;
use self::sites::{SITES, Stage};
use self::system::{Linux, System};
use crate::fork_local;
use crate::process;
use crate::trap::context::{Context, RSP};
use crate::trap::instruction::{Instruction, Mnemonic, Registers};

/// Bytes of a jump.
const JUMP: usize = 5;

/// Patches a site that has trapped, if that is allowed and possible.
pub(crate) fn try_patch(address: u64, instruction: &Instruction) {
    // Trampolines save the registers that code of the baseline may change. A build for AVX keeps the traps.
    if cfg!(target_feature = "avx") || process::keeps_traps() {
        return;
    }
    // ENQCMDS faults each time, and only the handler raises faults.
    if usize::from(instruction.bytes) < JUMP
        || !instruction.is_plain()
        || instruction.mnemonic == Mnemonic::Enqcmds
    {
        return;
    }
    let Some(local) = fork_local::get().filter(|local| !local.is_vfork_child()) else { return };
    // Another thread is patching. This site traps again and is patched then.
    // ORDERING: Acquire pairs with the Release below: sites and slots of the last thread that patched are visible.
    if local.is_patching.swap(true, Ordering::Acquire) {
        return;
    }
    let _ = patch(&Linux, address, instruction);
    // ORDERING: Release pairs with the Acquire above: the next thread that patches sees these sites and slots.
    local.is_patching.store(false, Ordering::Release);
}

/// Patches a site. `None`: it keeps its instruction.
fn patch(system: &impl System, address: u64, instruction: &Instruction) -> Option<()> {
    // A membarrier that fails mostly fails each time, so it is tried before the first write.
    if !system.can_patch() || !system.synchronize() {
        return None;
    }
    let site = match sites::find(address) {
        Some(site) if SITES[site].instruction() == Some(*instruction) => site,
        Some(_) => return None, // the program has replaced its code
        None => sites::add(address, instruction)?,
    };
    let trampoline = match SITES[site].trampoline() {
        0 => {
            let slot = slots::allocate(address)?;
            let code = trampoline::code(slot, site, address + u64::from(instruction.bytes))?;
            system.write(slot, &code)?;
            SITES[site].set_trampoline(slot);
            slot
        }
        slot => slot,
    };
    let jump = trampoline::jump(address, trampoline)?;
    SITES[site].set_stage(Stage::Patching);
    let patched = poke(system, address, &jump);
    // A partly written site has its breakpoint, for which the handler emulates the instruction.
    let stage = match patched {
        PokeOutcome::Complete => Stage::Patched,
        PokeOutcome::Unchanged => Stage::Trapping,
        PokeOutcome::Partial => Stage::Patching,
    };
    SITES[site].set_stage(stage);
    Some(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PokeOutcome {
    /// The jump is written.
    Complete,
    /// Nothing was written.
    Unchanged,
    /// The first byte is a breakpoint.
    Partial,
}

const INT3: u8 = 0xcc;

/// Writes a jump over an instruction that other threads may be executing.
fn poke(system: &impl System, address: u64, jump: &[u8; JUMP]) -> PokeOutcome {
    if system.write(address, &[INT3]).is_none() {
        return PokeOutcome::Unchanged;
    }
    // All threads must see a write before the next one.
    if !system.synchronize() || system.write(address + 1, &jump[1..]).is_none() || !system.synchronize() {
        return PokeOutcome::Partial;
    }
    if system.write(address, &jump[..1]).is_none() {
        return PokeOutcome::Partial;
    }
    if !system.synchronize() {
        // A thread that sees the jump may take it, because the trampoline is complete. Others see the breakpoint.
        let _ = system.write(address, &[INT3]);
        return PokeOutcome::Partial;
    }
    PokeOutcome::Complete
}

/// If the program is at the slow path of a trampoline: puts it back to the site, and returns the instruction there.
pub(crate) fn take_slow_path(context: &mut Context) -> Option<Instruction> {
    let address = context.instruction_pointer();
    let slot = slots::slot_of(address)?;
    if address != slot + trampoline::SLOW_PATH {
        return None;
    }
    let site = SITES.get(trampoline::site_of(slot) as usize)?;
    context.set(RSP, context.get(RSP).wrapping_add(trampoline::RED_ZONE));
    context.jump(site.address());
    site.instruction()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Five bytes of code at address 0, and a system that fails after a number of calls.
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

    fn poked(synchronizes: u32, writes: u32) -> (PokeOutcome, [u8; JUMP]) {
        let code = RefCell::new(OLD);
        let system = Failing { code, synchronizes: Cell::new(synchronizes), writes: Cell::new(writes) };
        let poked = poke(&system, 0, &NEW);
        (poked, system.code.into_inner())
    }

    /// The answers of membarrier were ignored: the jump was written although threads might execute the old code.
    #[test]
    fn a_membarrier_that_fails_in_the_middle() {
        let trap = |code: [u8; JUMP]| [INT3, code[1], code[2], code[3], code[4]];
        assert_eq!(poked(0, 9), (PokeOutcome::Partial, trap(OLD)));
        assert_eq!(poked(1, 9), (PokeOutcome::Partial, trap(NEW)));
        assert_eq!(poked(2, 9), (PokeOutcome::Partial, trap(NEW)));
        assert_eq!(poked(3, 9), (PokeOutcome::Complete, NEW));
        assert_eq!(poked(9, 0), (PokeOutcome::Unchanged, OLD));
        assert_eq!(poked(9, 1), (PokeOutcome::Partial, trap(OLD)));
        assert_eq!(poked(9, 2), (PokeOutcome::Partial, trap(NEW)));
    }
}
