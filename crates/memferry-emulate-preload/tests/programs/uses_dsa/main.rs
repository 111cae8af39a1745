//! A program that uses DSA queues by the processor's instructions, in the ways that the tests of the preload library
//! need: `uses_dsa WAY`, in a directory with the queues' files. It has no code for the emulation.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "it tests what safe programs do not do")]

mod addresses;
mod processes;
mod registers;
mod signals;

use std::arch::asm;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use memferry_dsa::internals::instructions;
use memferry_dsa::{Address, CompletionRecord, Descriptor, Flags, SleepState, Status};

fn main() {
    let way = std::env::args().nth(1).unwrap_or_default();
    let way = WAYS.iter().find(|(name, _)| *name == way).unwrap_or_else(|| panic!("no such way: {way}"));
    (way.1)();
}

const WAYS: &[(&str, fn())] = &[
    ("instructions", instructions_all),
    ("registers", registers::registers),
    ("waits", waits),
    ("threads", threads),
    ("forks", processes::forks),
    ("heirs", processes::heirs),
    ("spawns", processes::spawns),
    ("handlers", signals::handlers),
    ("stacks", signals::stacks),
    ("interrupts", signals::interrupts),
    ("garbage", addresses::garbage),
    ("useless", addresses::useless),
    ("twice", addresses::twice),
    ("unmapped", addresses::unmapped),
    ("blocked", signals::blocked),
    ("confined", processes::confined),
    ("closed", processes::closed),
    ("pipes", processes::pipes),
    ("pending", signals::pending),
    ("poor", processes::poor),
    ("many", many),
    ("traced", traced),
    ("leaves", processes::leaves),
    ("execs", processes::execs),
    ("execs-bare", processes::execs_bare),
    ("after-exec", processes::after_exec),
    ("moved", addresses::moved),
    ("past-the-hooks", signals::past_the_hooks),
    ("suspended", signals::suspended),
    ("code", code),
    ("code-without-membarrier", || {
        const PRIVATE_EXPEDITED_SYNC_CORE: u32 = 1 << 5;
        answer(libc::SYS_membarrier, PRIVATE_EXPEDITED_SYNC_CORE, libc::EPERM);
        code();
    }),
    ("code-with-shadow-stack", || {
        const SHSTK_STATUS: u32 = 0x5005;
        answer(libc::SYS_arch_prctl, SHSTK_STATUS, 0);
        code();
    }),
    ("dies-of-ud2", || unsafe { asm!("ud2") }),
    ("dies-of-null", || unsafe { asm!("mov byte ptr [0], 1") }),
    ("dies-of-int3", || unsafe { asm!("int3") }),
    ("dies-of-kill", signals::dies_of_kill),
    ("dies-of-portal", signals::dies_of_portal),
    ("ignores", signals::ignores),
];

fn map(queue: &str) -> *mut u8 {
    try_map(queue).unwrap_or_else(|error| panic!("{queue}: {error}"))
}

fn try_map(queue: &str) -> std::io::Result<*mut u8> {
    map_as(queue, libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE)
}

fn map_as(queue: &str, protection: i32, flags: i32) -> std::io::Result<*mut u8> {
    let file = OpenOptions::new().read(true).write(true).open(queue).unwrap();
    let page = unsafe { libc::mmap(null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
    if page == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(page.cast()) }
}

fn wait(record: &CompletionRecord) -> memferry_dsa::Completion {
    let start = Instant::now();
    loop {
        if let Some(completion) = record.poll() {
            return completion;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no completion");
        std::thread::yield_now();
    }
}

/// The one call site of ENQCMD in this file.
#[inline(never)]
fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
    unsafe { instructions::enqcmd(portal, descriptor) }
}

#[inline(never)]
fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
    unsafe { instructions::movdir64b(portal, descriptor) }
}

fn submit(portal: *mut u8, descriptor: &Descriptor) {
    let start = Instant::now();
    while !enqcmd(portal, descriptor) {
        assert!(start.elapsed() < Duration::from_secs(20), "the queue is full for ever");
        std::thread::yield_now();
    }
}

/// Copies through a shared queue, and checks the bytes.
fn copies(portal: *mut u8, bytes: usize, value: u8) {
    let (source, mut target, record) = (vec![value; bytes], vec![!value; bytes], CompletionRecord::new());
    let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), bytes as u32);
    submit(portal, &copy.with_completion(&record));
    assert_eq!(wait(&record).status, Status::Success);
    assert_eq!(source, target);
}

/// Every submission, repeated so that patched sites are executed too.
fn instructions_all() {
    let (shared, dedicated) = (map("wq0.0"), map("wq0.1"));
    for round in 0..10u8 {
        copies(shared.wrapping_add(64 * usize::from(round)), 5000, round);
        let (record, value) = (CompletionRecord::new(), u64::from(round) * 0x0101_0101_0101_0101);
        let mut target = [0u64; 64];
        movdir64b(
            dedicated,
            &Descriptor::fill(value, target.as_mut_ptr().cast::<u8>(), 512).with_completion(&record),
        );
        assert_eq!((wait(&record).status, target), (Status::Success, [value; 64]));
        // The instruction of the other kind of queue: Retry, or no effect.
        assert!(!enqcmd(dedicated, &Descriptor::noop()));
        movdir64b(shared, &Descriptor::noop().with_completion(&record));
        // Ordinary memory.
        #[repr(align(64))]
        struct Line([u8; 128]);
        let mut line = Line([0xee; 128]);
        let words = Descriptor::memmove(Address(1), Address(2), 3);
        movdir64b(&raw mut line.0[0], &words);
        assert_eq!(line.0[..64], words.to_bytes());
        assert_eq!(line.0[64..], [0xee; 64]);
        assert!(!enqcmd(&raw mut line.0[0], &Descriptor::noop()), "memory accepts no descriptor");
        assert_eq!(line.0[..64], words.to_bytes());
    }
}

fn waits() {
    let ticks = |start: u64| instructions::time_stamp() - start;
    // A deadline, and the system's limit.
    let start = instructions::time_stamp();
    assert!(!unsafe { instructions::tpause(SleepState::Light, start + 20_000) });
    assert!(ticks(start) >= 20_000);
    assert!(unsafe { instructions::tpause(SleepState::Deep, u64::MAX) }, "the limit ended it");
    assert!(!unsafe { instructions::tpause(SleepState::Deep, 0) }, "the deadline is over");
    let record = CompletionRecord::new();
    let at = (&raw const record).cast();
    unsafe { instructions::umonitor(at) };
    assert!(unsafe { instructions::umwait(SleepState::Light, u64::MAX) }, "nothing was written");
    assert!(!unsafe { instructions::umwait(SleepState::Light, u64::MAX) }, "nothing is watched");
    // A write before or during the wait is noticed.
    let portal = map("wq0.0");
    for _ in 0..20 {
        record.reset();
        unsafe { instructions::umonitor(at) };
        submit(portal, &Descriptor::noop().with_completion(&record));
        while record.poll().is_none() {
            unsafe {
                instructions::umonitor(at);
                if record.poll().is_none() {
                    instructions::umwait(SleepState::Deep, u64::MAX);
                }
            }
        }
    }
}

/// All threads start at once at a site that was never executed.
fn threads() {
    const THREADS: u8 = 4;
    let portal = map("wq0.0") as usize;
    let start = std::sync::Barrier::new(THREADS.into());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                (0..300u32).for_each(|round| copies(portal as *mut u8, 700, thread ^ round as u8));
            });
        }
    });
}

/// Many portals, threads and queues in one process.
fn many() {
    let portals: Vec<_> = (0..100).map(|_| map("wq0.0") as usize).collect();
    std::thread::scope(|scope| {
        for part in portals.chunks(25) {
            scope.spawn(move || part.iter().for_each(|portal| copies(*portal as *mut u8, 64, *portal as u8)));
        }
    });
    // A queue with room for one: Retry is an answer.
    let small = map("wq1.0");
    let records: [CompletionRecord; 50] = std::array::from_fn(|_| CompletionRecord::new());
    records.iter().for_each(|record| submit(small, &Descriptor::noop().with_completion(record)));
    records.iter().for_each(|record| assert_eq!(wait(record).status, Status::Success));
}

/// Descriptors for a trace: a batch of two, of which one has an invalid flag, and a no-op by MOVDIR64B.
fn traced() {
    #[repr(align(64))]
    struct List([Descriptor; 2]);
    let (source, mut target) = ([7u8; 100], [0u8; 100]);
    let records: [CompletionRecord; 4] = std::array::from_fn(|_| CompletionRecord::new());
    let list = List([
        Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), 100).with_completion(&records[0]),
        Descriptor::noop().with_completion(&records[1]).with_flags(Flags::CHECK_RESULT),
    ]);
    submit(map("wq0.0"), &Descriptor::batch(list.0.as_ptr(), 2).with_completion(&records[2]));
    assert_eq!(wait(&records[2]).status, Status::BatchFailed);
    movdir64b(map("wq0.1"), &Descriptor::noop().with_completion(&records[3]));
    assert_eq!(wait(&records[3]).status, Status::Success);
    println!("{} {:?}", unsafe { libc::gettid() }, source.as_ptr());
}

/// Makes a system call with this first argument do nothing and return this error from now on.
///
/// Source: seccomp(2).
fn answer(call: libc::c_long, argument: u32, errno: i32) {
    let load = |offset: u32| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset }; // of struct seccomp_data
    let skip_unless = |value: u32, jf: u8| libc::sock_filter { code: 0x15, jt: 0, jf, k: value };
    let end = |value: u32| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    let mut filter = [
        load(0),
        skip_unless(call as u32, 3),
        load(16),
        skip_unless(argument, 1),
        end(libc::SECCOMP_RET_ERRNO | errno as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Prints whether the code of a call site was patched.
fn code() {
    let function = enqcmd as *const u8;
    let byte = |at: usize| unsafe { function.add(at).read_volatile() };
    let is_enqcmd = |at: &usize| [0, 1, 2, 3].map(|next| byte(at + next)) == [0xf2, 0x0f, 0x38, 0xf8];
    let site = (0..200).find(is_enqcmd).expect("the function has the instruction");
    let portal = map("wq0.0");
    (0..3).for_each(|round| copies(portal, 100, round));
    println!("{}", if byte(site) == 0xf2 { "as it was" } else { "patched" });
}
