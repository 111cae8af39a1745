//! Replicas of tables: all rows of a table as one version of a [`Replica`], and back.
//!
//! ```text
//! TableData ─▶ stream of Arrow IPC, a batch for each row group ─▶ a version of the replica: flushed, with a checksum
//! ```
//!
//! Bit-packed columns are written as their values, and packed again if the layout says so. The number of row groups of each
//! partition is in the metadata of the schema.
//!
//! Source: A. C. Fürst, *Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator*, 2024, section 7:
//! replication of tables to persistent memory.

use std::io::{self, Cursor, Write};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use memferry::{Replica, ReplicaError};

use crate::data::{Layout, TableData};
use crate::load::{LoadError, from_batches};

/// Key in the metadata of the schema: the number of row groups of each partition, with commas between.
const PARTITIONS: &str = "memferry.partitions";

/// A table that cannot be written to a replica, or restored from it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableReplicaError {
    /// The replica. Its version before is intact.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The rows cannot be written in Arrow's format.
    #[error("the table cannot be written in Arrow's format: {0}")]
    Encode(ArrowError),
    /// The newest version is something else.
    #[error("the replica {} holds no table ({why}); restore its bytes with Replica::restore", path.display())]
    NoTable {
        /// Path of the replica.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The rows cannot become a table with the layout.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl TableData {
    /// Size of a version with this table: a [`Replica`] needs at least this capacity.
    ///
    /// Cost: writes the whole table to nowhere.
    ///
    /// # Errors
    /// [`TableReplicaError::Encode`].
    pub fn replica_bytes(&self) -> Result<u64, TableReplicaError> {
        let mut counter = Counter(0);
        self.encode(&mut counter).map_err(TableReplicaError::Encode)?;
        Ok(counter.0)
    }

    /// Writes all rows as the next version of `replica`, and returns its number. They are durable then; after a reset in
    /// mid-write, the replica has the version before or this one.
    ///
    /// Cost: the table a second time in memory, until it returns.
    ///
    /// # Errors
    /// [`TableReplicaError::Encode`]; [`Replica`](TableReplicaError::Replica) as of [`Replica::write`], for example if it has no
    /// room for so many bytes.
    pub fn replicate(&self, replica: &mut Replica) -> Result<u64, TableReplicaError> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes).map_err(TableReplicaError::Encode)?;
        Ok(replica.write(&[bytes])?)
    }

    fn encode(&self, to: &mut impl Write) -> Result<(), ArrowError> {
        let row_groups: Vec<String> =
            self.partitions().iter().map(|groups| groups.len().to_string()).collect();
        let mut metadata = self.schema().metadata().clone();
        metadata.insert(PARTITIONS.to_owned(), row_groups.join(","));
        let schema = Arc::new(Schema::new_with_metadata(self.schema().fields().clone(), metadata));
        let mut writer = StreamWriter::try_new(to, &schema)?;
        for group in self.partitions().iter().flatten() {
            for batch in group.batches(group.rows()) {
                writer.write(&batch.with_schema(Arc::clone(&schema))?)?;
            }
        }
        writer.finish()
    }
}

/// The table of the newest version of `replica`, in memory as `layout` says; `None` before the first version. Partitions are
/// those of the table that was written; `layout.partitions` is ignored.
///
/// Cost: the table a second time in memory, until it returns.
///
/// # Errors
/// [`TableReplicaError::Replica`] as of [`Replica::restore`], [`NoTable`](TableReplicaError::NoTable),
/// [`Load`](TableReplicaError::Load).
pub fn from_replica(replica: &Replica, layout: &Layout) -> Result<Option<TableData>, TableReplicaError> {
    let Some(bytes) = replica.restore()? else { return Ok(None) };
    let no_table = |why: String| TableReplicaError::NoTable { path: replica.path().to_owned(), why };
    let mut reader =
        StreamReader::try_new(Cursor::new(bytes), None).map_err(|error| no_table(error.to_string()))?;
    let stored = reader.schema();
    let mut metadata = stored.metadata().clone();
    let counts =
        metadata.remove(PARTITIONS).ok_or_else(|| no_table("its schema names no partitions".into()))?;
    let schema = Arc::new(Schema::new_with_metadata(stored.fields().clone(), metadata));
    let mut partitions = Vec::new();
    for count in counts.split(',').filter(|count| !count.is_empty()) {
        let count: usize =
            count.parse().map_err(|_| no_table(format!("'{count}' is no number of row groups")))?;
        let mut partition = Vec::new();
        for _ in 0..count {
            let batch =
                reader.next().unwrap_or_else(|| Err(ArrowError::IpcError("a row group is missing".into())));
            let batch = batch.and_then(|batch| {
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                RecordBatch::try_new_with_options(Arc::clone(&schema), batch.columns().to_vec(), &options)
            });
            partition.push(batch.map_err(|error| no_table(error.to_string()))?);
        }
        partitions.push(partition);
    }
    Ok(Some(from_batches(schema, &partitions, layout)?))
}

/// Counts bytes and keeps none.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
