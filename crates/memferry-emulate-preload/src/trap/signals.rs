//! The signals that this library handles, and the program's actions for them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::c_int;

use crate::sys::{self, Signals};

/// The handled signals: an unknown instruction, an access to a portal, a fault on a page of a file, and a call site
/// that is being patched.
pub(crate) const HANDLED: [c_int; 4] = [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP];

/// [`HANDLED`] as a set.
pub(crate) const HANDLED_SET: Signals =
    bit(libc::SIGILL) | bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGTRAP);

pub(crate) const fn bit(signal: c_int) -> Signals {
    1 << (signal - 1)
}

/// Whether a signal is one of [`HANDLED`].
pub(crate) fn is_handled(signal: c_int) -> bool {
    HANDLED.contains(&signal)
}

/// Signals by which the C library cancels threads and changes the user of all threads. They must not be blocked;
/// pthread_sigmask(3) does not block them.
///
/// Source: glibc, `sysdeps/unix/sysv/linux/internal-signals.h` (SIGCANCEL, SIGSETXID).
const LIBC_SIGNALS: Signals = bit(32) | bit(33);

/// Blocks all signals of this thread, except the handled ones and those of the C library. Returns the mask before.
pub(crate) fn block_unhandled() -> Signals {
    let mut before: Signals = 0;
    let all: Signals = !(HANDLED_SET | LIBC_SIGNALS);
    // SAFETY: it reads and writes 8 bytes.
    unsafe {
        let arguments =
            [libc::SIG_SETMASK as usize, &raw const all as usize, &raw mut before as usize, 8, 0, 0];
        sys::call(libc::SYS_rt_sigprocmask, arguments);
    }
    before
}

/// Restores the mask that [`block_unhandled`] returned.
pub(crate) fn restore(before: Signals) {
    sys::set_mask(before);
}

/// The action of a program for a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) mask: Signals,
}

/// The actions of one signal; the last one is in force. A sequence lock over a ring of slots.
///
/// A handler may read while the program sets an action, also in the thread that it interrupts. So [`set`](Actions::set)
/// writes each action to the next slot and then makes it the last. Any thread calls `set` and `get`; there is no lock.
pub(crate) struct Actions {
    last: AtomicUsize, // number of the action in force
    next: AtomicUsize, // number of the action that was begun last
    slots: [Slot; SLOTS],
}

const SLOTS: usize = 32;

struct Slot {
    number: AtomicUsize, // of the action that is complete here; MAX while one is written
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            number: AtomicUsize::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }
}

impl Actions {
    pub(crate) const fn new() -> Actions {
        Actions {
            last: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            slots: [const { Slot::new() }; SLOTS],
        }
    }

    pub(crate) fn get(&self) -> Action {
        loop {
            // ORDERING: Acquire pairs with the Release of `fetch_max` in `set`: the words of the action are visible.
            let last = self.last.load(Ordering::Acquire);
            let slot = &self.slots[last % SLOTS];
            let action = Action {
                handler: slot.handler.load(Ordering::Relaxed),
                flags: slot.flags.load(Ordering::Relaxed),
                mask: slot.mask.load(Ordering::Relaxed),
            };
            // ORDERING: the Acquire fence pairs with the Release fence in `set`: if a load above has seen a word of a
            // later action, the load below sees MAX or a later number.
            std::sync::atomic::fence(Ordering::Acquire);
            if slot.number.load(Ordering::Relaxed) == last {
                return action;
            }
        }
    }

    pub(crate) fn set(&self, action: Action) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let slot = &self.slots[number % SLOTS];
        slot.number.store(usize::MAX, Ordering::Relaxed);
        // ORDERING: the Release fence pairs with the Acquire fence in `get`: the store of MAX precedes these words.
        std::sync::atomic::fence(Ordering::Release);
        slot.handler.store(action.handler, Ordering::Relaxed);
        slot.flags.store(action.flags, Ordering::Relaxed);
        slot.mask.store(action.mask, Ordering::Relaxed);
        // ORDERING: Release keeps the number behind the words. Its partner is the Acquire load of `last` in `get`,
        // which sees the store below.
        slot.number.store(number, Ordering::Release);
        // Of two concurrent calls, the one that began last wins.
        // ORDERING: Release pairs with the Acquire load of `last` in `get`: the slot is complete.
        self.last.fetch_max(number, Ordering::Release);
    }
}

static ACTIONS: [Actions; 4] = [const { Actions::new() }; 4];

/// The program's actions for a handled signal.
pub(crate) fn actions(signal: c_int) -> &'static Actions {
    let index = HANDLED.iter().position(|handled| *handled == signal).unwrap_or(0);
    &ACTIONS[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_action_counts_and_none_is_torn() {
        static TESTED: Actions = Actions::new();
        assert_eq!(TESTED.get(), Action { handler: libc::SIG_DFL, flags: 0, mask: 0 });
        std::thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let value = number * 2 + thread;
                        TESTED.set(Action { handler: value, flags: value as u64, mask: value as u64 });
                    }
                });
            }
            for _ in 0..20_000 {
                let Action { handler, flags, mask } = TESTED.get();
                assert_eq!((flags, mask), (handler as u64, handler as u64));
            }
        });
        TESTED.set(Action { handler: 1, flags: 2, mask: 3 });
        assert_eq!(TESTED.get(), Action { handler: 1, flags: 2, mask: 3 });
    }
}
