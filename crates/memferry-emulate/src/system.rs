//! System calls that the standard library lacks, with results as [`io::Result`].
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

/// The number of a process.
pub(crate) type Pid = libc::pid_t;

fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The side of a fork.
pub(crate) enum Forked {
    Parent(Pid),
    Child,
}

/// Forks the process.
///
/// The process must have no other thread: the child would have the locks of those threads, but not the threads.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: no pointers are involved. The caller has checked that there are no other threads, so no lock in the child
    // is held by a thread that it does not have.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Exits without destructors and handlers, so that a forked process flushes no buffer a second time.
pub(crate) fn exit_immediately(code: i32) -> ! {
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

/// Detaches a mount from its path. The kernel unmounts it after its last use.
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

/// The real user, which is the one that `/proc` shows of other processes.
pub(crate) fn real_user() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::getuid() }
}

/// Makes this process adopt the children of descendants that exit.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: the option takes a number; the unused arguments are zero.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Sets what the program gets between fork and exec: SIGKILL at the death of this thread, the caller's process group,
/// and the caller's signal mask.
pub(crate) fn prepare_exec(command: &mut Command, group: Pid, mask: Signals) {
    let prepare = move || {
        // SAFETY: these are system calls that are allowed between fork and exec, on numbers and a set that the closure
        // owns.
        unsafe {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
            // If the group is gone, this fails, and the program keeps the group of the supervisor.
            libc::setpgid(0, group);
            libc::sigprocmask(libc::SIG_SETMASK, &mask.0, ptr::null_mut());
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

/// Returns the process group of a process; 0 stands for this process.
pub(crate) fn process_group(pid: Pid) -> io::Result<Pid> {
    // SAFETY: it takes a number.
    check(unsafe { libc::getpgid(pid) })
}

/// Moves this process to a group; 0 stands for a new group of its own.
pub(crate) fn join_group(group: Pid) -> io::Result<()> {
    // SAFETY: it takes numbers.
    check(unsafe { libc::setpgid(0, group) }).map(drop)
}

/// Names this thread. The name of the first thread is the one that `ps` and `pkill` use for the process.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the option takes a string that ends in zero. It cannot fail.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Raises the soft limit of file descriptors to the hard limit. On an error it stays as it is.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls write and read the limit.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
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

/// Sends a signal.
pub(crate) fn kill(pid: Pid, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: it takes numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
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
    let pid = check(unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) })?;
    Ok((pid > 0).then_some(Reaped { pid, status }))
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// All signals except `missing`.
    pub(crate) fn all_but(missing: &[libc::c_int]) -> Signals {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises the set; `sigdelset` takes an initialised one. It fails only for numbers
        // that are not signals, and then does nothing.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for signal in missing {
                libc::sigdelset(set.as_mut_ptr(), *signal);
            }
            Signals(set.assume_init())
        }
    }

    /// Blocks these signals and no others; returns the mask before.
    pub(crate) fn block(&self) -> io::Result<Signals> {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both point to sets; the call writes the second.
        let answer = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, before.as_mut_ptr()) };
        match answer {
            // SAFETY: written by the call, which succeeded.
            0 => Ok(Signals(unsafe { before.assume_init() })),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// Waits for one of these signals, which must be blocked; `None` after the time.
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

    /// Returns a descriptor that is readable while one of these signals is pending. They must be blocked.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is read; -1 asks for a new descriptor.
        let fd = check(unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
        // SAFETY: it is new, and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
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
pub(crate) fn take_signals(descriptor: &OwnedFd) -> io::Result<Vec<i32>> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut taken = Vec::new();
    let mut bytes = [0; SIZE];
    loop {
        // SAFETY: the buffer has `SIZE` bytes.
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

/// Waits until one of two descriptors is readable or its other end is closed; both false after the time.
pub(crate) fn wait_readable(descriptors: [RawFd; 2], at_most: Duration) -> io::Result<[bool; 2]> {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let milliseconds = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the array has two elements.
    let answer = unsafe { libc::poll(polled.as_mut_ptr(), 2, milliseconds) };
    match check(answer) {
        Ok(_) => Ok(polled.map(|polled| polled.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; 2]),
        Err(error) => Err(error),
    }
}

/// Kills this process by a signal, so that its parent sees the same status.
pub(crate) fn exit_by_signal(signal: libc::c_int) -> ! {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit and the set are valid; the rest are numbers. With the default action and unblocked, the signal
    // ends the process. If the default is to ignore it, `_exit` ends the process.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_core); // the core dump of the program itself is the useful one
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::kill(libc::getpid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
        libc::_exit(128 + signal)
    }
}
