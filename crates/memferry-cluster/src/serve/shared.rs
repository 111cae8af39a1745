//! The state that all requests share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::prelude::SessionContext;
use memferry_query::Tiers;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tonic::Status;

use super::access::{Access, User};
use super::error;
use super::limits::Limits;
use super::log::Log;
use super::metrics::{Gauges, Metrics};
use super::prepared::PreparedStatements;
use super::proven::Proven;
use super::queries::Queries;
use super::statement::{Parsed, Planned, Rules};
use super::tables::Tables;

/// The state that all requests share.
pub(super) struct Shared {
    pub(super) tables: Proven<Tables>,
    pub(super) tiers: Arc<Tiers>,
    pub(super) access: Access,
    pub(super) limits: Limits,
    pub(super) updates: bool,
    pub(super) queries: Arc<Queries>,
    pub(super) prepared: PreparedStatements,
    /// One permit for each query that may run.
    pub(super) places: Arc<Semaphore>,
    /// Threads of queries, apart from those of the network: requests are answered while queries use all CPUs.
    pub(super) query_threads: Handle,
    /// Threads of planning: new queries are planned and refused while those of others do not yield.
    pub(super) planning_threads: Handle,
    pub(super) metrics: Metrics,
    pub(super) log: Log,
    /// Becomes true when the server was asked to stop.
    pub(super) stopping: watch::Sender<bool>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("limits", &self.limits)
            .field("queries", &self.queries)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn rules(&self) -> Rules {
        Rules { updates: self.updates, memory_bytes: self.limits.query_memory_bytes }
    }

    /// The user of a request.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`.
    pub(super) fn authenticate(&self, headers: &tonic::metadata::MetadataMap) -> Result<User, Status> {
        let user = self.access.user(headers, self.limits.idle_time);
        user.inspect_err(|_| self.metrics.unauthenticated())
    }

    /// Plans the text of a statement.
    pub(super) async fn parse(&self, text: String) -> Result<Arc<Parsed>, Status> {
        let rules = self.rules();
        self.plan_with(move |context| async move { Ok(Arc::new(Parsed::of(&context, &text, rules).await?)) })
            .await
    }

    /// The statement with its rows of parameters.
    pub(super) async fn with_parameters(
        &self,
        parsed: Arc<Parsed>,
        rows: Vec<RecordBatch>,
    ) -> Result<Planned, Status> {
        let rules = self.rules();
        self.plan(async move { parsed.with_parameters(rows, rules) }).await
    }

    /// Runs work with a session of the tables as they are now, as [`plan`](Shared::plan) does.
    pub(super) async fn plan_with<T, W>(
        &self,
        work: impl FnOnce(SessionContext) -> W + Send + 'static,
    ) -> Result<T, Status>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Status>> + Send,
    {
        let (tables, memory_bytes) = (self.tables.clone(), self.limits.query_memory_bytes);
        self.plan(async move {
            work(tables.session().await.map_err(|error| error::of_query(error, memory_bytes))?).await
        })
        .await
    }

    /// Runs work on a thread of planning, within the time of a query.
    async fn plan<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let task = {
            let _entered = self.planning_threads.enter();
            SpawnedTask::spawn(work)
        };
        match tokio::time::timeout(self.limits.query_time, task.join()).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(end)) => Err(error::of_end(end)),
            Err(_late) => Err(error::out_of_time(self.limits.query_time)),
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        let (planned, begun) = self.queries.count();
        let running = self.limits.queries.saturating_sub(self.places.available_permits());
        Gauges { running, waiting: begun.saturating_sub(running), planned, prepared: self.prepared.count() }
    }

    /// Forgets what nobody has used for long, again and again.
    pub(super) async fn forget_idle(self: Arc<Self>) {
        // Short against the times after which something is forgotten.
        let pause = (self.limits.planned_time.min(self.limits.idle_time) / 10).max(Duration::from_millis(10));
        loop {
            tokio::time::sleep(pause).await;
            self.queries.forget_planned(self.limits.planned_time);
            self.prepared.forget_idle(self.limits.idle_time);
            self.access.forget_idle(self.limits.idle_time);
        }
    }
}
