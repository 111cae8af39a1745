//! Statistics, fall-backs and errors as `tracing` events with the target `memferry::mover`.
//!
//! There is no event per copy: an event costs more than a submission.
//!
//! | event | level | when |
//! |---|---|---|
//! | `engine`, `mover` | info | [`MoverStats::trace`](super::MoverStats::trace) is called |
//! | `copy failed` | warn | a copy or an operation completes with an error |
//! | `queue gone` | warn | a queue gets no more work |
//! | `done by the CPU` | debug | a DSA engine leaves pieces to its CPU |
//! | `done by the caller`, `queued beyond the limit` | debug | all engines are full |
//! | `not supported` | debug | no added engine supports an operation |

use memferry_dsa::internals::panics;
/// Emits an event and contains a panic of the subscriber, which runs on threads of engines or between submission and
/// completion of a copy. Hold no lock around it.
pub(in crate::mover) fn safely(event: impl FnOnce()) {
    let _ = panics::contain(event);
}
