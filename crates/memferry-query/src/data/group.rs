//! A row group: a run of rows with separate buffers per column.

use std::ops::RangeInclusive;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type};

/// A run of rows that is kept, copied and read together.
///
/// Each buffer of each column starts at a multiple of 64 bytes in memory of the table's home node and holds the bytes
/// of these rows only; arrays and validity start at offset 0. Clones share the memory, which is freed with the last array
/// that refers to it.
#[derive(Clone, Debug)]
pub struct RowGroup {
    batch: RecordBatch,
    size_bytes: usize,
    facts: Vec<ColumnFacts>,
}

/// Statistics of one column of one group.
#[derive(Clone, Debug)]
pub(super) struct ColumnFacts {
    /// Number of nulls, including nulls in a dictionary's values.
    pub(super) null_count: usize,
    /// Size of the column according to Arrow. A slice has the same size, since it keeps the whole buffers.
    pub(super) memory_bytes: usize,
}

impl RowGroup {
    pub(super) fn new(batch: RecordBatch, size_bytes: usize) -> RowGroup {
        let facts = batch.columns().iter().map(|column| ColumnFacts {
            null_count: column.logical_null_count(),
            memory_bytes: column.get_array_memory_size(),
        });
        RowGroup { facts: facts.collect(), batch, size_bytes }
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

    /// Its bytes on the home node, before the kernel rounds them to pages.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
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
