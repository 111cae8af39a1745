//! A part of something that is shared and kept: of a value in this process, or of a mapping that others have as well.

#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A reference to a part of what it keeps.
pub(crate) struct ArcRef<T> {
    part: NonNull<T>,
    whole: Arc<dyn Any + Send + Sync>,
}

impl<T: Send + Sync + 'static> ArcRef<T> {
    /// A value of its own.
    pub(crate) fn own(value: T) -> ArcRef<T> {
        ArcRef::part_of(Arc::new(value), |value| value)
    }

    /// A part of `whole`.
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
        // SAFETY: `part_of` was handed the reference by a function that works for every lifetime of the borrow of
        // `whole`, so that it lies in it, or lives for ever. `whole` does not move, nobody has it mutably, and it lives
        // as long as this.
        unsafe { self.part.as_ref() }
    }
}

// SAFETY: it is a shared reference to a `T`, with a counter that is `Send` and `Sync`.
unsafe impl<T: Sync> Send for ArcRef<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ArcRef<T> {}
