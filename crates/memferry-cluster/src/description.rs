//! The file that describes a cluster: workers, shards and tables. All workers of a cluster read the same file.
//!
//! ```toml
//! version = 1
//! workers = ["10.0.0.1:7070", "10.0.0.2:7070", "10.0.0.3:7070"]
//! shards = 24                      # default: 8 for each worker
//! replicas = 2
//!
//! [[tables]]
//! name = "orders"
//! location = "/data/orders.parquet"
//! key = "o_orderkey"
//! ```

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::shards::{MapError, ShardKey, ShardMap};

/// Shards for each worker: enough that a lost worker's shards spread over the others, few enough that each is large.
pub(crate) const SHARDS_PER_WORKER: usize = 8;

/// Replicas of each shard: one worker may be lost.
const REPLICAS: usize = 2;

/// A cluster, as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the description. Raise it with each change: workers refuse queries of another version.
    pub version: u64,
    /// Addresses of the workers, `HOST:PORT`.
    pub workers: Vec<String>,
    /// Shards of each table; 8 for each worker by default.
    pub shards: Option<usize>,
    /// Workers that hold each shard; 2 by default.
    pub replicas: Option<usize>,
    /// The tables.
    pub tables: Vec<TableDescription>,
}

/// A table of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableDescription {
    /// Its name in SQL.
    pub name: String,
    /// A Parquet file, a directory of them, a glob, or a URL of an object store, as each worker sees it.
    pub location: String,
    /// The column whose hash or range is the shard of a row. Tables that are joined by their keys are joined in place. Without
    /// a key, each worker holds the whole table.
    pub key: Option<String>,
    /// Shards by range: the first key of the shards 1, 2, ...; by hash without it.
    pub bounds: Option<Vec<i64>>,
}

impl TableDescription {
    /// How rows are divided; not at all if each worker holds the whole table.
    pub fn key(&self) -> Option<ShardKey> {
        Some(ShardKey { column: self.key.clone()?, bounds: self.bounds.clone() })
    }
}

/// A description that a worker and a query must share: its version, and a digest of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MapId {
    /// The version of the description.
    pub version: u64,
    /// A digest of the description, because a file may be changed without a new version.
    pub digest: u64,
}

impl std::fmt::Display for MapId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:08x})", self.version, self.digest as u32)
    }
}

impl Description {
    /// Reads a file.
    ///
    /// # Errors
    /// [`DescriptionError`]
    pub fn read(path: &Path) -> Result<Description, DescriptionError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| DescriptionError::Read { path: path.display().to_string(), source })?;
        text.parse()
    }

    /// The shards and their workers.
    ///
    /// # Errors
    /// [`MapError`]
    pub fn map(&self) -> Result<ShardMap, MapError> {
        let shards = self.shards.unwrap_or(SHARDS_PER_WORKER * self.workers.len());
        ShardMap::new(self.version, self.workers.clone(), shards, self.replicas.unwrap_or(REPLICAS))
    }

    /// The identity that a worker and a query must share.
    pub fn id(&self) -> MapId {
        // SipHash with fixed keys; workers of other builds may differ, and then refuse.
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        MapId { version: self.version, digest: hasher.finish() }
    }

    /// A table by its name.
    pub fn table(&self, name: &str) -> Option<&TableDescription> {
        self.tables.iter().find(|table| table.name == name)
    }

    fn check(&self) -> Result<(), DescriptionError> {
        self.map()?;
        let mut names = BTreeSet::new();
        if let Some(twice) = self.tables.iter().find(|table| !names.insert(&table.name)) {
            return Err(DescriptionError::Twice { table: twice.name.clone() });
        }
        let without_key = |table: &&TableDescription| table.key.is_none() && table.bounds.is_some();
        if let Some(table) = self.tables.iter().find(without_key) {
            return Err(DescriptionError::BoundsWithoutKey { table: table.name.clone() });
        }
        match self.workers.iter().find(|worker| !is_address(worker)) {
            Some(worker) => Err(DescriptionError::Address { worker: worker.clone() }),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for Description {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Description, DescriptionError> {
        let description: Description = toml::from_str(text)?;
        description.check()?;
        Ok(description)
    }
}

/// Whether `text` is `HOST:PORT`.
pub(crate) fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        !host.is_empty() && host.chars().all(plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

/// A description that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; name the file that describes the cluster")]
    Read {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The text is not a description.
    #[error("the description of the cluster is wrong: {0}")]
    Toml(#[from] toml::de::Error),
    /// No map can be made of it.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Two tables have one name.
    #[error("two tables are called {table}; rename one of them")]
    Twice {
        /// The name.
        table: String,
    },
    /// A table that is not divided has bounds.
    #[error("the table {table} has `bounds` and no `key`; name the column that the bounds divide")]
    BoundsWithoutKey {
        /// The table.
        table: String,
    },
    /// Not an address.
    #[error("{worker:?} is not the address of a worker; write HOST:PORT, such as 10.0.0.1:7070")]
    Address {
        /// The text.
        worker: String,
    },
}
