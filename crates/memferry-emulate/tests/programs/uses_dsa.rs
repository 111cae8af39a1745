//! A program that uses DSA queues by the processor's instructions, in all the ways that the tests of the preload library
//! need: `uses_dsa WAY`, in a directory with the queues' files. It knows nothing of the emulation.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "what it tries is what no safe program does")]

use std::arch::asm;
use std::fs::OpenOptions;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memferry_dsa::instructions::{self, SleepState};
use memferry_dsa::{Address, CompletionRecord, Descriptor, Flags, Status};

fn main() {
    let way = std::env::args().nth(1).unwrap_or_default();
    let way = WAYS.iter().find(|(name, _)| *name == way).unwrap_or_else(|| panic!("no such way: {way}"));
    (way.1)();
}

const WAYS: &[(&str, fn())] = &[
    ("instructions", instructions_all),
    ("registers", registers),
    ("waits", waits),
    ("threads", threads),
    ("forks", forks),
    ("handlers", handlers),
    ("stacks", stacks),
    ("garbage", garbage),
    ("twice", twice),
    ("unmapped", unmapped),
    ("blocked", blocked),
    ("closed", closed),
    ("many", many),
    ("traced", traced),
    ("leaves", leaves),
    ("execs", execs),
    ("after-exec", after_exec),
    ("moved", moved),
    ("past-the-hooks", past_the_hooks),
    ("suspended", suspended),
    ("code", code),
    ("dies-of-ud2", || unsafe { asm!("ud2") }),
    ("dies-of-null", || unsafe { asm!("mov byte ptr [0], 1") }),
    ("dies-of-int3", || unsafe { asm!("int3") }),
    ("dies-of-kill", dies_of_kill),
    ("dies-of-portal", dies_of_portal),
    ("ignores", ignores),
];

fn map(queue: &str) -> *mut u8 {
    let file = OpenOptions::new().read(true).write(true).open(queue).unwrap();
    let (protection, flags) = (libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    let page = unsafe { libc::mmap(null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED, "{queue}: {}", std::io::Error::last_os_error());
    page.cast()
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

/// One call site for all: the instruction is at one place.
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

/// A copy through a shared queue.
fn copies(portal: *mut u8, bytes: usize, value: u8) {
    let (source, mut target, record) = (vec![value; bytes], vec![!value; bytes], CompletionRecord::new());
    let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), bytes as u32);
    submit(portal, &copy.with_completion(&record));
    assert_eq!(wait(&record).status, Status::Success);
    assert_eq!(source, target);
}

/// Several times, so that patched sites are passed, too.
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
        // The other queue's instruction: retry for ever, or nothing at all.
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
        assert!(!enqcmd(&raw mut line.0[0], &Descriptor::noop()), "nobody takes it there");
        assert_eq!(line.0[..64], words.to_bytes());
    }
}

/// ENQCMD and MOVDIR64B change the flags that they should, the red zone not at all, and no register.
fn registers() {
    let portal = map("wq0.0");
    let descriptor = Descriptor::noop();
    #[repr(C)]
    #[derive(PartialEq, Debug, Clone, Copy)]
    struct Seen {
        general: [u64; 12],
        vectors: [[u64; 4]; 16],
        red: [u64; 16],
        flags: u64,
    }
    const ALL_FLAGS: u64 = 0x8d5;
    let has_avx = std::arch::is_x86_feature_detected!("avx");
    for round in 0..6 {
        for flags_before in [0, ALL_FLAGS] {
            let mut seen: Seen = unsafe { zeroed() };
            unsafe { look(portal, &descriptor, &mut seen, flags_before, has_avx) };
            let general = std::array::from_fn(|index| 0x1111_0000 + index as u64);
            assert_eq!(seen.general, general, "round {round}");
            assert_eq!(seen.red, std::array::from_fn(|index| 0x2222_0000 + index as u64), "round {round}");
            for (index, vector) in seen.vectors.iter().enumerate() {
                let words = [0, 1, 2, 3].map(|word| 0x3333_0000 + 4 * index as u64 + word);
                assert_eq!(vector[..if has_avx { 4 } else { 2 }], words[..if has_avx { 4 } else { 2 }]);
            }
            // Accepted: all clear.
            assert_eq!(seen.flags & ALL_FLAGS, 0, "round {round}");
        }
    }

    /// One site, with known values in every register.
    #[inline(never)]
    unsafe fn look(portal: *mut u8, descriptor: &Descriptor, seen: &mut Seen, flags: u64, has_avx: bool) {
        let values: [u64; 12] = std::array::from_fn(|index| 0x1111_0000 + index as u64);
        let vectors: [u64; 64] = std::array::from_fn(|index| 0x3333_0000 + index as u64);
        let arguments: [u64; 7] = [
            portal as u64,
            descriptor as *const Descriptor as u64,
            &raw mut *seen as u64,
            values.as_ptr() as u64,
            vectors.as_ptr() as u64,
            flags,
            has_avx.into(),
        ];
        unsafe {
            asm!(
                "push rbx",
                "push rbp",
                "push rdi",
                // The red zone.
                "xor ecx, ecx",
                "2:",
                "lea rax, [rcx + 0x22220000]",
                "mov [rsp + rcx * 8 - 128], rax",
                "inc ecx",
                "cmp ecx, 16",
                "jne 2b",
                // Vectors.
                "mov rax, [rdi + 32]",
                "cmp qword ptr [rdi + 48], 0",
                "je 3f",
                "vmovdqu ymm0, [rax]", "vmovdqu ymm1, [rax + 32]", "vmovdqu ymm2, [rax + 64]",
                "vmovdqu ymm3, [rax + 96]", "vmovdqu ymm4, [rax + 128]", "vmovdqu ymm5, [rax + 160]",
                "vmovdqu ymm6, [rax + 192]", "vmovdqu ymm7, [rax + 224]", "vmovdqu ymm8, [rax + 256]",
                "vmovdqu ymm9, [rax + 288]", "vmovdqu ymm10, [rax + 320]", "vmovdqu ymm11, [rax + 352]",
                "vmovdqu ymm12, [rax + 384]", "vmovdqu ymm13, [rax + 416]", "vmovdqu ymm14, [rax + 448]",
                "vmovdqu ymm15, [rax + 480]",
                "jmp 4f",
                "3:",
                "movdqu xmm0, [rax]", "movdqu xmm1, [rax + 32]", "movdqu xmm2, [rax + 64]",
                "movdqu xmm3, [rax + 96]", "movdqu xmm4, [rax + 128]", "movdqu xmm5, [rax + 160]",
                "movdqu xmm6, [rax + 192]", "movdqu xmm7, [rax + 224]", "movdqu xmm8, [rax + 256]",
                "movdqu xmm9, [rax + 288]", "movdqu xmm10, [rax + 320]", "movdqu xmm11, [rax + 352]",
                "movdqu xmm12, [rax + 384]", "movdqu xmm13, [rax + 416]", "movdqu xmm14, [rax + 448]",
                "movdqu xmm15, [rax + 480]",
                "4:",
                // Flags, without touching the red zone: by a stack below it.
                "lea rsp, [rsp - 256]",
                "mov rax, [rdi + 40]",
                "pushfq",
                "or [rsp], rax",
                "popfq",
                "lea rsp, [rsp + 256]",
                // General registers, but rsp, rdi (arguments), rsi (portal) and r15 (descriptor).
                "mov rsi, [rdi]",
                "mov r15, [rdi + 8]",
                "mov rax, [rdi + 24]",
                "mov rcx, [rax + 8]", "mov rdx, [rax + 16]", "mov rbx, [rax + 24]", "mov rbp, [rax + 32]",
                "mov r8, [rax + 40]", "mov r9, [rax + 48]", "mov r10, [rax + 56]", "mov r11, [rax + 64]",
                "mov r12, [rax + 72]", "mov r13, [rax + 80]", "mov r14, [rax + 88]", "mov rax, [rax]",
                "enqcmd rsi, [r15]",
                // What has become of it.
                "mov rdi, [rdi + 16]",
                "mov [rdi], rax", "mov [rdi + 8], rcx", "mov [rdi + 16], rdx", "mov [rdi + 24], rbx",
                "mov [rdi + 32], rbp", "mov [rdi + 40], r8", "mov [rdi + 48], r9", "mov [rdi + 56], r10",
                "mov [rdi + 64], r11", "mov [rdi + 72], r12", "mov [rdi + 80], r13", "mov [rdi + 88], r14",
                "lea rsp, [rsp - 256]",
                "pushfq",
                "pop rax",
                "lea rsp, [rsp + 256]",
                "mov [rdi + {flags}], rax",
                "xor ecx, ecx",
                "5:",
                "mov rax, [rsp + rcx * 8 - 128]",
                "mov [rdi + rcx * 8 + {red}], rax",
                "inc ecx",
                "cmp ecx, 16",
                "jne 5b",
                "lea rax, [rdi + {vectors}]",
                "pop rdi",
                "cmp qword ptr [rdi + 48], 0",
                "je 6f",
                "vmovdqu [rax], ymm0", "vmovdqu [rax + 32], ymm1", "vmovdqu [rax + 64], ymm2",
                "vmovdqu [rax + 96], ymm3", "vmovdqu [rax + 128], ymm4", "vmovdqu [rax + 160], ymm5",
                "vmovdqu [rax + 192], ymm6", "vmovdqu [rax + 224], ymm7", "vmovdqu [rax + 256], ymm8",
                "vmovdqu [rax + 288], ymm9", "vmovdqu [rax + 320], ymm10", "vmovdqu [rax + 352], ymm11",
                "vmovdqu [rax + 384], ymm12", "vmovdqu [rax + 416], ymm13", "vmovdqu [rax + 448], ymm14",
                "vmovdqu [rax + 480], ymm15",
                "vzeroupper",
                "jmp 7f",
                "6:",
                "movdqu [rax], xmm0", "movdqu [rax + 32], xmm1", "movdqu [rax + 64], xmm2",
                "movdqu [rax + 96], xmm3", "movdqu [rax + 128], xmm4", "movdqu [rax + 160], xmm5",
                "movdqu [rax + 192], xmm6", "movdqu [rax + 224], xmm7", "movdqu [rax + 256], xmm8",
                "movdqu [rax + 288], xmm9", "movdqu [rax + 320], xmm10", "movdqu [rax + 352], xmm11",
                "movdqu [rax + 384], xmm12", "movdqu [rax + 416], xmm13", "movdqu [rax + 448], xmm14",
                "movdqu [rax + 480], xmm15",
                "7:",
                "pop rbp",
                "pop rbx",
                flags = const std::mem::offset_of!(Seen, flags),
                red = const std::mem::offset_of!(Seen, red),
                vectors = const std::mem::offset_of!(Seen, vectors),
                inout("rdi") arguments.as_ptr() => _,
                out("rsi") _,
                out("r12") _, out("r13") _, out("r14") _, out("r15") _,
                clobber_abi("sysv64"),
            );
        }
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
    // A write before the wait is not missed, nor one during it.
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

/// All begin at once at a site that nobody has passed.
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

/// Runs `child` in a child that `fork` makes; its wait status.
fn in_child(raw: bool, child: impl FnOnce()) -> i32 {
    let id = match raw {
        false => unsafe { libc::fork() },
        // Past the C library: nobody is told.
        true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 },
    };
    assert!(id >= 0);
    if id == 0 {
        child();
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(id, &mut status, 0) }, id);
    status
}

fn forks() {
    let portal = map("wq0.0");
    copies(portal, 100, 1);
    for raw in [false, true] {
        let status = in_child(raw, || _ = enqcmd(portal, &Descriptor::noop()));
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV, "the parent's portal is not the child's");
        let status = in_child(raw, || {
            let mine = map("wq0.0");
            copies(mine, 5000, 2);
            let status = in_child(raw, || copies(map("wq0.0"), 300, 3));
            assert_eq!(status, 0, "a grandchild");
        });
        assert_eq!(status, 0, "a child that maps the queue again");
        copies(portal, 100, 4);
    }
}

static SIGNALS: AtomicI32 = AtomicI32::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDRESS: AtomicU64 = AtomicU64::new(0);
static SKIP: AtomicU64 = AtomicU64::new(0);
static PORTAL: AtomicU64 = AtomicU64::new(0);

/// Notes what it was told, and skips the instruction.
extern "C" fn note(signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SIGNALS.store(signal, Ordering::Relaxed);
    let (information, context) = unsafe { (&*information, &mut *context.cast::<libc::ucontext_t>()) };
    CODE.store(information.si_code, Ordering::Relaxed);
    ADDRESS.store(unsafe { information.si_addr() } as u64, Ordering::Relaxed);
    context.uc_mcontext.gregs[libc::REG_RIP as usize] += SKIP.load(Ordering::Relaxed) as i64;
}

fn noted() -> (i32, i32, u64) {
    (SIGNALS.swap(0, Ordering::Relaxed), CODE.load(Ordering::Relaxed), ADDRESS.load(Ordering::Relaxed))
}

fn set(signal: i32, handler: usize, flags: i32) -> libc::sigaction {
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (zeroed(), zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        libc::sigfillset(&mut new.sa_mask);
        assert_eq!(libc::sigaction(signal, &new, &mut old), 0);
        old
    }
}

fn handlers() {
    let portal = map("wq0.0");
    copies(portal, 100, 1);
    let noting = note as *const () as usize;
    for signal in [libc::SIGILL, libc::SIGSEGV, libc::SIGTRAP] {
        let mut now: libc::sigaction = unsafe { zeroed() };
        let before = set(signal, noting, libc::SA_SIGINFO);
        assert_ne!(before.sa_sigaction, noting);
        unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
        assert_eq!((now.sa_sigaction, now.sa_flags & libc::SA_SIGINFO), (noting, libc::SA_SIGINFO));
        assert_eq!(unsafe { libc::sigismember(&now.sa_mask, libc::SIGSEGV) }, 1, "as it was set");
    }
    for round in 0..3 {
        SKIP.store(2, Ordering::Relaxed);
        unsafe { asm!("ud2") };
        assert_eq!(noted().0, libc::SIGILL);
        SKIP.store(8, Ordering::Relaxed);
        unsafe { asm!("mov byte ptr [0x123], 1") };
        assert_eq!(noted(), (libc::SIGSEGV, 1, 0x123));
        SKIP.store(0, Ordering::Relaxed);
        unsafe { asm!("int3") };
        assert_eq!(noted().0, libc::SIGTRAP);
        unsafe { libc::raise(libc::SIGILL) };
        assert_eq!(noted().0, libc::SIGILL);
        copies(portal, 100, round);
        assert_eq!(noted().0, 0, "ours are not theirs");
    }
    // By the other function; and once only.
    extern "C" fn simple(signal: i32) {
        SIGNALS.store(signal, Ordering::Relaxed);
    }
    let simple = simple as *const () as usize;
    assert_eq!(unsafe { libc::signal(libc::SIGILL, simple) }, noting);
    unsafe { libc::raise(libc::SIGILL) };
    assert_eq!(noted().0, libc::SIGILL);
    set(libc::SIGILL, simple, libc::SA_RESETHAND);
    unsafe { libc::raise(libc::SIGILL) };
    assert_eq!(noted().0, libc::SIGILL);
    assert_eq!(set(libc::SIGILL, libc::SIG_DFL, 0).sa_sigaction, libc::SIG_DFL);
    copies(portal, 100, 9);
}

/// A handler on an alternate stack, which submits itself, with all signals blocked.
fn stacks() {
    static ON: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let here = 0u8;
        ON.store(&raw const here as u64, Ordering::Relaxed);
        copies(PORTAL.load(Ordering::Relaxed) as *mut u8, 200, 5);
        note(libc::SIGSEGV, information, context);
    }
    let mut stack = vec![0u8; 256 << 10];
    unsafe {
        let new = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        assert_eq!(libc::sigaltstack(&new, null_mut()), 0);
    }
    PORTAL.store(map("wq0.0") as u64, Ordering::Relaxed);
    set(libc::SIGSEGV, handler as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
    for _ in 0..3 {
        SKIP.store(8, Ordering::Relaxed);
        unsafe { asm!("mov byte ptr [0x123], 1") };
        assert_eq!(noted(), (libc::SIGSEGV, 1, 0x123));
        let range = stack.as_ptr() as u64..stack.as_ptr() as u64 + stack.len() as u64;
        assert!(range.contains(&ON.load(Ordering::Relaxed)), "the handler runs on its own stack");
    }
    set(libc::SIGSEGV, handler as *const () as usize, libc::SA_SIGINFO);
    unsafe { asm!("mov byte ptr [0x123], 1") };
    assert_eq!(noted().0, libc::SIGSEGV);
    let range = stack.as_ptr() as u64..stack.as_ptr() as u64 + stack.len() as u64;
    assert!(!range.contains(&ON.load(Ordering::Relaxed)), "without the flag it does not");
}

/// `enqcmd rsi, [rdx]`, 5 bytes, at one site; what the handler was told.
#[inline(never)]
fn enqcmd_at(portal: u64, source: u64) -> (i32, i32, u64) {
    SKIP.store(5, Ordering::Relaxed);
    unsafe { asm!("enqcmd rsi, [rdx]", in("rsi") portal, in("rdx") source) };
    noted()
}

fn garbage() {
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
        // Of the kernel.
        SKIP.store(5, Ordering::Relaxed);
        unsafe { asm!("enqcmds rsi, [rdx]", in("rsi") portal, in("rdx") &raw const good) };
        assert_eq!(noted(), (libc::SIGSEGV, 0x80, 0));
        SKIP.store(4, Ordering::Relaxed);
        unsafe { asm!("umonitor rax", in("rax") 0x50) };
        assert_eq!(noted(), (libc::SIGSEGV, 1, 0x40));
        unsafe { asm!("tpause ecx", in("ecx") 2, in("edx") 0, in("eax") 0) };
        assert_eq!(noted(), (libc::SIGSEGV, 0x80, 0), "a reserved bit");
    }
    // Descriptors that name nothing.
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
    // A record that cannot be written harms nobody.
    submit(portal as *mut u8, &good.with_completion_at(Address(0x20)));
    assert_eq!(completes(good).status, Status::Success);
    assert_eq!(noted().0, 0);
}

fn twice() {
    let portals = [map("wq0.0"), map("wq0.0"), map("wq0.1")];
    assert_ne!(portals[0], portals[1]);
    for round in 0..3 {
        copies(portals[0], 100, round);
        copies(portals[1], 100, !round);
    }
    assert_eq!(unsafe { libc::munmap(portals[0].cast(), 4096) }, 0);
    copies(portals[1], 100, 7);
}

fn unmapped() {
    set(libc::SIGSEGV, note as *const () as usize, libc::SA_SIGINFO);
    let good = Descriptor::noop();
    for _ in 0..3 {
        let portal = map("wq0.0");
        assert_eq!(enqcmd_at(portal as u64, &raw const good as u64).0, 0);
        assert_eq!(unsafe { libc::munmap(portal.cast(), 4096) }, 0);
        assert_eq!(enqcmd_at(portal as u64, &raw const good as u64), (libc::SIGSEGV, 1, portal as u64));
        // Memory in its place is memory.
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

/// All signals are blocked, by each of the functions.
fn blocked() {
    let portal = map("wq0.0");
    unsafe {
        let mut all: libc::sigset_t = zeroed();
        libc::sigfillset(&mut all);
        assert_eq!(libc::sigprocmask(libc::SIG_SETMASK, &all, null_mut()), 0);
        copies(portal, 100, 1);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &all, null_mut()), 0);
        instructions::tpause(SleepState::Light, 0);
    }
    copies(portal, 100, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| copies(map("wq0.0"), 100, 3));
    });
    // Still blocked: it would end the program.
    unsafe { libc::raise(libc::SIGTERM) };
}

/// All file descriptors are closed, and their numbers used for other files.
fn closed() {
    let portal = map("wq0.0");
    copies(portal, 100, 1);
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    let _files: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/zero").unwrap()).collect();
    (0..50).for_each(|round| copies(portal, 5000, round));
}

/// One process in many things at once: what the library remembers of one does not harm the next.
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

/// What a trace should tell: a batch of two, a member with a flag that it must not have, and a no-op by the other way.
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

/// The first thread ends before another one, and with that the process.
fn leaves() {
    let portals = [map("wq0.0") as usize, map("wq1.0") as usize];
    // A thread that fails would only end, and the process as if all were well.
    std::panic::set_hook(Box::new(|what| {
        eprintln!("{what}");
        std::process::abort();
    }));
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        portals.iter().for_each(|portal| copies(*portal as *mut u8, 100, 1));
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Becomes another program with work in flight, which would keep that one waiting for ever.
fn execs() {
    let (source, record) = (vec![1u8; 1 << 20], CompletionRecord::new());
    let mut target = vec![0u8; 1 << 20];
    let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), 1 << 20).with_completion(&record);
    let portal = map("wq0.0");
    while enqcmd(portal, &copy) {}
    let this = std::env::current_exe().unwrap();
    panic!("{}", std::process::Command::new(this).arg("after-exec").exec());
}

fn after_exec() {
    copies(map("wq0.0"), 5000, 1);
}

/// A portal that is moved is one at its new place.
fn moved() {
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

/// Handlers that are set by system calls, before a queue is mapped.
fn past_the_hooks() {
    #[repr(C)]
    struct KernelAction {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    set(libc::SIGILL, note as *const () as usize, libc::SA_SIGINFO);
    // As libc has set it up, with its restorer, for a signal that is nobody's.
    set(libc::SIGUSR1, note as *const () as usize, libc::SA_SIGINFO);
    let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let null = std::ptr::null::<KernelAction>();
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR1, null, &mut action, 8), 0);
        assert_eq!(action.handler, note as *const () as usize);
        assert_eq!(libc::syscall(libc::SYS_rt_sigaction, libc::SIGILL, &action, null, 8), 0);
    }
    copies(map("wq0.0"), 100, 1);
    assert_eq!(noted().0, 0);
    SKIP.store(2, Ordering::Relaxed);
    unsafe { asm!("ud2") };
    assert_eq!(noted().0, libc::SIGILL);
}

/// A handler that submits while a function waits with all signals blocked but one.
fn suspended() {
    extern "C" fn handler(signal: i32) {
        // A site of its own, so that it traps.
        unsafe { instructions::tpause(SleepState::Light, 0) };
        copies(PORTAL.load(Ordering::Relaxed) as *mut u8, 200, 5);
        SIGNALS.store(signal, Ordering::Relaxed);
    }
    PORTAL.store(map("wq0.0") as u64, Ordering::Relaxed);
    unsafe { libc::signal(libc::SIGUSR1, handler as *const () as usize) };
    unsafe {
        let (mut one, mut but_one): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
        libc::sigaddset(&mut one, libc::SIGUSR1);
        libc::sigfillset(&mut but_one);
        libc::sigdelset(&mut but_one, libc::SIGUSR1);
        libc::sigprocmask(libc::SIG_BLOCK, &one, null_mut());
        let waits: [fn(*const libc::sigset_t) -> i32; 4] = [
            |set| libc::sigsuspend(set),
            |set| libc::ppoll(null_mut(), 0, null_mut(), set),
            |set| libc::pselect(0, null_mut(), null_mut(), null_mut(), null_mut(), set),
            |set| libc::epoll_pwait(libc::epoll_create1(0), [zeroed()].as_mut_ptr(), 1, -1, set),
        ];
        for wait in waits {
            libc::raise(libc::SIGUSR1);
            assert_eq!((wait(&but_one), noted().0), (-1, libc::SIGUSR1));
        }
    }
}

/// Says whether the code of a call site is what the compiler made of it.
fn code() {
    let function = enqcmd as *const u8;
    let byte = |at: usize| unsafe { function.add(at).read_volatile() };
    let is_enqcmd = |at: &usize| [0, 1, 2, 3].map(|next| byte(at + next)) == [0xf2, 0x0f, 0x38, 0xf8];
    let site = (0..200).find(is_enqcmd).expect("the function has the instruction");
    let portal = map("wq0.0");
    (0..3).for_each(|round| copies(portal, 100, round));
    println!("{}", if byte(site) == 0xf2 { "as it was" } else { "patched" });
}

/// Of a signal that somebody sends. (The handler that Rust's runtime installs would wait for the fault to come again.)
fn dies_of_kill() {
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    unsafe { libc::raise(libc::SIGSEGV) };
}

/// A fault at a site that is patched by then, and without a handler.
fn dies_of_portal() {
    let portal = map("wq0.0");
    (0..3).for_each(|_| copies(portal, 100, 1));
    enqcmd(portal.wrapping_add(1), &Descriptor::noop());
}

fn ignores() {
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_IGN) };
    unsafe { libc::raise(libc::SIGSEGV) };
    copies(map("wq0.0"), 100, 1);
    // A fault cannot be ignored.
    unsafe { asm!("mov byte ptr [0], 1") };
}
