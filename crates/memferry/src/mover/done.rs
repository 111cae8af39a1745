//! What is told the end of a copy.

use std::sync::Arc;

use memferry_dsa::panics;

use super::drain::Epoch;
use super::{CopyError, CopyReport};

/// How a copy ended.
pub(super) type Ending = Result<CopyReport, CopyError>;

/// Is told how a copy ended, once.
pub(super) struct Done {
    whom: Whom,
    /// Let go after that.
    epoch: Option<Arc<Epoch>>,
}

enum Whom {
    /// A callback.
    Call(Box<dyn FnOnce(Ending) + Send>),
    /// Who waits for it: whatever it shares with others already, so that small copies do without a box.
    Ends(Arc<dyn Ends>),
}

/// Something that waits for the end of a copy.
pub(super) trait Ends: Send + Sync {
    /// The copy has ended. Called once for each copy that was given this.
    fn end(self: Arc<Self>, ending: Ending);
}

impl Done {
    /// Calls back.
    pub(super) fn call(callback: impl FnOnce(Ending) + Send + 'static) -> Done {
        Done { whom: Whom::Call(Box::new(callback)), epoch: None }
    }

    /// Tells who waits.
    pub(super) fn ends(ends: Arc<dyn Ends>) -> Done {
        Done { whom: Whom::Ends(ends), epoch: None }
    }

    /// The copy has begun, unless it had before; whether it had not.
    pub(super) fn begin_in(&mut self, epoch: impl FnOnce() -> Arc<Epoch>) -> bool {
        let begins = self.epoch.is_none();
        self.epoch.get_or_insert_with(epoch);
        begins
    }

    /// The copy has not begun after all.
    pub(super) fn leave_epoch(&mut self) {
        self.epoch = None;
    }

    /// Tells it. A panic in there has been printed by the panic hook; it must not take an engine's thread with it,
    /// since the copies behind this one are not to blame.
    pub(super) fn tell(self, ending: Ending) {
        let Done { whom, epoch } = self;
        let _ = panics::contain(|| match whom {
            Whom::Call(callback) => callback(ending),
            Whom::Ends(ends) => ends.end(ending),
        });
        drop(epoch);
    }
}
