//! sigprocmask and pthread_sigmask: our signals are never blocked, or the kernel would end the program at the first trap.

use std::mem::transmute;
use std::ptr;

use libc::{c_int, sigset_t};

use super::next::Next;
use super::sigaction::unblock;
use crate::process;

type Sigmask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

static SIGPROCMASK: Next = Next::new(c"sigprocmask");
static PTHREAD_SIGMASK: Next = Next::new(c"pthread_sigmask");

/// # Safety
/// As sigprocmask(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: passed on.
    unsafe { set(&SIGPROCMASK, how, new, old) }
}

/// # Safety
/// As pthread_sigmask(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: passed on.
    unsafe { set(&PTHREAD_SIGMASK, how, new, old) }
}

/// # Safety
/// As sigprocmask(2).
unsafe fn set(next: &Next, how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: null, or a set of the caller's.
    let mut wanted = unsafe { new.as_ref() }.copied();
    if how != libc::SIG_UNBLOCK
        && process::is_active()
        && let Some(set) = &mut wanted
    {
        unblock(set);
    }
    let new = wanted.as_ref().map_or(ptr::null(), ptr::from_ref);
    match next.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Sigmask>(next)(how, new, old) },
        // libc always has it.
        None => libc::EINVAL,
    }
}
