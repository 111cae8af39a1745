//! The exported functions: a comparison with the limit, and a jump.
//!
//! ```text
//! size below LIMIT        jump to libc's function
//! libc's not found yet    jump to a loop of one string instruction, which needs nothing
//! otherwise               jump to `large`
//! ```
//!
//! `LIMIT` is 0 until the library is set up. Before the dynamic linker has relocated this library, and before
//! constructors run, every call therefore looks at libc's address, which is 0 as well. Only assembler runs until then: a
//! compiler may turn a loop of Rust into a call of memcpy, which would be this function.

use std::arch::naked_asm;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::large;

/// The smallest size that [`large`] sees. Written by [`start`](crate::start) after the addresses below.
pub(crate) static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// The addresses of libc's functions; 0 before [`start`](crate::start) has found them.
pub(crate) static MEMCPY: AtomicUsize = AtomicUsize::new(0);
pub(crate) static MEMMOVE: AtomicUsize = AtomicUsize::new(0);
pub(crate) static MEMPCPY: AtomicUsize = AtomicUsize::new(0);
pub(crate) static MEMSET: AtomicUsize = AtomicUsize::new(0);
pub(crate) static MEMCMP: AtomicUsize = AtomicUsize::new(0);
pub(crate) static BCMP: AtomicUsize = AtomicUsize::new(0);
/// Ends the process after a failed check of a fortified function.
pub(crate) static CHK_FAIL: AtomicUsize = AtomicUsize::new(0);

/// A function `NAME(a, b, size)` and, with `fortified`, one that first compares the size with the room in the target.
macro_rules! entry {
    ($($name:ident($first:ty, $second:ty) -> $answer:ty: $next:path, $large:path, $fallback:path;)*) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub(crate) unsafe extern "C" fn $name(_: $first, _: $second, _: usize) -> $answer {
                naked_asm!(
                    "cmp rdx, qword ptr [rip + {limit}]",
                    "jae 2f",
                    "jmp qword ptr [rip + {next}]",
                    "2:",
                    "cmp qword ptr [rip + {next}], 0",
                    "je {fallback}",
                    "jmp {large}",
                    limit = sym LIMIT,
                    next = sym $next,
                    fallback = sym $fallback,
                    large = sym $large,
                )
            }
        )*
    };
}

macro_rules! fortified {
    ($($name:ident($first:ty, $second:ty) -> $answer:ty: $function:path;)*) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub(crate) unsafe extern "C" fn $name(_: $first, _: $second, _: usize, _: usize) -> $answer {
                naked_asm!(
                    "cmp rcx, rdx",
                    "jb 2f",
                    "jmp {function}",
                    "2:",
                    "cmp qword ptr [rip + {fail}], 0",
                    "je 3f",
                    "jmp qword ptr [rip + {fail}]",
                    "3:",
                    "ud2",
                    function = sym $function,
                    fail = sym CHK_FAIL,
                )
            }
        )*
    };
}

entry! {
    memcpy(*mut u8, *const u8) -> *mut u8: MEMCPY, large::copy, fallback_move;
    memmove(*mut u8, *const u8) -> *mut u8: MEMMOVE, large::copy, fallback_move;
    mempcpy(*mut u8, *const u8) -> *mut u8: MEMPCPY, large::copy_to_end, fallback_move_to_end;
    __mempcpy(*mut u8, *const u8) -> *mut u8: MEMPCPY, large::copy_to_end, fallback_move_to_end;
    memset(*mut u8, c_int) -> *mut u8: MEMSET, large::fill, fallback_set;
    memcmp(*const u8, *const u8) -> c_int: MEMCMP, large::compare, fallback_compare;
    bcmp(*const u8, *const u8) -> c_int: BCMP, large::compare, fallback_compare;
}

fortified! {
    __memcpy_chk(*mut u8, *const u8) -> *mut u8: memcpy;
    __memmove_chk(*mut u8, *const u8) -> *mut u8: memmove;
    __mempcpy_chk(*mut u8, *const u8) -> *mut u8: mempcpy;
    __memset_chk(*mut u8, c_int) -> *mut u8: memset;
}

/// memmove: as in `memferry-emulate-preload`.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn fallback_move(_: *mut u8, _: *const u8, _: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov r8, rdi",
        "sub r8, rsi",
        "mov rcx, rdx",
        "cmp r8, rdx", // unsigned: the target begins inside the source
        "jb 2f",
        "rep movsb",
        "ret",
        "2:",
        "lea rdi, [rdi + rdx - 1]",
        "lea rsi, [rsi + rdx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
    )
}

#[unsafe(naked)]
pub(crate) unsafe extern "C" fn fallback_move_to_end(_: *mut u8, _: *const u8, _: usize) -> *mut u8 {
    naked_asm!(
        "push rdx",
        "call {fallback}",
        "pop rdx",
        "add rax, rdx",
        "ret",
        fallback = sym fallback_move,
    )
}

#[unsafe(naked)]
pub(crate) unsafe extern "C" fn fallback_set(_: *mut u8, _: c_int, _: usize) -> *mut u8 {
    naked_asm!("mov r8, rdi", "mov eax, esi", "mov rcx, rdx", "rep stosb", "mov rax, r8", "ret")
}

#[unsafe(naked)]
pub(crate) unsafe extern "C" fn fallback_compare(_: *const u8, _: *const u8, _: usize) -> c_int {
    naked_asm!(
        "xor eax, eax",
        "mov rcx, rdx",
        "cmp rcx, rcx", // equal, if there are no bytes
        "repe cmpsb",
        "je 2f",
        "movzx eax, byte ptr [rdi - 1]",
        "movzx ecx, byte ptr [rsi - 1]",
        // repe cmpsb compares [rsi] with [rdi]: the first argument is in rdi.
        "sub eax, ecx",
        "2:",
        "ret",
    )
}

/// libc's memmove, or the fallback.
///
/// # Safety
/// As memmove(3).
#[inline]
pub(crate) unsafe fn libc_move(target: *mut u8, source: *const u8, size: usize) {
    let next = MEMMOVE.load(Ordering::Relaxed);
    let function = if next == 0 { fallback_move as *const () as usize } else { next };
    // SAFETY: both functions have this type; the rest is passed on.
    unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8>(function)(
            target, source, size,
        );
    }
}

/// libc's memset, or the fallback.
///
/// # Safety
/// As memset(3).
#[inline]
pub(crate) unsafe fn libc_set(target: *mut u8, byte: c_int, size: usize) {
    let next = MEMSET.load(Ordering::Relaxed);
    let function = if next == 0 { fallback_set as *const () as usize } else { next };
    // SAFETY: both functions have this type; the rest is passed on.
    unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(*mut u8, c_int, usize) -> *mut u8>(function)(
            target, byte, size,
        );
    }
}

/// libc's memcmp, or the fallback.
///
/// # Safety
/// As memcmp(3).
#[inline]
pub(crate) unsafe fn libc_compare(one: *const u8, other: *const u8, size: usize) -> c_int {
    let next = MEMCMP.load(Ordering::Relaxed);
    let function = if next == 0 { fallback_compare as *const () as usize } else { next };
    // SAFETY: both functions have this type; the rest is passed on.
    unsafe {
        std::mem::transmute::<usize, unsafe extern "C" fn(*const u8, *const u8, usize) -> c_int>(function)(
            one, other, size,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 10] = [0, 1, 7, 63, 64, 65, 255, 4095, 4096, 4097];

    fn bytes(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    /// In a test the library is not set up, so each of these calls takes the path before the set-up.
    #[test]
    fn functions_work_before_the_set_up() {
        assert_eq!(LIMIT.load(Ordering::Relaxed), 0);
        for size in SIZES {
            let source = bytes(size);
            for copy in [memcpy, memmove] {
                let mut target = vec![0; size];
                // SAFETY: both have `size` bytes.
                let answer = unsafe { copy(target.as_mut_ptr(), source.as_ptr(), size) };
                assert_eq!((answer.cast_const(), &target), (target.as_ptr(), &source));
            }
            let mut target = vec![0; size];
            // SAFETY: both have `size` bytes.
            let answer = unsafe { mempcpy(target.as_mut_ptr(), source.as_ptr(), size) };
            assert_eq!((answer.addr(), &target), (target.as_ptr().addr() + size, &source));
            // SAFETY: it has `size` bytes.
            let answer = unsafe { memset(target.as_mut_ptr(), 0x1a5, size) };
            assert_eq!((answer.cast_const(), &target), (target.as_ptr(), &vec![0xa5; size]));
        }
    }

    #[test]
    fn overlaps_are_moved_in_the_right_direction() {
        for size in SIZES {
            for (from, to) in [(0, 1), (1, 0), (0, 100), (100, 0), (5, 5)] {
                let mut moved = bytes(size + 100);
                let mut expected = moved.clone();
                expected.copy_within(from..from + size, to);
                // SAFETY: both ranges are in the vector.
                unsafe { memmove(moved.as_mut_ptr().add(to), moved.as_ptr().add(from), size) };
                assert_eq!(moved, expected, "{size} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn comparisons_have_the_sign_of_the_first_difference() {
        for size in SIZES {
            let one = bytes(size);
            // SAFETY: both have `size` bytes.
            let compare = |other: &[u8]| unsafe {
                [memcmp, bcmp].map(|compare| compare(one.as_ptr(), other.as_ptr(), size))
            };
            assert_eq!(compare(&one), [0; 2]);
            for at in [0, size / 2, size.saturating_sub(1)].into_iter().filter(|at| *at < size) {
                let mut other = one.clone();
                for byte in [0, 0x7f, 0x80, 0xff] {
                    other[at] = byte;
                    let expected = i32::from(one[at]) - i32::from(byte);
                    assert!(compare(&other).iter().all(|answer| answer.signum() == expected.signum()));
                }
            }
        }
    }

    #[test]
    fn fortified_functions_copy_what_fits() {
        let source = bytes(100);
        let mut target = vec![0; 100];
        // SAFETY: both have 100 bytes.
        unsafe {
            __memcpy_chk(target.as_mut_ptr(), source.as_ptr(), 100, 100);
            assert_eq!(target, source);
            __memset_chk(target.as_mut_ptr(), 1, 100, usize::MAX);
            assert_eq!(target, [1; 100]);
            __memmove_chk(target.as_mut_ptr(), source.as_ptr(), 50, 51);
            let end = __mempcpy_chk(target.as_mut_ptr(), source.as_ptr(), 60, 60);
            assert_eq!((end.addr() - target.as_ptr().addr(), &target[..60]), (60, &source[..60]));
        }
    }
}
