//! Queries on several machines, and a server for any client of Arrow Flight SQL.
//!
//! ```text
//! SQL ─▶ Cluster ─▶ plan: ShardedTable, ShardScanExec ─▶ tasks of datafusion-distributed ─▶ workers
//!           │             │ ShardMap: which worker reads a shard                              │ ShardCatalog: shards in tiers
//!           └─ a worker fails: planned again on replicas, or an error that names it ◀─────────┘
//! ```
//!
//! A [`Description`] names workers, shards and tables. Each [`ClusterWorker`] loads its shards into memferry's tiers. A
//! [`Cluster`] in any process plans queries; it keeps no state, so it can be started again at any time.
#![deny(unsafe_code)]

mod ahead;
mod broadcast;
mod catalog;
mod channels;
mod cluster;
mod codec;
mod colocate;
pub mod commands;
mod contain;
mod credentials;
mod description;
mod error;
mod filters;
pub mod load;
pub mod measure;
mod plan_channel;
mod planning;
mod reduce;
mod replicate;
mod report;
mod scan;
pub mod serve;
mod service;
pub mod shards;
mod sources;
mod table;
mod worker;

pub use catalog::ShardCatalog;
pub use channels::Channels;
pub use cluster::{Answer, Cluster};
pub use codec::ShardCodec;
pub use colocate::JoinInPlace;
pub use credentials::{CredentialArguments, Credentials, Security, SecurityArguments};
pub use description::{Description, DescriptionError, MapId, TableDescription};
pub use error::ClusterError;
pub use filters::DynamicFilters;
pub use planning::PlanOptions;
pub use report::{TableReport, WorkerReport};
pub use scan::{ShardRead, ShardScanExec};
pub use sources::Sources;
pub use table::ShardedTable;
pub use worker::ClusterWorker;
