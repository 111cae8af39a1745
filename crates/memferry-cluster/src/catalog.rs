//! The tables of a worker: the shards that the map gives it, in its own memory tiers.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::memory::DataSourceExec;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result as QueryResult, internal_datafusion_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterPushdownResult, ChildPushdownResult, FilterPushdownPhase,
};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use futures::StreamExt;
use memferry_query::{Layout, TableWriter, TieredTable, Tiers};
use tokio::task::JoinSet;

use crate::description::{Description, MapId, TableDescription};
use crate::error::{ClusterError, refusal};
use crate::report::{ColumnReport, TableReport, add_columns};
use crate::scan::{REPLICATED_SHARD, ShardRead};
use crate::shards::{ShardKey, ShardMap};

/// The shards that a worker holds, by table.
#[derive(Debug)]
pub struct ShardCatalog {
    address: String,
    id: MapId,
    map: Arc<ShardMap>,
    tables: BTreeMap<String, LoadedTable>,
}

#[derive(Debug)]
struct LoadedTable {
    schema: SchemaRef,
    report: TableReport,
    rows: TieredTable,
    /// The shards that the worker holds, in the order of the partitions of `rows`.
    held: Vec<usize>,
}

/// The scan of the shards that a worker holds, planned when the first of them is read: planning takes longer than reading a small
/// shard.
#[derive(Debug, Default)]
pub(crate) struct PlannedScan(OnceLock<Arc<dyn ExecutionPlan>>);

impl ShardCatalog {
    /// Loads the shards of the worker `address` of `description` into the memory of `tiers`. `session` reads the files, with
    /// the object stores that are registered there.
    ///
    /// Each worker reads all files once and keeps its rows. Memory: its shards, and one batch for each partition of a file.
    ///
    /// # Errors
    /// [`NotAWorker`](ClusterError::NotAWorker), [`Load`](ClusterError::Load), [`Key`](ClusterError::Key).
    pub async fn load(
        description: &Description,
        address: &str,
        session: &SessionContext,
        tiers: &Arc<Tiers>,
    ) -> Result<ShardCatalog, ClusterError> {
        let map = Arc::new(description.map()?);
        let Some(worker) = map.workers().iter().position(|worker| worker == address) else {
            return Err(ClusterError::NotAWorker {
                address: address.to_owned(),
                workers: map.workers().to_vec(),
            });
        };
        let held: BTreeSet<usize> = map.shards_of(worker).into_iter().collect();
        let mut tables = BTreeMap::new();
        for table in &description.tables {
            let loaded = load_table(table, &map, &held, session, tiers).await.map_err(|source| {
                let (table, location) = (table.name.clone(), table.location.clone());
                match source.downcast::<ClusterError>() {
                    Ok(error) => *error,
                    Err(source) => ClusterError::Load { table, location, source },
                }
            })?;
            tables.insert(table.name.clone(), loaded);
        }
        Ok(ShardCatalog { address: address.to_owned(), id: description.id(), map, tables })
    }

    /// The address of the worker.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The description that the shards were loaded with.
    pub fn id(&self) -> MapId {
        self.id
    }

    /// The loaded tables, for queries.
    pub fn reports(&self) -> Vec<TableReport> {
        self.tables.values().map(|table| table.report.clone()).collect()
    }

    /// Bytes that scans have read from the shards, as [`TieredTable::reads`].
    pub(crate) fn read_bytes(&self) -> u64 {
        let windows = self.tables.values().flat_map(|table| table.rows.reads().windows);
        windows.flat_map(|window| window.reads).map(|read| read.size_bytes).sum()
    }

    /// The schema of a table and the map, for plans with the same description and files.
    pub(crate) fn check(
        &self,
        id: MapId,
        table: &str,
        files: u64,
    ) -> QueryResult<(SchemaRef, Arc<ShardMap>)> {
        if id != self.id {
            return Err(refusal(&self.address, self.id, id).into());
        }
        let failed = |what: String| ClusterError::Worker { worker: self.address.clone(), what };
        let Some(loaded) = self.tables.get(table) else {
            return Err(failed(format!("it has no table {table}")).into());
        };
        if loaded.report.files != files {
            return Err(
                failed(format!("it has loaded other files of the table {table}; start it again")).into()
            );
        }
        Ok((Arc::clone(&loaded.schema), Arc::clone(&self.map)))
    }

    /// The rows of a shard, perhaps without rows that fail filters of `dynamic`, which are over its output; `None` if this
    /// worker does not hold it. `planned` is the scan of this read and these filters.
    pub(crate) fn read(
        &self,
        read: &ShardRead,
        shard: usize,
        dynamic: &[Arc<dyn PhysicalExpr>],
        planned: &PlannedScan,
        context: &Arc<TaskContext>,
    ) -> QueryResult<Option<SendableRecordBatchStream>> {
        self.check(read.id, &read.table, read.files)?;
        let Some(table) = self.tables.get(&read.table) else { return Ok(None) };
        let Ok(partition) = table.held.binary_search(&shard) else { return Ok(None) };
        let plan = match planned.0.get() {
            Some(plan) => plan,
            None => {
                let plan = table.scan(read, dynamic, context)?;
                // Another partition may have planned it meanwhile: the first plan is used by all.
                planned.0.get_or_init(|| plan)
            }
        };
        plan.execute(partition, Arc::clone(context)).map(Some)
    }
}

impl LoadedTable {
    /// A scan with a partition for each shard.
    fn scan(
        &self,
        read: &ShardRead,
        dynamic: &[Arc<dyn PhysicalExpr>],
        context: &TaskContext,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let config = context.session_config();
        let mut plan =
            self.rows.scan_planned(config, read.projection.clone(), read.predicate.clone(), read.fetch)?;
        if !dynamic.is_empty() {
            let of_parent = |filter: &Arc<dyn PhysicalExpr>| ChildFilterPushdownResult {
                filter: Arc::clone(filter),
                child_results: vec![],
            };
            let parent_filters = dynamic.iter().map(of_parent).collect();
            let filters = ChildPushdownResult { parent_filters, self_filters: vec![] };
            let pushed =
                plan.handle_child_pushdown_result(FilterPushdownPhase::Post, filters, config.options())?;
            plan = pushed.updated_node.unwrap_or(plan);
        }
        debug_assert_eq!(plan.output_partitioning().partition_count(), self.held.len());
        Ok(plan)
    }
}

type AnyError = Box<dyn Error + Send + Sync>;

async fn load_table(
    table: &TableDescription,
    map: &ShardMap,
    held: &BTreeSet<usize>,
    session: &SessionContext,
    tiers: &Arc<Tiers>,
) -> Result<LoadedTable, AnyError> {
    let frame = session.read_parquet(&table.location, ParquetReadOptions::default()).await?;
    let plan = frame.create_physical_plan().await?;
    let schema = plan.schema();
    // DataFusion takes a missing file of a store for an empty directory.
    if schema.fields().is_empty() {
        return Err("there is no Parquet file; check the location".into());
    }
    let key = table.key();
    if let Some(key) = &key {
        let key_type = schema.field_with_name(&key.column).ok().map(|field| field.data_type().clone());
        key.check(&table.name, key_type.as_ref(), map.shards_count()).map_err(ClusterError::from)?;
    }
    let held: Vec<usize> = match key {
        Some(_) => held.iter().copied().collect(),
        None => vec![REPLICATED_SHARD],
    };
    // A worker without shards has a table without rows.
    let partitions = held.len().max(1);
    let layout = Layout { partitions, ..Layout::new(Arc::clone(tiers.machine()), tiers.home()) };
    let writer = Mutex::new(TableWriter::new(Arc::clone(&schema), layout)?);
    let divider = Arc::new(Divider { key, shards_count: map.shards_count(), held, writer });
    let mut readers = JoinSet::new();
    for partition in 0..plan.output_partitioning().partition_count() {
        let batches = plan.execute(partition, session.task_ctx())?;
        readers.spawn(read_partition(batches, Arc::clone(&divider)));
    }
    let (mut rows, mut columns) = (0, vec![ColumnReport::default(); schema.fields().len()]);
    while let Some(read) = readers.join_next().await {
        let (rows_read, of_partition) = match read {
            Ok(read) => read?,
            // Nobody cancels it: it panicked.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        rows += rows_read;
        columns.iter_mut().zip(&of_partition).for_each(|(column, read)| column.merge(read));
    }
    let files = digest(&plan, rows, &columns)?;
    let report = TableReport::new(&table.name, &schema, files, rows, columns)?;
    let divider = Arc::into_inner(divider).expect("all readers have ended");
    let data = divider.writer.into_inner().unwrap_or_else(PoisonError::into_inner).finish()?;
    let rows = TieredTable::try_new(Arc::new(data), Arc::clone(tiers))?;
    Ok(LoadedTable { schema, report, rows, held: divider.held })
}

/// Gives the rows of batches to the partitions of their shards. Partitions of a file are read at the same time.
struct Divider {
    /// Without it all rows are in one shard.
    key: Option<ShardKey>,
    shards_count: usize,
    /// In rising order.
    held: Vec<usize>,
    writer: Mutex<TableWriter>,
}

impl Divider {
    fn push(&self, batch: &RecordBatch) -> Result<(), AnyError> {
        let wanted = |shard: usize| self.held.binary_search(&shard).is_ok();
        let divided = match &self.key {
            Some(key) => key.divide(batch, self.shards_count, &wanted)?,
            None => vec![(REPLICATED_SHARD, batch.clone())],
        };
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        for (shard, rows) in divided {
            if let Ok(partition) = self.held.binary_search(&shard) {
                writer.push(partition, &rows)?;
            }
        }
        Ok(())
    }
}

async fn read_partition(
    mut batches: SendableRecordBatchStream,
    divider: Arc<Divider>,
) -> Result<(u64, Vec<ColumnReport>), AnyError> {
    let (mut rows, mut columns) = (0, vec![ColumnReport::default(); batches.schema().fields().len()]);
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        rows += batch.num_rows() as u64;
        add_columns(&mut columns, &batch)?;
        divider.push(&batch)?;
    }
    Ok((rows, columns))
}

/// Sizes of files, rows and ranges of columns: workers that read other files have another digest, workers with copies of the
/// same files the same one.
fn digest(
    plan: &Arc<dyn ExecutionPlan>,
    rows: u64,
    columns: &[ColumnReport],
) -> Result<u64, DataFusionError> {
    let mut sizes = BTreeMap::new();
    plan.apply(|node| {
        let source = node.downcast_ref::<DataSourceExec>();
        if let Some(scan) = source.and_then(|source| source.data_source().downcast_ref::<FileScanConfig>()) {
            for file in scan.file_groups.iter().flat_map(|group| group.files()) {
                sizes.insert(file.object_meta.location.clone(), file.object_meta.size);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if sizes.is_empty() {
        return Err(internal_datafusion_err!("the files of the table are not in its plan"));
    }
    let mut sizes: Vec<u64> = sizes.into_values().collect();
    sizes.sort_unstable();
    // SipHash with fixed keys.
    let mut hasher = DefaultHasher::new();
    (rows, sizes, columns).hash(&mut hasher);
    Ok(hasher.finish())
}
