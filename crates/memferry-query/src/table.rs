//! `TieredTable`: rows at home and near copies of columns, as a DataFusion table.

use std::collections::{BTreeMap, BTreeSet};
use std::panic;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use futures::{StreamExt, TryStreamExt, stream};
use memferry::model::ReadHistory;
use memferry::topology::NodeId;
use thiserror::Error;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::data::{MovedGroup, RowGroup, TableData};
use crate::load::Progress;
use crate::near::ColumnRegions;
use crate::options::MemferryOptions;
use crate::placement::{GroupMove, PlacementError, TablePlacement, TableReads};
use crate::scan::{ScanSettings, TieredScanExec};
use crate::tiers::Tiers;

/// A table of row groups whose late columns are prefetched while filters run.
///
/// Filters are pushed into the scan exactly. The columns of the filter are read at home. Copies of the other columns of the
/// query, the *late* columns, start at once. Only rows that passed are materialised, from the near copy if it is ready and
/// from home if not.
///
/// [`place`](TieredTable::place) moves rows to other nodes while queries run: each query reads the table as it was when it was
/// planned.
#[derive(Debug)]
pub struct TieredTable {
    tiers: Arc<Tiers>,
    schema: SchemaRef,
    /// Replaced as a whole by moves. Held for a read or a replacement of the pointer only.
    columns: RwLock<Arc<TieredColumns>>,
    /// Columns that are being moved.
    moving: Mutex<BTreeSet<usize>>,
}

/// The immutable state that the scans of a table share.
#[derive(Debug)]
pub(crate) struct TieredColumns {
    pub(crate) data: Arc<TableData>,
    pub(crate) tiers: Arc<Tiers>,
    /// Regions by partition, row group, column.
    pub(crate) regions: Vec<Vec<Vec<Arc<ColumnRegions>>>>,
    /// Reads of these columns where they are.
    pub(crate) reads: Arc<TableReads>,
}

/// Row groups whose memory is allocated or copied at a time: one is populated while the other is copied.
const GROUPS_AT_A_TIME: usize = 2;

/// Longest pause of a move: a share of almost nothing is to end, too.
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl TieredTable {
    /// Registers the columns of `data` with the cache of `tiers`. Nothing is copied yet.
    ///
    /// # Errors
    /// [`BudgetTooSmall`] if a given near budget cannot hold one row group. (The default budget of a nearly full node may be
    /// too small: copies then find no room, which is counted.)
    pub fn try_new(data: Arc<TableData>, tiers: Arc<Tiers>) -> Result<Self, BudgetTooSmall> {
        let of_group = |group: &RowGroup| -> Vec<Arc<ColumnRegions>> {
            (0..group.batch().num_columns()).map(|column| regions_of(group, column, &tiers)).collect()
        };
        let regions: Vec<Vec<Vec<Arc<ColumnRegions>>>> =
            data.partitions().iter().map(|groups| groups.iter().map(of_group).collect()).collect();
        let size_bytes =
            |group: &Vec<Arc<ColumnRegions>>| group.iter().map(|column| column.size_bytes()).sum::<u64>();
        let group_bytes_max = regions.iter().flatten().map(size_bytes).max().unwrap_or(0);
        if tiers.budget_was_given() && group_bytes_max > tiers.budget_bytes() {
            return Err(BudgetTooSmall { budget_bytes: tiers.budget_bytes(), group_bytes_max });
        }
        let schema = Arc::clone(data.schema());
        let reads = Arc::new(TableReads::new(&data, tiers.machine()));
        let columns = Arc::new(TieredColumns { data, tiers: Arc::clone(&tiers), regions, reads });
        Ok(Self { tiers, schema, columns: RwLock::new(columns), moving: Mutex::default() })
    }

    /// The rows, where they are now.
    pub fn data(&self) -> Arc<TableData> {
        Arc::clone(&self.columns().data)
    }

    /// A scan of a filter that was planned elsewhere, such as on another machine: as the table provider's, without waiting.
    ///
    /// `projection` are columns of the table in output order, `predicate` is over the table's schema.
    ///
    /// # Errors
    /// If a column or the predicate does not fit the table.
    pub fn scan_planned(
        &self,
        config: &SessionConfig,
        projection: Vec<usize>,
        predicate: Option<Arc<dyn PhysicalExpr>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let settings =
            ScanSettings { options: MemferryOptions::of(config.options()), batch_rows: config.batch_size() };
        Ok(Arc::new(TieredScanExec::try_new(self.columns(), projection, predicate, limit, settings)?))
    }

    /// The input of advice: the places of the columns, and the bytes that scans read there in windows of about ten
    /// seconds, since any column was moved. Reads of near copies do not count, and a scan counts when it has ended.
    pub fn reads(&self) -> ReadHistory {
        self.columns().reads.history()
    }

    pub(crate) fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    fn columns(&self) -> Arc<TieredColumns> {
        Arc::clone(&self.columns.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves rows to the nodes of `placement`, and returns the number of their bytes.
    ///
    /// The mover copies them to new memory. When all are there, the table changes at once: queries that were planned
    /// before read the old memory, which is freed after them. Rows that no clause covers stay where they are. Moves of
    /// different columns may run at the same time. `progress` counts rows.
    ///
    /// Near copies of the columns that were moved are made again when they are needed.
    ///
    /// Cancel: dropping the future leaves the table as it was.
    ///
    /// # Errors
    /// [`PlacementError`]; the table is as it was.
    ///
    /// # Panics
    /// Outside of a runtime of tokio.
    pub async fn place(
        &self,
        placement: &TablePlacement,
        progress: Arc<dyn Progress + Send>,
    ) -> Result<u64, PlacementError> {
        self.place_within(placement, 1.0, progress).await
    }

    /// [`place`](Self::place) that leaves memories to others for a part of the time: one row group is copied at a time, and the
    /// pause after it makes copying take `bandwidth_share` of the time. So it takes at most this share of any bandwidth, as a mean
    /// over a row group and its pause.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    ///
    /// # Panics
    /// If the share is not above 0 and at most 1; outside of a runtime of tokio with timers.
    pub async fn place_within(
        &self,
        placement: &TablePlacement,
        bandwidth_share: f64,
        progress: Arc<dyn Progress + Send>,
    ) -> Result<u64, PlacementError> {
        assert!(
            bandwidth_share > 0.0 && bandwidth_share <= 1.0,
            "a share is above 0 and at most 1: {bandwidth_share}"
        );
        let machine = self.tiers.machine();
        let resolved = placement.resolve(&self.schema, machine)?;
        let columns_count = self.schema.fields().len();
        // Before the table is looked at: nobody else moves these columns from here on.
        let _moving = Moving::begin(self, resolved.columns(columns_count))?;
        let before = self.columns();
        let targets = resolved.of_table(columns_count, before.data.partitions())?;
        let mut strays = Vec::new();
        let (mut rows, mut bytes_to): (usize, BTreeMap<NodeId, u64>) = (0, BTreeMap::new());
        for (partition, groups) in before.data.partitions().iter().enumerate() {
            for (index, group) in groups.iter().enumerate() {
                let columns = group.strays(&targets[partition][index]);
                for &(column, node) in &columns {
                    *bytes_to.entry(node).or_default() += group.column_size_bytes(column) as u64;
                }
                if !columns.is_empty() {
                    rows += group.rows();
                    strays.push((partition, index, columns));
                }
            }
        }
        for (&node, &size_bytes) in &bytes_to {
            let free_bytes = machine.free_bytes(node)?;
            if size_bytes > free_bytes {
                return Err(PlacementError::Full { node, size_bytes, free_bytes });
            }
        }
        progress.total(rows as u64);
        let groups_at_a_time = if bandwidth_share < 1.0 { 1 } else { GROUPS_AT_A_TIME };
        let groups_count = strays.len();
        let moved: Vec<MovedGroup> = stream::iter(strays.into_iter().enumerate())
            .map(|(number, (partition, index, columns))| {
                let group = before.data.partitions()[partition][index].clone();
                let (tiers, progress) = (Arc::clone(&self.tiers), Arc::clone(&progress));
                async move {
                    let (rows, begun) = (group.rows(), Instant::now());
                    let (machine, of_move) = (Arc::clone(tiers.machine()), columns.clone());
                    // Populating memory takes a thread about as long as filling it.
                    let started = spawn_blocking(move || GroupMove::start(&group, of_move, &machine)).await;
                    let group = match started {
                        Ok(started) => started?.copy_by(tiers.mover()).await?,
                        // Nobody cancels it: it panicked.
                        Err(error) => panic::resume_unwind(error.into_panic()),
                    };
                    progress.advance(rows as u64);
                    if bandwidth_share < 1.0 && number + 1 < groups_count {
                        sleep(pause(begun.elapsed(), bandwidth_share)).await;
                    }
                    let columns = columns.into_iter().map(|(column, _)| column).collect();
                    Ok::<_, PlacementError>(MovedGroup { partition, index, group, columns })
                }
            })
            .buffer_unordered(groups_at_a_time)
            .try_collect()
            .await?;
        if !moved.is_empty() {
            self.replace(&moved);
        }
        Ok(bytes_to.values().sum())
    }

    /// Puts the columns of `moved` in the place of those before.
    fn replace(&self, moved: &[MovedGroup]) {
        let regions = moved.iter().map(|MovedGroup { group, columns, .. }| -> Vec<Arc<ColumnRegions>> {
            columns.iter().map(|&column| regions_of(group, column, &self.tiers)).collect()
        });
        let new_regions: Vec<_> = regions.collect();
        // Moves of other columns may have changed the table meanwhile, so the change is made to what it is now.
        let mut columns = self.columns.write().unwrap_or_else(PoisonError::into_inner);
        let data = Arc::new(columns.data.with_columns(moved));
        let mut regions = columns.regions.clone();
        for (moved, new) in moved.iter().zip(new_regions) {
            for (&column, new) in moved.columns.iter().zip(new) {
                regions[moved.partition][moved.index][column] = new;
            }
        }
        let moved: BTreeSet<usize> = moved.iter().flat_map(|moved| moved.columns.iter().copied()).collect();
        let moved: Vec<usize> = moved.into_iter().collect();
        let reads = Arc::new(columns.reads.moved(&moved, &data, self.tiers.machine()));
        let before = std::mem::replace(
            &mut *columns,
            Arc::new(TieredColumns { data, tiers: Arc::clone(&self.tiers), regions, reads }),
        );
        drop(columns);
        // Frees memory, which takes time that no query should wait for.
        drop(before);
    }
}

/// The pause after work of this length that makes it this share of the time.
fn pause(work: Duration, share: f64) -> Duration {
    work.mul_f64(1.0 / share - 1.0).min(PAUSE_MAX)
}

fn regions_of(group: &RowGroup, column: usize, tiers: &Tiers) -> Arc<ColumnRegions> {
    Arc::new(ColumnRegions::register(tiers.cache(), group.node(column), group.column(column)))
}

/// The columns of a move, until it ends in any way.
struct Moving<'a> {
    table: &'a TieredTable,
    columns: Vec<usize>,
}

impl<'a> Moving<'a> {
    fn begin(table: &'a TieredTable, columns: Vec<usize>) -> Result<Moving<'a>, PlacementError> {
        let mut moving = table.moving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&column) = columns.iter().find(|column| moving.contains(column)) {
            return Err(PlacementError::BeingMoved { column: table.schema.field(column).name().clone() });
        }
        moving.extend(&columns);
        Ok(Moving { table, columns })
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut moving = self.table.moving.lock().unwrap_or_else(PoisonError::into_inner);
        self.columns.iter().for_each(|column| {
            moving.remove(column);
        });
    }
}

#[async_trait]
impl TableProvider for TieredTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        filters.iter().map(|filter| pushdown_of(filter)).collect()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.schema();
        let predicate = conjunction(filters.to_vec())
            .map(|filter| state.create_physical_expr(filter, &DFSchema::try_from(Arc::clone(&schema))?))
            .transpose()?;
        let projection = projection.cloned().unwrap_or_else(|| (0..schema.fields().len()).collect());
        self.scan_planned(state.config(), projection, predicate, limit)
    }
}

/// Whether scans of tables in memory evaluate `filter`.
pub(crate) fn pushdown_of(filter: &Expr) -> Result<TableProviderFilterPushDown> {
    Ok(if filter.is_volatile() || has_subquery(filter)? {
        TableProviderFilterPushDown::Unsupported
    } else {
        TableProviderFilterPushDown::Exact
    })
}

fn has_subquery(filter: &Expr) -> Result<bool> {
    filter.exists(|e| {
        Ok(matches!(
            e,
            Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::OuterReferenceColumn(..)
        ))
    })
}

/// The near budget cannot hold even one row group of a table.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the near budget of {budget_bytes} bytes cannot hold one row group of {group_bytes_max} bytes; \
     raise the budget or load the table in smaller row groups"
)]
pub struct BudgetTooSmall {
    /// Bytes that near copies may take.
    pub budget_bytes: u64,
    /// Bytes of the largest row group, all columns.
    pub group_bytes_max: u64,
}
