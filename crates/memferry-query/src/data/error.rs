//! What can be wrong with rows that shall become a table.

use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use memferry::memory::MemoryError;

use super::ROW_GROUP_ROWS_STEP;

/// Why rows could not become a table. The rows pushed so far are lost with the writer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The layout cannot be.
    #[error("a row group of {rows} rows cannot be; use a multiple of {ROW_GROUP_ROWS_STEP}")]
    GroupRows {
        /// Rows asked for.
        rows: usize,
    },
    /// A table needs a partition to hold its rows.
    #[error("a table of 0 partitions cannot be; use at least 1")]
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
        /// What the table has.
        expected: String,
        /// What the batch has.
        found: String,
    },
    /// So few rows need more than offsets or dictionary keys can say.
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
    /// The home node has no room, or the machine has no such node.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Arrow refuses the rows, for example a null in a column that must not have one.
    #[error("these rows cannot be a table: {0}")]
    Arrow(#[from] ArrowError),
}
