//! Real forks, in this program run again without libtest's threads.

use std::fs::File;
use std::io;
use std::process::Command;
use std::ptr::NonNull;

use memferry_dsa::internals::portal::{Linux, Platform};

/// Forks; the child runs `child` and exits with 0 if it returned. The parent waits for it, with an alarm for a child
/// that hangs.
pub(crate) fn in_child(child: impl FnOnce()) {
    // SAFETY: the threads of this process do not exist in the child, and may have been inside functions that it calls:
    // glibc's allocator supports that, and so does the library under test.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", io::Error::last_os_error()),
        0 => {
            // SAFETY: the default action ends the child.
            unsafe { libc::alarm(60) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(if result.is_ok() { 0 } else { 99 }) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the child is this process' own.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            let is_well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            assert!(is_well, "the child ended with {status:#x}");
        }
    }
}

/// Maps a page that children do not inherit, as the driver maps a portal.
pub(crate) fn map_without_children(file: &File) -> io::Result<NonNull<u8>> {
    let page = Linux.map(file)?;
    // SAFETY: the page was just mapped.
    match unsafe { libc::madvise(page.as_ptr().cast(), 4096, libc::MADV_DONTFORK) } {
        0 => Ok(page),
        _ => Err(io::Error::last_os_error()),
    }
}

const CHILD: &str = "MEMFERRY_TEST_FORK";

/// Runs a test case in a process without libtest's threads: with one test thread, libtest runs the test on the main thread.
pub(crate) fn alone(test: &str, case: fn()) {
    if std::env::var_os(CHILD).is_some() {
        return case();
    }
    let output = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("this program can be run again");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}\n{errors}", output.status);
}
