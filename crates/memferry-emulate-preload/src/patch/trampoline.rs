//! The code of a trampoline.
//!
//! ```text
//!  0  lea rsp, [rsp - 128]      skips the red zone of the site; changes no flag
//!  5  call [rip + entry]        `enter`, which finds the site by its return address
//! 11  lea rsp, [rsp + 128]      the fast path
//! 19  jmp behind the site
//! 24  ud2                       the slow path
//! 32  entry: the address of `enter`
//! 40  the number of the site
//! ```

use super::JUMP;
use super::enter::memferry_enter;
use super::slots::SLOT_BYTES;

/// Offset that the call returns to.
pub(super) const FAST_PATH: u64 = 11;
/// Offset that `enter` returns to if the instruction must trap.
pub(super) const SLOW_PATH: u64 = 24;
const ENTRY: u64 = 32;
const SITE: u64 = 40;
/// Bytes below the stack pointer that a function may use without moving it.
///
/// Source: System V ABI for x86-64, 3.2.2.
pub(super) const RED_ZONE: u64 = 128;

const _: () = assert!(SITE + 8 <= SLOT_BYTES);

/// Returns the code of the trampoline at `slot`, which jumps to `back`. `None`: the jump does not reach.
pub(super) fn code(slot: u64, site: usize, back: u64) -> Option<[u8; SLOT_BYTES as usize]> {
    let mut code = [0xcc; SLOT_BYTES as usize];
    let mut put = |at: u64, bytes: &[u8]| {
        let at = at as usize;
        code[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &[0x48, 0x8d, 0x64, 0x24, 0x80]);
    put(5, &[0xff, 0x15]);
    put(7, &((ENTRY - FAST_PATH) as u32).to_le_bytes());
    put(FAST_PATH, &[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
    put(19, &jump(slot + 19, back)?);
    put(SLOW_PATH, &[0x0f, 0x0b]);
    put(ENTRY, &(memferry_enter as *const () as u64).to_le_bytes());
    put(SITE, &(site as u64).to_le_bytes());
    Some(code)
}

/// Returns a jump from one address to another, if it reaches.
pub(super) fn jump(from: u64, to: u64) -> Option<[u8; JUMP]> {
    let distance = to.wrapping_sub(from.wrapping_add(JUMP as u64)) as i64;
    let distance = i32::try_from(distance).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Returns the number of the site whose trampoline is at `slot`.
#[inline]
pub(super) fn site_of(slot: u64) -> u64 {
    // SAFETY: the caller knows that a trampoline is there. It has the number at this offset and is never unmapped.
    unsafe { ((slot + SITE) as *const u64).read() }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions};

    use super::*;

    #[test]
    fn the_code_decodes_as_documented() {
        const SLOT: u64 = 0x7f00_0010_0040;
        let code = code(SLOT, 7, 0x7eff_f000_0005).unwrap();
        let mut decoder = Decoder::with_ip(64, &code[..26], SLOT, DecoderOptions::NONE);
        let instructions: Vec<_> = decoder.iter().collect();
        let [down, call, up, jump, trap] = &instructions[..] else { panic!("{instructions:?}") };
        assert_eq!((down.code(), down.memory_displacement64() as i64), (Code::Lea_r64_m, -128));
        assert_eq!((call.code(), call.memory_displacement64()), (Code::Call_rm64, SLOT + ENTRY));
        assert_eq!((up.ip(), up.memory_displacement64()), (SLOT + FAST_PATH, 128));
        assert_eq!((jump.code(), jump.near_branch64()), (Code::Jmp_rel32_64, 0x7eff_f000_0005));
        assert_eq!((trap.code(), trap.ip()), (Code::Ud2, SLOT + SLOW_PATH));
        assert_eq!(site_of(code.as_ptr() as u64), 7);
    }

    #[test]
    fn jumps_reach_two_gib() {
        assert_eq!(jump(0x1000, 0x1005), Some([0xe9, 0, 0, 0, 0]));
        assert_eq!(jump(0x1000, 0x1000), Some([0xe9, 0xfb, 0xff, 0xff, 0xff]));
        assert!(jump(0, 5 + (1 << 31) - 1).is_some() && jump(0, 5 + (1 << 31)).is_none());
        assert!(jump(1 << 40, (1 << 40) + 5 - (1 << 31)).is_some() && jump(1 << 40, 5).is_none());
    }
}
