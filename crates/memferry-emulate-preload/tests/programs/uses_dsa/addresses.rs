//! Portals that are mapped, moved and unmapped, and invalid addresses.

use std::arch::asm;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use memferry_dsa::{Address, CompletionRecord, Descriptor, Flags, Status};

use super::signals::{SKIP, note, noted, set};
use super::{copies, map, map_as, movdir64b, submit, wait};

/// Executes `enqcmd rsi, [rdx]`, 5 bytes, at one site, and returns what the handler recorded.
#[inline(never)]
pub(super) fn enqcmd_at(portal: u64, source: u64) -> (i32, i32, u64) {
    SKIP.store(5, Ordering::Relaxed);
    unsafe { asm!("enqcmd rsi, [rdx]", in("rsi") portal, in("rdx") source) };
    noted()
}

pub(super) fn garbage() {
    let portal = map("wq0.0") as u64;
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
        set(signal, note as *const () as usize, libc::SA_SIGINFO);
    }
    let good = Descriptor::noop();
    let submitted = good.submitted_by(1);
    let pages = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(libc::mprotect(pages.byte_add(4096), 4096, libc::PROT_NONE), 0);
        pages as u64
    };
    for _ in 0..4 {
        assert_eq!(enqcmd_at(portal, &raw const good as u64).0, 0);
        assert_eq!(enqcmd_at(portal, 0x10), (libc::SIGSEGV, 1, 0x10));
        assert_eq!(enqcmd_at(portal, pages + 4096 - 32), (libc::SIGSEGV, 2, pages + 4096), "half of it");
        assert_eq!(enqcmd_at(0x4_0000, &raw const good as u64), (libc::SIGSEGV, 1, 0x4_0000));
        assert_eq!(enqcmd_at(pages + 4096, &raw const good as u64), (libc::SIGSEGV, 2, pages + 4096));
        assert_eq!(enqcmd_at(portal + 8, &raw const good as u64), (libc::SIGSEGV, 0x80, 0), "not aligned");
        assert_eq!(enqcmd_at(portal, &raw const submitted as u64), (libc::SIGSEGV, 0x80, 0));
        // A privileged instruction.
        SKIP.store(5, Ordering::Relaxed);
        unsafe { asm!("enqcmds rsi, [rdx]", in("rsi") portal, in("rdx") &raw const good) };
        assert_eq!(noted(), (libc::SIGSEGV, 0x80, 0));
        SKIP.store(4, Ordering::Relaxed);
        unsafe { asm!("umonitor rax", in("rax") 0x50) };
        assert_eq!(noted(), (libc::SIGSEGV, 1, 0x40));
        unsafe { asm!("tpause ecx", in("ecx") 2, in("edx") 0, in("eax") 0) };
        assert_eq!(noted(), (libc::SIGSEGV, 0x80, 0), "a reserved bit");
    }
    // Descriptors with invalid addresses.
    let record = CompletionRecord::new();
    let completes = |descriptor: Descriptor| {
        record.reset();
        submit(portal as *mut u8, &descriptor.with_completion(&record));
        wait(&record)
    };
    let here = pages;
    unsafe { (here as *mut u64).write(1) };
    let refused =
        completes(Descriptor::memmove(Address(0x10), Address(here), 8).with_flags(Flags::BLOCK_ON_FAULT));
    assert_eq!((refused.status, refused.fault_address), (Status::PageFaultRefused, Address(0)));
    let refused = completes(
        Descriptor::memmove(Address(here), Address(here + 4096), 8).with_flags(Flags::BLOCK_ON_FAULT),
    );
    assert_eq!((refused.status, refused.write_fault), (Status::PageFaultRefused, true));
    assert_eq!(completes(Descriptor::memmove(Address(here), Address(1 << 62), 8)).status, Status::PageFault);
    // A record that cannot be written has no other effect, also in a page that is present and read-only.
    submit(portal as *mut u8, &good.with_completion_at(Address(0x20)));
    assert_eq!(unsafe { libc::mprotect(here as *mut _, 4096, libc::PROT_READ) }, 0);
    submit(portal as *mut u8, &good.with_completion_at(Address(here)));
    assert_eq!(completes(good).status, Status::Success);
    assert_eq!(unsafe { (here as *const u64).read() }, 1);
    assert_eq!(noted().0, 0);
}

pub(super) fn twice() {
    let portals = [map("wq0.0"), map("wq0.0"), map("wq0.1")];
    assert_ne!(portals[0], portals[1]);
    for round in 0..3 {
        copies(portals[0], 100, round);
        copies(portals[1], 100, !round);
    }
    assert_eq!(unsafe { libc::munmap(portals[0].cast(), 4096) }, 0);
    copies(portals[1], 100, 7);
}

pub(super) fn unmapped() {
    set(libc::SIGSEGV, note as *const () as usize, libc::SA_SIGINFO);
    let good = Descriptor::noop();
    for _ in 0..3 {
        let portal = map("wq0.0");
        assert_eq!(enqcmd_at(portal as u64, &raw const good as u64).0, 0);
        assert_eq!(unsafe { libc::munmap(portal.cast(), 4096) }, 0);
        assert_eq!(enqcmd_at(portal as u64, &raw const good as u64), (libc::SIGSEGV, 1, portal as u64));
        // Memory that replaces a portal is memory.
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        let again = map("wq0.0");
        let page = unsafe { libc::mmap(again.cast(), 4096, protection, flags, -1, 0) }.cast::<u8>();
        assert_eq!(page, again);
        movdir64b(page, &good);
        assert_eq!(unsafe { page.cast::<[u8; 64]>().read() }, good.to_bytes());
        assert_eq!(unsafe { libc::munmap(page.cast(), 4096) }, 0);
    }
}

/// Mappings that do not reach the device: a private one, and a read-only one.
pub(super) fn useless() {
    set(libc::SIGSEGV, note as *const () as usize, libc::SA_SIGINFO);
    let good = Descriptor::noop();
    for _ in 0..3 {
        let private = map_as("wq0.0", libc::PROT_WRITE, libc::MAP_PRIVATE).unwrap();
        assert!(!super::enqcmd(private, &good), "memory takes no descriptor");
        movdir64b(private, &good);
        assert_eq!(unsafe { private.cast::<[u8; 64]>().read() }, good.to_bytes());
        let read_only = map_as("wq0.0", libc::PROT_READ, libc::MAP_SHARED).unwrap() as u64;
        assert_eq!(enqcmd_at(read_only, &raw const good as u64), (libc::SIGSEGV, 2, read_only));
    }
}

/// A moved portal works at its new address.
pub(super) fn moved() {
    set(libc::SIGSEGV, note as *const () as usize, libc::SA_SIGINFO);
    let good = Descriptor::noop();
    for _ in 0..3 {
        let portal = map("wq0.0");
        let target = map("wq0.1"); // replaced
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let answer = unsafe { libc::mremap(portal.cast(), 4096, 4096, flags, target) };
        assert_eq!(answer, target.cast(), "{}", std::io::Error::last_os_error());
        copies(target, 100, 1);
        assert_eq!(enqcmd_at(portal as u64, &raw const good as u64), (libc::SIGSEGV, 1, portal as u64));
        assert_eq!(unsafe { libc::munmap(target.cast(), 4096) }, 0);
    }
}
