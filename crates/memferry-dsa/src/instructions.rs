//! The CPU's instructions for submission and waiting, and their detection.
//!
//! | instruction | effect | encoding | CPUID (7, 0), ECX |
//! |---|---|---|---|
//! | ENQCMD | 64 bytes to a shared queue, which answers | `F2 0F 38 F8 /r` | bit 29 |
//! | MOVDIR64B | 64 bytes to a dedicated queue, which does not answer | `66 0F 38 F8 /r` | bit 28 |
//! | UMONITOR | watch a cache line | `F3 0F AE /6` | bit 5 |
//! | UMWAIT | sleep until the line is written, or a time | `F2 0F AE /6` | bit 5 |
//! | TPAUSE | sleep until a time | `66 0F AE /6` | bit 5 |
//!
//! They are inline assembly, because stable Rust lacks their intrinsics. The registers are fixed, so that tests can
//! compare the code with the encodings. On other architectures the functions exist, and their safety contracts cannot
//! be met.
//!
//! Source: Intel Software Developer's Manual, volume 2 (the pages of these instructions) and CPUID leaf 7.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use crate::descriptor::Descriptor;

/// The set of instructions that a CPU has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuFeatures {
    /// ENQCMD: shared queues through a mapped portal.
    pub enqcmd: bool,
    /// MOVDIR64B: dedicated queues through a mapped portal.
    pub movdir64b: bool,
    /// UMONITOR, UMWAIT and TPAUSE.
    pub waitpkg: bool,
}

impl CpuFeatures {
    /// None of them.
    pub const NONE: CpuFeatures = CpuFeatures { enqcmd: false, movdir64b: false, waitpkg: false };
    /// All of them.
    pub const ALL: CpuFeatures = CpuFeatures { enqcmd: true, movdir64b: true, waitpkg: true };

    /// The instructions of this CPU, and those that a preloaded library emulates for this process.
    ///
    /// Such a library exports a function `memferry_emulated_instructions` that returns the bits of CPUID; most
    /// processors do not let a program change CPUID itself.
    ///
    /// Cost: detected once, since CPUID traps in a virtual machine and then costs microseconds.
    pub fn detect() -> CpuFeatures {
        // Bit 0 means "detected"; it is not one of the feature bits.
        static ECX: AtomicU32 = AtomicU32::new(0);
        // Relaxed: no other memory depends on the value, and two threads may both detect it.
        let mut ecx = ECX.load(Ordering::Relaxed);
        if ecx == 0 {
            ecx = imp::leaf_7_ecx() | emulated_ecx() | 1;
            ECX.store(ecx, Ordering::Relaxed);
        }
        CpuFeatures::from_ecx(ecx)
    }

    /// Decodes register ECX of CPUID leaf 7, subleaf 0.
    fn from_ecx(ecx: u32) -> CpuFeatures {
        let bit = |number: u32| ecx >> number & 1 == 1;
        CpuFeatures { enqcmd: bit(29), movdir64b: bit(28), waitpkg: bit(5) }
    }

    /// Encodes the set as bits of register ECX of CPUID leaf 7, subleaf 0.
    pub fn to_ecx(self) -> u32 {
        u32::from(self.enqcmd) << 29 | u32::from(self.movdir64b) << 28 | u32::from(self.waitpkg) << 5
    }
}

/// The bits of a preloaded library, if there is one.
fn emulated_ecx() -> u32 {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"memferry_emulated_instructions".as_ptr()) };
    if found.is_null() {
        return 0;
    }
    // SAFETY: a function of that name has this type; only the preload library exports it.
    unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u32>(found)() }
}

/// The depth of the sleep in UMWAIT and TPAUSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SleepState {
    /// C0.1: wakes faster. Control bit 0 is set.
    Light,
    /// C0.2: saves more power and leaves more of the core to its hyperthread. The operating system may turn it into C0.1.
    Deep,
}

impl SleepState {
    /// The control register's value: bit 0 chooses C0.1, all others are reserved and fault.
    fn control(self) -> u32 {
        match self {
            SleepState::Light => 1,
            SleepState::Deep => 0,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use absent as imp;
#[cfg(target_arch = "x86_64")]
use x86 as imp;

pub(crate) use imp::sfence;
pub use imp::{enqcmd, movdir64b, time_stamp, tpause, umonitor, umwait};

/// The time stamp counter after all earlier instructions: all loads of an earlier copy are finished.
#[inline]
pub fn time_stamp_after() -> u64 {
    imp::lfence();
    imp::time_stamp()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_lfence, _mm_sfence, _rdtsc};

    use super::{Descriptor, SleepState};

    pub(super) fn leaf_7_ecx() -> u32 {
        if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ecx }
    }

    // The four assembly blocks below that touch memory are not marked `nomem`: the compiler must store all bytes that a
    // device reads before them, and load again all bytes that a device may have written.

    /// Writes the descriptor to a portal of a *shared* queue; returns whether the queue accepted it.
    ///
    /// The first four bytes must be zero, or the instruction faults; the CPU writes the PASID there.
    ///
    /// # Safety
    /// The CPU has ENQCMD; `portal` is 64-byte aligned and inside a page that this process has mapped from a work queue;
    /// and the contract of [`Portal::submit`](crate::Portal::submit) holds.
    #[inline]
    pub unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
        let refused: u8;
        // SAFETY: the caller guarantees the instruction and the portal. It reads the 64 bytes of the descriptor, and sets
        // flags; ZF means that the queue did not accept it (SDM, ENQCMD).
        unsafe {
            asm!(
                "enqcmd rax, [rdx]",
                "setz {refused}",
                refused = out(reg_byte) refused,
                in("rax") portal,
                in("rdx") descriptor,
                options(nostack),
            );
        }
        refused == 0
    }

    /// Writes the descriptor to a portal of a *dedicated* queue, which loses it if it is full.
    ///
    /// # Safety
    /// As [`enqcmd`], for MOVDIR64B.
    #[inline]
    pub unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
        // SAFETY: as in `enqcmd`; no flag changes.
        unsafe {
            asm!(
                "movdir64b rax, [rdx]",
                in("rax") portal,
                in("rdx") descriptor,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Makes all earlier stores visible before any later one. ENQCMD and MOVDIR64B are not ordered with earlier stores:
    /// without this fence a device may read stale bytes.
    #[inline]
    pub(crate) fn sfence() {
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() }
    }

    #[inline]
    pub(super) fn lfence() {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_lfence() }
    }

    /// Watches the cache line at `address` for the [`umwait`] that follows.
    ///
    /// # Safety
    /// The CPU has WAITPKG, and the address is readable.
    #[inline]
    pub unsafe fn umonitor(address: *const u8) {
        // SAFETY: the caller guarantees the instruction and a readable address.
        unsafe { asm!("umonitor rax", in("rax") address, options(nostack, preserves_flags)) }
    }

    /// UMWAIT and TPAUSE have the same operands and results.
    macro_rules! wait_until {
        ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
            $(#[$doc])*
            ///
            /// # Safety
            /// The CPU has WAITPKG.
            #[inline]
            pub unsafe fn $name(state: SleepState, until: u64) -> bool {
                let limited: u8;
                // SAFETY: the caller guarantees the instruction; the control value sets no reserved bit; CF means that the
                // limit ended it.
                unsafe {
                    asm!(
                        $instruction,
                        "setc {limited}",
                        limited = out(reg_byte) limited,
                        in("ecx") state.control(),
                        in("edx") (until >> 32) as u32,
                        in("eax") until as u32,
                        options(nostack),
                    );
                }
                limited != 0
            }
        };
    }
    wait_until!(
        /// Sleeps until the watched line is written, the time stamp counter reaches `until`, or another event. Returns whether
        /// the operating system's limit ended the sleep.
        umwait,
        "umwait ecx"
    );
    wait_until!(
        /// Sleeps until the time stamp counter reaches `until`, or another event. Returns whether the operating system's limit
        /// ended the sleep.
        tpause,
        "tpause ecx"
    );

    /// The time stamp counter; 0 on CPUs without one.
    #[inline]
    pub fn time_stamp() -> u64 {
        // SAFETY: every x86-64 CPU has a time stamp counter, and Linux lets programs read it.
        unsafe { _rdtsc() }
    }
}

/// Stubs: without the instructions the contracts cannot be met, so they are never called.
#[cfg(not(target_arch = "x86_64"))]
#[allow(missing_docs, clippy::missing_safety_doc)]
mod absent {
    use super::{Descriptor, SleepState};

    pub(super) fn leaf_7_ecx() -> u32 {
        0
    }
    pub unsafe fn enqcmd(_: *mut u8, _: &Descriptor) -> bool {
        false
    }
    pub unsafe fn movdir64b(_: *mut u8, _: &Descriptor) {}
    pub(crate) fn sfence() {
        // ORDERING: SeqCst orders all stores, as SFENCE; without these instructions there is no device to pair with.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
    pub(super) fn lfence() {}
    pub unsafe fn umonitor(_: *const u8) {}
    pub unsafe fn umwait(_: SleepState, _: u64) -> bool {
        false
    }
    pub unsafe fn tpause(_: SleepState, _: u64) -> bool {
        false
    }
    pub fn time_stamp() -> u64 {
        0
    }
}

#[cfg(all(test, not(memferry_loom), target_arch = "x86_64"))]
mod tests {
    use memferry_testing::{Needs, skip};

    use super::*;

    // Not inlined, so that each has code of its own to examine.
    #[inline(never)]
    unsafe fn enqcmd_code(portal: *mut u8, descriptor: &Descriptor) -> bool {
        // SAFETY: passed on.
        unsafe { enqcmd(portal, descriptor) }
    }
    #[inline(never)]
    unsafe fn movdir64b_code(portal: *mut u8, descriptor: &Descriptor) {
        // SAFETY: passed on.
        unsafe { movdir64b(portal, descriptor) }
    }
    #[inline(never)]
    unsafe fn umonitor_code(address: *const u8) {
        // SAFETY: passed on.
        unsafe { umonitor(address) }
    }
    #[inline(never)]
    unsafe fn umwait_code(until: u64) -> bool {
        // SAFETY: passed on.
        unsafe { umwait(SleepState::Light, until) }
    }
    #[inline(never)]
    unsafe fn tpause_code(until: u64) -> bool {
        // SAFETY: passed on.
        unsafe { tpause(SleepState::Light, until) }
    }

    /// Whether the code at `function` contains `bytes` before it could reach the next function but one.
    fn has_code(function: *const (), bytes: &[u8]) -> bool {
        // SAFETY: code is readable, and behind this function of a test program there are more than 64 bytes of it.
        let code = unsafe { std::slice::from_raw_parts(function.cast::<u8>(), 64) };
        code.windows(bytes.len()).any(|window| window == bytes)
    }

    /// The bytes are those of the manual: rax is the portal, rdx the descriptor, ecx the control register. Behind
    /// ENQCMD comes SETZ (0F 94), behind the sleeps SETC (0F 92), with a REX prefix or not.
    #[test]
    fn the_assembler_writes_what_the_manual_says() {
        let has = |function: *const (), code: &[u8], set: &[u8]| {
            let with_rex = |rex: u8| [code, &[rex], set].concat();
            has_code(function, &[code, set].concat())
                || (0x40..0x50).any(|rex| has_code(function, &with_rex(rex)))
        };
        assert!(has(enqcmd_code as *const (), &[0xf2, 0x0f, 0x38, 0xf8, 0x02], &[0x0f, 0x94]));
        assert!(has(movdir64b_code as *const (), &[0x66, 0x0f, 0x38, 0xf8, 0x02], &[]));
        assert!(has(umonitor_code as *const (), &[0xf3, 0x0f, 0xae, 0xf0], &[]));
        assert!(has(umwait_code as *const (), &[0xf2, 0x0f, 0xae, 0xf1], &[0x0f, 0x92]));
        assert!(has(tpause_code as *const (), &[0x66, 0x0f, 0xae, 0xf1], &[0x0f, 0x92]));
    }

    #[test]
    fn features_are_decoded() {
        assert_eq!(CpuFeatures::from_ecx(0), CpuFeatures::NONE);
        assert_eq!(CpuFeatures::from_ecx(!0), CpuFeatures::ALL);
        assert_eq!(CpuFeatures::from_ecx(CpuFeatures::ALL.to_ecx()), CpuFeatures::ALL);
        assert_eq!(CpuFeatures::from_ecx(1 << 29), CpuFeatures { enqcmd: true, ..CpuFeatures::NONE });
        assert_eq!(CpuFeatures::from_ecx(1 << 28), CpuFeatures { movdir64b: true, ..CpuFeatures::NONE });
        assert_eq!(CpuFeatures::from_ecx(1 << 5), CpuFeatures { waitpkg: true, ..CpuFeatures::NONE });
        assert_eq!(CpuFeatures::detect(), CpuFeatures::detect());
        // The kernel's list agrees.
        let Ok(list) = std::fs::read_to_string("/proc/cpuinfo") else {
            return skip(Needs::Kernel("/proc/cpuinfo"), "the CPU's features are not listed");
        };
        let flags = list.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let has = |name| flags.split_whitespace().any(|flag| flag == name);
        let CpuFeatures { movdir64b, waitpkg, .. } = CpuFeatures::detect();
        assert_eq!((movdir64b, waitpkg), (has("movdir64b"), has("waitpkg")));
    }

    /// Runs each instruction in a process of its own. If CPUID lists it, it works. If not, the process dies of SIGILL, or
    /// MOVDIR64B works nevertheless: a hypervisor can hide it from CPUID but not disable it (seen on a Zen 5).
    #[test]
    fn cpuid_is_right() {
        use std::os::unix::process::ExitStatusExt;
        const CHILD: &str = "MEMFERRY_TEST_INSTRUCTION";
        let features = CpuFeatures::detect();
        if let Ok(instruction) = std::env::var(CHILD) {
            #[repr(align(64))]
            struct Line([u8; 64]);
            let mut line = Line([0; 64]);
            let noop = Descriptor::noop();
            // SAFETY: this process exists to find out whether the CPU has the instructions. MOVDIR64B may write to ordinary
            // memory, and UMWAIT returns at once, because its deadline has passed.
            unsafe {
                match instruction.as_str() {
                    "movdir64b" => movdir64b_code(line.0.as_mut_ptr(), &noop),
                    "umwait" => {
                        umonitor_code(line.0.as_ptr());
                        umwait_code(0);
                    }
                    "tpause" => drop(tpause_code(0)),
                    other => panic!("{other}"),
                }
            }
            sfence();
            assert!(instruction != "movdir64b" || line.0 == noop.to_bytes());
            return;
        }
        // Not ENQCMD: it faults in a process without a PASID even if the CPU has it.
        for (instruction, there) in
            [("movdir64b", features.movdir64b), ("umwait", features.waitpkg), ("tpause", features.waitpkg)]
        {
            let status =
                std::process::Command::new(std::env::current_exe().expect("this program has a path"))
                    .args(["--exact", "instructions::tests::cpuid_is_right", "--test-threads=1"])
                    .env(CHILD, instruction)
                    .stdout(std::process::Stdio::null())
                    .status()
                    .expect("this program can be run again");
            if !there {
                println!("CPUID does not list {instruction}; executed anyway: {status}");
            }
            let is_missing = !there && status.signal() == Some(libc::SIGILL);
            let may_work = there || instruction == "movdir64b";
            assert!(is_missing || may_work && status.success(), "{instruction}: {status}");
        }
    }
}
