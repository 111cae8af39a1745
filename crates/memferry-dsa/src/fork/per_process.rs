//! A lazily made value that each process has for itself.

use std::marker::PhantomData;
use std::ptr;

use super::{generation, watch};
use crate::sync::{AtomicPtr, Ordering};

/// A value that is made on first use, and again on first use in a forked child.
///
/// In the child, the parent's value is unused memory: it is neither dropped, since its destructor may wait for threads
/// that do not exist there, nor freed.
///
/// ```
/// use memferry_dsa::internals::fork::PerProcess;
///
/// static BUFFERS: PerProcess<Vec<u8>> = PerProcess::new();
/// assert_eq!(BUFFERS.get_or_init(|| vec![0; 8]).len(), 8);
/// ```
///
/// `current` is written by `get_or_try_init`, once in each process, and read by all methods.
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
    /// A cell without a value.
    #[cfg(not(all(test, memferry_loom)))]
    pub const fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// The same in loom models, whose atomics have no constant constructor.
    #[cfg(all(test, memferry_loom))]
    pub(crate) fn new() -> PerProcess<T> {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// This process' value, if it is made.
    pub fn get(&self) -> Option<&T> {
        self.load().1.map(|made| &made.value)
    }

    /// This process' value; the first call makes it by `make`.
    ///
    /// Two concurrent first calls both make a value, and one of the two is dropped: waiting for the other thread could
    /// last for ever in a child.
    ///
    /// # Errors
    /// Those of `make`; the next call tries again.
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        // A value made before forks are watched would seem to be another process' afterwards. If watching fails, all
        // processes have generation 0.
        let _ = watch();
        let (former, made) = self.load();
        if let Some(made) = made {
            return Ok(&made.value);
        }
        let fresh = Box::into_raw(Box::new(Made { generation: generation(), value: make()? }));
        // ORDERING: Release pairs with the Acquire in `load`, and the Acquire on failure with the Release of the thread
        // that won: either makes the value visible. One exchange succeeds in a process, because all threads that make a
        // value have seen the same `former`.
        match self.current.compare_exchange(former, fresh, Ordering::Release, Ordering::Acquire) {
            // SAFETY: from `into_raw` above, and shared from now on; freed by `drop`, which has no `&self` beside it.
            Ok(_) => Ok(unsafe { &(*fresh).value }),
            Err(winner) => {
                // SAFETY: from `into_raw` above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: from the winner's `into_raw`, shared, and freed by `drop` as above.
                Ok(unsafe { &(*winner).value })
            }
        }
    }

    /// [`get_or_try_init`](Self::get_or_try_init) for a `make` that cannot fail.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let Ok(value) = self.get_or_try_init(|| Ok::<T, std::convert::Infallible>(make()));
        value
    }

    /// The pointer, and its value if this process has made it.
    fn load(&self) -> (*mut Made<T>, Option<&Made<T>>) {
        // ORDERING: Acquire pairs with the Release in `get_or_try_init`: the value behind the pointer is visible.
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
        if let (current, Some(_)) = self.load() {
            // SAFETY: from `into_raw`, and there is no other reference, since this has `&mut self`.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}

// The pointer owns a T that threads share and the owner of the cell drops.
// SAFETY: `&PerProcess<T>` gives out `&T`, and receives a T that another thread may have made.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: it owns a T.
unsafe impl<T: Send> Send for PerProcess<T> {}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn threads_share_one_value_and_drop_the_others() {
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
    fn a_failure_is_tried_again() {
        let cell = PerProcess::new();
        assert_eq!(cell.get_or_try_init(|| Err("no thread")), Err("no thread"));
        assert_eq!(cell.get_or_try_init(|| Ok::<_, &str>(5)), Ok(&5));
        assert_eq!((cell.get_or_init(|| 6), cell.get()), (&5, Some(&5)));
    }

    /// A value of another generation, as a child finds it, is neither used nor dropped.
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

/// A fork leaves one word: null, or the parent's value. The parent's threads do not exist in the child, so these are all
/// the states that a child begins with.
#[cfg(all(test, memferry_loom))]
mod loom_per_process {
    use std::sync::Arc as StdArc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A value whose accesses loom checks: written before it is shared, read afterwards.
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
            // SAFETY: no other thread has it yet.
            value.content.with_mut(|place| unsafe { *place = content });
            value
        }

        fn content(&self) -> u32 {
            // SAFETY: it is not written any more.
            self.content.with(|place| unsafe { *place })
        }
    }

    impl Drop for Value {
        fn drop(&mut self) {
            self.living.fetch_sub(1, SeqCst);
        }
    }

    /// Two threads make a value at the same time: they share one, and the other is dropped.
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
