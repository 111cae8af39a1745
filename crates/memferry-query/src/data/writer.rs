//! Cuts batches of any size into row groups.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use memferry::topology::{Machine, NodeId};

use super::dictionary;
use super::draft::{self, Draft};
use super::encoding::Encoding;
use super::group::Encoded;
use super::{RowGroup, TableData, TableError};
use crate::packed::{BitPacked, PackedColumn};
use crate::placement::{Resolved, TablePlacement};

/// Default rows of a group: about 1 MiB for a column of 8-byte values, which is large for a descriptor and a small part of
/// a near budget.
pub const ROW_GROUP_ROWS: usize = 128 * 1024;

/// Groups have a multiple of this many rows, so that bitmaps of full groups end at a multiple of 64 bytes.
pub const ROW_GROUP_ROWS_STEP: usize = 512;

/// The columns that a table keeps bit-packed, each row group with as many bits as its values need. A row group in which a
/// column needs as many bits as its type has keeps it as it is.
///
/// Besides, a [`TableWriter`] and [`from_batches`](crate::load::from_batches) pack the columns that come
/// [bit-packed](BitPacked).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PackedColumns {
    /// None.
    #[default]
    None,
    /// All whose type [can be packed](BitPacked::supports).
    All,
    /// Those with these names.
    Named(Vec<String>),
}

impl PackedColumns {
    /// Whether each column of a table is packed.
    fn of(&self, schema: &SchemaRef) -> Result<Vec<bool>, TableError> {
        let fields = schema.fields();
        match self {
            PackedColumns::None => Ok(vec![false; fields.len()]),
            PackedColumns::All => {
                Ok(fields.iter().map(|field| BitPacked::supports(field.data_type())).collect())
            }
            PackedColumns::Named(names) => {
                let mut is_packed = vec![false; fields.len()];
                for name in names {
                    let Some((index, field)) = schema.column_with_name(name) else {
                        return Err(TableError::NoColumnToPack {
                            column: name.clone(),
                            columns: describe(schema),
                        });
                    };
                    if !BitPacked::supports(field.data_type()) {
                        let data_type = field.data_type().clone();
                        return Err(TableError::NotPackable { column: name.clone(), data_type });
                    }
                    is_packed[index] = true;
                }
                Ok(is_packed)
            }
        }
    }
}

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
    /// The columns that are kept bit-packed.
    pub packed: PackedColumns,
    /// Whether a column of string views or decimals is kept as a dictionary in row groups where it has few values (256 at most, in
    /// 4096 rows or more). SQL sees the values.
    pub dictionaries: bool,
    /// Whether a column of decimals that is no dictionary, or of integers and times of eight bytes, is kept in one, two, four or eight
    /// bytes a row, in row groups of 4096 rows or more whose values fit. SQL sees the values.
    pub narrow: bool,
}

impl Layout {
    /// A layout with all rows on `home`, a partition per CPU that this process may use and groups of [`ROW_GROUP_ROWS`].
    pub fn new(machine: Arc<Machine>, home: NodeId) -> Layout {
        let partitions = thread::available_parallelism().map_or(1, usize::from);
        let placement = TablePlacement::default();
        let packed = PackedColumns::None;
        Layout {
            machine,
            home,
            placement,
            partitions,
            row_group_rows: ROW_GROUP_ROWS,
            packed,
            dictionaries: true,
            narrow: true,
        }
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
    /// [`NoPartition`](TableError::NoPartition), [`Placement`](TableError::Placement),
    /// [`NoColumnToPack`](TableError::NoColumnToPack), [`NotPackable`](TableError::NotPackable),
    /// [`Arrow`](TableError::Arrow) for a field that says wrongly that it is bit-packed.
    pub fn new(schema: SchemaRef, layout: Layout) -> Result<TableWriter, TableError> {
        let writer = PartitionWriter::of_packed(schema, &layout)?;
        let partitions = (0..layout.partitions).map(|partition| writer.of_partition(partition)).collect();
        Ok(TableWriter { schema: writer.schema, layout, partitions })
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
    /// The columns that come bit-packed.
    arrives: Vec<Option<BitPacked>>,
    /// Whether each column is kept bit-packed.
    is_packed: Vec<bool>,
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
        let is_packed = layout.packed.of(&schema)?;
        Ok(PartitionWriter {
            arrives: vec![None; schema.fields().len()],
            is_packed,
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

    /// A writer of rows whose columns may come bit-packed. Such columns of the table have the types of the values, and are kept
    /// bit-packed.
    pub(crate) fn of_packed(schema: SchemaRef, layout: &Layout) -> Result<PartitionWriter, TableError> {
        let arrives = schema.fields().iter().map(|field| BitPacked::of_field(field));
        let arrives: Vec<Option<BitPacked>> = arrives.collect::<Result<_, _>>()?;
        if arrives.iter().all(Option::is_none) {
            return PartitionWriter::new(schema, layout);
        }
        let fields = schema.fields().iter().zip(&arrives).map(|(field, packed)| match packed {
            Some(packed) => {
                Arc::new(Field::new(field.name(), packed.value_type().clone(), field.is_nullable()))
            }
            None => Arc::clone(field),
        });
        let of_values = Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone());
        let mut writer = PartitionWriter::new(Arc::new(of_values), layout)?;
        writer.is_packed.iter_mut().zip(&arrives).for_each(|(is, packed)| {
            *is |= packed.as_ref().is_some_and(|it| BitPacked::supports(it.value_type()))
        });
        writer.arrives = arrives;
        Ok(writer)
    }

    /// Names and types of the columns of the table.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
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
        let unpacked;
        let batch = match self.arrives.iter().any(Option::is_some) {
            true => {
                unpacked = self.unpack(batch)?;
                &unpacked
            }
            false => batch,
        };
        if types(&self.schema) != types(batch.schema_ref()) {
            return Err(self.mismatch(batch));
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

    fn mismatch(&self, batch: &RecordBatch) -> TableError {
        TableError::Mismatch { expected: describe(&self.schema), found: describe(batch.schema_ref()) }
    }

    /// The values of columns that come bit-packed; each batch says in its fields how it is packed.
    fn unpack(&self, batch: &RecordBatch) -> Result<RecordBatch, TableError> {
        if batch.num_columns() != self.arrives.len() {
            return Err(self.mismatch(batch));
        }
        let fields = batch.schema_ref().fields().iter();
        let columns = batch.columns().iter().zip(fields).map(|(column, field)| {
            let packed = BitPacked::of_field(field)?;
            Ok(packed.map_or_else(|| Arc::clone(column), |packed| packed.unpack(column)))
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>, TableError>>()?;
        RecordBatch::try_new(self.schema.clone(), columns).map_err(|_| self.mismatch(batch))
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

    /// Replaces the pieces of a column by what the table keeps instead.
    fn encode(&self, column: usize, pieces: &mut Vec<ArrayRef>) -> Result<Option<Encoded>, TableError> {
        if self.is_packed[column] {
            return pack(pieces);
        }
        if let Some(dictionary) = self.layout.dictionaries.then(|| dictionary::encode(pieces)).flatten() {
            *pieces = vec![dictionary];
            return Ok(Some((Encoding::Dictionary, None)));
        }
        let rows: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.layout.narrow
            && rows >= dictionary::ROWS_MIN
            && let Some(PackedColumn { packed, array, values }) = BitPacked::narrow(pieces)
        {
            *pieces = vec![array];
            return Ok(Some((Encoding::Narrow(packed), values)));
        }
        Ok(None)
    }

    /// Builds a group of `batches`, or several if their strings are too long for one.
    fn write(&mut self, batches: Vec<RecordBatch>) -> Result<(), TableError> {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let mut drafts = Vec::with_capacity(self.schema.fields().len());
        let mut encodings = Vec::with_capacity(drafts.capacity());
        for (index, field) in self.schema.fields().iter().enumerate() {
            let mut pieces: Vec<_> = batches.iter().map(|batch| batch.column(index).clone()).collect();
            encodings.push(self.encode(index, &mut pieces)?);
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
        self.groups.push(RowGroup::try_new(self.schema.clone(), rows, columns, encodings)?);
        Ok(())
    }
}

/// Replaces the pieces of a column by their bits, if these are fewer than those of its type.
fn pack(pieces: &mut Vec<ArrayRef>) -> Result<Option<Encoded>, TableError> {
    let PackedColumn { packed, array, values } = BitPacked::pack(pieces)?;
    if !packed.is_smaller() {
        return Ok(None);
    }
    *pieces = vec![array];
    Ok(Some((Encoding::Packed(packed), values)))
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
