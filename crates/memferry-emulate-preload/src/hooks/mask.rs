//! Hooks of sigprocmask and of functions that set a mask while they wait: they never block the handled signals.
//!
//! The kernel kills a program that traps while the signal of the trap is blocked.

use std::mem::transmute;
use std::ptr;

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec};

use super::next::Next;
use super::sigaction::remove_handled;
use crate::{process, sys};

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
    // SAFETY: the caller passes null or a set.
    let wanted = unsafe { without_handled(new, how != libc::SIG_UNBLOCK) };
    let new = pointer(&wanted);
    match next.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Sigmask>(next)(how, new, old) },
        None => {
            let arguments = [how as usize, new as usize, old as usize, size_of::<sys::Signals>(), 0, 0];
            // SAFETY: passed on. Both functions return 0 on success.
            unsafe { sys::call(libc::SYS_rt_sigprocmask, arguments) as c_int }
        }
    }
}

/// Returns the set of the caller, if there is one, without the handled signals.
///
/// # Safety
/// `set` is null or points to a set.
unsafe fn without_handled(set: *const sigset_t, is_to_block: bool) -> Option<sigset_t> {
    // SAFETY: by the contract of this function.
    let mut set = unsafe { set.as_ref() }.copied();
    if is_to_block
        && process::is_active()
        && let Some(set) = &mut set
    {
        remove_handled(set);
    }
    set
}

fn pointer(set: &Option<sigset_t>) -> *const sigset_t {
    set.as_ref().map_or(ptr::null(), ptr::from_ref)
}

/// Hooks of functions that block signals while they wait. A handler that runs during the wait has them blocked too. The
/// functions are cancellation points, so a cancelled thread unwinds from them.
macro_rules! waits {
    ($($name:ident $next:ident ($($argument:ident: $type:ty),*) $set:ident)*) => {
        $(
            static $next: Next = {
                const NAME: &std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no zero"),
                    };
                Next::new(NAME)
            };

            /// # Safety
            /// As the function of that name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(crate) unsafe extern "C-unwind" fn $name($($argument: $type,)* $set: *const sigset_t) -> c_int {
                // SAFETY: the caller passes null or a set.
                let wanted = unsafe { without_handled($set, true) };
                match $next.address() {
                    // SAFETY: the symbol has this type; the rest is passed on.
                    Some(next) => unsafe {
                        transmute::<usize, unsafe extern "C-unwind" fn($($type,)* *const sigset_t) -> c_int>(next)(
                            $($argument,)*
                            pointer(&wanted),
                        )
                    },
                    None => -1, // libc always has it
                }
            }
        )*

        /// See [`super::prepare`].
        pub(super) fn prepare() {
            [&SIGPROCMASK, &PTHREAD_SIGMASK $(, &$next)*].iter().for_each(|next| _ = next.address());
        }
    };
}

waits! {
    sigsuspend SIGSUSPEND () set
    ppoll PPOLL (files: *mut pollfd, count: nfds_t, time: *const timespec) set
    pselect PSELECT (
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *const timespec
    ) set
    epoll_pwait EPOLL_PWAIT (file: c_int, events: *mut epoll_event, count: c_int, time_ms: c_int) set
}
