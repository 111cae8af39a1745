//! Several requests with one completion.

use std::sync::Arc;

use super::completion::{Callback, Complete, CopyReport, CopyResult};
use crate::mover::error::CopyError;
use crate::sync::{Mutex, lock};

/// The callbacks of `count` requests that complete together, with `complete`.
///
/// The result is the sum of the reports, or the first error; an error that says that buffers are lost precedes all
/// others. Without requests it completes at once.
pub(in crate::mover) fn join(
    count: usize,
    complete: impl FnOnce(CopyResult) + Send + 'static,
) -> impl Iterator<Item = Callback> {
    let state = JoinState {
        // One more, so that no request completes the join while the callbacks are being made.
        left_count: count + 1,
        report: CopyReport::default(),
        error: None,
        callback: Some(Callback::new(complete)),
    };
    let join = Arc::new(Join { state: Mutex::new(state) });
    let callbacks: Vec<Callback> = (0..count).map(|_| Callback::shared(join.clone())).collect();
    join.complete(Ok(CopyReport::default()));
    callbacks.into_iter()
}

/// Shared by the requests of a join. Each locks `state` once, on its completion; the last one calls back.
struct Join {
    state: Mutex<JoinState>,
}

struct JoinState {
    left_count: usize,
    report: CopyReport,
    error: Option<CopyError>,
    callback: Option<Callback>,
}

impl Complete for Join {
    fn complete(self: Arc<Self>, result: CopyResult) {
        let mut state = lock(&self.state);
        match result {
            Ok(report) => state.report += report,
            Err(error) if error.buffers_are_lost() => state.error = Some(error),
            Err(error) => _ = state.error.get_or_insert(error),
        }
        state.left_count -= 1;
        if state.left_count > 0 {
            return;
        }
        let result = state.error.map_or(Ok(state.report), Err);
        let callback = state.callback.take();
        drop(state);
        if let Some(callback) = callback {
            callback.call(result);
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn joined(count: usize) -> (Vec<Callback>, Receiver<CopyResult>) {
        let (sender, results) = channel();
        (join(count, move |result| _ = sender.send(result)).collect(), results)
    }

    #[test]
    fn a_join_completes_with_its_last_request() {
        let report = CopyReport { cpu_bytes: 3, dsa_bytes: 4, file_bytes: 0 };
        let (callbacks, results) = joined(3);
        for callback in callbacks {
            assert!(results.try_recv().is_err(), "one is left");
            callback.call(Ok(report));
        }
        assert_eq!(results.try_recv(), Ok(Ok(CopyReport { cpu_bytes: 9, dsa_bytes: 12, file_bytes: 0 })));
        assert_eq!(joined(0).1.try_recv(), Ok(Ok(CopyReport::default())));
    }

    /// An earlier error must not hide that buffers are lost.
    #[test]
    fn lost_buffers_precede_all_other_errors() {
        let errors = [CopyError::Injected, CopyError::DeviceLost, CopyError::Abandoned];
        let (callbacks, results) = joined(3);
        callbacks.into_iter().zip(errors).for_each(|(callback, error)| callback.call(Err(error)));
        assert_eq!(results.try_recv(), Ok(Err(CopyError::DeviceLost)));
        let (callbacks, results) = joined(2);
        callbacks
            .into_iter()
            .zip([Err(CopyError::Injected), Ok(CopyReport::default())])
            .for_each(|(callback, result)| callback.call(result));
        assert_eq!(results.try_recv(), Ok(Err(CopyError::Injected)));
    }
}
