//! A value of which each process has its own.

use std::marker::PhantomData;
use std::ptr;

use super::{generation, watch};
use crate::sync::{AtomicPtr, Ordering};

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
    #[cfg(not(all(test, memferry_loom)))]
    pub const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// The same, of one model.
    #[cfg(all(test, memferry_loom))]
    pub(crate) fn new() -> PerProcess<T> {
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
        if let (current, Some(_)) = self.look() {
            // SAFETY: from `into_raw`, and there is no other reference, since this has `&mut self`.
            drop(unsafe { Box::from_raw(current) });
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

/// A fork leaves one word: nothing, or the value of the parent. Whatever threads of the parent were doing, they are not
/// there. So these are all the states that a child begins with.
#[cfg(all(test, memferry_loom))]
mod loom_per_process {
    use std::sync::Arc as StdArc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// What loom sees written before it is shared, and read after.
    struct Value {
        content: UnsafeCell<u32>,
        living: StdArc<AtomicUsize>,
    }

    // SAFETY: the claim under test. Loom fails the model if the cell is read and written without order.
    unsafe impl Sync for Value {}

    impl Value {
        fn new(content: u32, living: &StdArc<AtomicUsize>) -> Value {
            living.fetch_add(1, SeqCst);
            let value = Value { content: UnsafeCell::new(0), living: living.clone() };
            // SAFETY: nobody else has it yet.
            value.content.with_mut(|place| unsafe { *place = content });
            value
        }

        fn content(&self) -> u32 {
            // SAFETY: nobody writes it any more.
            self.content.with(|place| unsafe { *place })
        }
    }

    impl Drop for Value {
        fn drop(&mut self) {
            self.living.fetch_sub(1, SeqCst);
        }
    }

    /// Two threads that come together have one value, and the other one is dropped.
    fn two_threads(cell: PerProcess<Value>, living: &StdArc<AtomicUsize>, leaked_count: usize) {
        let cell = Arc::new(cell);
        let look = |cell: &PerProcess<Value>, living: &StdArc<AtomicUsize>| {
            if let Some(value) = cell.get() {
                assert_eq!(value.content(), 7);
            }
            let value = cell.get_or_init(|| Value::new(7, living));
            (value.content(), ptr::from_ref(value).addr())
        };
        let other = thread::spawn({
            let (cell, living) = (cell.clone(), living.clone());
            move || look(&cell, &living)
        });
        let mine = look(&cell, living);
        assert_eq!(mine, other.join().expect("no panic"));
        assert_eq!((mine.0, living.load(SeqCst)), (7, 1 + leaked_count));
        drop(cell);
        assert_eq!(living.load(SeqCst), leaked_count);
    }

    #[test]
    fn loom_a_process_makes_one_value() {
        loom::model(|| two_threads(PerProcess::new(), &StdArc::default(), 0));
    }

    #[test]
    fn loom_a_child_makes_its_own_value() {
        watch().expect("this kernel has anonymous memory");
        loom::model(|| {
            let living = StdArc::default();
            let cell = PerProcess::new();
            let generation = generation().wrapping_add(1);
            let of_the_parent = Made { generation, value: Value::new(5, &living) };
            cell.current.store(Box::into_raw(Box::new(of_the_parent)), Ordering::Relaxed);
            two_threads(cell, &living, 1);
        });
    }
}
