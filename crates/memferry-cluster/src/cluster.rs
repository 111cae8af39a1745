//! A cluster, as a coordinator sees it: any process that can reach the workers is one, and it keeps no state.
//!
//! ```text
//! query ─▶ reports of all workers ─▶ plan ─▶ first batch ─▶ rows
//!               ▲                     │           │           └─ a worker fails: an error that names it
//!               └─────────────────────┴───────────┘ a worker fails: again, without it
//! ```

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use futures::future::join_all;

use crate::channels::{Channels, Failures, KEEP_ALIVE};
use crate::credentials::Credentials;
use crate::description::is_address;
use crate::error::{ClusterError, worker_in};
use crate::filters::DynamicFilters;
use crate::planning::{self, PlanOptions, reasons};
use crate::report::WorkerReport;
use crate::shards::{Failure, Members, Next, ShardMap};
use crate::table;

/// How long a worker that did not answer before may take: it delays each query until it answers again.
const SUSPECT_LIMIT: Duration = Duration::from_millis(200);

/// How long the error of a plan may follow the failure of a connection that caused it.
const GRACE: Duration = Duration::from_millis(200);

/// A query, which may be planned several times.
#[derive(Clone, Copy)]
enum Query<'a> {
    Text(&'a str),
    /// A plan of an earlier session; its operators in this process run in this environment.
    Plan(&'a LogicalPlan, &'a Arc<RuntimeEnv>),
}

/// The workers that addresses lead to.
#[derive(Debug)]
pub struct Cluster {
    seeds: Vec<String>,
    channels: Channels,
    partitions: usize,
    options: PlanOptions,
    template: SessionState,
    /// Workers that did not answer the last question.
    suspects: Mutex<HashSet<String>>,
    /// The last report of each worker.
    known: Mutex<HashMap<String, Arc<WorkerReport>>>,
}

/// Whether workers send reports that are known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// They are not sent again.
    Kept,
    /// They are, for their statistics of now.
    AskedAgain,
}

type Reports = BTreeMap<String, Result<Arc<WorkerReport>, ClusterError>>;

/// The workers and tables at the beginning of a plan.
#[derive(Debug)]
struct View {
    members: Members,
    /// The description, and the tables of most workers.
    report: Arc<WorkerReport>,
}

impl Cluster {
    /// The cluster of the workers at `addresses`; one of them is enough if it is reached. Tasks have `partitions` partitions, at
    /// least two: DataFusion plans one partition without the exchanges at which a plan is divided into tasks.
    ///
    /// # Errors
    /// [`Address`](ClusterError::Address)
    pub fn new(addresses: Vec<String>, partitions: usize) -> Result<Cluster, ClusterError> {
        Cluster::with_credentials(addresses, partitions, Credentials::none())
    }

    /// The same with a proof of identity.
    ///
    /// # Errors
    /// As [`new`](Cluster::new).
    pub fn with_credentials(
        addresses: Vec<String>,
        partitions: usize,
        credentials: Credentials,
    ) -> Result<Cluster, ClusterError> {
        match addresses.iter().find(|address| !is_address(address)) {
            Some(address) => Err(ClusterError::Address { address: address.clone() }),
            None => Ok(Cluster {
                seeds: addresses,
                channels: Channels::new(credentials),
                partitions: partitions.max(2),
                options: PlanOptions::default(),
                template: planning::template(),
                suspects: Mutex::default(),
                known: Mutex::default(),
            }),
        }
    }

    /// This cluster, with plans of `options`.
    #[must_use]
    pub fn with_options(self, options: PlanOptions) -> Cluster {
        Cluster { options, ..self }
    }

    /// The reports of all workers of the cluster, by address, or why there is none.
    ///
    /// # Errors
    /// [`Unreachable`](ClusterError::Unreachable) if no address answers.
    pub async fn reports(
        &self,
    ) -> Result<BTreeMap<String, Result<WorkerReport, ClusterError>>, ClusterError> {
        let reports = self.current_reports(Known::AskedAgain).await?;
        Ok(reports.into_iter().map(|(worker, report)| (worker, report.map(Arc::unwrap_or_clone))).collect())
    }

    /// The reports of all workers.
    async fn current_reports(&self, known: Known) -> Result<Reports, ClusterError> {
        let mut reports = Reports::new();
        let mut asked: Vec<String> = self.seeds.clone();
        // Workers that the descriptions name, too.
        while !asked.is_empty() {
            let answers = join_all(asked.iter().map(|worker| self.report(worker, known))).await;
            reports.extend(asked.drain(..).zip(answers));
            let named = reports.values().flatten().flat_map(|report| &report.description.workers);
            let mut further: Vec<String> =
                named.filter(|worker| !reports.contains_key(*worker)).cloned().collect();
            further.sort_unstable();
            further.dedup();
            if reports.values().all(Result::is_err) {
                // Workers that answered before lead to the cluster as well as the given addresses.
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                further.extend(known.keys().filter(|worker| !reports.contains_key(*worker)).cloned());
            }
            asked = further;
        }
        if reports.values().all(Result::is_err) {
            let reasons =
                reports.into_values().filter_map(Result::err).map(|error| error.to_string()).collect();
            return Err(ClusterError::Unreachable { reasons });
        }
        self.keep_only(&reports);
        Ok(reports)
    }

    /// Forgets connections and reports of workers that no description names any more: they would be more with each worker that comes
    /// back at another address.
    fn keep_only(&self, reports: &Reports) {
        let is_named = |worker: &String| reports.contains_key(worker);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|worker, _| is_named(worker));
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).retain(is_named);
        self.channels.keep_only(is_named);
    }

    async fn report(&self, worker: &str, use_of_known: Known) -> Result<Arc<WorkerReport>, ClusterError> {
        let suspects = || self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = if suspects().contains(worker) { SUSPECT_LIMIT } else { KEEP_ALIVE };
        let all_known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all_known().get(worker).cloned();
        let mark = known.as_ref().map(|report| report.mark).filter(|_| use_of_known == Known::Kept);
        let report = self.channels.report(worker, mark, limit).await;
        let report = report.map(|new| match (new, known) {
            (None, Some(known)) => known,
            (new, known) => {
                let mut report = new.expect("only a known report may be left out");
                if let Some(known) = known.filter(|known| known.mark == report.mark) {
                    // Other statistics of the same tables.
                    report.planned = known.planned.clone();
                }
                let report = Arc::new(report);
                all_known().insert(worker.to_owned(), Arc::clone(&report));
                report
            }
        });
        match &report {
            Ok(_) => suspects().remove(worker),
            Err(_) => suspects().insert(worker.to_owned()),
        };
        report
    }

    /// The newest description, its workers, and the tables of most of them.
    async fn view(&self) -> Result<View, ClusterError> {
        let reports = self.current_reports(Known::Kept).await?;
        let ready = || reports.iter().filter_map(|(worker, report)| Some((worker, report.as_ref().ok()?)));
        // Of the workers of the newest version that count: those that it names.
        let (first, newest) = ready()
            .max_by_key(|(_, report)| report.description.version)
            .expect("at least one worker has answered");
        let id = newest.description.id();
        let other = ready().find(|(_, report)| {
            let other = report.description.id();
            other.version == id.version && other.digest != id.digest
        });
        if let Some((second, _)) = other {
            let (first, second) = (first.clone(), second.clone());
            return Err(ClusterError::Contradiction { first, second, version: id.version });
        }
        let mut members = Members::new(Arc::new(newest.description.map()?));
        let map = Arc::clone(members.map());
        let mut votes: Vec<(&Arc<WorkerReport>, Vec<usize>)> = Vec::new();
        for (worker, address) in map.workers().iter().enumerate() {
            match reports.get(address) {
                Some(Ok(report)) if report.description.id() != id => {
                    members.lose(
                        worker,
                        format!("it has version {} of the cluster, not {id}", report.description.id()),
                    );
                }
                Some(Ok(report)) if !report.is_ready => {
                    members.lose(worker, "it is still loading its tables")
                }
                Some(Ok(report)) => match votes.iter_mut().find(|(first, _)| first.tables == report.tables) {
                    Some((_, workers)) => workers.push(worker),
                    None => votes.push((report, vec![worker])),
                },
                Some(Err(ClusterError::Worker { what, .. })) => members.lose(worker, what.clone()),
                Some(Err(error)) => members.lose(worker, error.to_string()),
                None => members.lose(worker, "it was not asked"),
            }
        }
        // Workers with other files than most are not used: their rows are of another time.
        votes.sort_by_key(|(_, workers)| (std::cmp::Reverse(workers.len()), workers[0]));
        for (_, workers) in votes.iter().skip(1) {
            for &worker in workers {
                members.lose(worker, "it has loaded other files than most workers; start it again");
            }
        }
        // Without votes, all workers are lost.
        let report = Arc::clone(votes.first().map_or(newest, |(report, _)| report));
        Ok(View { members, report })
    }

    /// Runs a query whose rows are given as they come. It is planned again on replicas if a worker fails before the first row.
    ///
    /// # Errors
    /// [`Lost`](ClusterError::Lost), [`Query`](ClusterError::Query), and those of [`reports`](Cluster::reports).
    pub async fn query(&self, sql: &str) -> Result<Answer, ClusterError> {
        self.run(Query::Text(sql), false).await
    }

    /// Runs a query whose rows are kept until the last one is there. So it is planned again whenever a worker fails.
    ///
    /// # Errors
    /// As [`query`](Cluster::query).
    pub async fn query_whole(&self, sql: &str) -> Result<Answer, ClusterError> {
        self.run(Query::Text(sql), true).await
    }

    /// Runs a plan of [`session`](Cluster::session), as [`query`](Cluster::query) does. Its tables are those of now: with other
    /// columns it is an error. The operators of this process run in `environment`.
    ///
    /// # Errors
    /// As [`query`](Cluster::query).
    pub async fn query_plan(
        &self,
        plan: &LogicalPlan,
        environment: Arc<RuntimeEnv>,
    ) -> Result<Answer, ClusterError> {
        self.run(Query::Plan(plan, &environment), false).await
    }

    /// A session with the tables of the cluster as they are now, to plan queries for [`query_plan`](Cluster::query_plan).
    ///
    /// # Errors
    /// As [`reports`](Cluster::reports).
    pub async fn session(&self) -> Result<SessionContext, ClusterError> {
        let View { members, report } = self.view().await?;
        self.session_of(&report, &Arc::new(members), &self.channels.for_plan())
    }

    fn session_of(
        &self,
        report: &WorkerReport,
        members: &Arc<Members>,
        channels: &Channels,
    ) -> Result<SessionContext, ClusterError> {
        planning::session(&self.template, report, members, channels, self.partitions, self.options)
    }

    async fn run(&self, query: Query<'_>, whole: bool) -> Result<Answer, ClusterError> {
        let mut plans = 0;
        let mut excluded: Vec<(String, String)> = Vec::new();
        let mut asked_again = false;
        loop {
            let View { mut members, report } = self.view().await?;
            let map = Arc::clone(members.map());
            // Workers that this query saw fail are not used again by it, even if they answer by now.
            for (address, what) in &excluded {
                if let Some(worker) = map.workers().iter().position(|worker| worker == address) {
                    members.lose(worker, what.clone());
                }
            }
            if let Err(source) = members.assign(1) {
                // Workers that did not answer before had little time, and may be slow.
                let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
                if asked_again || suspects.is_empty() {
                    return Err(ClusterError::Lost { source, reasons: reasons(&members) });
                }
                asked_again = true;
                suspects.clear();
                continue;
            }
            plans += 1;
            let channels = self.channels.for_plan();
            let attempt = self.start(&report, members.clone(), &channels, query);
            let error = match attempt.await {
                Ok(mut answer) => match answer.fill(whole).await {
                    Ok(()) => {
                        answer.plans = plans;
                        return Ok(answer);
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let failure = self.failure(&error, &members).await;
            match (members.after(&failure, 0), failure) {
                (Next::Again, Failure::Worker { worker, what }) if plans <= map.workers().len() => {
                    self.suspects
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(map.workers()[worker].clone());
                    excluded.push((map.workers()[worker].clone(), what));
                }
                _ => return Err(error),
            }
        }
    }

    /// The reason of an error: a worker that it names, or that does not answer any more, or else the query.
    async fn failure(&self, error: &ClusterError, members: &Members) -> Failure {
        let map = members.map();
        if let Some((worker, what)) = worker_in(&error.to_string(), map) {
            return Failure::Worker { worker, what };
        }
        let asked = members
            .alive()
            .into_iter()
            .map(|worker| async move { (worker, self.report(&map.workers()[worker], Known::Kept).await) });
        for (worker, report) in join_all(asked).await {
            if let Err(ClusterError::Worker { what, .. }) = report {
                return Failure::Worker { worker, what };
            }
        }
        Failure::Query
    }

    /// Plans and starts a query once.
    async fn start(
        &self,
        report: &WorkerReport,
        members: Members,
        channels: &Channels,
        query: Query<'_>,
    ) -> Result<Answer, ClusterError> {
        let context = self.session_of(report, &Arc::new(members.clone()), channels)?;
        // Tables are those of the description.
        let reading =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        let (plan, task) = match query {
            Query::Text(sql) => {
                let plan = context.sql_with_options(sql, reading).await?.create_physical_plan().await?;
                (plan, context.task_ctx())
            }
            Query::Plan(plan, environment) => {
                reading.verify_plan(plan)?;
                let plan = table::with_tables_of(&context, &report.tables, plan.clone()).await?;
                let task = TaskContext::from(&context.state()).with_runtime(Arc::clone(environment));
                (context.state().create_physical_plan(&plan).await?, Arc::new(task))
            }
        };
        let stream = execute_stream(Arc::clone(&plan), task)?;
        Ok(Answer {
            stream,
            failures: Arc::clone(channels.failures()),
            members,
            plan,
            _context: context,
            kept: VecDeque::new(),
            rows: 0,
            has_ended: false,
            plans: 1,
        })
    }
}

/// The rows of a query, as they come.
pub struct Answer {
    stream: SendableRecordBatchStream,
    failures: Arc<Failures>,
    members: Members,
    plan: Arc<dyn ExecutionPlan>,
    /// Kept until the answer ends: the plan reads through it.
    _context: SessionContext,
    /// Batches that came before the client asked.
    kept: VecDeque<RecordBatch>,
    rows: u64,
    has_ended: bool,
    plans: usize,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").field("rows", &self.rows).field("plans", &self.plans).finish_non_exhaustive()
    }
}

impl Answer {
    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.stream.schema()
    }

    /// How many times the query was planned: more than once if a worker failed before the first row.
    pub fn plans(&self) -> usize {
        self.plans
    }

    /// Workers that the answer does not use, with the reasons.
    pub fn lost(&self) -> Vec<String> {
        reasons(&self.members)
    }

    /// The dynamic filters of its scans.
    pub fn dynamic_filters(&self) -> DynamicFilters {
        DynamicFilters::of(&self.plan)
    }

    /// The plan, as text.
    pub fn plan(&self) -> String {
        displayable(self.plan.as_ref()).indent(false).to_string()
    }

    /// The plan.
    pub(crate) fn physical_plan(&self) -> Arc<dyn ExecutionPlan> {
        Arc::clone(&self.plan)
    }

    /// Waits for the first rows or for all, or the end.
    async fn fill(&mut self, whole: bool) -> Result<(), ClusterError> {
        while !self.has_ended && (whole || self.kept.is_empty()) {
            match self.receive().await {
                None => self.has_ended = true,
                Some(batch) => self.kept.extend(Some(batch?).filter(|batch| batch.num_rows() > 0)),
            }
        }
        Ok(())
    }

    /// The next batch, or the first failure of a worker: others may wait for a plan that it should have.
    async fn receive(&mut self) -> Option<Result<RecordBatch, ClusterError>> {
        let failures = Arc::clone(&self.failures);
        let batch = tokio::select! {
            biased;
            batch = self.stream.next() => batch,
            () = failures.seen() => {
                // A plan that ends now has not needed the worker.
                match tokio::time::timeout(GRACE, self.stream.next()).await {
                    Ok(batch) => batch,
                    Err(_) => Some(Err(DataFusionError::Execution(String::from("the plan does not go on")))),
                }
            }
        };
        let error = match batch? {
            Ok(batch) => return Some(Ok(batch)),
            Err(error) => error,
        };
        // The failure that this process saw first, unless the error names a worker itself.
        let named = worker_in(&error.to_string(), self.members.map()).is_some();
        Some(Err(match failures.first().filter(|_| !named) {
            Some((worker, what)) => ClusterError::Worker { worker, what },
            None => ClusterError::Query(error),
        }))
    }

    /// The next batch of rows.
    ///
    /// # Errors
    /// [`Partial`](ClusterError::Partial) if a worker failed; [`Query`](ClusterError::Query).
    pub async fn next(&mut self) -> Option<Result<RecordBatch, ClusterError>> {
        let batch = match self.kept.pop_front() {
            Some(batch) => Some(Ok(batch)),
            None if self.has_ended => None,
            None => self.receive().await,
        };
        match batch {
            Some(Ok(batch)) => {
                self.rows += batch.num_rows() as u64;
                Some(Ok(batch))
            }
            Some(Err(error)) => {
                self.has_ended = true;
                let map: Arc<ShardMap> = Arc::clone(self.members.map());
                Some(Err(match worker_in(&error.to_string(), &map) {
                    Some((worker, what)) => {
                        match self.members.after(&Failure::Worker { worker, what }, self.rows) {
                            Next::ReportLost(lost) => lost.into(),
                            _ => error,
                        }
                    }
                    None => error,
                }))
            }
            None => {
                self.has_ended = true;
                None
            }
        }
    }

    /// All rows.
    ///
    /// # Errors
    /// As [`next`](Answer::next).
    pub async fn collect(mut self) -> Result<Vec<RecordBatch>, ClusterError> {
        let mut batches = Vec::new();
        while let Some(batch) = self.next().await {
            batches.push(batch?);
        }
        Ok(batches)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use memferry::topology::Machine;
    use memferry_query::{SessionOptions, Tiers};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::credentials::Security;
    use crate::description::Description;
    use crate::measure::free_addresses;
    use crate::worker::ClusterWorker;

    /// A worker without tables; it ends when the sender is dropped.
    async fn worker(address: &str, version: u64, workers: &[&str]) -> (oneshot::Sender<()>, JoinHandle<()>) {
        let description: Description =
            format!("version = {version}\nworkers = {workers:?}\ntables = []").parse().unwrap();
        let options = SessionOptions::default();
        let worker =
            ClusterWorker::listen(description, address, address, options, Security::default()).await.unwrap();
        let (running, ended) = oneshot::channel();
        let tiers = Tiers::builder(Arc::new(Machine::discover().unwrap())).build().unwrap();
        let ended = async { drop(ended.await) };
        let task = tokio::spawn(async move {
            worker.run(&SessionContext::new(), &tiers, |_| (), ended).await.unwrap();
        });
        (running, task)
    }

    /// The coordinator of a cluster whose workers come back at other addresses for months must not grow.
    #[tokio::test(flavor = "multi_thread")]
    async fn workers_that_have_left_are_forgotten() {
        let addresses = free_addresses(5).unwrap();
        let cluster = Cluster::new(vec![addresses[0].clone()], 2).unwrap();
        let mut running: Vec<(oneshot::Sender<()>, JoinHandle<()>)> = Vec::new();
        for (version, other) in (1..).zip(&addresses[1..]) {
            let named = [addresses[0].as_str(), other.as_str()];
            for (stop, ended) in running.drain(..) {
                drop(stop);
                ended.await.unwrap();
            }
            for address in named {
                running.push(worker(address, version, &named).await);
            }
            let began = Instant::now();
            loop {
                // The connection to the worker that has ended may fail once.
                let reports = cluster.reports().await.unwrap_or_default();
                if reports.len() == 2 && reports.values().all(Result::is_ok) {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(20), "{reports:?}");
            }
            let known = cluster.known.lock().unwrap().keys().cloned().collect::<HashSet<_>>();
            assert_eq!(known, HashSet::from(named.map(str::to_owned)));
            assert_eq!(cluster.channels.count(), 2, "connections of workers that have left");
        }
    }
}
