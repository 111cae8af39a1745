//! Errors of building tables.

use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use memferry::memory::MemoryError;

use super::ROW_GROUP_ROWS_STEP;
use crate::placement::PlacementError;

/// Rows that cannot become a table. The rows pushed so far are lost with the writer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The size of row groups is invalid.
    #[error("a row group cannot have {rows} rows; use a multiple of {ROW_GROUP_ROWS_STEP}")]
    GroupRows {
        /// The requested rows.
        rows: usize,
    },
    /// The layout has no partition.
    #[error("a table cannot have 0 partitions; use at least 1")]
    NoPartition,
    /// Row groups do not hold columns of this type.
    #[error("column {column:?} is of type {data_type}, which tables cannot hold; leave it out or cast it")]
    UnsupportedType {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
    },
    /// A batch has other columns than the table.
    #[error("a batch does not fit its table: expected {expected}, found {found}")]
    Mismatch {
        /// Columns of the table.
        expected: String,
        /// Columns of the batch.
        found: String,
    },
    /// The layout packs a column that the table does not have.
    #[error("there is no column {column:?} to pack; the table has {columns}")]
    NoColumnToPack {
        /// The requested column.
        column: String,
        /// Columns of the table.
        columns: String,
    },
    /// The layout packs a column whose type has no bits to spare.
    #[error(
        "column {column:?} is of type {data_type}, which cannot be bit-packed; pack integers, dates, times and durations"
    )]
    NotPackable {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
    },
    /// Even the smallest group needs more values than offsets or dictionary keys can count.
    #[error(
        "column {column:?} has more than 2 GiB, or more different values than its dictionary keys can count, in \
         {rows} rows; make its values smaller, or cast it to a type with wider offsets or keys"
    )]
    TooLong {
        /// Name of the column.
        column: String,
        /// Rows of the smallest group tried.
        rows: usize,
    },
    /// The home node has no room or does not exist.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The placement of the layout is not one of this table.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Arrow refuses the rows, for example a null in a column without nulls.
    #[error("these rows cannot be a table: {0}")]
    Arrow(#[from] ArrowError),
}
