//! A value of which each process has its own.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{generation, watch};

/// A value that a forked child makes anew, when it first asks for it.
///
/// The parent's is memory in the child that nobody looks at any more: it is neither dropped, since its destructor may
/// wait for threads that are not there, nor freed.
#[derive(Debug)]
pub struct PerProcess<T> {
    current: AtomicPtr<Made<T>>, // null, or from `Box::into_raw`
    owns: PhantomData<T>,
}

#[derive(Debug)]
struct Made<T> {
    generation: u32,
    value: T,
}

impl<T> PerProcess<T> {
    /// Nothing is made yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// This process' value, if it has made it.
    pub fn get(&self) -> Option<&T> {
        self.look().1.map(|made| &made.value)
    }

    /// This process' value; `make` makes it if this is the first call here. Of two threads that come together both
    /// make one, and the loser's is dropped: waiting for the other could last for ever in a child.
    ///
    /// # Errors
    /// Those of `make`; the next call tries again.
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        // What is made before forks are watched would be another process' as soon as somebody watches them. Where that
        // is not possible, all processes have the same number.
        let _ = watch();
        let (former, made) = self.look();
        if let Some(made) = made {
            return Ok(&made.value);
        }
        let fresh = Box::into_raw(Box::new(Made { generation: generation(), value: make()? }));
        // ORDERING: Release pairs with the Acquire in `look`; the Acquire here does so with the winner's Release. One
        // exchange succeeds in a process, because all who make a value have seen the same `former`.
        match self.current.compare_exchange(former, fresh, Ordering::Release, Ordering::Acquire) {
            // SAFETY: from `into_raw` above, and shared from now on; freed by `drop`, which has no `&self` beside it.
            Ok(_) => Ok(unsafe { &(*fresh).value }),
            Err(winner) => {
                // SAFETY: from `into_raw` above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: as for `fresh`, in the winner's hands.
                Ok(unsafe { &(*winner).value })
            }
        }
    }

    /// The same for values that are always made.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let Ok(value) = self.get_or_try_init(|| Ok::<T, std::convert::Infallible>(make()));
        value
    }

    /// What is there, and what that is if this process has made it.
    fn look(&self) -> (*mut Made<T>, Option<&Made<T>>) {
        // ORDERING: Acquire pairs with the Release in `get_or_try_init`.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: null, or a value that is not freed before `drop`.
        let made = unsafe { current.as_ref() };
        (current, made.filter(|made| made.generation == generation()))
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if self.look().1.is_some() {
            // SAFETY: from `into_raw`, and there is no other reference, since this has `&mut self`.
            drop(unsafe { Box::from_raw(*self.current.get_mut()) });
        }
    }
}

// The pointer owns a T that threads share and the last of them drops.
// SAFETY: `&PerProcess<T>` gives out `&T`, and takes in a T that another thread may have made.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: a T goes along.
unsafe impl<T: Send> Send for PerProcess<T> {}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn threads_agree_on_one_value_and_the_others_are_dropped() {
        let witness = Arc::new(());
        for _ in 0..200 {
            let (cell, made) = (PerProcess::new(), AtomicUsize::new(0));
            assert!(cell.get().is_none());
            let address = |cell: &PerProcess<_>| {
                let value: &(usize, Arc<()>) =
                    cell.get_or_init(|| (made.fetch_add(1, Ordering::Relaxed), witness.clone()));
                ptr::from_ref(value).addr()
            };
            std::thread::scope(|scope| {
                let others: Vec<_> = (0..2).map(|_| scope.spawn(|| address(&cell))).collect();
                let mine = address(&cell);
                assert!(others.into_iter().all(|other| other.join().expect("no panic") == mine));
            });
            assert_eq!(Arc::strong_count(&witness), 2, "one of {made:?}");
            drop(cell);
            assert_eq!(Arc::strong_count(&witness), 1);
        }
    }

    #[test]
    fn what_fails_is_tried_again() {
        let cell = PerProcess::new();
        assert_eq!(cell.get_or_try_init(|| Err("no thread")), Err("no thread"));
        assert_eq!(cell.get_or_try_init(|| Ok::<_, &str>(5)), Ok(&5));
        assert_eq!((cell.get_or_init(|| 6), cell.get()), (&5, Some(&5)));
    }

    /// As in a child, whose value is made by another generation: made anew, and the former neither used nor dropped.
    #[test]
    fn another_generation_makes_its_own() {
        watch().expect("this kernel has anonymous memory");
        let former = Arc::new(1);
        let cell = PerProcess::new();
        let made = Made { generation: generation().wrapping_add(1), value: former.clone() };
        cell.current.store(Box::into_raw(Box::new(made)), Ordering::Relaxed);
        assert_eq!(cell.get(), None);
        assert_eq!(**cell.get_or_init(|| Arc::new(2)), 2);
        drop(cell);
        assert_eq!(Arc::strong_count(&former), 2, "leaked on purpose");
        let never_asked = PerProcess::new();
        let made = Made { generation: generation().wrapping_add(1), value: former.clone() };
        never_asked.current.store(Box::into_raw(Box::new(made)), Ordering::Relaxed);
        drop(never_asked);
        assert_eq!(Arc::strong_count(&former), 3);
    }
}
