//! A row group: a run of rows with separate buffers per column.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use memferry::topology::NodeId;

use super::blocks::Blocks;
use super::draft::PlacedColumn;
use super::encoding::Encoding;
use super::sorted::{Sorted, is_integer};
use crate::packed::BitPacked;

/// A run of rows that is kept, copied and read together.
///
/// Each buffer of each column starts at a multiple of 64 bytes in memory of the column's node and holds the bytes
/// of these rows only; arrays and validity start at offset 0. Clones share the memory, which is freed with the last array
/// that refers to it.
#[derive(Clone, Debug)]
pub struct RowGroup {
    /// Names and types of the values.
    schema: SchemaRef,
    /// The columns as they are in memory.
    batch: RecordBatch,
    facts: Vec<ColumnFacts>,
}

/// Statistics of one column of one group.
#[derive(Clone, Debug)]
pub(super) struct ColumnFacts {
    /// The node of its memory.
    node: NodeId,
    /// Bytes of its buffers there, each rounded up to the alignment.
    size_bytes: usize,
    /// Number of nulls, including nulls in a dictionary's values.
    pub(super) null_count: usize,
    /// Size of the column according to Arrow. A slice has the same size, since it keeps the whole buffers.
    pub(super) memory_bytes: usize,
    /// How the values are kept; `None`: as they are.
    encoding: Option<Encoding>,
    /// Smallest and largest value of integers up to `i64`. `None` with nulls.
    values: Option<RangeInclusive<i64>>,
    /// The keys of its blocks; `None` for encoded columns other than decimals, and for types without keys.
    blocks: Option<Arc<Blocks>>,
    /// The least and the largest key, or value of a packed column, where that is known.
    keys: Option<RangeInclusive<i64>>,
    /// Whether it consists of integers up to `i64` that ascend.
    is_sorted: bool,
}

/// How a column of a future row group is kept, and its smallest and its largest value if that is known.
pub(super) type Encoded = (Encoding, Option<RangeInclusive<i64>>);

impl RowGroup {
    pub(super) fn try_new(
        schema: SchemaRef,
        rows: usize,
        columns: Vec<PlacedColumn>,
        encodings: Vec<Option<Encoded>>,
    ) -> Result<RowGroup, ArrowError> {
        let facts = columns.iter().zip(encodings).map(|(column, encoded)| {
            let null_count = column.array.logical_null_count();
            let (encoding, known) =
                encoded.map_or((None, None), |(encoding, values)| (Some(encoding), values));
            let sorted = Sorted::new(&column.array, packed_of(encoding.as_ref()));
            let is_sorted = sorted.as_ref().is_some_and(Sorted::is_sorted);
            let is_integers = sorted.is_some();
            let blocks = match &encoding {
                None => Blocks::of(&column.array),
                Some(Encoding::Narrow(packed)) => Blocks::of(&packed.unpack(&column.array)),
                // Columns are mostly packed because they are in no order.
                Some(Encoding::Packed(_) | Encoding::Dictionary) => None,
            };
            let keys = known.filter(|_| null_count == 0).or_else(|| Some(blocks.as_ref()?.all_keys()));
            ColumnFacts {
                node: column.node,
                size_bytes: column.size_bytes,
                null_count,
                memory_bytes: column.array.get_array_memory_size(),
                values: keys.clone().filter(|_| is_integers && !column.array.is_empty()),
                blocks: blocks.map(Arc::new),
                keys,
                encoding,
                is_sorted,
            }
        });
        let facts: Vec<ColumnFacts> = facts.collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let arrays = columns.into_iter().map(|column| column.array).collect();
        let stored = stored_schema(&schema, &facts);
        Ok(RowGroup { facts, batch: RecordBatch::try_new_with_options(stored, arrays, &options)?, schema })
    }

    /// The same rows, with these columns in memory of other nodes.
    ///
    /// # Panics
    /// If an array differs in type or length from the one that it replaces.
    pub(crate) fn with_columns(&self, moved: Vec<(usize, ArrayRef, NodeId)>) -> RowGroup {
        let (mut arrays, mut facts) = (self.batch.columns().to_vec(), self.facts.clone());
        for (column, array, node) in moved {
            arrays[column] = array;
            facts[column].node = node;
        }
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows()));
        let batch = RecordBatch::try_new_with_options(self.batch.schema(), arrays, &options);
        let batch = batch.expect("the arrays have the types and lengths of those before");
        RowGroup { schema: self.schema.clone(), batch, facts }
    }

    /// Number of rows; never 0.
    pub fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// The column at `index` as it is in memory, all rows.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn column(&self, index: usize) -> &ArrayRef {
        self.batch.column(index)
    }

    /// The type of a column that is bit-packed here; `None` for others.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn packed(&self, column: usize) -> Option<&BitPacked> {
        packed_of(self.facts[column].encoding.as_ref())
    }

    /// How the values of a column are kept; `None`: as they are.
    pub(crate) fn encoding(&self, column: usize) -> Option<&Encoding> {
        self.facts[column].encoding.as_ref()
    }

    /// All rows and columns as they are in memory: the fields of those that are bit-packed have the extension
    /// [`BitPacked`], and columns with few values may be dictionaries. [`batches`](RowGroup::batches) have the values.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// Its bytes on all nodes, before the kernel rounds them to pages.
    pub fn size_bytes(&self) -> usize {
        self.facts.iter().map(|facts| facts.size_bytes).sum()
    }

    /// The node of the memory of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn node(&self, column: usize) -> NodeId {
        self.facts[column].node
    }

    /// The node with most of its bytes; of equals the first.
    pub(crate) fn home(&self) -> Option<NodeId> {
        let mut by_node: BTreeMap<NodeId, usize> = BTreeMap::new();
        for facts in &self.facts {
            *by_node.entry(facts.node).or_default() += facts.size_bytes;
        }
        Some(by_node.into_iter().rev().max_by_key(|&(_, size_bytes)| size_bytes)?.0)
    }

    /// Bytes of a column on its node.
    pub(crate) fn column_size_bytes(&self, column: usize) -> usize {
        self.facts[column].size_bytes
    }

    /// The rows in slices of `batch_size`, the last one shorter. Bit-packed columns are unpacked, and dictionaries that the table
    /// chose are decoded.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn batches(&self, batch_size: usize) -> impl ExactSizeIterator<Item = RecordBatch> + '_ {
        // Decoded as a whole, so that the slices share their buffers as those of other columns do.
        let decoded: Vec<Option<ArrayRef>> = (0..self.facts.len())
            .map(|column| {
                let encoding = self.facts[column].encoding.as_ref();
                encoding.filter(|encoding| encoding.is_chosen()).map(|it| it.decode(self.column(column)))
            })
            .collect();
        (0..self.batches_count(batch_size)).map(move |index| {
            let start = index * batch_size;
            let stored = self.batch.slice(start, batch_size.min(self.rows() - start));
            if self.facts.iter().all(|facts| facts.encoding.is_none()) {
                return stored;
            }
            let columns = stored.columns().iter().zip(&self.facts).zip(&decoded);
            let values = columns.map(|((array, facts), decoded)| match (decoded, &facts.encoding) {
                (Some(decoded), _) => decoded.slice(start, array.len()),
                (None, Some(encoding)) => encoding.decode(array),
                (None, None) => Arc::clone(array),
            });
            let batch = RecordBatch::try_new(self.schema.clone(), values.collect());
            batch.expect("the values have the types of the columns")
        })
    }

    /// Smallest and largest value of a column of integers up to `i64` without nulls; `None` for others, and where only a look
    /// at all rows would say it.
    pub(crate) fn values_at_hand(&self, column: usize) -> Option<&RangeInclusive<i64>> {
        self.facts[column].values.as_ref()
    }

    /// The least and the largest key of a column, as of its [blocks](RowGroup::blocks); `None` where that is not known.
    pub(crate) fn keys_at_hand(&self, column: usize) -> Option<&RangeInclusive<i64>> {
        self.facts[column].keys.as_ref()
    }

    /// The keys of a column's blocks; `None` where they are not known.
    pub(crate) fn blocks(&self, column: usize) -> Option<&Blocks> {
        self.facts[column].blocks.as_deref()
    }

    /// A column whose integers ascend, to be searched.
    pub(crate) fn sorted(&self, column: usize) -> Option<Sorted<'_>> {
        let facts = &self.facts[column];
        facts.is_sorted.then(|| Sorted::new(self.column(column), self.packed(column))).flatten()
    }

    /// Bytes of a column, according to Arrow.
    pub(crate) fn column_bytes(&self, column: usize) -> u64 {
        self.facts[column].memory_bytes as u64
    }

    pub(super) fn batches_count(&self, batch_size: usize) -> usize {
        self.rows().div_ceil(batch_size)
    }

    pub(super) fn facts(&self, column: usize) -> &ColumnFacts {
        &self.facts[column]
    }
}

fn packed_of(encoding: Option<&Encoding>) -> Option<&BitPacked> {
    match encoding? {
        Encoding::Packed(packed) | Encoding::Narrow(packed) => Some(packed),
        Encoding::Dictionary => None,
    }
}

/// The schema with the fields of encoded columns as they are in memory.
fn stored_schema(schema: &SchemaRef, facts: &[ColumnFacts]) -> SchemaRef {
    if facts.iter().all(|facts| facts.encoding.is_none()) {
        return schema.clone();
    }
    let fields = schema.fields().iter().zip(facts).map(|(field, facts)| match &facts.encoding {
        Some(encoding) => encoding.field(field),
        None => Arc::clone(field),
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Smallest and largest value of a column of integers up to `i64`; `None` for other types, and with nulls.
pub(super) fn integers(group: &RowGroup, column: usize) -> Option<RangeInclusive<i64>> {
    if let Some(values) = group.values_at_hand(column) {
        return Some(values.clone());
    }
    let data_type = group.schema.field(column).data_type();
    if !is_integer(data_type) || group.column(column).null_count() > 0 {
        return None;
    }
    let column = &match group.packed(column) {
        Some(packed) => packed.unpack(group.column(column)),
        None => Arc::clone(group.column(column)),
    };
    let column = cast(column, &DataType::Int64).expect("each other integer has 64 bits or less");
    let values = column.as_primitive::<Int64Type>();
    Some(min(values)?..=max(values)?)
}
