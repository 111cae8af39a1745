//! Several operations with one end.

use std::sync::Arc;

use super::done::{Done, Ending, Ends};
use super::{CopyError, CopyReport};
use crate::sync::{Mutex, lock};

/// Ends when the last of its members does: with the sum of their reports, or the first error; but with one that says
/// that buffers are lost, if there is any.
pub(super) struct Joint {
    state: Mutex<State>,
}

struct State {
    left_count: usize,
    report: CopyReport,
    error: Option<CopyError>,
    done: Option<Done>,
}

impl Joint {
    /// The ends of `count` members. With none it is at its end at once.
    pub(super) fn of(count: usize, done: impl FnOnce(Ending) + Send + 'static) -> impl Iterator<Item = Done> {
        let state = State {
            // One more, so that no member ends it while others are being made.
            left_count: count + 1,
            report: CopyReport::default(),
            error: None,
            done: Some(Done::call(done)),
        };
        let joint = Arc::new(Joint { state: Mutex::new(state) });
        let members: Vec<Done> = (0..count).map(|_| Done::ends(joint.clone())).collect();
        joint.end(Ok(CopyReport::default()));
        members.into_iter()
    }
}

impl Ends for Joint {
    fn end(self: Arc<Self>, result: Ending) {
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
        let done = state.done.take();
        drop(state);
        if let Some(done) = done {
            done.tell(result);
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn joint(count: usize) -> (Vec<Done>, Receiver<Result<CopyReport, CopyError>>) {
        let (sender, results) = channel();
        let members = Joint::of(count, move |result| _ = sender.send(result)).collect();
        (members, results)
    }

    #[test]
    fn it_ends_with_its_last_member() {
        let report = CopyReport { cpu_bytes: 3, dsa_bytes: 4 };
        let (members, results) = joint(3);
        for member in members {
            assert!(results.try_recv().is_err(), "one is left");
            member.tell(Ok(report));
        }
        assert_eq!(results.try_recv(), Ok(Ok(CopyReport { cpu_bytes: 9, dsa_bytes: 12 })));
        assert_eq!(joint(0).1.try_recv(), Ok(Ok(CopyReport::default())));
    }

    /// That buffers are lost must not be hidden by an error that came first.
    #[test]
    fn lost_buffers_are_reported_before_all_else() {
        let errors = [CopyError::Injected, CopyError::DeviceLost, CopyError::Abandoned];
        let (members, results) = joint(3);
        members.into_iter().zip(errors).for_each(|(member, error)| member.tell(Err(error)));
        assert_eq!(results.try_recv(), Ok(Err(CopyError::DeviceLost)));
        let (members, results) = joint(2);
        members
            .into_iter()
            .zip([Err(CopyError::Injected), Ok(CopyReport::default())])
            .for_each(|(member, result)| member.tell(result));
        assert_eq!(results.try_recv(), Ok(Err(CopyError::Injected)));
    }
}
