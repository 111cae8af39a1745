//! Where tables come from: batches, Parquet files, and generators.
//!
//! All of them stream: a worker thread per CPU takes one partition after the other, reads or generates it batch by
//! batch, and cuts it into row groups. Beside the finished groups there is never more than one unfinished group per
//! worker and a batch in flight. Partitions are runs of the source's rows in its order, whatever the threads do.

mod ab;
mod batches;
mod error;
mod parallel;
mod parquet;
mod tpch;

pub use ab::{AB_VALUES, ab};
pub use batches::from_batches;
pub use error::LoadError;
pub use parquet::{from_parquet, panics_become_errors};
pub use tpch::{TPCH_BYTES_PER_SCALE, TPCH_SCALE_MIN, tpch};

/// Rows of the batches that sources are read in: DataFusion's own batch size, a whole fraction of a row group.
const BATCH_ROWS: usize = 8192;

/// Told how loading gets on, from several threads at once.
pub trait Progress: Sync {
    /// `rows` more rows are to come; said before any of them, perhaps several times. For TPC-H it is an estimate.
    fn total(&self, rows: u64);

    /// `rows` more rows have been loaded.
    fn advance(&self, rows: u64);
}

/// Nobody watches.
impl Progress for () {
    fn total(&self, _rows: u64) {}

    fn advance(&self, _rows: u64) {}
}
