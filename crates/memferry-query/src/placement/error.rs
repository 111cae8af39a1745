//! Errors of placements.

use memferry::memory::MemoryError;
use memferry::mover::CopyError;
use memferry::topology::NodeId;

/// A placement that a table cannot have. A table that exists stays as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The text is not a placement.
    #[error(
        "{found} where {expected} is expected in a placement; write [COLUMN name] [ROWS first TO end] NUMA NODE (node \
         [WEIGHT w], ...) [BY BANDWIDTH]"
    )]
    Text {
        /// The word, sign or end that is wrong.
        found: String,
        /// What a placement may have there.
        expected: &'static str,
    },
    /// The table does not have the column.
    #[error("the table has no column {column}; it has {known}")]
    NoColumn {
        /// The name.
        column: String,
        /// The columns of the table.
        known: String,
    },
    /// Two clauses apply to the same rows, and none is more specific than the other.
    #[error("the clauses {one} and {other} both apply to some rows; give each row one place")]
    Overlap {
        /// The first one.
        one: String,
        /// The second one.
        other: String,
    },
    /// The rows are not in the table.
    #[error(
        "ROWS {start} TO {end} is not a range of the table's {rows} rows; the first is row 0, and TO names the row after \
             the last"
    )]
    Rows {
        /// The first row.
        start: usize,
        /// The row after the last.
        end: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// Row groups are placed as their first rows, and the range has no first row.
    #[error("ROWS {start} TO {end} does not contain the first row of a row group, which is placed as a whole; row groups \
             start at row {before}{}", and_at(*after))]
    NoRowGroup {
        /// The first row.
        start: usize,
        /// The row after the last.
        end: usize,
        /// First row of the row group that contains `start`.
        before: usize,
        /// First row of the next one.
        after: Option<usize>,
    },
    /// A clause without nodes, with a node twice, or with a weight of 0.
    #[error(
        "{clause} needs at least one node, each once and with a weight from 1 to 255, or BY BANDWIDTH without weights"
    )]
    Nodes {
        /// The clause.
        clause: String,
    },
    /// The machine's description lacks the bandwidth of a memory.
    #[error(
        "the bandwidth of the memory of node {node} is unknown; measure it with `memferry calibrate`, or write weights"
    )]
    UnknownBandwidth {
        /// The node.
        node: NodeId,
    },
    /// The node does not exist, has no memory, may not be used, or has no room.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The node has less free memory than the rows need.
    #[error(
        "{size_bytes} bytes do not fit on node {node}, which has {free_bytes} bytes free; free some memory there, or place \
         fewer rows or columns on it"
    )]
    Full {
        /// The node.
        node: NodeId,
        /// Bytes that would come to it.
        size_bytes: u64,
        /// Its free memory.
        free_bytes: u64,
    },
    /// Another move of the column has not ended.
    #[error("column {column} is being moved; wait until it is there")]
    BeingMoved {
        /// The column.
        column: String,
    },
    /// The mover failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

fn and_at(after: Option<usize>) -> String {
    after.map_or(String::new(), |after| format!(" and row {after}"))
}
