//! System calls that the standard library lacks, each with its answer as an [`io::Result`].
//!
//! Source: the manual pages of section 2.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::time::Duration;

/// A process that was started and not waited for yet.
pub(crate) type Pid = libc::pid_t;

fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Which side of a fork this is.
pub(crate) enum Forked {
    Parent(Pid),
    Child,
}

/// Splits the process in two.
///
/// The process must have no other thread: the child would have their locks and not them.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: no pointers are involved. Without other threads, which is checked by the caller, no lock is held in the
    // child by a thread that it does not have.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Leaves the process at once: no destructors, no handlers, nothing flushed twice after a fork.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Moves this thread into new namespaces.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: it takes a number.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Mounts `source` on `target`.
pub(crate) fn mount(
    source: &Path,
    target: &Path,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> io::Result<()> {
    let (source, target) = (c_string(source)?, c_string(target)?);
    let (kind, options) = (CString::new(kind)?, CString::new(options)?);
    // SAFETY: all are strings that end in zero and live until the call returns.
    let answer = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    };
    check(answer).map(drop)
}

/// Makes what is mounted there unreachable by this path; it goes when nobody uses it.
pub(crate) fn unmount_lazily(target: &Path) -> io::Result<()> {
    let target = c_string(target)?;
    // SAFETY: a string that ends in zero and lives until the call returns.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

/// The effective user and group.
pub(crate) fn identity() -> (u32, u32) {
    // SAFETY: they take nothing and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// The real user, as `/proc` tells it of other processes.
pub(crate) fn real_user() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::getuid() }
}

/// Makes this process the one that children of dead descendants come to.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: the option takes a number; the unused arguments are zero.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// What the program gets between fork and exec: death with this thread, the caller's process group, and the signals
/// that were blocked before.
pub(crate) fn hand_over(command: &mut Command, group: Pid, mask: Signals) {
    let prepare = move || {
        // SAFETY: all are system calls that may be made between fork and exec, on numbers and a set of our own.
        unsafe {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
            // Fails if the group is gone, and then the program keeps this one.
            libc::setpgid(0, group);
            libc::sigprocmask(libc::SIG_SETMASK, &mask.0, ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock, as is required after a fork.
    unsafe { command.pre_exec(prepare) };
}

/// Lets the kernel alone decide whether the program can be run. `execvp(3)`, which the standard library calls, takes what
/// the kernel does not know for a script of the shell. The program's environment is the command's, its name is `name`.
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
        // SAFETY: a string and two lists as execve(2) wants them, which live as long as the closure.
        unsafe { libc::execve(path.as_ptr(), arguments.list(), environment.list()) };
        Err(io::Error::last_os_error())
    };
    // SAFETY: as above: all memory is there before the fork.
    unsafe { command.pre_exec(execute) };
    Ok(())
}

/// Strings, and the list of pointers to them that C wants, with a null at its end.
struct Strings {
    pointers: Vec<*const libc::c_char>,
    _strings: Vec<CString>, // what the pointers point to, on the heap
}

// SAFETY: the pointers are to strings that this owns and nobody changes.
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

/// The process group of a process; 0 is this one.
pub(crate) fn process_group(pid: Pid) -> io::Result<Pid> {
    // SAFETY: it takes a number.
    check(unsafe { libc::getpgid(pid) })
}

/// Moves this process to a group; 0 is one of its own.
pub(crate) fn join_group(group: Pid) -> io::Result<()> {
    // SAFETY: it takes numbers.
    check(unsafe { libc::setpgid(0, group) }).map(drop)
}

/// Gives this thread a name, by which `ps` and `pkill` know the process if it is its first.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the option takes a string that ends in zero. It cannot fail.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Lets this process have as many file descriptors as it may. Where that fails, it has as many as before.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is written, and then read.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Whether a thread is one of this process.
pub(crate) fn is_own(thread: u32) -> bool {
    fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(false)
}

/// Whether two threads have the same memory; false also if that cannot be told.
///
/// Source: kcmp(2); `KCMP_VM` in Linux' `include/uapi/linux/kcmp.h`.
pub(crate) fn share_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: it takes numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

/// Sends a signal.
pub(crate) fn kill(pid: Pid, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: it takes numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// A child that ended.
pub(crate) struct Reaped {
    pub(crate) pid: Pid,
    /// What `wait` says of it.
    pub(crate) status: i32,
}

/// Takes a child that has ended, without waiting; none if none has.
///
/// # Errors
/// `ECHILD`: there are no children.
pub(crate) fn reap() -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: the pointer is to a number that is written.
    let pid = check(unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) })?;
    Ok((pid > 0).then_some(Reaped { pid, status }))
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// All but `missing`.
    pub(crate) fn all_but(missing: &[libc::c_int]) -> Signals {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises the set; `sigdelset` takes an initialised one. They fail only for numbers
        // that are no signals, and then do nothing.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for signal in missing {
                libc::sigdelset(set.as_mut_ptr(), *signal);
            }
            Signals(set.assume_init())
        }
    }

    /// Blocks these signals and no others; returns those that were blocked before.
    pub(crate) fn block(&self) -> io::Result<Signals> {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both point to sets, of which the second is written.
        let answer = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, before.as_mut_ptr()) };
        match answer {
            // SAFETY: written by the call, which succeeded.
            0 => Ok(Signals(unsafe { before.assume_init() })),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// Waits for one of these signals, which must be blocked; none if the time is over.
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<Option<Signal>> {
        let time = libc::timespec {
            tv_sec: at_most.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(at_most.subsec_nanos() as i32),
        };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set and the time are read, the information is written.
        let answer = unsafe { libc::sigtimedwait(&self.0, info.as_mut_ptr(), &time) };
        match check(answer) {
            // SAFETY: zeroed before, and written by the call.
            Ok(number) => Ok(Some(Signal { number, code: unsafe { info.assume_init() }.si_code })),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// A descriptor that is readable when one of these signals, which must be blocked, is pending.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is read; -1 asks for a new descriptor.
        let fd = check(unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
        // SAFETY: it was made just now, for nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A signal that arrived.
pub(crate) struct Signal {
    pub(crate) number: libc::c_int,
    code: libc::c_int,
}

impl Signal {
    /// Whether a process sent it, rather than the kernel: the terminal's go to the whole group.
    pub(crate) fn is_from_process(&self) -> bool {
        self.code <= 0
    }
}

/// Takes the signals that a descriptor has, by number; those that a process sent, and SIGCHLD.
pub(crate) fn take_signals(descriptor: &OwnedFd) -> io::Result<Vec<i32>> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut taken = Vec::new();
    let mut bytes = [0; SIZE];
    loop {
        // SAFETY: the buffer has the size that is said, and is bytes.
        let answer = unsafe { libc::read(descriptor.as_raw_fd(), bytes.as_mut_ptr().cast(), SIZE) };
        match usize::try_from(answer) {
            Ok(SIZE) => {}
            Ok(_) => return Ok(taken),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
        }
        // SAFETY: the kernel wrote one such structure, which is plain numbers.
        let info = unsafe { ptr::read_unaligned(bytes.as_ptr().cast::<libc::signalfd_siginfo>()) };
        let number = info.ssi_signo as i32;
        if number == libc::SIGCHLD || info.ssi_code <= 0 {
            taken.push(number);
        }
    }
}

/// Waits until one of two descriptors can be read or is closed at its other end; none if the time is over.
pub(crate) fn wait_readable(descriptors: [RawFd; 2], at_most: Duration) -> io::Result<[bool; 2]> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let milliseconds = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the array has the two elements that are said.
    let answer = unsafe { libc::poll(polled.as_mut_ptr(), 2, milliseconds) };
    match check(answer) {
        Ok(_) => Ok(polled.map(|polled| polled.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; 2]),
        Err(error) => Err(error),
    }
}

/// Ends this process by a signal, as if it had been its own.
pub(crate) fn die_by(signal: libc::c_int) -> ! {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is read; the rest are numbers. The default action is set and the signal let through, so that it
    // ends the process; if it does not, as for those that are ignored by default, the exit does.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_core); // the program's own is the one to look at
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::kill(libc::getpid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
        libc::_exit(128 + signal)
    }
}
