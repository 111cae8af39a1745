//! Prepared statements: planned once, run with other parameters each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use tonic::{Code, Status};

use super::access::User;
use super::error::status;
use super::id::Id;
use super::statement::Parsed;

/// The prepared statements of all users.
#[derive(Debug, Default)]
pub(super) struct PreparedStatements {
    entries: Mutex<HashMap<Id, Entry>>,
}

#[derive(Debug)]
struct Entry {
    user: User,
    parsed: Arc<Parsed>,
    /// The rows of parameters that were bound last.
    bound: Vec<RecordBatch>,
    used: Instant,
}

impl PreparedStatements {
    /// Keeps a statement. Beyond `statements_max`, the one whose last use is longest ago is forgotten.
    pub(super) fn add(&self, user: User, parsed: Arc<Parsed>, statements_max: usize) -> Result<Id, Status> {
        let id = Id::random()?;
        let mut entries = self.lock();
        if entries.len() >= statements_max
            && let Some(oldest) = entries.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id)
        {
            entries.remove(&oldest);
        }
        entries.insert(id, Entry { user, parsed, bound: Vec::new(), used: Instant::now() });
        Ok(id)
    }

    /// Keeps rows of parameters for the next run.
    pub(super) fn bind(&self, handle: &[u8], user: &User, rows: Vec<RecordBatch>) -> Result<(), Status> {
        self.with(handle, user, |entry| entry.bound = rows)
    }

    /// The statement, and the rows of parameters that were bound last.
    pub(super) fn get(&self, handle: &[u8], user: &User) -> Result<(Arc<Parsed>, Vec<RecordBatch>), Status> {
        self.with(handle, user, |entry| (Arc::clone(&entry.parsed), entry.bound.clone()))
    }

    /// Forgets a statement; one that is not there is forgotten already.
    pub(super) fn close(&self, handle: &[u8], user: &User) {
        let mut entries = self.lock();
        if let Some(id) = Id::from_bytes(handle)
            && entries.get(&id).is_some_and(|entry| entry.user == *user)
        {
            entries.remove(&id);
        }
    }

    /// Forgets statements that were not used for so long.
    pub(super) fn forget_idle(&self, idle_time: Duration) {
        self.lock().retain(|_, entry| entry.used.elapsed() < idle_time);
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    fn with<T>(&self, handle: &[u8], user: &User, use_it: impl FnOnce(&mut Entry) -> T) -> Result<T, Status> {
        let mut entries = self.lock();
        let entry = Id::from_bytes(handle).and_then(|id| entries.get_mut(&id)).filter(|it| it.user == *user);
        let entry = entry.ok_or_else(|| {
            status(
                Code::NotFound,
                "there is no such prepared statement: it was closed or forgotten; prepare it again",
            )
        })?;
        entry.used = Instant::now();
        Ok(use_it(entry))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
