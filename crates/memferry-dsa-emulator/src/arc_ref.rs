//! An `Arc` to a part of a value: of a value in this process, or of a shared mapping.

#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A reference to a part of a value that it keeps alive.
pub(crate) struct ArcRef<T> {
    part: NonNull<T>,
    whole: Arc<dyn Any + Send + Sync>,
}

impl<T: Send + Sync + 'static> ArcRef<T> {
    /// A reference to a whole value, which it owns.
    pub(crate) fn own(value: T) -> ArcRef<T> {
        ArcRef::part_of(Arc::new(value), |value| value)
    }

    /// A reference to a part of `whole`.
    pub(crate) fn part_of<W: Any + Send + Sync>(whole: Arc<W>, part: impl FnOnce(&W) -> &T) -> ArcRef<T> {
        ArcRef { part: NonNull::from(part(&whole)), whole }
    }
}

impl<T> Clone for ArcRef<T> {
    fn clone(&self) -> ArcRef<T> {
        ArcRef { part: self.part, whole: Arc::clone(&self.whole) }
    }
}

impl<T> Deref for ArcRef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `part_of` got the reference from a function that works for every lifetime of the borrow of `whole`.
        // So it points into `whole`, or is 'static. `whole` does not move, is never borrowed mutably, and lives as long
        // as this.
        unsafe { self.part.as_ref() }
    }
}

// SAFETY: it is a shared reference to a `T`, with a counter that is `Send` and `Sync`.
unsafe impl<T: Sync> Send for ArcRef<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ArcRef<T> {}
