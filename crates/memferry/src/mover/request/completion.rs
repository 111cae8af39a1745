//! The completion of a request: its result, and the callback that takes it.

use std::ops::AddAssign;
use std::sync::Arc;

use memferry_dsa::internals::panics;
use serde::Serialize;

use super::epoch::Epoch;
use crate::mover::error::CopyError;

/// Bytes of one copy or read by kind of engine. For another operation: the size in its request.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// Bytes copied by CPUs.
    pub cpu_bytes: u64,
    /// Bytes copied by DSA devices.
    pub dsa_bytes: u64,
    /// Bytes read from files.
    pub file_bytes: u64,
}

impl CopyReport {
    /// All bytes of the copy.
    pub fn bytes(&self) -> u64 {
        self.cpu_bytes + self.dsa_bytes + self.file_bytes
    }
}

impl AddAssign for CopyReport {
    fn add_assign(&mut self, other: CopyReport) {
        self.cpu_bytes += other.cpu_bytes;
        self.dsa_bytes += other.dsa_bytes;
        self.file_bytes += other.file_bytes;
    }
}

/// The result of a copy, as engines report it.
pub(in crate::mover) type CopyResult = Result<CopyReport, CopyError>;

/// The completion callback of a request: called once, with the result.
pub(in crate::mover) struct Callback {
    target: Target,
    /// Released after the call.
    epoch: Option<Arc<Epoch>>,
}

enum Target {
    Closure(Box<dyn FnOnce(CopyResult) + Send>),
    /// An allocation that the waiter has anyway, so that small copies need no box.
    Shared(Arc<dyn Complete>),
}

/// Something that waits for the completion of a request.
pub(in crate::mover) trait Complete: Send + Sync {
    /// Takes the result. Called once for each request that was given this.
    fn complete(self: Arc<Self>, result: CopyResult);
}

impl Callback {
    pub(in crate::mover) fn new(closure: impl FnOnce(CopyResult) + Send + 'static) -> Callback {
        Callback { target: Target::Closure(Box::new(closure)), epoch: None }
    }

    #[inline]
    pub(in crate::mover) fn shared(target: Arc<dyn Complete>) -> Callback {
        Callback { target: Target::Shared(target), epoch: None }
    }

    /// Joins the epoch. Returns true on the first call.
    pub(in crate::mover) fn join_epoch(&mut self, epoch: impl FnOnce() -> Arc<Epoch>) -> bool {
        let is_first = self.epoch.is_none();
        self.epoch.get_or_insert_with(epoch);
        is_first
    }

    /// Leaves the epoch: no engine took the request.
    pub(in crate::mover) fn leave_epoch(&mut self) {
        self.epoch = None;
    }

    /// Calls back.
    ///
    /// The panic hook has printed a panic of the callback. It ends here, because it must not end the engine's thread,
    /// which serves other requests.
    pub(in crate::mover) fn call(self, result: CopyResult) {
        let Callback { target, epoch } = self;
        let _ = panics::contain(|| match target {
            Target::Closure(closure) => closure(result),
            Target::Shared(target) => target.complete(result),
        });
        drop(epoch);
    }
}
