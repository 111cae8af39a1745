//! Handles: numbers for objects that C code holds, and their protection.
//!
//! ```text
//! handle   0 | 39 bits serial number of the slot's object | 20 bits slot | 4 bits kind of the object
//! slot     the handle of its object, or 0; with the highest bit set while a thread tries to free it | the object
//! ```
//!
//! A handle comes again after 2^39 others only. So a slot has the handle that a caller passes, or the handle is invalid:
//! never made, freed, or of another kind.
//!
//! A thread that uses an object puts its handle into its own [`Record`](crate::thread::Record) first (a hazard pointer). A
//! thread that frees a handle marks the slot, then looks at all records. If another thread uses the object, the mark is
//! removed and the free is refused. A call that finds the mark waits for the decision, under the lock of the records. Uses
//! cost two stores and no atomic read-modify-write, because of the asymmetric fence of the cache.
//!
//! Source: M. Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", IEEE TPDS 15(6), 2004.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memferry::internals::barrier;

use crate::error::{Error, mf_status};
use crate::thread::records;

const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 20;
const SERIAL_BITS: u32 = 39;
const SLOTS_COUNT: usize = 1 << SLOT_BITS;
/// The bits of a handle that its kind decides.
const KIND_MASK: u64 = BEING_FREED | ((1 << KIND_BITS) - 1);
/// Marks a slot whose handle a thread tries to free.
const BEING_FREED: u64 = 1 << (SERIAL_BITS + SLOT_BITS + KIND_BITS);

const _: () = assert!(BEING_FREED == 1 << 63);

/// An object with handles.
pub(crate) trait Object: Send + Sync + 'static {
    /// Distinguishes the kinds; below 16.
    const KIND: u64;
    /// For messages.
    const NAME: &'static str;
}

/// `handle` is written by the thread that reserved the slot; then, under the lock of the records, by threads that free it.
/// Users of the object read it. `object` is written before `handle` is, and taken by the thread that cleared `handle`.
struct Slot {
    handle: AtomicU64,
    object: AtomicPtr<()>,
}

/// All slots. Zeros take no memory: the kernel makes a page when it is first written.
static SLOTS: [Slot; SLOTS_COUNT] =
    [const { Slot { handle: AtomicU64::new(0), object: AtomicPtr::new(ptr::null_mut()) } }; SLOTS_COUNT];

/// Unused slots, and the number of slots that were ever used.
static FREE: Mutex<Free> = Mutex::new(Free { slots: Vec::new(), used_count: 0, serial: 0 });

struct Free {
    slots: Vec<usize>,
    used_count: usize,
    /// The last serial number.
    serial: u64,
}

fn free_slots() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn index_of(handle: u64) -> usize {
    (handle >> KIND_BITS) as usize % SLOTS_COUNT
}

/// The slot of a handle of this kind.
#[inline]
fn slot_of<T: Object>(handle: u64) -> Option<&'static Slot> {
    (handle & KIND_MASK == T::KIND).then(|| &SLOTS[index_of(handle)])
}

/// A slot and a serial number for a handle: what can fail of making a handle has succeeded.
pub(crate) struct Reserved {
    index: usize,
    serial: u64,
}

/// Reserves a handle.
///
/// # Errors
/// [`mf_status::MF_NO_MEMORY`] with a million handles in use.
pub(crate) fn reserve() -> Result<Reserved, Error> {
    let mut free = free_slots();
    let index = match free.slots.pop() {
        Some(index) => index,
        None if free.used_count < SLOTS_COUNT => {
            free.used_count += 1;
            free.used_count - 1
        }
        None => {
            let text = format!("{} handles are in use; free some", free.used_count);
            return Err(Error::new(mf_status::MF_NO_MEMORY, text));
        }
    };
    free.serial = (free.serial + 1) % (1 << SERIAL_BITS);
    Ok(Reserved { index, serial: free.serial })
}

impl Reserved {
    /// Makes the handle, of `object`.
    pub(crate) fn fill<T: Object>(self, object: T) -> u64 {
        let handle = (self.serial << SLOT_BITS | self.index as u64) << KIND_BITS | T::KIND;
        let slot = &SLOTS[self.index];
        slot.object.store(Box::into_raw(Box::new(object)).cast(), Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire in `protect`: a thread with the handle sees the object.
        slot.handle.store(handle, Ordering::Release);
        std::mem::forget(self);
        handle
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        free_slots().slots.push(self.index);
    }
}

/// Makes a handle for `object`.
///
/// # Errors
/// Those of [`reserve`].
pub(crate) fn insert<T: Object>(object: T) -> Result<u64, Error> {
    Ok(reserve()?.fill(object))
}

/// The object of a handle, protected by `pin`, a cell of the calling thread's record. `None` if the handle is
/// [`invalid`]; `pin` is 0 then.
///
/// # Safety
/// The reference is used only until `pin` is cleared or overwritten.
#[inline]
pub(crate) unsafe fn protect<T: Object>(handle: u64, pin: &AtomicU64) -> Option<&'static T> {
    let slot = slot_of::<T>(handle)?;
    loop {
        pin.store(handle, Ordering::Relaxed);
        barrier::light();
        // ORDERING: Acquire pairs with the Release in `fill`. With the fences of `barrier`, either this load sees the mark
        // or the 0 of a free, or the free sees `pin`.
        let found = slot.handle.load(Ordering::Acquire);
        if found == handle {
            // SAFETY: the slot has the handle, so `object` is a T (the kind is a part of the handle), and whoever frees it
            // looks at `pin` before.
            return Some(unsafe { &*slot.object.load(Ordering::Relaxed).cast::<T>() });
        }
        pin.store(0, Ordering::Relaxed);
        if found != handle | BEING_FREED {
            return None;
        }
        await_free();
    }
}

/// Waits until a free in progress has decided. The caller has no lock.
#[cold]
fn await_free() {
    drop(records());
}

/// The error of an invalid handle.
#[cold]
pub(crate) fn invalid<T: Object>(handle: u64) -> Error {
    let text = if handle == 0 {
        format!("the {} is null; pass a handle that a function of this library returned", T::NAME)
    } else {
        format!("{handle:#x} is not a {}; it was freed, or is a handle of another kind", T::NAME)
    };
    Error::new(mf_status::MF_INVALID_HANDLE, text)
}

/// Takes the object of a handle, unless a thread uses it or `refusal` has a reason against it.
///
/// `refusal` does not panic, and takes no lock whose holders wait for a lock of a cache: it runs under that of the records.
///
/// # Errors
/// [`mf_status::MF_INVALID_HANDLE`], [`mf_status::MF_BUSY`]: the handle is valid as before.
pub(crate) fn remove<T: Object>(
    handle: u64,
    refusal: impl FnOnce(&T) -> Option<Error>,
) -> Result<Box<T>, Error> {
    let slot = slot_of::<T>(handle).ok_or_else(|| invalid::<T>(handle))?;
    let records = records();
    // ORDERING: Acquire pairs with the Release in `fill`. Other frees are excluded by the lock.
    if slot.handle.load(Ordering::Acquire) != handle {
        return Err(invalid::<T>(handle));
    }
    // ORDERING: Relaxed: the fences of `barrier` order it before the loads of the pins.
    slot.handle.store(handle | BEING_FREED, Ordering::Relaxed);
    let object = slot.object.load(Ordering::Relaxed).cast::<T>();
    // ORDERING: Acquire in `uses` pairs with the Release with which users clear their pins: their uses come before the drop.
    let refused = if !barrier::heavy() || records.iter().any(|record| record.uses(handle)) {
        Some(in_use::<T>())
    } else {
        // SAFETY: calls wait as long as the mark is there, and nobody uses the object, so it is this thread's own.
        refusal(unsafe { &*object })
    };
    if let Some(error) = refused {
        // ORDERING: Release, as in `fill`.
        slot.handle.store(handle, Ordering::Release);
        return Err(error);
    }
    slot.handle.store(0, Ordering::Relaxed);
    drop(records);
    free_slots().slots.push(index_of(handle));
    // SAFETY: as above; it came from a box in `fill`.
    Ok(unsafe { Box::from_raw(object) })
}

#[cold]
fn in_use<T: Object>() -> Error {
    let text = format!(
        "the {} is in use by a call, a view or a callback of this or another thread; wait for its end, release its \
         views, then free it",
        T::NAME
    );
    Error::new(mf_status::MF_BUSY, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Thing;

    impl Object for Thing {
        const KIND: u64 = 15;
        const NAME: &'static str = "thing";
    }

    /// Programs that hold entries for a moment use up the serial numbers within days.
    #[test]
    fn serial_numbers_start_again() {
        free_slots().serial = (1 << SERIAL_BITS) - 2;
        let handles = [(); 3].map(|()| insert(Thing).unwrap());
        assert_eq!(handles.map(|handle| handle & KIND_MASK), [Thing::KIND; 3]);
        assert!(handles[0] > handles[2]);
        handles.iter().for_each(|&handle| drop(remove::<Thing>(handle, |_| None).unwrap()));
        assert_eq!(remove::<Thing>(handles[1], |_| None).unwrap_err().status(), mf_status::MF_INVALID_HANDLE);
    }
}
