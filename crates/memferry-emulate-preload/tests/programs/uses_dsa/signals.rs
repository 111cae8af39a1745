//! The program's own signals and handlers.

use std::arch::asm;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use memferry_dsa::internals::instructions;
use memferry_dsa::{Descriptor, SleepState};

use super::{copies, enqcmd, map};

pub(super) static SIGNALS: AtomicI32 = AtomicI32::new(0);
pub(super) static CODE: AtomicI32 = AtomicI32::new(0);
pub(super) static ADDRESS: AtomicU64 = AtomicU64::new(0);
pub(super) static SKIP: AtomicU64 = AtomicU64::new(0);
pub(super) static PORTAL: AtomicU64 = AtomicU64::new(0);

/// A handler that records its arguments and skips the instruction.
pub(super) extern "C" fn note(signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SIGNALS.store(signal, Ordering::Relaxed);
    let (information, context) = unsafe { (&*information, &mut *context.cast::<libc::ucontext_t>()) };
    CODE.store(information.si_code, Ordering::Relaxed);
    ADDRESS.store(unsafe { information.si_addr() } as u64, Ordering::Relaxed);
    context.uc_mcontext.gregs[libc::REG_RIP as usize] += SKIP.load(Ordering::Relaxed) as i64;
}

pub(super) fn noted() -> (i32, i32, u64) {
    (SIGNALS.swap(0, Ordering::Relaxed), CODE.load(Ordering::Relaxed), ADDRESS.load(Ordering::Relaxed))
}

pub(super) fn set(signal: i32, handler: usize, flags: i32) -> libc::sigaction {
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (zeroed(), zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        libc::sigfillset(&mut new.sa_mask);
        assert_eq!(libc::sigaction(signal, &new, &mut old), 0);
        old
    }
}

/// A signal that the program blocks stays pending for the program: no thread of the library receives it.
pub(super) fn pending() {
    set(libc::SIGUSR1, note as *const () as usize, libc::SA_SIGINFO);
    copies(map("wq0.0"), 100, 1);
    let wait = libc::timespec { tv_sec: 20, tv_nsec: 0 };
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut());
        libc::kill(libc::getpid(), libc::SIGUSR1);
        std::thread::sleep(Duration::from_millis(50)); // time for a wrong receiver
        assert_eq!(libc::sigtimedwait(&set, null_mut(), &wait), libc::SIGUSR1);
    }
    assert_eq!(noted().0, 0, "the handler has run");
}

pub(super) fn handlers() {
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
        assert_eq!(noted().0, 0, "the program does not see signals of the library");
    }
    // By signal(2); and with SA_RESETHAND.
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

/// A handler that submits, on an alternate stack, with all signals blocked.
pub(super) fn stacks() {
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

/// Signals that are sent during a read(2) end it only if the program has a handler without SA_RESTART. Once they always did.
pub(super) fn interrupts() {
    extern "C" fn handler(_: i32) {}
    let handler = handler as *const () as usize;
    copies(map("wq0.0"), 100, 1);
    for signal in [libc::SIGTRAP, libc::SIGBUS, libc::SIGILL, libc::SIGSEGV] {
        set(signal, handler, libc::SA_RESTART);
        assert_eq!(reads_during(signal), Ok(1), "{signal}");
        unsafe { libc::signal(signal, handler) };
        assert_eq!(reads_during(signal), Ok(1), "{signal}");
        unsafe { libc::signal(signal, libc::SIG_IGN) };
        assert_eq!(reads_during(signal), Ok(1), "{signal}");
        set(signal, handler, 0);
        assert_eq!(reads_during(signal), Err(Some(libc::EINTR)), "{signal}");
    }
}

/// Reads from a pipe, to which another thread writes a byte after it has sent signals to this one.
fn reads_during(signal: i32) -> Result<isize, Option<i32>> {
    let mut ends = [0; 2];
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let reader = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(move || unsafe {
            // The first ones may come before the read.
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(2));
                libc::pthread_kill(reader, signal);
            }
            assert_eq!(libc::write(ends[1], [0u8].as_ptr().cast(), 1), 1);
        });
        let count = unsafe { libc::read(ends[0], [0u8].as_mut_ptr().cast(), 1) };
        if count < 0 { Err(std::io::Error::last_os_error().raw_os_error()) } else { Ok(count) }
    })
}

/// All signals are blocked, by each function.
pub(super) fn blocked() {
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
    // It is still blocked, or it would kill the program.
    unsafe { libc::raise(libc::SIGTERM) };
}

/// Handlers set by system calls, before a queue is mapped.
pub(super) fn past_the_hooks() {
    #[repr(C)]
    struct KernelAction {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    set(libc::SIGILL, note as *const () as usize, libc::SA_SIGINFO);
    // The action of a signal that the library does not handle, with libc's restorer.
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
pub(super) fn suspended() {
    extern "C" fn handler(signal: i32) {
        // A new site, which traps.
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

/// Dies of a sent signal. (The handler of Rust's runtime would wait for the fault to repeat.)
pub(super) fn dies_of_kill() {
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    unsafe { libc::raise(libc::SIGSEGV) };
}

/// Dies of a fault at a patched site, without a handler.
pub(super) fn dies_of_portal() {
    let portal = map("wq0.0");
    (0..3).for_each(|_| copies(portal, 100, 1));
    enqcmd(portal.wrapping_add(1), &Descriptor::noop());
}

pub(super) fn ignores() {
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_IGN) };
    unsafe { libc::raise(libc::SIGSEGV) };
    copies(map("wq0.0"), 100, 1);
    // A fault cannot be ignored.
    unsafe { asm!("mov byte ptr [0], 1") };
}
