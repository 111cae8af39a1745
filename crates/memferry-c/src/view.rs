//! Views: hits without lock, allocation or reference count.

use std::ffi::c_void;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;

use memferry::cache::View;

use crate::cache::{CCache, CRegion, mf_access, mf_cache, mf_location, mf_region};
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
        let handle = cache.id;
        let cache = call.get::<CCache>(handle)?;
        let region = &call.get::<CRegion>(region.id)?.region;
        let end = offset.checked_add(size).ok_or_else(out_of_range)?;
        const NONE: mf_access = mf_access { flags: 0, requester: 0, near_node: 0, route: 0 };
        // SAFETY: promised by the caller.
        let options = unsafe { options.as_ref() }.unwrap_or(&NONE);
        if options.flags & (crate::cache::MF_ACCESS_WEAK | crate::cache::MF_WAIT_WEAK) != 0 {
            return Err(Error::argument("a view is neither weak nor waited for; use mf_cache_access"));
        }
        let access = cache.access(options, region, size)?;
        let (position, serial) = call.begin_view(handle)?;
        let borrowed = match cache.cache.view(region, offset..end, access) {
            Ok(borrowed) => borrowed,
            Err(error) => {
                call.end_view(position);
                return Err(error.into());
            }
        };
        // SAFETY: the record of this thread protects the cache until `end_view`, which comes after the drop of the view.
        let borrowed = ManuallyDrop::new(unsafe { std::mem::transmute::<View<'_>, Inner>(borrowed) });
        let mut inner = MaybeUninit::<[u64; 8]>::uninit();
        let bytes = borrowed.as_slice();
        // SAFETY: `view` is valid for a write. The view fits, as asserted above, and the rest of `inner` stays as it is.
        unsafe {
            (&raw mut (*view).data).write(bytes.as_ptr().cast());
            (&raw mut (*view).size).write(bytes.len());
            (&raw mut (*view).position).write(position);
            (&raw mut (*view).serial).write(serial);
            inner.as_mut_ptr().cast::<ManuallyDrop<Inner>>().write(borrowed);
            ptr::copy_nonoverlapping(
                inner.as_ptr().cast::<u8>(),
                (&raw mut (*view).inner).cast::<u8>(),
                size_of::<Inner>(),
            );
        }
        Ok(())
    })
}

#[cold]
fn out_of_range() -> Error {
    Error::argument("offset and size end behind the address space; pass a range of the region")
}

/// The borrowed view of this thread.
fn inner(call: &Call, view: *const mf_view) -> Result<*const Inner, Error> {
    // SAFETY: the callers promise that `view` is NULL or readable.
    match unsafe { view.as_ref() } {
        Some(view) if call.has_view(view.position, view.serial) => Ok((&raw const view.inner).cast()),
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
            drop(borrowed.read());
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
