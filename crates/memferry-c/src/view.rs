//! Views: hits without lock, allocation or reference count.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

use memferry::cache::View;

use crate::cache::{CRegion, mf_access, mf_cache, mf_location, mf_region};
use crate::error::{Error, mf_status};
use crate::handles::invalid;
use crate::machine::{check_out, put};
use crate::thread::{Record, call, quick_call, too_many_views};

/// A borrowed hit. It stays on its thread and where it is until `mf_view_release`; a copy of it is not a view. A thread can
/// have 64 views.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_view {
    /// The bytes.
    pub data: *const c_void,
    /// Their number.
    pub size: usize,
    /// For the library.
    pub position: usize,
    /// For the library.
    pub serial: u64,
    /// For the library.
    pub inner: [u64; 8],
}

type Inner = View<'static>;

const _: () =
    assert!(size_of::<Inner>() <= size_of::<[u64; 8]>() && align_of::<Inner>() <= align_of::<u64>());

/// Borrows bytes of a region from the fastest memory that has them; starts a copy on a miss, and borrows the source
/// meanwhile.
///
/// A hit on a chunk, or on a part of one, takes no lock and writes no memory of other threads. NULL options are all zero;
/// `MF_ACCESS_WEAK` and `MF_WAIT_WEAK` have no effect here and are refused.
///
/// # Safety
/// `options` is NULL or valid, `view` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cache_view(
    cache: mf_cache,
    region: mf_region,
    offset: usize,
    size: usize,
    options: *const mf_access,
    view: *mut mf_view,
) -> mf_status {
    // Anything but a hit goes the other way.
    let hit = quick_call(|record| {
        if options.is_null() && !view.is_null() {
            let range = offset..offset.checked_add(size)?;
            let position = record.free_view()?;
            let (region, serial) = record.begin_view::<CRegion>(region.id, position)?;
            if let Some(borrowed) = region.hit(cache, range) {
                // SAFETY: `view` is valid for a write; `mf_view_release` ends the view.
                unsafe { write(view, borrowed, position, serial) };
                return Some(());
            }
            record.end_view(position);
        }
        None
    });
    if hit.is_some() {
        return mf_status::MF_OK;
    }
    // SAFETY: passed on to the caller.
    unsafe { borrow(cache, region, offset, size, options, view) }
}

/// All of `mf_cache_view`.
#[inline(never)]
unsafe fn borrow(
    cache: mf_cache,
    region: mf_region,
    offset: usize,
    size: usize,
    options: *const mf_access,
    view: *mut mf_view,
) -> mf_status {
    call(|call| {
        check_out(view, "view")?;
        let range = offset..offset.checked_add(size).ok_or_else(out_of_range)?;
        let position = call.record.free_view().ok_or_else(too_many_views)?;
        let begun = call.record.begin_view::<CRegion>(region.id, position);
        let (region, serial) = begun.ok_or_else(|| invalid::<CRegion>(region.id))?;
        // SAFETY: promised by the caller.
        let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
        match region.view(cache, range, &options) {
            // SAFETY: as for a hit.
            Ok(borrowed) => unsafe { write(view, borrowed, position, serial) },
            Err(error) => {
                call.record.end_view(position);
                return Err(error);
            }
        }
        Ok(())
    })
}

/// Writes a borrowed view.
///
/// # Safety
/// `view` is valid for a write. The view is protected at `position` until the drop of its `inner`.
#[inline(always)]
unsafe fn write(view: *mut mf_view, borrowed: View<'_>, position: usize, serial: u64) {
    // Not dropped by a panic of `as_slice`, which has none: so the view stays in registers.
    let borrowed = ManuallyDrop::new(borrowed);
    let bytes = borrowed.as_slice();
    let (data, size) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the region and so its cache live until `end_view`, which comes after the drop of the view. It fits, as
    // asserted above.
    unsafe {
        (&raw mut (*view).data).write(data);
        (&raw mut (*view).size).write(size);
        (&raw mut (*view).position).write(position);
        (&raw mut (*view).serial).write(serial);
        (&raw mut (*view).inner).cast::<ManuallyDrop<View<'_>>>().write(borrowed);
    }
}

#[cold]
fn out_of_range() -> Error {
    Error::argument("offset and size end behind the address space; pass a range of the region")
}

/// The borrowed view, if it is one of this thread.
#[inline(always)]
fn inner(record: &Record, view: *mut mf_view) -> Option<*mut Inner> {
    // SAFETY: the callers promise that `view` is NULL or readable.
    let view = unsafe { view.as_mut() }?;
    record.has_view(view.position, view.serial).then(|| (&raw mut view.inner).cast())
}

#[cold]
fn not_a_view() -> Error {
    Error::new(
        mf_status::MF_INVALID_HANDLE,
        "this is not a view of the calling thread; it is NULL, was released, or belongs to another thread",
    )
}

/// Ends a view.
///
/// # Safety
/// `view` is NULL or was written by `mf_cache_view`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_view_release(view: *mut mf_view) -> mf_status {
    let release = |record: &Record| {
        let borrowed = inner(record, view)?;
        // SAFETY: the thread has the view, so it was not released, and is dropped once: `end_view` follows.
        unsafe {
            ptr::drop_in_place(borrowed);
            record.end_view((*view).position);
            (&raw mut (*view).data).write(ptr::null());
        }
        Some(())
    };
    match quick_call(release) {
        Some(()) => mf_status::MF_OK,
        None => call(|call| release(call.record).ok_or_else(not_a_view)),
    }
}

/// Waits until the copy is ready or has failed, updates `data`, and writes the location, unless that is NULL. Not in a
/// completion callback.
///
/// # Safety
/// `view` is NULL or was written by `mf_cache_view`, `location` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_view_wait(view: *mut mf_view, location: *mut mf_location) -> mf_status {
    call(|call| {
        let borrowed = inner(call.record, view).ok_or_else(not_a_view)?;
        call.may_block()?;
        // SAFETY: as in `mf_view_release`, for reading.
        let borrowed = unsafe { &*borrowed };
        let place = borrowed.wait();
        let found = mf_location::of(place, borrowed.as_slice());
        // SAFETY: promised by the caller.
        unsafe {
            (&raw mut (*view).data).write(found.data);
            if location.is_null() { Ok(()) } else { put(location, "location", found) }
        }
    })
}
