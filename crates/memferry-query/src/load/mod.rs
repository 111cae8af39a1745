//! Sources of tables: batches, Parquet files, plans of DataFusion, and readers.
//!
//! All of them stream. Plans run on the current runtime of tokio; for the others, a worker thread per CPU takes one
//! partition after the other. A partition is read batch by batch and cut into row groups. Beside the finished groups there
//! is at most one unfinished group and one batch per worker or task. The order of rows does not depend on the threads.

mod batches;
mod error;
mod loading;
mod parallel;
mod parquet;
mod plan;
mod readers;

pub use batches::from_batches;
pub use error::LoadError;
pub use loading::LoadingTable;
pub(crate) use parquet::guarded;
pub use parquet::{from_parquet, panics_become_errors};
pub use plan::from_plan;
pub use readers::{PartitionReader, PartitionedSource, from_readers};

/// Rows of the batches that sources are read in: DataFusion's own batch size, a whole fraction of a row group.
pub const BATCH_ROWS: usize = 8192;

/// An observer of loading, called from several threads at once.
pub trait Progress: Sync {
    /// Announces `rows` more rows, before any of them; perhaps several times, perhaps an estimate.
    fn total(&self, rows: u64);

    /// Reports that `rows` more rows have been loaded.
    fn advance(&self, rows: u64);
}

/// No observer.
impl Progress for () {
    fn total(&self, _rows: u64) {}

    fn advance(&self, _rows: u64) {}
}
