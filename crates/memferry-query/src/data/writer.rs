//! Cuts batches of any size into row groups.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use memferry::topology::{Machine, NodeId};

use super::draft::{self, Draft};
use super::{RowGroup, TableData, TableError};
use crate::placement::{Resolved, TablePlacement};

/// Default rows of a group: about 1 MiB for a column of 8-byte values, which is large for a descriptor and a small part of
/// a near budget.
pub const ROW_GROUP_ROWS: usize = 128 * 1024;

/// Groups have a multiple of this many rows, so that bitmaps of full groups end at a multiple of 64 bytes.
pub const ROW_GROUP_ROWS_STEP: usize = 512;

/// The layout of a table in memory.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The machine that `home` is a node of.
    pub machine: Arc<Machine>,
    /// The node whose memory holds what `placement` does not cover.
    pub home: NodeId,
    /// The nodes of columns, rows and row groups. Row groups are written where they belong, but those that a clause with
    /// rows moves elsewhere are copied once more when the table is complete, because their number is known then.
    pub placement: TablePlacement,
    /// Number of partitions; loaders make a single one of a source that fits into one row group.
    pub partitions: usize,
    /// Rows of a group, a multiple of [`ROW_GROUP_ROWS_STEP`].
    pub row_group_rows: usize,
}

impl Layout {
    /// A layout with all rows on `home`, a partition per CPU that this process may use and groups of [`ROW_GROUP_ROWS`].
    pub fn new(machine: Arc<Machine>, home: NodeId) -> Layout {
        let partitions = thread::available_parallelism().map_or(1, usize::from);
        let placement = TablePlacement::default();
        Layout { machine, home, placement, partitions, row_group_rows: ROW_GROUP_ROWS }
    }

    /// Number of partitions of a table of `rows`.
    pub(crate) fn partitions_of(&self, rows: u64) -> usize {
        if rows <= self.row_group_rows as u64 { 1 } else { self.partitions }
    }

    /// `rows` rows cut into one run per partition; lengths differ by at most one row.
    pub(crate) fn split(&self, rows: u64) -> Vec<Range<u64>> {
        let count = self.partitions_of(rows);
        let bound = |index: usize| (u128::from(rows) * index as u128 / count as u128) as u64;
        (0..count).map(|index| bound(index)..bound(index + 1)).collect()
    }

    fn check(&self) -> Result<(), TableError> {
        if self.partitions == 0 {
            return Err(TableError::NoPartition);
        }
        if self.row_group_rows == 0 || !self.row_group_rows.is_multiple_of(ROW_GROUP_ROWS_STEP) {
            return Err(TableError::GroupRows { rows: self.row_group_rows });
        }
        Ok(())
    }
}

/// Builds a table from single batches.
///
/// ```text
/// let mut writer = TableWriter::new(schema, layout)?;
/// while let Some((partition, batch)) = arrives() {
///     writer.push(partition, &batch)?;
/// }
/// let table = writer.finish()?;
/// ```
///
/// Memory: batches are kept until a group of their partition is full, then copied once and dropped.
#[derive(Debug)]
pub struct TableWriter {
    schema: SchemaRef,
    layout: Layout,
    partitions: Vec<PartitionWriter>,
}

impl TableWriter {
    /// A writer of a table with `layout.partitions` partitions, all empty.
    ///
    /// # Errors
    /// [`TableError::UnsupportedType`] for columns that groups cannot hold; [`GroupRows`](TableError::GroupRows),
    /// [`NoPartition`](TableError::NoPartition), [`Placement`](TableError::Placement).
    pub fn new(schema: SchemaRef, layout: Layout) -> Result<TableWriter, TableError> {
        let writer = PartitionWriter::new(schema.clone(), &layout)?;
        let partitions = (0..layout.partitions).map(|partition| writer.of_partition(partition)).collect();
        Ok(TableWriter { schema, layout, partitions })
    }

    /// Appends the rows of `batch` to a partition.
    ///
    /// # Errors
    /// [`TableError::Mismatch`] if its columns are not of the table's types; [`Memory`](TableError::Memory),
    /// [`TooLong`](TableError::TooLong) or [`Arrow`](TableError::Arrow) when a group is full and cannot be kept.
    ///
    /// # Panics
    /// If there is no such partition.
    pub fn push(&mut self, partition: usize, batch: &RecordBatch) -> Result<(), TableError> {
        self.partitions[partition].push(batch)
    }

    /// The table; the last groups of partitions may be short.
    ///
    /// # Errors
    /// As [`push`](TableWriter::push), and [`Placement`](TableError::Placement) for rows that the table does not have.
    pub fn finish(self) -> Result<TableData, TableError> {
        let partitions =
            self.partitions.into_iter().map(PartitionWriter::finish).collect::<Result<_, _>>()?;
        TableData::placed(self.schema, partitions, &self.layout)
    }
}

/// Builds one partition; each thread has its own writer.
#[derive(Clone, Debug)]
pub(crate) struct PartitionWriter {
    schema: SchemaRef,
    layout: Layout,
    placement: Arc<Resolved>,
    partition: usize,
    /// Row groups of the partition before those of this writer.
    groups_before: usize,
    /// Maximum of 32-bit offsets; smaller in tests.
    pub(super) offset_max: usize,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    groups: Vec<RowGroup>,
}

impl PartitionWriter {
    pub(crate) fn new(schema: SchemaRef, layout: &Layout) -> Result<PartitionWriter, TableError> {
        layout.check()?;
        if let Some(field) = schema.fields().iter().find(|field| !draft::is_supported(field.data_type())) {
            let data_type = field.data_type().clone();
            return Err(TableError::UnsupportedType { column: field.name().clone(), data_type });
        }
        Ok(PartitionWriter {
            placement: Arc::new(layout.placement.resolve(&schema, &layout.machine)?),
            schema,
            layout: layout.clone(),
            partition: 0,
            groups_before: 0,
            offset_max: i32::MAX as usize,
            pending: Vec::new(),
            pending_rows: 0,
            groups: Vec::new(),
        })
    }

    /// A new writer of a partition; this one has the number 0.
    pub(crate) fn of_partition(&self, partition: usize) -> PartitionWriter {
        PartitionWriter { partition, ..self.clone() }
    }

    /// A new writer for `rows` rows, in groups of about the same length, after so many groups of the partition.
    pub(crate) fn of_rows(&self, rows: u64, groups_before: usize) -> PartitionWriter {
        let most = self.layout.row_group_rows as u64;
        let even = rows.div_ceil(rows.div_ceil(most).max(1)) as usize;
        let mut writer = PartitionWriter { groups_before, ..self.clone() };
        writer.layout.row_group_rows = even.max(1).next_multiple_of(ROW_GROUP_ROWS_STEP);
        writer
    }

    pub(crate) fn push(&mut self, batch: &RecordBatch) -> Result<(), TableError> {
        let types = |schema: &SchemaRef| -> Vec<_> {
            schema.fields().iter().map(|field| field.data_type().clone()).collect()
        };
        if types(&self.schema) != types(batch.schema_ref()) {
            return Err(TableError::Mismatch {
                expected: describe(&self.schema),
                found: describe(batch.schema_ref()),
            });
        }
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = (batch.num_rows() - start).min(self.layout.row_group_rows - self.pending_rows);
            self.pending.push(batch.slice(start, rows));
            self.pending_rows += rows;
            start += rows;
            if self.pending_rows == self.layout.row_group_rows {
                self.cut()?;
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Vec<RowGroup>, TableError> {
        if self.pending_rows > 0 {
            self.cut()?;
        }
        Ok(self.groups)
    }

    /// Builds a group of the pending rows.
    fn cut(&mut self) -> Result<(), TableError> {
        self.pending_rows = 0;
        let pending = std::mem::take(&mut self.pending);
        self.write(pending)
    }

    /// Builds a group of `batches`, or several if their strings are too long for one.
    fn write(&mut self, batches: Vec<RecordBatch>) -> Result<(), TableError> {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let mut drafts = Vec::with_capacity(self.schema.fields().len());
        for (index, field) in self.schema.fields().iter().enumerate() {
            let pieces: Vec<_> = batches.iter().map(|batch| batch.column(index).clone()).collect();
            match Draft::new(&pieces, self.offset_max) {
                Ok(draft) => drafts.push(draft),
                Err(draft::TooLong) if rows <= ROW_GROUP_ROWS_STEP => {
                    return Err(TableError::TooLong { column: field.name().clone(), rows });
                }
                Err(draft::TooLong) => {
                    let (front, back) = split(batches, (rows / 2).next_multiple_of(ROW_GROUP_ROWS_STEP));
                    self.write(front)?;
                    return self.write(back);
                }
            }
        }
        let index = self.groups_before + self.groups.len();
        let targets = self.placement.while_loading(drafts.len(), self.partition, index);
        let nodes: Vec<NodeId> = targets.into_iter().map(|node| node.unwrap_or(self.layout.home)).collect();
        let columns = draft::place(&drafts, &self.layout.machine, &nodes)?;
        self.groups.push(RowGroup::try_new(self.schema.clone(), rows, columns)?);
        Ok(())
    }
}

/// The first `rows` rows, and the others.
fn split(batches: Vec<RecordBatch>, rows: usize) -> (Vec<RecordBatch>, Vec<RecordBatch>) {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let mut left = rows;
    for batch in batches {
        let taken = left.min(batch.num_rows());
        left -= taken;
        if taken > 0 {
            front.push(batch.slice(0, taken));
        }
        if taken < batch.num_rows() {
            back.push(batch.slice(taken, batch.num_rows() - taken));
        }
    }
    (front, back)
}

fn describe(schema: &SchemaRef) -> String {
    let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    fields.collect::<Vec<_>>().join(", ")
}
