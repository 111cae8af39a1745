//! Demand across the network: a worker learns with a plan what its scans will read, and begins before their stage starts.
//!
//! ```text
//! coordinator ── plans of all stages ──▶ worker: announced ─▶ columns are requested near, the first rows are read
//!             ── (later) stage starts ──▶ worker: executed ─▶ goes on from there
//! ```
//!
//! All plans of a query are sent at its start, and a stage waits for the hash tables that it probes. Of each partition the first
//! shard is opened: its scan requests late columns near, within the budget of near memory, or another worker that holds it is
//! asked. Of a scan without dynamic filters one batch is read, too; those of the others are not known yet. All of it ends with the
//! channel of the plan's coordinator, and with the plan.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::scan::ShardRead;
use crate::sources::Opening;

/// Partitions that a worker reads ahead at a time: with a batch of 8192 rows each, some tens of megabytes.
const PARTITIONS_MAX: usize = 64;

/// What a worker reads ahead.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Default for Budget {
    fn default() -> Budget {
        Budget(Arc::new(Semaphore::new(PARTITIONS_MAX)))
    }
}

impl Budget {
    /// Partitions that are read ahead and not executed yet.
    pub(crate) fn in_use(&self) -> usize {
        PARTITIONS_MAX - self.0.available_permits()
    }
}

/// The partitions of a scan that are read ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead(Mutex<Vec<Option<Opened>>>);

#[derive(Debug)]
struct Opened {
    shard: usize,
    /// Ends when it is dropped.
    task: SpawnedTask<Result<(Option<Result<RecordBatch>>, Rows)>>,
    _permit: OwnedSemaphorePermit,
}

/// Rows of a shard after the first batch.
struct Rows(SendableRecordBatchStream);

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rows")
    }
}

impl Ahead {
    /// Begins to read the first shard of each partition, as far as the budget allows, until the channel of the plan ends.
    pub(crate) fn begin(
        self: &Arc<Self>,
        read: &Arc<ShardRead>,
        partitions: &[Vec<usize>],
        dynamic: &[Arc<dyn PhysicalExpr>],
        opening: &Opening,
    ) {
        // Locked first: a channel that ends meanwhile waits, and ends what has begun.
        let mut begun = self.lock();
        if !opening.sources.reads().is_some_and(|reads| reads.add(self)) {
            return;
        }
        let open = |shards: &Vec<usize>| {
            let &shard = shards.first()?;
            let permit = Arc::clone(&opening.sources.budget().0).try_acquire_owned().ok()?;
            let (read, dynamic, opening) = (Arc::clone(read), dynamic.to_vec(), opening.clone());
            let task = SpawnedTask::spawn(async move {
                let mut rows = opening.open(&read, shard, &dynamic).await?;
                let first = if dynamic.is_empty() { rows.next().await } else { None };
                Ok((first, Rows(rows)))
            });
            Some(Opened { shard, task, _permit: permit })
        };
        *begun = partitions.iter().map(open).collect();
    }

    /// Ends reads that were not executed.
    pub(crate) fn end(&self) {
        self.lock().clear();
    }

    /// The rows of a shard, if they are read ahead: once.
    pub(crate) fn take(
        &self,
        partition: usize,
        shard: usize,
        read: &ShardRead,
    ) -> Option<Result<SendableRecordBatchStream>> {
        let mut partitions = self.lock();
        let opened = partitions.get_mut(partition)?.take_if(|opened| opened.shard == shard)?;
        drop(partitions);
        let schema = match read.schema.project(&read.projection) {
            Ok(schema) => Arc::new(schema),
            Err(error) => return Some(Err(error.into())),
        };
        let rows = stream::once(async move {
            let error = match opened.task.await {
                Ok(Ok((first, Rows(rows)))) => return stream::iter(first).chain(rows).boxed(),
                Ok(Err(error)) => error,
                Err(error) => internal_datafusion_err!("reading ahead has panicked: {error}"),
            };
            stream::iter([Err(error)]).boxed()
        });
        Some(Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.flatten()))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<Opened>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::OnceLock;
    use std::time::Duration;

    use arrow_flight::Ticket;
    use arrow_flight::flight_service_server::FlightService;
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::execution::TaskContext;
    use datafusion::parquet::arrow::ArrowWriter;
    use datafusion::physical_plan::ExecutionPlan;
    use datafusion::prelude::SessionConfig;
    use futures::TryStreamExt;
    use memferry::topology::Machine;
    use memferry_query::{SessionOptions, Tiers, session};
    use prost::Message;
    use tonic::Request;

    use super::*;
    use crate::catalog::ShardCatalog;
    use crate::channels::Channels;
    use crate::codec::ScanMessage;
    use crate::description::{Description, MapId};
    use crate::plan_channel::{PlanChannel, PlanChannels};
    use crate::scan::ShardScanExec;
    use crate::service::{ShardService, WorkerState};
    use crate::sources::Sources;

    const ROWS: i64 = 1000;

    /// A worker with a table of two columns in 4 shards, and a scan of it.
    struct World {
        catalog: Arc<ShardCatalog>,
        sources: Sources,
        context: Arc<TaskContext>,
        channel: PlanChannel,
        _directory: tempfile::TempDir,
    }

    impl World {
        async fn new() -> World {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("t.parquet");
            let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
            let batch = RecordBatch::try_from_iter([("k", Arc::clone(&column)), ("v", column)]).unwrap();
            let mut writer =
                ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            let worker = "127.0.0.1:7070";
            let description: Description = format!(
                "version = 1\nworkers = ['{worker}']\nshards = 4\n[[tables]]\nname = 't'\nlocation = '{}'\nkey = 'k'",
                path.display()
            )
            .parse()
            .unwrap();
            let tiers = Tiers::builder(Arc::new(Machine::discover().unwrap())).build().unwrap();
            let session = session(&SessionOptions::default());
            let catalog = ShardCatalog::load(&description, worker, &session, &tiers).await.unwrap();
            let catalog = Arc::new(catalog);
            let channel = PlanChannels::default().open();
            let sources = Sources::new(Some(Arc::clone(&catalog)), Arc::new(Channels::default()))
                .of_plan(Some(Arc::clone(channel.reads())));
            let config = SessionConfig::new().with_extension(Arc::new(sources.clone()));
            let context = Arc::new(TaskContext::default().with_session_config(config));
            World { catalog, sources, context, channel, _directory: directory }
        }

        fn scan(&self, partitions: Vec<Vec<usize>>, announced: bool) -> ShardScanExec {
            let files = self.catalog.reports()[0].files;
            let (schema, map) = self.catalog.check(self.catalog.id(), "t", files).unwrap();
            let read = ShardRead {
                id: self.catalog.id(),
                table: "t".to_owned(),
                files,
                key: None,
                schema,
                projection: vec![0, 1],
                predicate: None,
                fetch: None,
                announced,
                lost: vec![],
                map,
            };
            ShardScanExec::try_new(Arc::new(read), partitions, None).unwrap()
        }

        async fn rows(&self, scan: &ShardScanExec, partition: usize) -> usize {
            let batches = scan.execute(partition, Arc::clone(&self.context)).unwrap();
            let batches: Vec<RecordBatch> = batches.try_collect().await.unwrap();
            batches.iter().map(RecordBatch::num_rows).sum()
        }
    }

    /// The coordinator compares descriptions and files before it plans; a worker may have others by then.
    #[tokio::test]
    async fn scans_planned_with_other_descriptions_or_files_are_refused() {
        let world = World::new().await;
        let (id, files) = (world.catalog.id(), world.catalog.reports()[0].files);
        let newer = MapId { version: id.version + 1, ..id };
        let changed = MapId { digest: id.digest ^ 1, ..id };
        for (id, table, files, what) in [
            (newer, "t", files, newer.to_string()),
            (changed, "t", files, changed.to_string()),
            (id, "t", files ^ 1, "other files of the table t".to_owned()),
            (id, "u", files, "no table u".to_owned()),
        ] {
            let refused = world.catalog.check(id, table, files).unwrap_err().to_string();
            assert!(refused.contains("worker 127.0.0.1:7070 failed") && refused.contains(&what), "{refused}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn announced_partitions_are_read_before_they_are_executed_and_only_once() {
        let world = World::new().await;
        let scan = world.scan(vec![vec![0, 1], vec![2, 3]], true);
        scan.read_ahead(&world.context).unwrap();
        assert_eq!(world.sources.budget().in_use(), 2);
        let mut rows = 0;
        for (partition, left) in [(0, 1), (1, 0)] {
            rows += world.rows(&scan, partition).await;
            assert_eq!(world.sources.budget().in_use(), left);
        }
        assert_eq!(rows, ROWS as usize);
        // Nothing is kept for a second execution.
        assert_eq!(world.rows(&scan, 0).await + world.rows(&scan, 1).await, ROWS as usize);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_not_announced_is_not_read() {
        let world = World::new().await;
        let scan = world.scan(vec![vec![0, 1], vec![2, 3]], false);
        scan.read_ahead(&world.context).unwrap();
        assert_eq!(world.sources.budget().in_use(), 0);
        assert_eq!(world.rows(&scan, 0).await + world.rows(&scan, 1).await, ROWS as usize);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn reads_end_with_the_channel_of_their_plan() {
        let world = World::new().await;
        let scan = world.scan(vec![vec![0, 1], vec![2, 3]], true);
        scan.read_ahead(&world.context).unwrap();
        assert_eq!(world.sources.budget().in_use(), 2);
        let World { catalog, sources, context, channel, _directory } = world;
        drop(channel);
        // The plan is still there, as in a cache that drops it later.
        assert_eq!(sources.budget().in_use(), 0);
        let read_bytes = catalog.read_bytes();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(catalog.read_bytes(), read_bytes, "a read has gone on");
        // Nothing begins for a plan whose channel has ended.
        scan.read_ahead(&context).unwrap();
        assert_eq!(sources.budget().in_use(), 0);
        let rows: Vec<RecordBatch> = scan.execute(0, context).unwrap().try_collect().await.unwrap();
        assert!(rows.iter().map(RecordBatch::num_rows).sum::<usize>() > 0);
    }

    /// So a worker that is asked to end sends all rows before.
    #[tokio::test]
    async fn reads_of_other_workers_have_channels_too() {
        let world = World::new().await;
        let state = WorkerState {
            address: world.catalog.address().to_owned(),
            mark: 0,
            description: "version = 1\nworkers = ['127.0.0.1:7070']\ntables = []".parse().unwrap(),
            catalog: OnceLock::from(Arc::clone(&world.catalog)),
            channels: Channels::default(),
            plans: PlanChannels::default(),
            budget: Budget::default(),
            options: SessionOptions::default(),
        };
        let service = ShardService(Arc::new(state));
        let scan = world.scan(vec![vec![0]], false);
        let read = ScanMessage::new(scan.read(), scan.partitions()).unwrap();
        let rows = service.do_get(Request::new(Ticket::new(read.encode_to_vec()))).await.unwrap();
        assert!(service.0.plans.are_open());
        let batches: Vec<_> = rows.into_inner().collect().await;
        assert!(batches.len() > 1 && batches.iter().all(Result::is_ok), "{batches:?}");
        assert!(!service.0.plans.are_open());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_plan_that_is_dropped_ends_its_reads() {
        let world = World::new().await;
        let mut pause = Duration::from_millis(10);
        // A scan counts its bytes when it is dropped, here by the plan, if it has read before.
        while world.catalog.read_bytes() == 0 {
            assert!(pause < Duration::from_secs(20), "no row was read before the scan was executed");
            let scan = world.scan(vec![vec![0, 1], vec![2, 3]], true);
            scan.read_ahead(&world.context).unwrap();
            tokio::time::sleep(pause).await;
            drop(scan);
            assert_eq!(world.sources.budget().in_use(), 0);
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn partitions_beyond_the_budget_are_read_when_they_are_executed() {
        let world = World::new().await;
        let scan = world.scan(vec![vec![0]; PARTITIONS_MAX + 2], true);
        scan.read_ahead(&world.context).unwrap();
        assert_eq!(world.sources.budget().in_use(), PARTITIONS_MAX);
        let rows = world.rows(&scan, 0).await;
        assert!(rows > 0);
        assert_eq!(world.rows(&scan, PARTITIONS_MAX + 1).await, rows);
    }
}
