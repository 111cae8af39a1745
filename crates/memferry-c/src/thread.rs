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
    /// Handles of the regions of the owner's views; the owner writes.
    views: [AtomicU64; VIEWS_COUNT],
    /// The process of the owner: a forked child ignores the records of threads that it does not have.
    process: AtomicU32,
    /// Whether a thread owns it; under the lock of [`RECORDS`].
    is_owned: AtomicBool,
    /// Used pins.
    pins_count: Cell<usize>,
    /// Bits of used views.
    views_mask: Cell<u64>,
    /// Serial numbers of views, so that a copy of a released view is recognised.
    serials: [Cell<u64>; VIEWS_COUNT],
    serial: Cell<u64>,
    place: Cell<Place>,
}

// SAFETY: the cells are accessed by the owner only: the `local` of other threads does not point here.
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
    static OWNERSHIP: Cell<Option<Ownership>> = const { Cell::new(None) };
}

/// Returns a thread's record at its end. A record with views stays: they protect their caches for ever.
struct Ownership(&'static Record);

impl Drop for Ownership {
    fn drop(&mut self) {
        local::set(ptr::null());
        if self.0.views_mask.get() == 0 {
            let _records = records();
            // ORDERING: Relaxed: the lock of `RECORDS` orders owners.
            self.0.is_owned.store(false, Ordering::Relaxed);
        }
    }
}

/// The record of the calling thread, or null.
///
/// `thread_local!` in a shared library calls a function of the loader on each access. The initial-exec model is two loads;
/// it needs 8 bytes of the memory that loaders keep for libraries that are loaded late.
#[cfg(target_arch = "x86_64")]
mod local {
    use std::arch::{asm, global_asm};

    use super::Record;

    global_asm!(
        ".pushsection .tbss.memferry_c_record, \"awT\", @nobits",
        ".p2align 3",
        ".globl memferry_c_record",
        ".hidden memferry_c_record",
        ".type memferry_c_record, @object",
        ".size memferry_c_record, 8",
        "memferry_c_record: .zero 8",
        ".popsection",
    );

    #[inline]
    pub(super) fn get() -> *const Record {
        let record;
        // SAFETY: loads the variable of this thread.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + memferry_c_record@GOTTPOFF]",
                "mov {0}, qword ptr fs:[{0}]",
                out(reg) record,
                options(nostack, preserves_flags, readonly)
            );
        }
        record
    }

    pub(super) fn set(record: *const Record) {
        // SAFETY: stores to the variable of this thread.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + memferry_c_record@GOTTPOFF]",
                "mov qword ptr fs:[{0}], {1}",
                out(reg) _,
                in(reg) record,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod local {
    use std::cell::Cell;
    use std::ptr;

    use super::Record;

    thread_local!(static RECORD: Cell<*const Record> = const { Cell::new(ptr::null()) });

    pub(super) fn get() -> *const Record {
        RECORD.get()
    }

    pub(super) fn set(record: *const Record) {
        RECORD.set(record);
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
            self.process.load(Ordering::Relaxed) == fork::generation() || ptr::eq(self, local::get());
        // ORDERING: Acquire pairs with the Release in `unpin` and `end_view`.
        is_here && self.pins.iter().chain(&self.views).any(|pin| pin.load(Ordering::Acquire) == handle)
    }

    fn unpin(&self, pins_count: usize) {
        for pin in &self.pins[pins_count..self.pins_count.replace(pins_count)] {
            // ORDERING: Release pairs with the Acquire in `uses`: the uses of the object come first.
            pin.store(0, Ordering::Release);
        }
    }
}

#[inline]
fn record() -> &'static Record {
    let record = local::get();
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
            views: [const { AtomicU64::new(0) }; VIEWS_COUNT],
            process: AtomicU32::new(0),
            is_owned: AtomicBool::new(true),
            pins_count: Cell::new(0),
            views_mask: Cell::new(0),
            serials: [const { Cell::new(0) }; VIEWS_COUNT],
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
    local::set(record);
    // In a thread that is ending the record is kept for ever.
    let _ = OWNERSHIP.try_with(|ownership| ownership.set(Some(Ownership(record))));
    record
}

/// A call in progress.
pub(crate) struct Call {
    record: &'static Record,
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
        let object = unsafe { handles::protect::<T>(handle, pin) }?;
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

    /// Protects the region of a view until `end_view`. Returns it with the position and serial number of the view.
    #[inline]
    pub(crate) fn begin_view<T: Object>(&self, region: u64) -> Result<(&T, u32, u64), Error> {
        let mask = self.record.views_mask.get();
        let position = mask.trailing_ones();
        let Some(pin) = self.record.views.get(position as usize) else { return Err(too_many_views()) };
        // SAFETY: the pin is cleared by `end_view`, after the last use of the view.
        let region = unsafe { handles::protect::<T>(region, pin) }?;
        let serial = self.record.serial.get() + 1;
        self.record.serial.set(serial);
        self.record.serials[position as usize].set(serial);
        self.record.views_mask.set(mask | 1 << position);
        Ok((region, position, serial))
    }

    /// Whether the calling thread has this view.
    #[inline]
    pub(crate) fn has_view(&self, position: u32, serial: u64) -> bool {
        (position as usize) < VIEWS_COUNT
            && serial != 0
            && self.record.serials[position as usize].get() == serial
    }

    #[inline]
    pub(crate) fn end_view(&self, position: u32) {
        self.record.serials[position as usize].set(0);
        self.record.views_mask.set(self.record.views_mask.get() & !(1 << position));
        // ORDERING: Release pairs with the Acquire in `uses`: the uses of the region come first.
        self.record.views[position as usize].store(0, Ordering::Release);
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
fn too_many_views() -> Error {
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
