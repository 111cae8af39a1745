//! Calls the replaced functions from the places that are dangerous. Prints `fine` at the end.

#![allow(
    missing_docs,
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program that calls libc only"
)]

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type Fortified = unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> *mut c_void;
type Fill = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;
type Compare = unsafe extern "C" fn(*const c_void, *const c_void, usize) -> c_int;

unsafe extern "C" {
    fn __memcpy_chk(target: *mut c_void, source: *const c_void, size: usize, room: usize) -> *mut c_void;
    fn mempcpy(target: *mut c_void, source: *const c_void, size: usize) -> *mut c_void;
}

const SIZES: [usize; 8] = [1, 4096, 20_000, 65_536, 65_537, 1_000_003, 3 << 20, 20 << 20];

fn bytes(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + at / 253 + seed) as u8).collect()
}

fn copies() {
    let (copy, moves) = (black_box(libc::memcpy as Copy), black_box(libc::memmove as Copy));
    for size in SIZES {
        let source = bytes(size, 1);
        // Fresh pages: the device stops at the first.
        let mut target = vec![0u8; size];
        let to = target.as_mut_ptr().cast();
        unsafe {
            *libc::__errno_location() = 77;
            assert_eq!(copy(to, source.as_ptr().cast(), size), to);
            assert_eq!(*libc::__errno_location(), 77);
            assert!(target.iter().eq(&source), "{size}");
            assert_eq!(moves(to, bytes(size, 2).as_ptr().cast(), size), to);
            assert!(target.iter().eq(&bytes(size, 2)), "{size}");
            assert_eq!(mempcpy(to, source.as_ptr().cast(), size), to.add(size));
            let fortified = black_box(__memcpy_chk as Fortified);
            assert_eq!(fortified(to, source.as_ptr().cast(), size, size), to);
            assert!(target.iter().eq(&source), "{size}");
        }
        for shift in [1, size / 3] {
            for (from, to) in [(0, shift), (shift, 0)] {
                let mut moved = bytes(size + shift, 3);
                let expected: Vec<u8> = moved[from..from + size].to_vec();
                let start = moved.as_mut_ptr();
                unsafe { moves(start.add(to).cast(), start.add(from).cast(), size) };
                assert!(moved[to..to + size].iter().eq(&expected), "{size} by {shift}");
            }
        }
        unsafe { black_box(libc::memset as Fill)(to, 0x1c3, size) };
        assert!(target.iter().all(|byte| *byte == 0xc3));
        let compare = black_box(libc::memcmp as Compare);
        let mut other = source.clone();
        unsafe {
            assert_eq!(compare(source.as_ptr().cast(), other.as_ptr().cast(), size), 0);
            for at in [0, size / 2, size - 1] {
                other[at] ^= 0x80;
                let sign = compare(source.as_ptr().cast(), other.as_ptr().cast(), size).signum();
                assert_eq!(sign, (i32::from(source[at]) - i32::from(other[at])).signum(), "{size} at {at}");
                other[at] ^= 0x80;
            }
        }
    }
}

fn overflow() {
    let fortified = black_box(__memcpy_chk as Fortified);
    let (source, mut target) = (bytes(100_000, 1), bytes(100_000, 2));
    unsafe { fortified(target.as_mut_ptr().cast(), source.as_ptr().cast(), 100_000, 99_999) };
}

fn forks() {
    copies();
    for _ in 0..3 {
        let child = unsafe { libc::fork() };
        if child == 0 {
            copies();
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                copies();
                unsafe { libc::_exit(0) };
            }
            assert!(succeeded(grandchild));
            unsafe { libc::_exit(0) };
        }
        copies();
        assert!(succeeded(child));
    }
    // posix_spawn: a child that shares the memory of its parent until it executes a program.
    assert!(Command::new("/bin/true").status().unwrap().success());
}

fn succeeded(child: libc::pid_t) -> bool {
    let mut status = 0;
    unsafe { libc::waitpid(child, &mut status, 0) };
    status == 0
}

fn threads() {
    std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(copies)));
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);
static FROM: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static TO: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
const IN_HANDLER: usize = 300_000;

extern "C" fn on_alarm(_: c_int) {
    let (from, to) = (FROM.load(Ordering::Relaxed), TO.load(Ordering::Relaxed));
    unsafe { black_box(libc::memcpy as Copy)(to.cast(), from.cast(), IN_HANDLER) };
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// The regions that the handlers copy from and to.
fn regions_of_handlers() -> (Vec<u8>, Vec<u8>) {
    let (mut from, mut to) = (bytes(IN_HANDLER, 5), vec![0; IN_HANDLER]);
    FROM.store(from.as_mut_ptr(), Ordering::Relaxed);
    TO.store(to.as_mut_ptr(), Ordering::Relaxed);
    (from, to)
}

fn signals() {
    let (from, to) = regions_of_handlers();
    let every = libc::timeval { tv_sec: 0, tv_usec: 3000 };
    unsafe {
        libc::signal(libc::SIGALRM, on_alarm as *const () as usize);
        libc::setitimer(
            libc::ITIMER_REAL,
            &libc::itimerval { it_interval: every, it_value: every },
            std::ptr::null_mut(),
        );
    }
    while HANDLED.load(Ordering::Relaxed) < 20 {
        copies();
    }
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let none = libc::itimerval { it_interval: never, it_value: never };
    unsafe { libc::setitimer(libc::ITIMER_REAL, &none, std::ptr::null_mut()) };
    assert_eq!(to, from);
}

/// A handler that skips `ud2`, an instruction of two bytes, and copies.
extern "C" fn on_illegal(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] += 2 };
    on_alarm(signal);
}

/// A program with its own handler of SIGILL: it gets the illegal instructions of the program, and no others.
fn illegal() {
    let (from, to) = regions_of_handlers();
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_illegal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut());
    }
    for round in 1..=3 {
        copies();
        unsafe { std::arch::asm!("ud2") };
        assert_eq!(HANDLED.load(Ordering::Relaxed), round);
    }
    forks();
    assert_eq!(HANDLED.load(Ordering::Relaxed), 3);
    assert_eq!(to, from);
}

/// Copies while the kernel refuses every mapping, also in a child of fork.
fn memory() {
    let source = bytes(1 << 20, 6);
    let mut target = vec![0; source.len()];
    let mut is_copied = || {
        target.fill(0);
        unsafe {
            black_box(libc::memcpy as Copy)(target.as_mut_ptr().cast(), source.as_ptr().cast(), source.len())
        };
        target == source
    };
    unsafe {
        let mut before: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut before), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &libc::rlimit { rlim_cur: 0, ..before }), 0);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let refused = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        assert_eq!(refused, libc::MAP_FAILED);
        for _ in 0..20 {
            assert!(is_copied());
        }
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(!is_copied() || !is_copied()));
        }
        assert!(succeeded(child));
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &before), 0);
    }
    forks();
}

/// A handler that makes a page writable, as garbage collectors do.
extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    unsafe {
        let page = (*info).si_addr().addr() & !4095;
        libc::mprotect(page as *mut c_void, 4096, libc::PROT_READ | libc::PROT_WRITE);
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn faults() {
    const PAGES: usize = 64;
    let source = bytes(PAGES * 4096, 1);
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let target = libc::mmap(std::ptr::null_mut(), PAGES * 4096, libc::PROT_READ, flags, -1, 0);
        black_box(libc::memcpy as Copy)(target, source.as_ptr().cast(), PAGES * 4096);
        assert_eq!(std::slice::from_raw_parts(target.cast::<u8>(), PAGES * 4096), source);
    }
    assert_eq!(HANDLED.load(Ordering::Relaxed), PAGES);
}

/// Comparisons of memory whose end cannot be read, behind a difference.
fn differences() {
    const SIZE: usize = 1 << 20;
    let one = bytes(SIZE, 1);
    unsafe {
        let (flags, protection) =
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        let other = libc::mmap(std::ptr::null_mut(), SIZE, protection, flags, -1, 0);
        other.cast::<u8>().copy_from_nonoverlapping(one.as_ptr(), SIZE);
        *other.cast::<u8>().add(5000) ^= 0x80;
        assert_eq!(libc::mprotect(other.add(SIZE / 2), SIZE / 2, libc::PROT_NONE), 0);
        let sign = black_box(libc::memcmp as Compare)(one.as_ptr().cast(), other, SIZE).signum();
        assert_eq!(sign, if one[5000] < 0x80 { -1 } else { 1 });
    }
}

/// Closes all files from the number `first` on and opens empty ones, which get the same numbers.
fn own_files(directory: &Path, first: u32) -> Vec<File> {
    unsafe { libc::close_range(first, u32::MAX, 0) };
    let open = |number: u32| {
        let path = directory.join(number.to_string());
        File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap()
    };
    (first..40).map(open).collect()
}

/// A program that closes all files, as daemons do, and has its own at the same numbers.
fn closes() {
    let directory = std::env::temp_dir().join(format!("memferry-offload-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let files = own_files(&directory, 3);
    copies();
    forks();
    assert!(
        files.iter().all(|file| file.metadata().unwrap().len() == 0),
        "a file of the program was written"
    );
    std::fs::remove_dir_all(directory).unwrap();
}

/// A program that closes the standard streams, too. Its caller looks at the files in TMPDIR: only this program's own output
/// may be there, in the file that has the number of standard output.
fn closes_streams() {
    let files = own_files(&std::env::temp_dir(), 0);
    copies();
    forks();
    // Open until the summary at exit.
    std::mem::forget(files);
}

extern "C" fn at_exit() {
    copies();
    println!("fine");
}

fn main() {
    unsafe { libc::atexit(at_exit) };
    match std::env::args().nth(1).as_deref() {
        Some("copies") => copies(),
        Some("overflow") => overflow(),
        Some("forks") => forks(),
        Some("threads") => threads(),
        Some("signals") => signals(),
        Some("faults") => faults(),
        Some("differences") => differences(),
        Some("closes") => closes(),
        Some("closes-streams") => closes_streams(),
        Some("illegal") => illegal(),
        Some("memory") => memory(),
        other => panic!("unknown: {other:?}"),
    }
}
