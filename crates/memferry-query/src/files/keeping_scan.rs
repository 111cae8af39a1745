//! A file in a scan that keeps decoded columns: each row group takes one of three ways.
//!
//! ```text
//! row group ── all columns kept ───────────────▶ slices of them: nothing is read or decoded
//!           ── some kept, or worth keeping ────▶ decode the others, all rows; keep them, join them with the kept ones
//!           ── otherwise ──────────────────────▶ DataFusion's way, with the filter of the scan in its decoder
//! ```
//!
//! The filter above the scan evaluates all rows in each case. Row groups that statistics exclude take no way at all.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs, Projector};
use datafusion::physical_expr::utils::reassign_expr_columns;
use datafusion::physical_expr_adapter::replace_columns_with_literals;
use datafusion::physical_expr_adapter::rewrite::rewrite_input_file_name_in_projection;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use memferry::cache::Keep;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::FileError;
use super::decoded::Found;
use super::factory::local;
use super::keeping::Scan;
use super::plan_ahead::InPlan;
use super::prune::RowGroup;
use super::source::RangeSource;
use super::stored::LocalFile;
use crate::data::NotKept;

/// A file that a partition has opened.
pub(super) struct FileScan {
    scan: Arc<Scan>,
    file: PartitionedFile,
    local: Arc<LocalFile>,
    metadata: Arc<ParquetMetaData>,
    /// The needed columns.
    schema: SchemaRef,
    projector: Projector,
    /// Row groups to come. Of the first one, the kept columns may have been looked up.
    left: VecDeque<(RowGroup, Option<Found>)>,
    tracking: DynamicFilterTracking,
    current: Current,
}

/// The way of the row groups at the moment.
enum Current {
    None,
    Kept { columns: Vec<ArrayRef>, rows: usize, done: usize },
    Decoding(Run),
    Plain(BoxStream<'static, Result<RecordBatch>>),
}

/// Row groups that are decoded by one reader, which reads ahead of them.
struct Run {
    stream: BoxStream<'static, Result<RecordBatch>>,
    /// Positions of the columns that it decodes.
    missing: Vec<usize>,
    /// Row groups that the stream has next; they are the first ones of those left, unless a filter has excluded some.
    planned: VecDeque<usize>,
    group: Option<Group>,
    /// Rows of the planned ones that have arrived.
    rest: Option<RecordBatch>,
}

/// The row group that is being decoded.
struct Group {
    index: usize,
    rows: usize,
    done: usize,
    kept: Vec<Option<ArrayRef>>,
    /// How decoded columns are kept; `None` if none is.
    how: Option<Keep>,
    /// Their positions, and what has been decoded of them.
    keeping: Vec<(usize, Vec<ArrayRef>)>,
    time: Duration,
}

impl FileScan {
    pub(super) async fn open(scan: Arc<Scan>, file: PartitionedFile) -> Result<Self> {
        let readers = scan.readers();
        readers.next.open(scan.partition, &file);
        let Some(tiers) = &readers.tiers else {
            return Err(DataFusionError::Internal("only files of this machine have kept columns".to_owned()));
        };
        let local = local(tiers, &file.object_meta).map_err(external)?;
        let metadata = readers.metadata(file.metadata_size_hint);
        let metadata = metadata.fetch(&file.object_meta, readers.policy(None)).await?;
        // Watched before it is used: what changes meanwhile is noticed.
        let tracking = readers.demand.tracking();
        let groups = readers.demand.row_groups(&file, &metadata)?.into_vec();
        let schema: SchemaRef = Arc::new(Schema::new(scan.fields.clone()));
        let is_kept = |group: &RowGroup| local.decoded().has_all(group.index, &scan.fields);
        // Nothing is to be read of the last file, so those of the next scan may be.
        if groups.iter().all(is_kept) && readers.next.is_last(scan.partition) {
            readers.in_plan.get().into_iter().for_each(InPlan::all_started);
        }
        Ok(Self {
            projector: projector(&scan, &file, &schema)?,
            tracking,
            left: groups.into_iter().map(|group| (group, None)).collect(),
            current: Current::None,
            schema,
            scan,
            file,
            local,
            metadata,
        })
    }

    pub(super) fn batches(self) -> impl Stream<Item = Result<RecordBatch>> + Send {
        stream::try_unfold(self, async |mut scan| {
            Ok::<_, DataFusionError>(scan.next().await?.map(|batch| (batch, scan)))
        })
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match &mut self.current {
                Current::Kept { columns, rows, done } if *done < *rows => {
                    let taken = self.scan.batch_rows.min(*rows - *done);
                    let slices = columns.iter().map(|column| column.slice(*done, taken)).collect();
                    *done += taken;
                    return self.project(slices, taken).map(Some);
                }
                Current::Plain(stream) => {
                    if let Some(batch) = stream.next().await {
                        return batch.map(Some);
                    }
                    self.current = Current::None;
                }
                Current::Decoding(_) => {
                    if let Some(batch) = self.decode().await? {
                        return Ok(Some(batch));
                    }
                }
                Current::Kept { .. } | Current::None => {
                    if !self.advance()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Chooses the way of the next row groups. Returns false at the end of the file.
    fn advance(&mut self) -> Result<bool> {
        self.current = Current::None;
        self.narrow()?;
        let Some((group, found)) = self.left.pop_front() else { return Ok(false) };
        // Kept columns are those of the version that was opened.
        self.local.check_unchanged().map_err(external)?;
        let found = match found {
            Some(found) => found,
            None => self.find(&group),
        };
        if let Some(columns) = found.all() {
            self.scan.metrics.groups.add(1);
            self.current = Current::Kept { rows: columns[0].len(), columns, done: 0 };
            return Ok(true);
        }
        if self.is_decoded_here(&group, &found) {
            self.start_run(&group, found)?;
            return Ok(true);
        }
        let mut access = self.no_group();
        access.scan(group.index);
        while let Some((group, _)) = self.left.pop_front() {
            let found = self.find(&group);
            if found.all().is_some() || self.is_decoded_here(&group, &found) {
                self.left.push_front((group, Some(found)));
                break;
            }
            access.scan(group.index);
        }
        self.current = Current::Plain(self.scan.plain(&self.file, access)?);
        Ok(true)
    }

    /// Starts to decode `group` and those after it of which the same columns are missing.
    fn start_run(&mut self, group: &RowGroup, found: Found) -> Result<()> {
        let missing = found.missing();
        let first = self.begin_group(group, found, &missing);
        let mut access = self.no_group();
        access.scan(group.index);
        let mut planned = VecDeque::new();
        for (group, _) in &self.left {
            let is_missing = |(position, field): (usize, &FieldRef)| {
                let is_kept = self.local.decoded().has_all(group.index, std::slice::from_ref(field));
                is_kept != missing.contains(&position)
            };
            if !self.is_whole(group) || !self.scan.fields.iter().enumerate().all(is_missing) {
                break;
            }
            access.scan(group.index);
            planned.push_back(group.index);
        }
        let stream = self.scan.decode(&self.file, access, &missing)?;
        self.current = Current::Decoding(Run { stream, missing, planned, group: Some(first), rest: None });
        Ok(())
    }

    /// The next batch of the run, `None` at its end.
    async fn decode(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if !self.enter_group()? {
                self.current = Current::None;
                return Ok(None);
            }
            let Current::Decoding(run) = &mut self.current else { return Ok(None) };
            let Some(group) = &mut run.group else { return Ok(None) };
            let batch = match run.rest.take() {
                Some(rest) => Some(rest),
                None => timed(&mut run.stream, &mut group.time).await?,
            };
            let Some(batch) = batch else {
                let why =
                    format!("row group {} has {} rows instead of {}", group.index, group.done, group.rows);
                let (files, place) = (self.local.name().to_owned(), None);
                return Err(external(FileError::Damaged { files, place, why }));
            };
            let taken = batch.num_rows().min(group.rows - group.done);
            if taken == 0 {
                continue;
            }
            if taken < batch.num_rows() {
                run.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
            let decoded = batch.slice(0, taken);
            let mut columns: Vec<Option<ArrayRef>> = group.kept.clone();
            columns.iter_mut().flatten().for_each(|kept| *kept = kept.slice(group.done, taken));
            for (&position, column) in run.missing.iter().zip(decoded.columns()) {
                columns[position] = Some(Arc::clone(column));
            }
            for (position, pieces) in &mut group.keeping {
                pieces.extend(columns[*position].clone());
            }
            group.done += taken;
            if group.done == group.rows
                && let Some(group) = run.group.take()
            {
                let missing = run.missing.clone();
                self.measure(&group, &missing);
                self.keep(group);
            }
            return self.project(columns.into_iter().flatten().collect(), taken).map(Some);
        }
    }

    /// Goes to the next row group of the run, unless it is in one. Returns false at the end of the run: also if a filter
    /// excludes that row group, or scans have kept or evicted some of its columns meanwhile.
    fn enter_group(&mut self) -> Result<bool> {
        let Current::Decoding(Run { group, planned, missing, .. }) = &mut self.current else {
            return Ok(false);
        };
        if group.is_some() {
            return Ok(true);
        }
        let (Some(planned), missing) = (planned.pop_front(), missing.clone()) else { return Ok(false) };
        self.narrow()?;
        if self.left.front().is_none_or(|(group, _)| group.index != planned) {
            return Ok(false);
        }
        let Some((group, _)) = self.left.pop_front() else { return Ok(false) };
        self.local.check_unchanged().map_err(external)?;
        let found = self.find(&group);
        let are_others_kept = found.missing().iter().all(|position| missing.contains(position));
        if found.all().is_some() || !are_others_kept {
            self.left.push_front((group, Some(found)));
            return Ok(false);
        }
        let begun = self.begin_group(&group, found, &missing);
        if let Current::Decoding(run) = &mut self.current {
            run.group = Some(begun);
        }
        Ok(true)
    }

    fn begin_group(&self, group: &RowGroup, found: Found, missing: &[usize]) -> Group {
        let how = self.admit(group, &found);
        let wanted = if how.is_some() { found.wanted } else { vec![] };
        let mut kept = found.arrays;
        missing.iter().for_each(|&position| kept[position] = None);
        Group {
            index: group.index,
            rows: self.rows(group.index),
            done: 0,
            kept,
            how,
            keeping: wanted.into_iter().map(|position| (position, vec![])).collect(),
            time: Duration::ZERO,
        }
    }

    /// Notes what decoding the missing columns of a row group took.
    fn measure(&self, group: &Group, missing: &[usize]) {
        let size_bytes =
            missing.iter().map(|&position| self.size_bytes(group.index, &self.scan.fields[position]));
        self.local.decoded().rates().decoded(group.time, size_bytes.sum());
    }

    /// Keeps the wanted columns of a row group.
    fn keep(&self, group: Group) {
        let Some(how) = group.how else { return };
        let metrics = &self.scan.metrics;
        for (position, pieces) in group.keeping {
            match self.local.decoded().keep(group.index, &self.scan.fields[position], &pieces, how) {
                Ok(bytes) => metrics.bytes_kept.add(bytes as usize),
                Err(NotKept::NoRoom { size_bytes }) => metrics.bytes_refused.add(size_bytes),
                // It is decoded each time.
                Err(NotKept::Unsuitable) => {}
            }
        }
    }

    fn find(&self, group: &RowGroup) -> Found {
        let decodes_early = self.scan.readers().forecast.decodes_early();
        let found = self.local.decoded().find(group.index, &self.scan.fields, decodes_early);
        self.scan.metrics.columns_evicted.add(found.evicted_count);
        self.scan.metrics.groups_missed.add(usize::from(found.all().is_none()));
        found
    }

    fn is_decoded_here(&self, group: &RowGroup, found: &Found) -> bool {
        let has_some = found.arrays.iter().any(Option::is_some);
        self.is_whole(group) && (has_some || self.admit(group, found).is_some())
    }

    /// Whether DataFusion would decode all rows of it.
    fn is_whole(&self, group: &RowGroup) -> bool {
        let has_filter = self.scan.readers().demand.predicate().is_some();
        let columns = self.metadata.row_group(group.index).columns();
        let has_bloom_filters = || columns.iter().any(|column| column.bloom_filter_offset().is_some());
        group.rows.as_ref().is_none_or(|rows| rows.iter().all(|run| !run.skip))
            && self.rows(group.index) > 0
            && !self.scan.filters_in_decoder()
            && !(has_filter && self.scan.reads_bloom_filters() && has_bloom_filters())
    }

    /// How to keep the wanted columns; `None` if there are none, or they are not worth it now.
    fn admit(&self, group: &RowGroup, found: &Found) -> Option<Keep> {
        let wanted = found.wanted.iter();
        let size_bytes =
            wanted.map(|&position| self.size_bytes(group.index, &self.scan.fields[position])).sum();
        if found.wanted.is_empty() { None } else { self.local.decoded().admit(size_bytes) }
    }

    /// An estimate of the size of a decoded column.
    fn size_bytes(&self, group: usize, field: &FieldRef) -> u64 {
        let rows = self.rows(group) as u64;
        if let Some(width) = field.data_type().primitive_width() {
            return rows * width as u64;
        }
        // Views or offsets, and the texts as far as they differ.
        let columns = self.metadata.row_group(group).columns();
        let is_it = |column: &&ColumnChunkMetaData| column.column_path().parts() == [field.name().as_str()];
        let stored = columns.iter().find(is_it).map_or(0, ColumnChunkMetaData::uncompressed_size);
        rows * size_of::<u128>() as u64 + u64::try_from(stored).unwrap_or(0)
    }

    fn rows(&self, group: usize) -> usize {
        usize::try_from(self.metadata.row_group(group).num_rows()).unwrap_or(0)
    }

    fn no_group(&self) -> ParquetAccessPlan {
        ParquetAccessPlan::new_none(self.metadata.num_row_groups())
    }

    /// Leaves out row groups that filters exclude by now.
    fn narrow(&mut self) -> Result<()> {
        if self.tracking.watcher().is_some_and(|tracker| tracker.changed()) {
            let groups = self.scan.readers().demand.row_groups(&self.file, &self.metadata)?;
            self.left.retain_mut(|(group, _)| {
                match groups.as_slice().iter().find(|left| left.index == group.index) {
                    Some(left) => {
                        *group = left.clone();
                        true
                    }
                    None => false,
                }
            });
        }
        Ok(())
    }

    fn project(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        self.projector.project_batch(&batch)
    }
}

/// The outputs of the scan over the needed columns of `file`, which `schema` has.
fn projector(scan: &Scan, file: &PartitionedFile, schema: &SchemaRef) -> Result<Projector> {
    let names = scan.readers().demand.partition_columns().iter().map(String::as_str);
    let values: HashMap<&str, &ScalarValue> = names.zip(&file.partition_values).collect();
    let mut outputs = vec![];
    for ProjectionExpr { expr, alias } in scan.projection() {
        let expr = match values.is_empty() {
            true => Arc::clone(expr),
            false => replace_columns_with_literals(Arc::clone(expr), &values)?,
        };
        outputs.push(ProjectionExpr { expr: reassign_expr_columns(expr, schema)?, alias: alias.clone() });
    }
    let location = file.object_meta.location.as_ref();
    rewrite_input_file_name_in_projection(ProjectionExprs::new(outputs), location)?.make_projector(schema)
}

/// The next batch. Adds the time of decoding it, without that of waiting.
async fn timed(
    stream: &mut BoxStream<'static, Result<RecordBatch>>,
    time: &mut Duration,
) -> Result<Option<RecordBatch>> {
    let next = poll_fn(|context| {
        let begin = Instant::now();
        let poll = stream.poll_next_unpin(context);
        *time += begin.elapsed();
        poll
    });
    next.await.transpose()
}

fn external(error: FileError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
