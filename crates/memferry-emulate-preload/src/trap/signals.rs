//! The signals that this library needs, and what the program has made of them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::c_int;

use crate::sys::{self, Signals};

/// An unknown instruction, an access to a portal, a fault on a page of a file, and a call site that is being patched.
pub(crate) const OURS: [c_int; 4] = [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP];

/// The same as a set.
pub(crate) const OURS_SET: Signals =
    bit(libc::SIGILL) | bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGTRAP);

pub(crate) const fn bit(signal: c_int) -> Signals {
    1 << (signal - 1)
}

/// Whether a signal is one of those.
pub(crate) fn is_ours(signal: c_int) -> bool {
    OURS.contains(&signal)
}

/// By which the C library cancels threads, and changes the user of all of them: nobody may block them, and
/// pthread_sigmask(3) does not.
///
/// Source: glibc, `sysdeps/unix/sysv/linux/internal-signals.h` (SIGCANCEL, SIGSETXID).
const LIBRARYS_OWN: Signals = bit(32) | bit(33);

/// Blocks all signals but those and the C library's own, in this thread; what was blocked before.
pub(crate) fn block_others() -> Signals {
    let mut before: Signals = 0;
    let all: Signals = !(OURS_SET | LIBRARYS_OWN);
    // SAFETY: it reads and writes 8 bytes.
    unsafe {
        let arguments =
            [libc::SIG_SETMASK as usize, &raw const all as usize, &raw mut before as usize, 8, 0, 0];
        sys::call(libc::SYS_rt_sigprocmask, arguments);
    }
    before
}

/// Undoes it.
pub(crate) fn restore(before: Signals) {
    sys::set_mask(before);
}

/// What a program does about a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) mask: Signals,
}

/// The actions of one signal, of which the last counts. A handler reads while a program changes it, perhaps in the very
/// thread that it interrupts; so an action is written to a place of its own, and then made the last. A place is used
/// again after all others were.
pub(crate) struct Actions {
    last: AtomicUsize, // actions since the start
    next: AtomicUsize,
    places: [Place; PLACES],
}

const PLACES: usize = 32;

struct Place {
    number: AtomicUsize, // of the action that is complete here
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

impl Place {
    const fn new() -> Place {
        Place {
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
            places: [const { Place::new() }; PLACES],
        }
    }

    pub(crate) fn get(&self) -> Action {
        loop {
            // ORDERING: Acquire pairs with the Release in `set`: the action is complete.
            let last = self.last.load(Ordering::Acquire);
            let place = &self.places[last % PLACES];
            let action = Action {
                handler: place.handler.load(Ordering::Relaxed),
                flags: place.flags.load(Ordering::Relaxed),
                mask: place.mask.load(Ordering::Relaxed),
            };
            // ORDERING: the fence keeps these loads before the next: if the number is the same, nobody wrote meanwhile.
            std::sync::atomic::fence(Ordering::Acquire);
            if place.number.load(Ordering::Relaxed) == last {
                return action;
            }
        }
    }

    pub(crate) fn set(&self, action: Action) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let place = &self.places[number % PLACES];
        place.number.store(usize::MAX, Ordering::Relaxed);
        // ORDERING: the fence keeps the words behind the number above.
        std::sync::atomic::fence(Ordering::Release);
        place.handler.store(action.handler, Ordering::Relaxed);
        place.flags.store(action.flags, Ordering::Relaxed);
        place.mask.store(action.mask, Ordering::Relaxed);
        place.number.store(number, Ordering::Release);
        // Of two that are set at the same time, the one that began last counts.
        self.last.fetch_max(number, Ordering::Release);
    }
}

static ACTIONS: [Actions; 4] = [const { Actions::new() }; 4];

/// What the program does about one of our signals.
pub(crate) fn actions(signal: c_int) -> &'static Actions {
    let index = OURS.iter().position(|ours| *ours == signal).unwrap_or(0);
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
