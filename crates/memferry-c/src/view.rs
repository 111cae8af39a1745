//! Views: hits without lock, allocation or reference count.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr;

use memferry::cache::View;

use crate::cache::{CRegion, mf_access, mf_cache, mf_location, mf_region};
use crate::error::{Error, mf_status};
use crate::machine::{check_out, put};
use crate::thread::{Call, call};

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
    pub position: u32,
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
    call(|call| {
        check_out(view, "view")?;
        let end = offset.checked_add(size).ok_or_else(out_of_range)?;
        let (region, position, serial) = call.begin_view::<CRegion>(region.id)?;
        // SAFETY: promised by the caller.
        let borrowed = region.view(cache, offset..end, unsafe { options.as_ref() });
        let borrowed = match borrowed {
            Ok(borrowed) => borrowed,
            Err(error) => {
                call.end_view(position);
                return Err(error);
            }
        };
        // SAFETY: `end_view`, which ends the protection of the region and so of its cache, comes after the drop of the view.
        let borrowed = ManuallyDrop::new(unsafe { std::mem::transmute::<View<'_>, Inner>(borrowed) });
        let bytes = borrowed.as_slice();
        // SAFETY: `view` is valid for a write, and the view fits, as asserted above.
        unsafe {
            (&raw mut (*view).data).write(bytes.as_ptr().cast());
            (&raw mut (*view).size).write(bytes.len());
            (&raw mut (*view).position).write(position);
            (&raw mut (*view).serial).write(serial);
            (&raw mut (*view).inner).cast::<ManuallyDrop<Inner>>().write(borrowed);
        }
        Ok(())
    })
}

#[cold]
fn out_of_range() -> Error {
    Error::argument("offset and size end behind the address space; pass a range of the region")
}

/// The borrowed view of this thread.
fn inner(call: &Call, view: *mut mf_view) -> Result<*mut Inner, Error> {
    // SAFETY: the callers promise that `view` is NULL or readable.
    match unsafe { view.as_mut() } {
        Some(view) if call.has_view(view.position, view.serial) => Ok((&raw mut view.inner).cast()),
        _ => Err(not_a_view()),
    }
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
    call(|call| {
        let borrowed = inner(call, view)?;
        // SAFETY: the serial number is in use, so the view was not released, and is dropped once: `end_view` follows.
        unsafe {
            ptr::drop_in_place(borrowed);
            call.end_view((*view).position);
            (&raw mut (*view).serial).write(0);
            (&raw mut (*view).data).write(ptr::null());
        }
        Ok(())
    })
}

/// Waits until the copy is ready or has failed, updates `data`, and writes the location, unless that is NULL. Not in a
/// completion callback.
///
/// # Safety
/// `view` is NULL or was written by `mf_cache_view`, `location` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_view_wait(view: *mut mf_view, location: *mut mf_location) -> mf_status {
    call(|call| {
        let borrowed = inner(call, view)?;
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
