//! Replicas of tables: `REPLICATE TABLE` and `RESTORE TABLE`.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use memferry::{Replica, ReplicaError};
use memferry_bench_query::layout;
use memferry_query::{Layout, TableData, TableReplicaError, from_replica};
use memferry_session::explain_load;

use super::load::extent;
use super::placement::in_memory;
use super::runner::explain_end;
use super::session::Session;
use super::statement::{ReplicateTable, RestoreTable};
use crate::output::size;

/// A new replica has room for a table that grows by an eighth.
const GROWTH_SHARE: u64 = 8;

impl Session<'_> {
    /// Writes a table in memory as the next version of a replica, which is made if the file does not exist.
    ///
    /// A write that was begun is not cancelled: it ends in the background, and the file is locked until then.
    pub(super) fn replicate(&mut self, replicate: &ReplicateTable, out: &mut dyn Write) -> Result<()> {
        let (name, started) = (&replicate.table, Instant::now());
        let data = in_memory(name, &self.provider(name)?)?.data();
        let path = replicate.path.clone();
        let (version, bytes) =
            self.block(move || write(&data, &path).map_err(|error| explain(error, &path)))?;
        if self.has_notes() {
            let text = format!(
                "replicated {name}: version {version}, {} in {},",
                size(bytes),
                replicate.path.display()
            );
            self.note(&text, started.elapsed(), out)?;
        }
        Ok(())
    }

    /// Makes a table in memory, or replaces one, by the newest version of a replica. If that fails, the table before stays.
    pub(super) fn restore(&mut self, restore: &RestoreTable, out: &mut dyn Write) -> Result<()> {
        let (name, started) = (&restore.table, Instant::now());
        let layout = Layout {
            placement: restore.placement.clone().unwrap_or_default(),
            packed: restore.packed.clone(),
            ..layout(&self.tiers, self.partitions)
        };
        let path = restore.path.clone();
        let (version, data) =
            self.block(move || read(&layout, &path).map_err(|error| explain(error, &path)))?;
        let text = format!("restored {name}: version {version}, {},", extent(&data));
        self.replace_by(name, data)?;
        if self.has_notes() {
            self.note(&text, started.elapsed(), out)?;
        }
        Ok(())
    }

    /// Runs work that blocks, on a thread for that.
    fn block<T: Send + 'static>(&mut self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.runner.run(async { tokio::task::spawn_blocking(work).await })?.map_err(explain_end)?
    }
}

/// Version and size of what was written.
fn write(data: &TableData, path: &Path) -> Result<(u64, u64), TableReplicaError> {
    let mut replica = match Replica::open(path) {
        Err(ReplicaError::System { source, .. }) if source.kind() == ErrorKind::NotFound => {
            let bytes = data.replica_bytes()?;
            Replica::create(path, bytes + bytes / GROWTH_SHARE)?
        }
        opened => opened?,
    };
    let version = data.replicate(&mut replica)?;
    Ok((version, replica.len()))
}

/// The newest version, and its number.
fn read(layout: &Layout, path: &Path) -> Result<(u64, TableData), TableReplicaError> {
    let replica = Replica::open(path)?;
    match (replica.version(), from_replica(&replica, layout)?) {
        (Some(version), Some(data)) => Ok((version, data)),
        _ => {
            Err(TableReplicaError::NoTable { path: path.to_owned(), why: "it has no version yet".to_owned() })
        }
    }
}

/// The errors of the library name its functions; those of SQL name statements.
fn explain(error: TableReplicaError, path: &Path) -> anyhow::Error {
    let file = path.display();
    match error {
        TableReplicaError::Replica(ReplicaError::System { source, .. })
            if source.kind() == ErrorKind::NotFound =>
        {
            anyhow::anyhow!(
                "there is no file {file}; check the path, or make it with REPLICATE TABLE name TO '{file}'"
            )
        }
        TableReplicaError::Replica(ReplicaError::NotAReplica { why, .. }) => {
            anyhow::anyhow!(
                "{file} is not a replica: {why}; name a file that REPLICATE TABLE made, or a new one"
            )
        }
        TableReplicaError::Replica(ReplicaError::Locked { .. }) => {
            anyhow::anyhow!("{file} is locked by another session or process; wait until that has ended")
        }
        TableReplicaError::Replica(ReplicaError::TooLong { size_bytes, capacity_bytes, .. }) => {
            anyhow::anyhow!(
                "the table takes {}, but {file} has room for {}; replicate it to a new file",
                size(size_bytes),
                size(capacity_bytes)
            )
        }
        TableReplicaError::NoTable { why, .. } => {
            anyhow::anyhow!("{file} holds no table ({why}); name a file that REPLICATE TABLE wrote")
        }
        TableReplicaError::Load(error) => explain_load(error),
        error => error.into(),
    }
}
