//! System calls that neither the standard library nor nix has as needed here, with results as [`io::Result`].
//!
//! Source: the manual pages of section 2.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::ForkResult;

/// The number of a process.
pub(crate) type Pid = libc::pid_t;

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Forks the process.
///
/// The process must have no other thread: the child would have the locks of those threads, but not the threads.
pub(crate) fn fork() -> nix::Result<ForkResult> {
    // SAFETY: the caller has checked that there are no other threads, so no lock in the child is held by a thread that
    // it does not have.
    unsafe { nix::unistd::fork() }
}

/// Exits without destructors and handlers, so that a forked process flushes no buffer a second time.
pub(crate) fn exit_immediately(code: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Sets what the program gets between fork and exec: SIGKILL at the death of this thread, the caller's process group,
/// and the caller's signal mask.
pub(crate) fn prepare_exec(command: &mut Command, group: Pid, mask: SigSet) {
    let prepare = move || {
        // SAFETY: these are system calls that are allowed between fork and exec, on numbers and a set that the closure
        // owns.
        unsafe {
            Errno::result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
            // If the group is gone, this fails, and the program keeps the group of the supervisor.
            libc::setpgid(0, group);
            libc::sigprocmask(libc::SIG_SETMASK, mask.as_ref(), ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock, as required after a fork.
    unsafe { command.pre_exec(prepare) };
}

/// Executes the program by execve(2). The standard library calls `execvp(3)`, which runs a file that the kernel refuses
/// as a shell script. The program gets the environment of the command, and `name` as its first argument.
pub(crate) fn run_without_shell(command: &mut Command, name: &OsStr) -> io::Result<()> {
    let path = c_string(Path::new(command.get_program()))?;
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => _ = environment.insert(key.to_owned(), value.to_owned()),
            None => _ = environment.remove(key),
        }
    }
    let assignment = |(mut text, value): (OsString, OsString)| {
        text.push("=");
        text.push(value);
        text
    };
    let environment = Strings::new(environment.into_iter().map(assignment))?;
    let arguments = std::iter::once(name).chain(command.get_args()).map(OsStr::to_owned);
    let arguments = Strings::new(arguments)?;
    let execute = move || {
        // SAFETY: a string and two lists in the format of execve(2), which live as long as the closure.
        unsafe { libc::execve(path.as_ptr(), arguments.list(), environment.list()) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: the closure takes no lock, and all its memory is allocated before the fork.
    unsafe { command.pre_exec(execute) };
    Ok(())
}

/// Strings, and the C list of pointers to them, with a null at its end.
struct Strings {
    pointers: Vec<*const libc::c_char>,
    _strings: Vec<CString>, // the targets of the pointers, on the heap
}

// SAFETY: the pointers are to strings that this value owns and never changes.
unsafe impl Send for Strings {}
// SAFETY: as above.
unsafe impl Sync for Strings {}

impl Strings {
    fn new(strings: impl Iterator<Item = OsString>) -> io::Result<Strings> {
        let strings = strings.map(|string| c_string(Path::new(&string))).collect::<io::Result<Vec<_>>>()?;
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        Ok(Strings { pointers, _strings: strings })
    }

    fn list(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

/// Raises the soft limit of file descriptors to the hard limit. On an error it stays as it is.
pub(crate) fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Whether a thread belongs to this process.
pub(crate) fn is_own(thread: u32) -> bool {
    fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(false)
}

/// Whether two threads have the same address space. Also false if the kernel does not tell.
///
/// Source: kcmp(2); `KCMP_VM` in Linux' `include/uapi/linux/kcmp.h`.
pub(crate) fn share_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: it takes numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// Sends a signal. Unlike nix, it also sends real-time signals, as do the other functions for signals here.
pub(crate) fn kill(pid: Pid, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: it takes numbers.
    Ok(Errno::result(unsafe { libc::kill(pid, signal) }).map(drop)?)
}

/// A child that has exited.
pub(crate) struct Reaped {
    pub(crate) pid: Pid,
    /// The wait status.
    pub(crate) status: i32,
}

/// Reaps a child that has exited, without waiting; `None` if there is none.
///
/// # Errors
/// `ECHILD`: there are no children.
pub(crate) fn reap() -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: it writes the number.
    let pid = Errno::result(unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) })?;
    Ok((pid > 0).then_some(Reaped { pid, status }))
}

/// All signals except `missing`.
pub(crate) fn all_signals_but(missing: &[nix::sys::signal::Signal]) -> SigSet {
    let mut set = SigSet::all();
    missing.iter().for_each(|signal| set.remove(*signal));
    set
}

/// Blocks these signals and no others; returns the mask before.
pub(crate) fn block(signals: &SigSet) -> nix::Result<SigSet> {
    signals.thread_swap_mask(SigmaskHow::SIG_SETMASK)
}

/// Waits for one of these signals, which must be blocked; `None` after the time.
pub(crate) fn wait_for_signal(signals: &SigSet, at_most: Duration) -> io::Result<Option<Signal>> {
    let time = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(at_most.subsec_nanos() as i32),
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the set and the time are read, the information is written.
    let answer = unsafe { libc::sigtimedwait(signals.as_ref(), info.as_mut_ptr(), &time) };
    match Errno::result(answer) {
        // SAFETY: zeroed before, and written by the call.
        Ok(number) => Ok(Some(Signal { number, code: unsafe { info.assume_init() }.si_code })),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns a descriptor that is readable while one of these signals is pending. They must be blocked.
pub(crate) fn signal_descriptor(signals: &SigSet) -> nix::Result<SignalFd> {
    SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// A signal that arrived.
pub(crate) struct Signal {
    pub(crate) number: libc::c_int,
    code: libc::c_int,
}

impl Signal {
    /// Whether a process sent it, and not the kernel. Signals of the terminal reach the whole group anyway.
    pub(crate) fn is_from_process(&self) -> bool {
        self.code <= 0
    }
}

/// Takes the pending signals of a descriptor. Returns the numbers of those that a process sent, and SIGCHLD.
pub(crate) fn take_signals(descriptor: &SignalFd) -> nix::Result<Vec<i32>> {
    let mut taken = Vec::new();
    loop {
        match descriptor.read_signal() {
            Ok(Some(info)) => {
                let number = info.ssi_signo as i32;
                if number == libc::SIGCHLD || info.ssi_code <= 0 {
                    taken.push(number);
                }
            }
            Ok(None) => return Ok(taken),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until one of two descriptors is readable or its other end is closed; both false after the time.
pub(crate) fn wait_readable(descriptors: [BorrowedFd<'_>; 2], at_most: Duration) -> nix::Result<[bool; 2]> {
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN));
    match poll(&mut polled, PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX)) {
        Ok(_) => Ok(polled.map(|polled| polled.any().unwrap_or(true))),
        Err(Errno::EINTR) => Ok([false; 2]),
        Err(error) => Err(error),
    }
}

/// Kills this process by a signal, so that its parent sees the same status.
pub(crate) fn exit_by_signal(signal: libc::c_int) -> ! {
    // The core dump of the program itself is the useful one.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: the set is valid; the rest are numbers. With the default action and unblocked, the signal
    // ends the process. If the default is to ignore it, `_exit` ends the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::kill(libc::getpid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
        libc::_exit(128 + signal)
    }
}
