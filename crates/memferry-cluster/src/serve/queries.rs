//! The queries of the server: planned ones, which wait to be fetched, and running ones, which can be cancelled.
//!
//! ```text
//! GetFlightInfo ─▶ planned ─ DoGet ─▶ waiting ─▶ running ─▶ forgotten
//!                     └──── too old, too many, CancelFlightInfo ──▶ forgotten
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tonic::{Code, Status};

use super::access::User;
use super::error::status;
use super::id::Id;
use super::statement::Planned;

/// Why a query must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The client wants no more of it.
    Cancelled,
    /// The server stops.
    Shutdown,
}

/// The result of a request to cancel a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancel {
    /// It had not begun.
    Forgotten,
    /// It runs, and stops at its next batch.
    Stopping,
    /// It has ended, or never was.
    Unknown,
}

/// The queries of all users.
#[derive(Debug, Default)]
pub(super) struct Queries {
    entries: Mutex<HashMap<Id, Entry>>,
}

#[derive(Debug)]
struct Entry {
    user: User,
    state: State,
}

#[derive(Debug)]
enum State {
    Planned { planned: Box<Planned>, since: Instant },
    Running { stop: watch::Sender<Option<Stop>> },
}

impl Queries {
    /// Keeps a planned query until it is fetched. Beyond `planned_max`, the oldest is forgotten.
    pub(super) fn plan(&self, user: User, planned: Planned, planned_max: usize) -> Result<Id, Status> {
        let id = Id::random()?;
        let mut entries = self.lock();
        let waiting = entries.iter().filter_map(|(id, entry)| match entry.state {
            State::Planned { since, .. } => Some((since, *id)),
            State::Running { .. } => None,
        });
        let waiting: Vec<_> = waiting.collect();
        if waiting.len() >= planned_max
            && let Some((_, oldest)) = waiting.into_iter().min_by_key(|(since, _)| *since)
        {
            entries.remove(&oldest);
        }
        let state = State::Planned { planned: Box::new(planned), since: Instant::now() };
        entries.insert(id, Entry { user, state });
        Ok(id)
    }

    /// Takes a planned query to run it: once.
    ///
    /// # Errors
    /// `NOT_FOUND`: it was fetched, cancelled or forgotten, or is another user's.
    pub(super) fn begin(self: &Arc<Self>, id: Id, user: &User) -> Result<(Planned, Running), Status> {
        let mut entries = self.lock();
        match entries.get_mut(&id) {
            Some(Entry { user: owner, state })
                if *owner == *user && matches!(state, State::Planned { .. }) =>
            {
                let (stop, stopped) = watch::channel(None);
                let State::Planned { planned, .. } = std::mem::replace(state, State::Running { stop }) else {
                    unreachable!("matched above, under the same lock");
                };
                Ok((*planned, Running { queries: Arc::clone(self), id, stopped }))
            }
            _ => Err(status(
                Code::NotFound,
                "there is no such query: it was fetched, cancelled or forgotten; ask for it again (GetFlightInfo)",
            )),
        }
    }

    /// Begins a query that was not planned before: an update.
    pub(super) fn begin_at_once(self: &Arc<Self>, user: User) -> Result<Running, Status> {
        let id = Id::random()?;
        let (stop, stopped) = watch::channel(None);
        self.lock().insert(id, Entry { user, state: State::Running { stop } });
        Ok(Running { queries: Arc::clone(self), id, stopped })
    }

    /// Forgets a planned query, or stops a running one.
    pub(super) fn cancel(&self, id: Id, user: &User) -> Cancel {
        let mut entries = self.lock();
        match entries.get(&id) {
            Some(entry) if entry.user == *user => match &entry.state {
                State::Planned { .. } => {
                    entries.remove(&id);
                    Cancel::Forgotten
                }
                State::Running { stop } => {
                    stop.send_replace(Some(Stop::Cancelled));
                    Cancel::Stopping
                }
            },
            _ => Cancel::Unknown,
        }
    }

    /// Stops all running queries and forgets all planned ones.
    pub(super) fn stop_all(&self) {
        self.lock().retain(|_, entry| match &entry.state {
            State::Planned { .. } => false,
            State::Running { stop } => {
                stop.send_replace(Some(Stop::Shutdown));
                true
            }
        });
    }

    /// Forgets planned queries that nobody fetched for so long.
    pub(super) fn forget_planned(&self, planned_time: Duration) {
        self.lock().retain(|_, entry| match entry.state {
            State::Planned { since, .. } => since.elapsed() < planned_time,
            State::Running { .. } => true,
        });
    }

    /// Number of planned queries, and of running and waiting ones.
    pub(super) fn count(&self) -> (usize, usize) {
        let entries = self.lock();
        let planned = entries.values().filter(|entry| matches!(entry.state, State::Planned { .. })).count();
        (planned, entries.len() - planned)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A query that waits or runs; forgotten when dropped.
#[derive(Debug)]
pub(super) struct Running {
    queries: Arc<Queries>,
    id: Id,
    stopped: watch::Receiver<Option<Stop>>,
}

impl Running {
    pub(super) fn id(&self) -> Id {
        self.id
    }

    /// Resolves when the query must stop.
    pub(super) fn stop(&self) -> impl Future<Output = Stop> + Send + use<> {
        let mut stopped = self.stopped.clone();
        async move {
            let reason = stopped.wait_for(Option::is_some).await.map(|reason| *reason);
            match reason {
                Ok(Some(reason)) => reason,
                // The sender is gone with the entry, which this guard removes.
                _ => std::future::pending().await,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.queries.lock().remove(&self.id);
    }
}
