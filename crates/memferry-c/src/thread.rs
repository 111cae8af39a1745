//! The state of a thread in this library: which objects it uses, and where it is.
//!
//! Every exported function runs in [`call`], which
//! - refuses calls that cannot be sound: in a policy callback, or in a signal handler that interrupted a call;
//! - clears the pins of the call at its end;
//! - contains panics and keeps the message of an error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memferry::internals::barrier;
use memferry_dsa::internals::fork;

use crate::error::{self, Error, mf_status};
use crate::handles::{self, Object};

/// Handles in use by calls, nested ones included: completion callbacks may submit operations, whose callbacks may again.
const PINS_COUNT: usize = 32;
/// Views that a thread can have at a time.
pub(crate) const VIEWS_COUNT: usize = 64;

/// The state of one thread. Other threads read `pins`, `views` and `process`; the rest is the owner's.
pub(crate) struct Record {
    /// Handles that calls of the owner use; the owner writes.
    pins: [AtomicU64; PINS_COUNT],
    views: [ViewCell; VIEWS_COUNT],
    /// The process of the owner: a forked child ignores the records of threads that it does not have.
    process: AtomicU32,
    /// Whether a thread owns it; under the lock of [`RECORDS`].
    is_owned: AtomicBool,
    /// Used pins.
    pins_count: Cell<usize>,
    /// The last serial number of a view.
    serial: Cell<u64>,
    place: Cell<Place>,
}

/// A view of a thread, or none.
struct ViewCell {
    /// The handle of its region; the owner writes, other threads read.
    pin: AtomicU64,
    /// Its serial number, or 0: so that a copy of a released view is recognised.
    serial: Cell<u64>,
}

// SAFETY: the cells are accessed by the owner only: the `RECORD` of other threads does not point here.
unsafe impl Sync for Record {}
// SAFETY: as above; the next owner follows the previous one under the lock of `RECORDS`.
unsafe impl Send for Record {}

/// Where a thread is.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Place {
    Outside,
    /// In a call.
    Inside,
    /// In a callback of a completion: calls that do not block are allowed.
    Completion,
    /// In a callback of a policy or an allocator, or in a destructor: no calls.
    Policy,
}

static RECORDS: Mutex<Vec<&'static Record>> = Mutex::new(Vec::new());

thread_local! {
    /// The record of this thread, or NULL. Without a destructor, so that it is there until the very end of a thread.
    static RECORD: Cell<*const Record> = const { Cell::new(ptr::null()) };
    static OWNERSHIP: Cell<Option<Ownership>> = const { Cell::new(None) };
}

/// Returns a thread's record at its end. A record with views stays: they protect their caches for ever.
struct Ownership(&'static Record);

impl Drop for Ownership {
    fn drop(&mut self) {
        RECORD.set(ptr::null());
        if self.0.views.iter().all(|view| view.serial.get() == 0) {
            let _records = records();
            // ORDERING: Relaxed: the lock of `RECORDS` orders owners.
            self.0.is_owned.store(false, Ordering::Relaxed);
        }
    }
}

/// The records of all threads.
pub(crate) fn records() -> MutexGuard<'static, Vec<&'static Record>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Record {
    /// Whether its thread uses the handle. Threads that a fork left behind do not count.
    pub(crate) fn uses(&self, handle: u64) -> bool {
        let is_here =
            self.process.load(Ordering::Relaxed) == fork::generation() || ptr::eq(self, RECORD.get());
        // ORDERING: Acquire pairs with the Release in `unpin` and `end_view`.
        is_here
            && self
                .pins
                .iter()
                .chain(self.views.iter().map(|view| &view.pin))
                .any(|pin| pin.load(Ordering::Acquire) == handle)
    }

    fn unpin(&self, pins_count: usize) {
        for pin in &self.pins[pins_count..self.pins_count.replace(pins_count)] {
            // ORDERING: Release pairs with the Acquire in `uses`: the uses of the object come first.
            pin.store(0, Ordering::Release);
        }
    }

    /// The position of a free cell.
    #[inline]
    pub(crate) fn free_view(&self) -> Option<usize> {
        self.views.iter().position(|view| view.serial.get() == 0)
    }

    /// Protects the region of a view until `end_view`, in the free cell at `position`. Returns it with the serial number of
    /// the view, or `None` if the handle is invalid.
    #[inline(always)]
    pub(crate) fn begin_view<T: Object>(&self, region: u64, position: usize) -> Option<(&T, u64)> {
        let ViewCell { pin, serial: cell } = &self.views[position];
        // SAFETY: the pin is cleared by `end_view`, after the last use of the view.
        let region = unsafe { handles::protect::<T>(region, pin) }?;
        let serial = self.serial.get().wrapping_add(1);
        self.serial.set(serial);
        cell.set(serial);
        Some((region, serial))
    }

    /// Whether the thread has this view.
    #[inline(always)]
    pub(crate) fn has_view(&self, position: usize, serial: u64) -> bool {
        self.views.get(position).is_some_and(|view| view.serial.get() == serial) && serial != 0
    }

    #[inline(always)]
    pub(crate) fn end_view(&self, position: usize) {
        let ViewCell { pin, serial } = &self.views[position];
        serial.set(0);
        // ORDERING: Release pairs with the Acquire in `uses`: the uses of the region come first.
        pin.store(0, Ordering::Release);
    }
}

#[inline]
fn record() -> &'static Record {
    let record = RECORD.get();
    if record.is_null() {
        return own_record();
    }
    // SAFETY: records are leaked, and this one is the thread's own.
    unsafe { &*record }
}

#[cold]
fn own_record() -> &'static Record {
    barrier::prepare();
    // Without it, forks are not detected: a child could not free what other threads of the parent were using.
    let _ = fork::watch();
    let mut records = records();
    let unused = records.iter().find(|record| !record.is_owned.load(Ordering::Relaxed)).copied();
    let record = unused.unwrap_or_else(|| {
        let record = Box::leak(Box::new(Record {
            pins: [const { AtomicU64::new(0) }; PINS_COUNT],
            views: [const { ViewCell { pin: AtomicU64::new(0), serial: Cell::new(0) } }; VIEWS_COUNT],
            process: AtomicU32::new(0),
            is_owned: AtomicBool::new(true),
            pins_count: Cell::new(0),
            serial: Cell::new(0),
            place: Cell::new(Place::Outside),
        }));
        records.push(record);
        record
    });
    record.process.store(fork::generation(), Ordering::Relaxed);
    // ORDERING: Relaxed: the lock of `RECORDS` orders owners.
    record.is_owned.store(true, Ordering::Relaxed);
    drop(records);
    RECORD.set(record);
    // In a thread that is ending the record is kept for ever.
    let _ = OWNERSHIP.try_with(|ownership| ownership.set(Some(Ownership(record))));
    record
}

/// A call in progress.
pub(crate) struct Call {
    pub(crate) record: &'static Record,
    pins_count: usize,
    place: Place,
}

impl Call {
    /// The object of a handle, protected until the call ends.
    #[inline]
    pub(crate) fn get<T: Object>(&self, handle: u64) -> Result<&T, Error> {
        let used_count = self.record.pins_count.get();
        let Some(pin) = self.record.pins.get(used_count) else {
            return Err(not_here(
                "callbacks submit operations whose callbacks submit operations, too deep; submit them from another thread",
            ));
        };
        // SAFETY: the pin is cleared at the end of the call, which outlives the reference.
        let object =
            unsafe { handles::protect::<T>(handle, pin) }.ok_or_else(|| handles::invalid::<T>(handle))?;
        self.record.pins_count.set(used_count + 1);
        Ok(object)
    }

    /// Refuses to block in a completion callback: the thread may be the one that completes the awaited operation.
    pub(crate) fn may_block(&self) -> Result<(), Error> {
        if self.place == Place::Completion {
            return Err(not_here(
                "a completion callback must not wait; poll, or submit an operation with a callback",
            ));
        }
        Ok(())
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if self.record.pins_count.get() != self.pins_count {
            self.record.unpin(self.pins_count);
        }
        self.record.place.set(self.place);
    }
}

#[cold]
pub(crate) fn too_many_views() -> Error {
    Error::new(mf_status::MF_NO_MEMORY, format!("this thread has {VIEWS_COUNT} views; release one"))
}

#[cold]
fn not_here(text: &str) -> Error {
    Error::new(mf_status::MF_NOT_HERE, text)
}

#[cold]
fn refuse(place: Place) -> Error {
    not_here(match place {
        Place::Policy => "a policy or memory callback must not call the library; decide from its arguments",
        _ => {
            "a signal handler interrupted a call of the library on this thread and must not call it; set a flag instead"
        }
    })
}

/// Runs the body of an exported function.
#[inline(always)]
pub(crate) fn call(body: impl FnOnce(&Call) -> Result<(), Error>) -> mf_status {
    match try_call(body) {
        Ok(()) => mf_status::MF_OK,
        Err(error) => error::keep(&error),
    }
}

/// Like [`call`], for functions with other results.
#[inline(always)]
pub(crate) fn try_call<R>(body: impl FnOnce(&Call) -> Result<R, Error>) -> Result<R, Error> {
    let record = record();
    let place = record.place.get();
    if matches!(place, Place::Inside | Place::Policy) {
        return Err(refuse(place));
    }
    record.place.set(Place::Inside);
    let call = Call { record, pins_count: record.pins_count.get(), place };
    match catch_unwind(AssertUnwindSafe(|| body(&call))) {
        Ok(result) => result,
        Err(payload) => Err(contained(payload)),
    }
}

/// Runs a call that uses no handles but those of views, waits for nothing, and calls nobody back: without the overhead of
/// [`call`]. `None` inside of another call; use [`call`] then, which also explains failures.
///
/// A panic ends the process.
#[inline(always)]
pub(crate) fn quick_call<R>(body: impl FnOnce(&Record) -> Option<R>) -> Option<R> {
    let record = RECORD.get();
    // SAFETY: NULL, or the leaked record of this thread.
    let record = unsafe { record.as_ref() }.filter(|record| record.place.get() == Place::Outside)?;
    record.place.set(Place::Inside);
    let result = body(record);
    record.place.set(Place::Outside);
    result
}

/// The error of a panic.
#[cold]
pub(crate) fn contained(payload: Box<dyn std::any::Any + Send>) -> Error {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    // A payload may panic when it is dropped.
    std::mem::forget(payload);
    let text =
        format!("a defect of memferry: {text}; the operation may have happened in part; please report it");
    Error::new(mf_status::MF_INTERNAL, text)
}

fn run_in<R>(place: Place, body: impl FnOnce() -> R) -> R {
    /// Ends the process if the callback throws: nothing that it could leave is in order.
    struct EndOnThrow;
    impl Drop for EndOnThrow {
        fn drop(&mut self) {
            eprintln!("memferry: a callback threw an exception; callbacks must return");
            std::process::abort();
        }
    }
    let record = record();
    let former = record.place.replace(place);
    let guard = EndOnThrow;
    let result = body();
    std::mem::forget(guard);
    record.place.set(former);
    result
}

/// Runs a completion callback.
pub(crate) fn in_completion<R>(body: impl FnOnce() -> R) -> R {
    // Inside a policy nothing completes, and calls stay forbidden.
    run_in(Place::Completion, body)
}

/// Runs a callback that must not call the library.
pub(crate) fn in_policy<R>(body: impl FnOnce() -> R) -> R {
    run_in(Place::Policy, body)
}
