//! One partition of a scan while it runs.
//!
//! ```text
//! for each row group:                    except those without a row that the filters can reach; the window's next late columns are requested before
//!     for each chunk of rows:            except blocks without such a row
//!         evaluate the filter            on ready copies or home columns
//!         for each run of passed rows:   a run is as many batches as fit into one batch of output
//!             materialise the columns    late ones from near copies that are ready now
//! ```
//!
//! The filter reads a chunk before any late column is read: copies complete meanwhile. Chunks are small
//! enough that a column read by filter and output is still in the CPU's cache. Of an encoded column, a chunk or what passed
//! of a run is decoded.

use std::cell::OnceCell;
use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, RecordBatch, RecordBatchOptions};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{SchemaRef, UInt8Type};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_expr_common::physical_expr::snapshot_generation;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce::{LimitedBatchCoalescer, PushBatchStatus};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream;
use memferry::model::HomeRead;
use memferry::mover::Route;
use memferry::topology::NodeId;
use memferry_kernels::count_of;
use tokio::task::coop::consume_budget;

use super::TieredScanExec;
use super::admission::{Admission, Near};
use super::claims::{Place, Places};
use super::filter::{ChunkColumns, FilterInput, FilterOptions, RowFilter, Selection, snapshot_weakened};
use super::keys::KeyRanges;
use super::report::ScanMetrics;
use crate::data::{Encoding, ROW_GROUP_ROWS, RowGroup, Selected, within};
use crate::near::{NearColumn, deadline};
use crate::placement::{Reader, Sums};
use crate::table::TieredColumns;
use crate::tiers::Pins;

/// Starts a partition. Its first window of late columns is requested here rather than at the first poll: a join executes
/// its probe side before it builds its hash table, and the copies run meanwhile.
pub(super) fn start(
    scan: &TieredScanExec,
    partition: usize,
    context: &Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let schema = scan.schema();
    let mut scan = PartitionScan::try_new(scan, partition, context)?;
    if scan.prefetch.is_some() {
        scan.open_groups(false)?;
    }
    let batches = stream::try_unfold(scan, async |mut scan| {
        let batch = scan.next_batch().await?;
        Ok(batch.map(|batch| (batch, scan)))
    });
    Ok(Box::pin(cooperative(RecordBatchStreamAdapter::new(schema, Box::pin(batches)))))
}

/// How a scan uses a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Read by a filter, or at once without a filter.
    Early,
    /// Read for rows that passed.
    Late,
}

struct PartitionScan {
    columns: Arc<TieredColumns>,
    schema: SchemaRef,
    /// Table columns that are read, each once.
    needed: Vec<(usize, Use)>,
    /// Output columns as places in `needed`.
    output: Vec<usize>,
    /// Table columns that the filter reads, each with its place in `needed`.
    filtered: Vec<(usize, usize)>,
    /// The node of copies; `None` leaves the cache untouched.
    near: Option<NodeId>,
    /// Near bytes that consumers may hold on that node.
    pins: Arc<Pins>,
    /// The copies to that node.
    prefetch: Option<Near>,
    /// The row groups to read.
    places: Places,
    /// What the predicate requires of the rows.
    required: KeyRanges,
    /// The dynamic filters, with their generations at the last look.
    dynamic: Vec<(Arc<dyn PhysicalExpr>, u64)>,
    /// What the predicate and, at the last look, the dynamic filters require.
    reached: KeyRanges,
    window_groups: usize,
    wait_max: Duration,
    filter: RowFilter,
    batch_rows: usize,
    /// Rows of the next chunk; doubles from one batch, so that a filter is tried on few rows first.
    chunk_rows: usize,
    chunk_rows_max: usize,
    compare_kept: bool,
    merge_batches: bool,
    fetch_left: usize,
    /// Row groups whose columns have been requested; the next one to read is first.
    window: VecDeque<OpenGroup>,
    chunk: Option<Chunk>,
    coalescer: Option<LimitedBatchCoalescer>,
    baseline: BaselineMetrics,
    metrics: ScanMetrics,
    reader: Reader,
    /// Bytes read at home, merged into those of the table at the end.
    reads: Sums,
}

/// A row group with its columns, near or not.
struct OpenGroup {
    place: Place,
    rows: usize,
    /// Rows before this one are done.
    rows_done: usize,
    /// The predicate is false for rows from this one on.
    rows_end: usize,
    waited: bool,
    columns: Vec<NearColumn>,
    /// How their values are kept; `None`: as they are.
    encodings: Vec<Option<Encoding>>,
    /// Sizes of these columns at home, as Arrow counts them.
    home_bytes: Vec<u64>,
    /// Their nodes at home.
    homes: Vec<NodeId>,
}

impl OpenGroup {
    /// The late columns among `needed`.
    fn late(&self, needed: &[(usize, Use)]) -> impl Iterator<Item = &NearColumn> {
        self.columns
            .iter()
            .zip(needed)
            .filter(|(_, (_, usage))| *usage == Use::Late)
            .map(|(column, _)| column)
    }
}

/// The rows of a chunk in the columns of the filter.
struct Columns<'a> {
    by_index: HashMap<usize, ChunkColumn<'a>>,
    compare_kept: bool,
}

struct ChunkColumn<'a> {
    array: ArrayRef,
    encoding: Option<&'a Encoding>,
    /// The values, once a conjunct has looked at them.
    decoded: OnceCell<ArrayRef>,
}

impl ChunkColumns for Columns<'_> {
    fn values(&self, column: usize) -> ArrayRef {
        let ChunkColumn { array, encoding, decoded } = &self.by_index[&column];
        match encoding {
            Some(encoding) => Arc::clone(decoded.get_or_init(|| encoding.decode(array))),
            None => Arc::clone(array),
        }
    }

    fn dictionary(&self, column: usize) -> Option<DictionaryArray<UInt8Type>> {
        let ChunkColumn { array, encoding, .. } = &self.by_index[&column];
        matches!(encoding, Some(Encoding::Dictionary)).then(|| array.as_dictionary::<UInt8Type>().clone())
    }

    fn within(&self, column: usize, keys: &RangeInclusive<i64>) -> Option<BooleanBuffer> {
        let ChunkColumn { array, encoding, .. } = &self.by_index[&column];
        if self.compare_kept { within(array, *encoding, keys) } else { None }
    }
}

/// Rows of the window's first group whose filter has run.
struct Chunk {
    start: usize,
    rows: usize,
    passed: Selection,
    rows_done: usize,
}

/// Consecutive rows of a chunk in one output batch.
struct Run {
    start: usize,
    rows: usize,
    /// Rows that passed; `None`: all.
    mask: Option<BooleanBuffer>,
    /// Their number.
    passed: usize,
}

impl PartitionScan {
    fn try_new(scan: &TieredScanExec, partition: usize, context: &Arc<TaskContext>) -> Result<Self> {
        let batch_rows = context.session_config().batch_size();
        let late = scan.late_columns();
        let mut needed: Vec<(usize, Use)> =
            scan.filter_columns().difference(&late).map(|&column| (column, Use::Early)).collect();
        let mut output = vec![];
        for &column in &scan.projection {
            let place = needed.iter().position(|&(c, _)| c == column).unwrap_or_else(|| {
                needed.push((column, if late.contains(&column) { Use::Late } else { Use::Early }));
                needed.len() - 1
            });
            output.push(place);
        }
        let place_of = |column| needed.iter().position(|&(c, _)| c == column).map(|place| (column, place));
        let filtered: Vec<(usize, usize)> = scan.filter_columns().into_iter().filter_map(place_of).collect();
        let options = &scan.settings.options;
        let mut conjuncts: Vec<_> = match &scan.predicate {
            Some(predicate) if options.split_filters => {
                split_conjunction(predicate).into_iter().cloned().collect()
            }
            predicate => predicate.iter().cloned().collect(),
        };
        conjuncts.extend(scan.dynamic.iter().cloned());
        let data = &scan.columns.data;
        let filter = RowFilter::try_new(
            &conjuncts,
            &FilterInput {
                schema: data.schema(),
                rows: data.rows(),
                results: &scan.results,
                values: &|column| data.integers(column),
            },
            FilterOptions { reorder: options.reorder_filters, sparse: options.sparse_filters },
        )?;
        let schema = scan.schema();
        // Unfiltered rows leave as whole slices; rows without columns are only counted.
        let coalescer = (!filter.is_empty() && !output.is_empty())
            .then(|| LimitedBatchCoalescer::new(Arc::clone(&schema), batch_rows, None));
        let admission = scan.admission_of(partition);
        let (near, prefetch) = match admission {
            Admission::Prefetch(near) => (Some(near.node), Some(near.clone())),
            Admission::Reuse { node, .. } => (Some(*node), None),
            Admission::Refused(_) => (None, None),
        };
        if let Some(predicted) = admission.predicted() {
            ScanMetrics::predicted(&scan.metrics, partition, predicted);
        }
        let chunk_rows_max = options.chunk_rows.clamp(1, ROW_GROUP_ROWS).checked_next_multiple_of(batch_rows);
        let places = Places::new(data, scan.claims.as_ref(), partition, context);
        scan.columns.reads.begin();
        let required = KeyRanges::of(scan.predicate.as_ref(), data.schema());
        Ok(Self {
            // Without copies there is nothing to open a window for, and an open row group cannot be stolen.
            window_groups: if near.is_some() { scan.window_groups() } else { 1 },
            metrics: ScanMetrics::new(&scan.metrics, partition, places.domain()),
            reader: scan.reader_of(partition),
            reads: Sums::default(),
            places,
            reached: required.clone(),
            required,
            // No generation is 0.
            dynamic: scan.dynamic.iter().map(|filter| (Arc::clone(filter), 0)).collect(),
            needed,
            output,
            filtered,
            near,
            pins: scan.pins_of(partition),
            prefetch,
            wait_max: Duration::from_micros(options.wait_us_max),
            filter,
            batch_rows,
            chunk_rows: batch_rows,
            chunk_rows_max: chunk_rows_max.unwrap_or(batch_rows),
            compare_kept: options.compare_kept,
            merge_batches: options.merge_batches,
            fetch_left: scan.fetch.unwrap_or(usize::MAX),
            window: VecDeque::new(),
            chunk: None,
            coalescer,
            baseline: BaselineMetrics::new(&scan.metrics, partition),
            columns: Arc::clone(&scan.columns),
            schema,
        })
    }

    async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let batch = self.next_coalesced().await?;
        match &batch {
            Some(batch) => drop(batch.record_output(&self.baseline)),
            None => self.baseline.done(),
        }
        Ok(batch)
    }

    async fn next_coalesced(&mut self) -> Result<Option<RecordBatch>> {
        if self.coalescer.is_none() {
            return self.next_run().await;
        }
        loop {
            if let Some(batch) = self.coalescer.as_mut().and_then(LimitedBatchCoalescer::next_completed_batch)
            {
                return Ok(Some(batch));
            }
            let run = self.next_run().await?;
            let Some(coalescer) = &mut self.coalescer else { return Ok(None) };
            match run {
                Some(batch) => {
                    let _: PushBatchStatus = coalescer.push_batch(batch)?; // the limit is ours, not the coalescer's
                }
                None => {
                    coalescer.finish()?;
                    let last = coalescer.next_completed_batch();
                    self.coalescer = None;
                    return Ok(last);
                }
            }
        }
    }

    /// Rows that passed, at most a batch of them, from one run; `None` at the end of the partition.
    async fn next_run(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.fetch_left == 0 {
                return Ok(None);
            }
            if let Some(run) =
                self.chunk.as_mut().and_then(|c| c.next_run(self.batch_rows, self.merge_batches))
            {
                self.wait().await;
                return self.materialise(run).map(Some);
            }
            self.chunk = None;
            if self.window.front().is_some_and(|group| group.rows_done == group.rows_end) {
                self.close_group();
            }
            self.open_groups(true)?;
            if self.window.is_empty() {
                return Ok(None);
            }
            // If no row passes, other tasks run here, and a dropped query ends here.
            consume_budget().await;
            self.chunk = Some(self.filter_chunk()?);
        }
    }

    /// Looks at the dynamic filters that have changed.
    fn update_reached(&mut self) -> Result<()> {
        let mut has_changed = false;
        for (filter, seen) in &mut self.dynamic {
            let generation = snapshot_generation(filter);
            has_changed |= generation != *seen;
            *seen = generation;
        }
        if has_changed {
            self.reached = self.required.clone();
            for (filter, _) in &self.dynamic {
                let schema = self.columns.data.schema();
                let required = KeyRanges::of(Some(&snapshot_weakened(filter, schema)?), schema);
                self.reached = std::mem::take(&mut self.reached).and(required);
            }
        }
        Ok(())
    }

    /// Requests the columns of row groups until the window is full. A partition steals only when it has nothing to read:
    /// partitions that are executed after it would otherwise find their row groups open elsewhere.
    fn open_groups(&mut self, may_steal: bool) -> Result<()> {
        self.update_reached()?;
        while self.window.len() < self.window_groups
            && let Some(place) = self.places.next(&self.columns.data, may_steal && self.window.is_empty())
        {
            let group = &self.columns.data.partitions()[place.partition][place.index];
            let within = self.reached.rows(group);
            let reached = self.reached.next_rows(group, within.clone()).start..within.end;
            if reached.is_empty() {
                self.metrics.row_groups_skipped.add(1);
                continue;
            }
            self.metrics.rows_skipped.add(reached.start - within.start);
            let regions = &self.columns.regions[place.partition][place.index];
            self.metrics.opened(place.distance);
            let cache = self.columns.tiers.cache();
            let columns = self
                .needed
                .iter()
                .map(|&(column, usage)| {
                    let (home, regions) = (group.column(column), &regions[column]);
                    match (self.near, self.copies(group, column, usage, place.number)) {
                        (None, _) => NearColumn::at_home(home),
                        (Some(near), Some(route)) => NearColumn::prefetch(cache, near, route, regions, home),
                        (Some(near), None) => NearColumn::peek(cache, near, regions, home),
                    }
                })
                .collect();
            let rows = group.rows();
            let home_bytes = self.needed.iter().map(|&(column, _)| group.column_bytes(column)).collect();
            let homes = self.needed.iter().map(|&(column, _)| group.node(column)).collect();
            let encodings = self.needed.iter().map(|&(column, _)| group.encoding(column).cloned()).collect();
            self.window.push_back(OpenGroup {
                place,
                homes,
                rows,
                rows_done: reached.start,
                rows_end: reached.end,
                waited: false,
                columns,
                encodings,
                home_bytes,
            });
        }
        Ok(())
    }

    fn close_group(&mut self) {
        let Some(group) = self.window.pop_front() else { return };
        let Place { partition, index, number, .. } = group.place;
        let rows = &self.columns.data.partitions()[partition][index];
        for (near, &(column, usage)) in group.columns.iter().zip(&self.needed) {
            if self.copies(rows, column, usage, number).is_some() {
                self.metrics.prefetched(near);
            }
        }
    }

    /// Whether this scan requests a copy of a column of a row group, which has this number in the table, and its route.
    fn copies(&self, group: &RowGroup, column: usize, usage: Use, number: usize) -> Option<Option<Route>> {
        self.prefetch.as_ref().filter(|_| usage == Use::Late)?.copies(column, group.node(column), number)
    }

    /// Runs the filter over the next rows of the window's first group.
    fn filter_chunk(&mut self) -> Result<Chunk> {
        self.update_reached()?;
        let _timer = self.baseline.elapsed_compute().timer();
        let group = &mut self.window[0];
        let Place { partition, index, .. } = group.place;
        let of_table = &self.columns.data.partitions()[partition][index];
        let reached = self.reached.next_rows(of_table, group.rows_done..group.rows_end);
        self.metrics.rows_skipped.add(reached.start - group.rows_done);
        let start = reached.start;
        let rows = self.chunk_rows.min(reached.len());
        self.chunk_rows = self.chunk_rows.saturating_mul(2).min(self.chunk_rows_max);
        group.rows_done = start + rows;
        if rows == 0 {
            return Ok(Chunk { start, rows, passed: Selection::None, rows_done: 0 });
        }
        let passed = if self.filter.is_empty() {
            Selection::All { rows }
        } else {
            let cpus = self.reader.node(self.columns.tiers.machine());
            let columns: HashMap<usize, ChunkColumn<'_>> = self
                .filtered
                .iter()
                .map(|&(column, place)| {
                    let (array, near_bytes) = group.columns[place].read();
                    let home_bytes = group.home_bytes[place].saturating_sub(near_bytes);
                    let size_bytes = home_bytes * rows as u64 / group.rows as u64;
                    self.metrics.home_read(group.place.distance, size_bytes);
                    self.reads.add(HomeRead { cpus, column, node: group.homes[place], size_bytes });
                    let encoding = group.encodings[place].as_ref();
                    (
                        column,
                        ChunkColumn { array: array.slice(start, rows), encoding, decoded: OnceCell::new() },
                    )
                })
                .collect();
            self.filter.select(rows, &Columns { by_index: columns, compare_kept: self.compare_kept })?
        };
        Ok(Chunk { start, rows, passed, rows_done: 0 })
    }

    /// Waits, at most once a row group and never longer than allowed, for late columns in flight.
    async fn wait(&mut self) {
        let Some(group) = self.window.front_mut().filter(|group| !group.waited) else { return };
        group.waited = true;
        if self.prefetch.is_none() || self.wait_max.is_zero() {
            return;
        }
        let _timer = self.metrics.time_waiting.timer();
        let until = deadline(self.wait_max);
        for column in group.late(&self.needed) {
            column.wait(until).await;
        }
    }

    fn materialise(&mut self, run: Run) -> Result<RecordBatch> {
        let _timer = self.baseline.elapsed_compute().timer();
        let cpus = self.reader.node(self.columns.tiers.machine());
        let group = &mut self.window[0];
        let selected = run.mask.as_ref().map(|mask| Selected::new(mask, run.passed));
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.output.len());
        for &place in &self.output {
            let column = &mut group.columns[place];
            // Rows that filtering copies may come from near memory without limit; slices pin it.
            let encoding = group.encodings[place].as_ref();
            let (array, near_bytes) = match (encoding, &selected) {
                (Some(encoding), _) if !encoding.outlives_decoding(column.home()) => column.read(),
                (None, Some(_)) if !column.outlives_filter() => column.read(),
                _ => column.read_leaving(&self.pins),
            };
            let share = |bytes: u64| bytes * run.rows as u64 / group.rows as u64;
            // The filter has brought its columns into the CPU's cache.
            if !self.filtered.iter().any(|&(_, filtered)| filtered == place) {
                let home_bytes = group.home_bytes[place].saturating_sub(near_bytes);
                self.metrics.home_read(group.place.distance, share(home_bytes));
                let (column, node) = (self.needed[place].0, group.homes[place]);
                self.reads.add(HomeRead { cpus, column, node, size_bytes: share(home_bytes) });
            }
            if self.near.is_some() && self.needed[place].1 == Use::Late {
                self.metrics.late_read(share(near_bytes), share(column.size_bytes()));
            }
            let rows = array.slice(run.start, run.rows);
            columns.push(match (encoding, &selected) {
                (_, Some(selected)) => selected.of(&rows, encoding)?,
                (Some(encoding), None) => encoding.decode(&rows),
                (None, None) => rows,
            });
        }
        let rows = run.passed;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let mut batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        if rows > self.fetch_left {
            batch = batch.slice(0, self.fetch_left);
        }
        self.fetch_left -= batch.num_rows();
        Ok(batch)
    }
}

impl Drop for PartitionScan {
    /// Requested columns and reads are reported however the scan ends.
    fn drop(&mut self) {
        while !self.window.is_empty() {
            self.close_group();
        }
        self.columns.reads.merge(&mut self.reads);
    }
}

impl Chunk {
    /// The next rows of the output: whole batches; with `merge` as many as have at most one batch of passed rows.
    fn next_run(&mut self, batch_rows: usize, merge: bool) -> Option<Run> {
        while self.rows_done < self.rows {
            let start = self.rows_done;
            let block = |at: usize| batch_rows.min(self.rows - at);
            match &self.passed {
                Selection::None => self.rows_done = self.rows,
                Selection::All { .. } => {
                    let rows = block(start);
                    self.rows_done += rows;
                    return Some(Run { start: self.start + start, rows, mask: None, passed: rows });
                }
                Selection::Some { mask, .. } => {
                    let mut passed = 0;
                    let mut end = start;
                    while end < self.rows {
                        let more = count_of(mask.values(), mask.offset() + end, block(end));
                        if end > start && (!merge || passed + more > batch_rows) {
                            break;
                        }
                        passed += more;
                        end += block(end);
                    }
                    self.rows_done = end;
                    let rows = end - start;
                    if passed > 0 {
                        let mask = (passed < rows).then(|| mask.slice(start, rows));
                        return Some(Run { start: self.start + start, rows, mask, passed });
                    }
                }
            }
        }
        None
    }
}
