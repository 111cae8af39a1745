//! A row group: a run of rows with separate buffers per column.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type, SchemaRef};
use arrow::error::ArrowError;
use memferry::topology::NodeId;

use super::draft::PlacedColumn;

/// A run of rows that is kept, copied and read together.
///
/// Each buffer of each column starts at a multiple of 64 bytes in memory of the column's node and holds the bytes
/// of these rows only; arrays and validity start at offset 0. Clones share the memory, which is freed with the last array
/// that refers to it.
#[derive(Clone, Debug)]
pub struct RowGroup {
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
}

impl RowGroup {
    pub(super) fn try_new(
        schema: SchemaRef,
        rows: usize,
        columns: Vec<PlacedColumn>,
    ) -> Result<RowGroup, ArrowError> {
        let facts = columns.iter().map(|column| ColumnFacts {
            node: column.node,
            size_bytes: column.size_bytes,
            null_count: column.array.logical_null_count(),
            memory_bytes: column.array.get_array_memory_size(),
        });
        let facts = facts.collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let arrays = columns.into_iter().map(|column| column.array).collect();
        Ok(RowGroup { facts, batch: RecordBatch::try_new_with_options(schema, arrays, &options)? })
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
        RowGroup { batch: batch.expect("the arrays have the types and lengths of those before"), facts }
    }

    /// Number of rows; never 0.
    pub fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// The column at `index`, all rows.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn column(&self, index: usize) -> &ArrayRef {
        self.batch.column(index)
    }

    /// All rows and columns.
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

    /// The rows in slices of `batch_size`, the last one shorter.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn batches(&self, batch_size: usize) -> impl ExactSizeIterator<Item = RecordBatch> + '_ {
        (0..self.batches_count(batch_size)).map(move |index| {
            let start = index * batch_size;
            self.batch.slice(start, batch_size.min(self.rows() - start))
        })
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

/// Smallest and largest value of a column of integers up to `i64`; `None` for other types, and with nulls.
pub(super) fn integers(column: &ArrayRef) -> Option<RangeInclusive<i64>> {
    let is_supported = column.data_type().is_integer() && column.data_type() != &DataType::UInt64;
    if !is_supported || column.null_count() > 0 {
        return None;
    }
    let column = cast(column, &DataType::Int64).expect("each other integer has 64 bits or less");
    let values = column.as_primitive::<Int64Type>();
    Some(min(values)?..=max(values)?)
}
