//! The set-up, when the library is loaded: before the program's own code, and after that of the libraries that it needs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::counts::COUNTS;
use crate::settings::{Policy, Settings, Summary};
use crate::{hooks, policy, report, sys};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;
#[cfg(test)]
const _: extern "C" fn() = construct;

/// The file that was standard error when the library was loaded.
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// A copy of its descriptor for the summary, because many programs close standard error before they exit; -1: none.
static COPY: AtomicI32 = AtomicI32::new(-1);
/// The copy is out of the way of programs that count descriptors.
const COPY_MIN: i32 = 900;

extern "C" fn construct() {
    // SAFETY: errno is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    // No panic may reach the dynamic linker. A library that is not set up places nothing.
    let _ = catch_unwind(AssertUnwindSafe(prepare));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn prepare() {
    hooks::prepare();
    if let Some((file_system, number)) = identity(libc::STDERR_FILENO) {
        STDERR[0].store(file_system, Ordering::Relaxed);
        STDERR[1].store(number, Ordering::Relaxed);
    }
    // SAFETY: it takes a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program with more rights than its user takes no settings from its user.
        return;
    }
    let settings = match Settings::from_environment() {
        Ok(Some(settings)) => settings,
        Ok(None) => return,
        Err(problem) => return warn(&format!("{problem}; the memory of this program is not placed")),
    };
    let reports = match settings.summary {
        Summary::None => false,
        Summary::Stderr => settings.is_root,
        Summary::File(_) => true,
    };
    if reports && settings.summary == Summary::Stderr {
        // SAFETY: it duplicates a descriptor of this process; a failure is -1.
        let copy = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, COPY_MIN) };
        COPY.store(copy, Ordering::Relaxed);
    }
    // SAFETY: the handler stores numbers and closes a file, which is allowed in a child of fork.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    if reports {
        report::prepare();
    }
    let places =
        settings.heap != Policy::Leave || settings.anonymous != Policy::Leave || !settings.files.is_empty();
    if places || reports {
        policy::publish(settings);
    }
}

/// In a child of fork: the counters begin anew, and a daemon does not keep the pipe of its caller open.
extern "C" fn forked() {
    COUNTS.reset();
    let copy = COPY.swap(-1, Ordering::Relaxed);
    if is_stderr(copy) {
        sys::close(copy);
    }
}

fn identity(file: i32) -> Option<(u64, u64)> {
    sys::status(file).map(|status| (status.st_dev, status.st_ino))
}

/// Whether a descriptor is still the file that standard error was: the program may have closed it, and its number may be
/// that of a file of the program.
fn is_stderr(file: i32) -> bool {
    let then = (STDERR[0].load(Ordering::Relaxed), STDERR[1].load(Ordering::Relaxed));
    file >= 0 && identity(file) == Some(then)
}

/// Writes a line to standard error, or to its copy if the program has closed it.
pub(crate) fn warn(message: &str) {
    let files = [libc::STDERR_FILENO, COPY.load(Ordering::Relaxed)];
    if let Some(file) = files.into_iter().find(|file| is_stderr(*file)) {
        sys::write(file, format!("memferry place: {message}\n").as_bytes());
    }
}
