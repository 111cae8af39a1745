//! The source of a read, and the demand for its bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::storage::StoredFile;

/// A range of a file as the source of a request; its length is that of the request.
pub(crate) struct FileSource {
    pub(super) file: Arc<StoredFile>,
    pub(super) offset: u64,
    pub(super) demand: Option<Arc<Demand>>,
}

impl FileSource {
    /// A source that is read in any case.
    pub(crate) fn new(file: Arc<StoredFile>, offset: u64) -> FileSource {
        FileSource { file, offset, demand: None }
    }

    /// A source that is read if somebody still wants it then.
    pub(crate) fn on_demand(file: Arc<StoredFile>, offset: u64, demand: Arc<Demand>) -> FileSource {
        FileSource { file, offset, demand: Some(demand) }
    }
}

/// The number of handles that want a read, and whether it has started or was cancelled.
///
/// ```text
/// waiting, n handles ──start, n > 0──▶ started
///          n = 0     ──start────────▶ cancelled: nobody can join any more
/// ```
///
/// One word, so all threads agree on its changes. Nothing else is published with it: all of them are relaxed.
#[derive(Debug, Default)]
pub(crate) struct Demand(AtomicUsize);

const STARTED: usize = 1 << (usize::BITS - 1);
const CANCELLED: usize = 1 << (usize::BITS - 2);

impl Demand {
    /// The demand of one handle.
    pub(crate) fn one() -> Demand {
        Demand(AtomicUsize::new(1))
    }

    /// Adds a handle. Returns false if the read was cancelled.
    #[must_use]
    pub(crate) fn join(&self) -> bool {
        // ORDERING: see the type.
        self.0.try_update(Relaxed, Relaxed, |state| (state & CANCELLED == 0).then_some(state + 1)).is_ok()
    }

    /// Removes a handle that was added.
    pub(crate) fn leave(&self) {
        // ORDERING: see the type.
        self.0.fetch_sub(1, Relaxed);
    }

    /// Whether the read starts. If there is no handle it is cancelled instead.
    pub(crate) fn start(&self) -> bool {
        let next = |state| if state == 0 { CANCELLED } else { state | STARTED };
        // ORDERING: see the type.
        self.0.try_update(Relaxed, Relaxed, |state| Some(next(state))).is_ok_and(|before| before != 0)
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_nobody_wants_is_cancelled_for_good() {
        let demand = Demand::one();
        assert!(demand.join());
        demand.leave();
        demand.leave();
        assert!(demand.join(), "not yet");
        demand.leave();
        assert!(!demand.start() && !demand.join());
    }

    #[test]
    fn a_started_read_is_not_cancelled() {
        let demand = Demand::one();
        assert!(demand.start());
        demand.leave();
        assert!(demand.join(), "its bytes are on the way");
        assert!(demand.start());
    }
}
