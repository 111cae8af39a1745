//! Shared values of which the compiler knows at once that threads may share them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A shared value, behind a trait object that is `Send` and `Sync`.
///
/// For each async method whose future holds a plan or a session of DataFusion, the compiler proves anew that all of their
/// types are `Send` and `Sync`, in seconds a method. Of a trait object it knows.
pub(super) struct Proven<T>(Arc<dyn Deref<Target = T> + Send + Sync>);

impl<T: Send + Sync + 'static> Proven<T> {
    pub(super) fn new(value: T) -> Proven<T> {
        Proven(Arc::new(Box::new(value)))
    }
}

impl<T> Clone for Proven<T> {
    fn clone(&self) -> Proven<T> {
        Proven(Arc::clone(&self.0))
    }
}

impl<T> Deref for Proven<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Proven<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
