//! Handles: numbers for objects that C code holds, and their protection.
//!
//! ```text
//! handle   40 bits serial number of the slot's object | 20 bits slot | 4 bits kind of the object
//! slot     the handle of its object, or 0 | the object
//! ```
//!
//! A handle is never reused. So a slot has the handle that a caller passes, or the handle is invalid: never made, freed, or
//! of another kind. Slots are never freed.
//!
//! A thread that uses an object puts its handle into its own [`Record`] first (a hazard pointer). A thread that frees a
//! handle clears the slot, then looks at all records. If another thread uses the object, the slot gets the handle back and
//! the free is refused. Uses cost two stores and no atomic read-modify-write, because of the asymmetric fence of the cache.
//!
//! Source: M. Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", IEEE TPDS 15(6), 2004.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use memferry::internals::barrier;

use crate::error::{Error, mf_status};
use crate::thread::{Record, records};

const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 20;
const SEGMENT_SLOTS: usize = 1 << 10;
const SEGMENTS_COUNT: usize = 1 << (SLOT_BITS - 10);

/// An object with handles.
pub(crate) trait Object: Send + Sync + 'static {
    /// Distinguishes the kinds; below 16.
    const KIND: u64;
    /// For messages.
    const NAME: &'static str;
}

/// `handle` is written under the lock of [`FREE`], and cleared and restored by frees; users of the object read it.
/// `object` is written before `handle` is, and taken by the thread that cleared `handle`.
struct Slot {
    handle: AtomicU64,
    object: AtomicPtr<()>,
}

type Segment = [Slot; SEGMENT_SLOTS];

static SEGMENTS: [OnceLock<Box<Segment>>; SEGMENTS_COUNT] = [const { OnceLock::new() }; SEGMENTS_COUNT];

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
fn slot_of(handle: u64) -> Option<&'static Slot> {
    let index = (handle >> KIND_BITS) as usize % (SEGMENT_SLOTS * SEGMENTS_COUNT);
    Some(&SEGMENTS[index / SEGMENT_SLOTS].get()?[index % SEGMENT_SLOTS])
}

/// Makes a handle for `object`.
///
/// # Errors
/// [`mf_status::MF_NO_MEMORY`] with a million handles in use.
pub(crate) fn insert<T: Object>(object: T) -> Result<u64, Error> {
    let mut free = free_slots();
    let index = match free.slots.pop() {
        Some(index) => index,
        None if free.used_count < SEGMENT_SLOTS * SEGMENTS_COUNT => {
            free.used_count += 1;
            free.used_count - 1
        }
        None => {
            let text = format!("{} handles are in use; free some", free.used_count);
            return Err(Error::new(mf_status::MF_NO_MEMORY, text));
        }
    };
    let segment = SEGMENTS[index / SEGMENT_SLOTS].get_or_init(|| {
        let slot = || Slot { handle: AtomicU64::new(0), object: AtomicPtr::new(ptr::null_mut()) };
        let slots: Box<[Slot]> = (0..SEGMENT_SLOTS).map(|_| slot()).collect();
        slots.try_into().unwrap_or_else(|_| unreachable!("the length is that of a segment"))
    });
    free.serial += 1;
    let handle = (free.serial << SLOT_BITS | index as u64) << KIND_BITS | T::KIND;
    let slot = &segment[index % SEGMENT_SLOTS];
    slot.object.store(Box::into_raw(Box::new(object)).cast(), Ordering::Relaxed);
    // ORDERING: Release pairs with the Acquire in `protect`: a thread with the handle sees the object.
    slot.handle.store(handle, Ordering::Release);
    Ok(handle)
}

/// The object of a handle, protected by `pin`, a cell of the calling thread's record.
///
/// # Errors
/// [`mf_status::MF_INVALID_HANDLE`]; `pin` is 0 then.
///
/// # Safety
/// The reference is used only until `pin` is cleared or overwritten.
#[inline]
pub(crate) unsafe fn protect<T: Object>(handle: u64, pin: &AtomicU64) -> Result<&'static T, Error> {
    if handle & ((1 << KIND_BITS) - 1) == T::KIND
        && let Some(slot) = slot_of(handle)
    {
        pin.store(handle, Ordering::Relaxed);
        barrier::light();
        // ORDERING: Acquire pairs with the Release in `insert`. With the fences of `barrier`, either this load sees the 0
        // of a free, or the free sees `pin`.
        if slot.handle.load(Ordering::Acquire) == handle {
            // SAFETY: the slot has the handle, so `object` is a T (the kind is a part of the handle), and whoever frees it
            // looks at `pin` before.
            return Ok(unsafe { &*slot.object.load(Ordering::Relaxed).cast::<T>() });
        }
        pin.store(0, Ordering::Relaxed);
    }
    Err(invalid::<T>(handle))
}

#[cold]
fn invalid<T: Object>(handle: u64) -> Error {
    let text = if handle == 0 {
        format!("the {} is null; pass a handle that a function of this library returned", T::NAME)
    } else {
        format!("{handle:#x} is not a {}; it was freed, or is a handle of another kind", T::NAME)
    };
    Error::new(mf_status::MF_INVALID_HANDLE, text)
}

/// Takes the object of a handle, unless a thread uses it or `refusal` has a reason against it.
///
/// # Errors
/// [`mf_status::MF_INVALID_HANDLE`], [`mf_status::MF_BUSY`]: the handle is valid as before.
pub(crate) fn remove<T: Object>(
    handle: u64,
    refusal: impl FnOnce(&T) -> Option<Error>,
) -> Result<Box<T>, Error> {
    let slot = slot_of(handle).filter(|_| handle & ((1 << KIND_BITS) - 1) == T::KIND);
    let slot = slot.ok_or_else(|| invalid::<T>(handle))?;
    // ORDERING: Acquire pairs with the Release in `insert` and of another free's restore.
    let cleared = slot.handle.compare_exchange(handle, 0, Ordering::Acquire, Ordering::Relaxed);
    cleared.map_err(|_| invalid::<T>(handle))?;
    let restore = |error| {
        // ORDERING: Release, as in `insert`.
        slot.handle.store(handle, Ordering::Release);
        Err(error)
    };
    // ORDERING: Acquire in `uses` pairs with the Release with which users clear their pins: their uses come before the drop.
    let is_used = !barrier::heavy() || records().iter().any(|record: &&Record| record.uses(handle));
    if is_used {
        let text = format!(
            "the {} is in use by a call, a view or a callback of this or another thread; wait for its end, \
             release its views, then free it",
            T::NAME
        );
        return restore(Error::new(mf_status::MF_BUSY, text));
    }
    let object = slot.object.load(Ordering::Relaxed).cast::<T>();
    // SAFETY: this thread cleared the handle and nobody uses the object, so it is this thread's own.
    if let Some(error) = refusal(unsafe { &*object }) {
        return restore(error);
    }
    free_slots().slots.push((handle >> KIND_BITS) as usize % (SEGMENT_SLOTS * SEGMENTS_COUNT));
    // SAFETY: as above; it came from a box in `insert`.
    Ok(unsafe { Box::from_raw(object) })
}
