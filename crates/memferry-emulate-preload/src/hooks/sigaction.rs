//! Hooks of sigaction and signal: they store the program's actions for the handled signals.
//!
//! The library applies a stored action to a signal that an emulated instruction did not cause.

use std::mem::transmute;
use std::ptr;

use libc::{c_int, sighandler_t, sigset_t};

use super::next::Next;
use crate::trap::set_action;
use crate::trap::signals::{Action, HANDLED_SET, actions, is_handled};
use crate::{fork_local, process};

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

static SIGACTION: Next = Next::new(c"sigaction");
static SIGNAL: Next = Next::new(c"signal");
static SYSV_SIGNAL: Next = Next::new(c"__sysv_signal");

/// See [`super::prepare`].
pub(super) fn prepare() {
    [&SIGACTION, &SIGNAL, &SYSV_SIGNAL].iter().for_each(|next| _ = next.address());
}

/// Whether the library handles the signals of this process. A child of vfork sets its own actions, but shares the
/// memory of its parent, so the hooks pass its calls on.
fn is_active() -> bool {
    process::is_active() && fork_local::get().is_some_and(|local| !local.is_vfork_child())
}

/// # Safety
/// As sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_active() {
        // SAFETY: passed on.
        return unsafe { next_sigaction(signal, new, old) };
    }
    // SAFETY: the caller passes null or an action.
    let wanted = unsafe { new.as_ref() };
    if !is_handled(signal) {
        let mut unblocked = wanted.copied();
        if let Some(action) = &mut unblocked {
            remove_handled(&mut action.sa_mask);
        }
        let new = unblocked.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: passed on, without the handled signals in the mask.
        return unsafe { next_sigaction(signal, new, old) };
    }
    let before = match wanted {
        Some(action) => set_action(signal, from_libc(action)),
        None => actions(signal).get(),
    };
    if !old.is_null() {
        // SAFETY: the caller passes room for an action.
        unsafe { old.write(to_libc(&before)) };
    }
    0
}

/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: passed on.
    unsafe { set_handler(&SIGNAL, signal, handler, libc::SA_RESTART) }
}

/// # Safety
/// As sysv_signal(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: passed on.
    unsafe { set_handler(&SYSV_SIGNAL, signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// Other names of these functions.
macro_rules! aliases {
    ($($alias:ident = $function:ident)*) => {
        $(
            /// # Safety
            /// As the function that this is another name of.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(crate) unsafe extern "C" fn $alias(signal: c_int, handler: sighandler_t) -> sighandler_t {
                // SAFETY: passed on.
                unsafe { $function(signal, handler) }
            }
        )*
    };
}
aliases! { bsd_signal = signal  ssignal = signal  sysv_signal = __sysv_signal }

/// # Safety
/// As signal(2).
unsafe fn set_handler(next: &Next, signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    if !is_handled(signal) || !is_active() {
        return match next.address() {
            // SAFETY: the symbol has this type; the rest is passed on.
            Some(next) => unsafe { transmute::<usize, Signal>(next)(signal, handler) },
            None => libc::SIG_ERR,
        };
    }
    set_action(signal, Action { handler, flags: flags as u64, mask: 0 }).handler
}

/// # Safety
/// As sigaction(2).
unsafe fn next_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    match SIGACTION.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Sigaction>(next)(signal, new, old) },
        // libc always has it.
        None => -1,
    }
}

/// Removes the handled signals from a set.
pub(super) fn remove_handled(set: &mut sigset_t) {
    let words = ptr::from_mut(set).cast::<u64>();
    // SAFETY: the first 8 bytes of libc's set are the kernel's.
    unsafe { words.write(words.read() & !HANDLED_SET) };
}

fn from_libc(action: &libc::sigaction) -> Action {
    // SAFETY: as in `unblock`.
    let mask = unsafe { ptr::from_ref(&action.sa_mask).cast::<u64>().read() };
    Action { handler: action.sa_sigaction, flags: action.sa_flags as u32 as u64, mask }
}

fn to_libc(action: &Action) -> libc::sigaction {
    // SAFETY: an action of zeros is valid.
    let mut shown: libc::sigaction = unsafe { std::mem::zeroed() };
    shown.sa_sigaction = action.handler;
    shown.sa_flags = action.flags as c_int;
    // SAFETY: as in `unblock`.
    unsafe { (&raw mut shown.sa_mask).cast::<u64>().write(action.mask) };
    shown
}
