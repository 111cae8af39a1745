//! CPU affinity of threads: the CPUs that the scheduler may run them on.
//!
//! ```
//! use memferry_dsa::internals::affinity;
//!
//! let all = affinity::allowed()?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| affinity::confine(&all[..1]).expect("this process may use the CPU"));
//! });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Source: sched_getaffinity(2), pthread_setaffinity_np(3).

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// The CPUs that the calling thread may run on.
///
/// # Errors
/// Those of `sched_getaffinity`.
pub fn allowed() -> io::Result<Vec<u32>> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size is that of the set, and 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the CPU's number is below CPU_SETSIZE.
    let is_in = |cpu: &u32| unsafe { libc::CPU_ISSET(*cpu as usize, &set) };
    Ok((0..libc::CPU_SETSIZE as u32).filter(is_in).collect())
}

/// Confines the calling thread to `cpus`.
///
/// # Errors
/// Those of `pthread_setaffinity_np`: `EINVAL` if the process may use none of the CPUs.
pub fn confine(cpus: &[u32]) -> io::Result<()> {
    // SAFETY: the calling thread has not ended.
    unsafe { confine_pthread(libc::pthread_self(), cpus) }
}

/// Confines another thread to `cpus`.
///
/// # Errors
/// As [`confine`].
pub fn confine_thread<T>(thread: &JoinHandle<T>, cpus: &[u32]) -> io::Result<()> {
    // SAFETY: the handle has not been joined.
    unsafe { confine_pthread(thread.as_pthread_t(), cpus) }
}

/// # Safety
/// The thread has not been joined or detached.
unsafe fn confine_pthread(thread: libc::pthread_t, cpus: &[u32]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as u32) {
        // SAFETY: the CPU's number is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // SAFETY: the size is that of the set; the caller guarantees the thread.
    match unsafe { libc::pthread_setaffinity_np(thread, size_of_val(&set), &set) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn threads_are_confined() {
        let first = allowed().unwrap()[0];
        let own = thread::spawn(move || confine(&[first, u32::MAX]).and_then(|()| allowed()));
        assert_eq!(own.join().unwrap().unwrap(), [first]);

        let (go, gate) = channel::<()>();
        let other = thread::spawn(move || gate.recv().map(|()| allowed().unwrap()));
        confine_thread(&other, &[first]).unwrap();
        go.send(()).unwrap();
        assert_eq!(other.join().unwrap().unwrap(), [first]);
    }

    #[test]
    fn an_empty_set_is_an_error() {
        for cpus in [&[][..], &[u32::MAX]] {
            assert_eq!(confine(cpus).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }
}
