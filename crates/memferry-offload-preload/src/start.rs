//! The set-up, when the library is loaded: before the program's own code, and after that of the libraries that it needs.
//!
//! ```text
//! find libc's functions     dlsym(3), which may allocate and call memcpy: the fallback executes it
//! read the settings
//! find and open the queues  reads sysfs
//! set LIMIT                 from here on calls reach libc's functions, and large ones `large`
//! ```
//!
//! Calls before the set-up, and calls of other libraries' constructors, take the fallback.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use memferry_dsa::internals::{fork, panics};

use crate::counts::COUNTED_BYTES_MIN;
use crate::settings::{ROOT, Settings, Summary};
use crate::{entry, large, queues, report, sys};

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
/// Descriptors of this library are out of the way of programs that count them.
pub(crate) const DESCRIPTOR_MIN: i32 = 900;

/// The functions behind this library, and the places of their addresses.
///
/// memcpy is libc's memmove: the exported name has no version, so it is also the memcpy of programs that were linked before
/// glibc 2.14 (`memcpy@GLIBC_2.2.5`), which allowed overlaps.
static FUNCTIONS: [(&CStr, &AtomicUsize); 6] = [
    (c"memmove", &entry::MEMMOVE),
    (c"memset", &entry::MEMSET),
    (c"memcmp", &entry::MEMCMP),
    (c"memmove", &entry::MEMCPY),
    (c"mempcpy", &entry::MEMPCPY),
    (c"bcmp", &entry::BCMP),
];

extern "C" fn construct() {
    // SAFETY: errno is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    if panics::contain(prepare) != Some(true) {
        // Libc's functions alone.
        set_limit(usize::MAX);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns whether calls are to be counted or shared.
fn prepare() -> bool {
    if !find_functions() {
        return false;
    }
    // The rest of the set-up calls these functions, too.
    set_limit(usize::MAX);
    if let Some((file_system, number)) = sys::identity(libc::STDERR_FILENO) {
        STDERR[0].store(file_system, Ordering::Relaxed);
        STDERR[1].store(number, Ordering::Relaxed);
    }
    // SAFETY: it takes a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program with more rights than its user takes no settings from its user.
        return false;
    }
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        Err(problem) => {
            warn(&format!("{problem}; this program runs without devices"));
            return false;
        }
    };
    if settings.is_off {
        return false;
    }
    if fork::watch().is_err() {
        warn("this kernel does not report forks; this program runs without devices");
        return false;
    }
    settings.publish();
    large::COUNTED.store(fork::generation(), Ordering::Relaxed);
    let found = queues::discover();
    let is_noted = settings.is_noted || found.is_err();
    if let Err(why) = &found
        && settings.is_root
        && !settings.is_noted
    {
        warn(&format!("no device can be used, so the CPU makes all copies: {why}"));
    }
    if settings.is_root {
        mark_root(is_noted);
    }
    let counts = match (&settings.summary, settings.is_root) {
        (Summary::None, _) | (Summary::Stderr, false) => false,
        (Summary::Stderr, true) | (Summary::File(_), _) => true,
    };
    if counts && settings.summary == Summary::Stderr {
        copy_stderr();
    }
    if counts {
        report::prepare(settings.summary.clone());
    }
    if found.is_err() && !counts {
        return false;
    }
    set_limit(settings.threshold.map_or(COUNTED_BYTES_MIN, |threshold| threshold.min(COUNTED_BYTES_MIN)));
    true
}

/// Finds the functions behind this library.
fn find_functions() -> bool {
    let next = |name: &CStr| {
        // SAFETY: the name ends with a zero. The library that calls it is not unloaded.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.addr()
    };
    let found = FUNCTIONS.map(|(name, _)| next(name));
    if found.contains(&0) {
        return false;
    }
    entry::CHK_FAIL.store(next(c"__chk_fail"), Ordering::Relaxed);
    // Relaxed: other threads see an address or 0, and 0 is the fallback.
    FUNCTIONS.iter().zip(found).for_each(|((_, place), address)| place.store(address, Ordering::Relaxed));
    true
}

/// Without libc's functions the limit stays 0: a call below it would jump to address 0, and one above takes the fallback.
fn set_limit(bytes: usize) {
    if FUNCTIONS.iter().any(|(_, place)| place.load(Ordering::Relaxed) == 0) {
        return;
    }
    // ORDERING: Release; the code that reads it is x86-64 assembler, whose loads are in order.
    entry::LIMIT.store(bytes, Ordering::Release);
}

/// Tells the programs that this process starts that they are not the first one.
fn mark_root(is_noted: bool) {
    let value = format!("{}{}", sys::process(), if is_noted { " noted" } else { "" });
    let (Ok(name), Ok(value)) = (CString::new(ROOT), CString::new(value)) else { return };
    // SAFETY: both end with a zero and are copied. No other thread runs before the constructors have.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

/// Copies the descriptor of standard error. Children of fork close the copy: a daemon must not keep the pipe of its
/// caller open.
fn copy_stderr() {
    // SAFETY: it duplicates a descriptor of this process; a failure is -1.
    let copy = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) };
    COPY.store(copy, Ordering::Relaxed);
    // SAFETY: the handler makes system calls only, which is allowed in a child of fork.
    if unsafe { libc::pthread_atfork(None, None, Some(close_copy)) } != 0 {
        close_copy();
    }
}

extern "C" fn close_copy() {
    let copy = COPY.swap(-1, Ordering::Relaxed);
    if is_stderr(copy) {
        sys::close(copy);
    }
}

/// Whether a descriptor is still the file that standard error was: the program may have closed it, and its number may be
/// that of a file of the program.
fn is_stderr(file: i32) -> bool {
    let then = (STDERR[0].load(Ordering::Relaxed), STDERR[1].load(Ordering::Relaxed));
    file >= 0 && sys::identity(file) == Some(then)
}

/// Writes a line to standard error. It allocates.
pub(crate) fn warn(message: &str) {
    write_stderr(format!("memferry offload: {message}\n").as_bytes());
}

/// Writes to standard error, or to its copy if the program has closed it.
pub(crate) fn write_stderr(text: &[u8]) {
    let files = [libc::STDERR_FILENO, COPY.load(Ordering::Relaxed)];
    if let Some(file) = files.into_iter().find(|file| is_stderr(*file)) {
        sys::write(file, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a test the functions are not looked up.
    #[test]
    fn without_functions_every_call_takes_the_fallback() {
        set_limit(usize::MAX);
        assert_eq!(entry::LIMIT.load(Ordering::Relaxed), 0);
    }
}
