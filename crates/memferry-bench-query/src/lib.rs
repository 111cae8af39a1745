//! Queries beside plain DataFusion: TPC-H, the papers' query, and the benchmark over both; the sub-NUMA study ([`sncdb`]).
//!
//! ```text
//! tpch_tables, paper_table ─▶ tables ─▶ QueryRunner   plain DataFusion, or tiered tables with prefetching
//! tpch::query, paper_query ─▶ SQL ────▶    │ run
//!                                          ▼
//!                             QueryRun: batches, bytes by engine, time ─▶ QueryBenchmark ─▶ rows
//! ```

mod answers;
mod benchmark;
mod beside_peers;
mod cold;
mod domains;
mod dsa;
mod modelled;
mod paper_table;
mod peers;
mod planning;
mod process;
mod runner;
pub mod sncdb;
pub mod tpch;
mod tpch_files;
mod tpch_tables;
mod workload;

pub use answers::{Difference, answers_equal};
pub use benchmark::{Answers, QueryBenchmark};
pub use cold::{ColdBenchmark, ComparedQuery, RunSummary, Temperature, WIDE_ROWS, wide_files};
pub use dsa::{Dsa, QueryTiers};
pub use modelled::{papers_two_nodes, tpch_on_domains};
pub use paper_table::{paper_query, paper_table};
pub use runner::{CarriedBytes, EngineShare, NamedTable, QueryRun, QueryRunner, layout, tiered_session};
pub use tpch_files::{tpch_directory, tpch_file, tpch_files, tpch_table_names};
pub use tpch_tables::{TPCH_BYTES_PER_SCALE, TPCH_SCALE_MIN, TpchError, tpch_tables};
pub use workload::WorkloadBenchmark;

use datafusion::error::DataFusionError;
use memferry::model::ModelError;
use memferry::mover::MoverError;
use memferry::topology::TopologyError;
use memferry_dsa_emulator::StartError;
use memferry_query::files::RegisterError;
use memferry_query::{BudgetTooSmall, LoadError, TiersError};

/// A query that cannot be set up, run or trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The machine cannot be described.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Near memory cannot be set up.
    #[error(transparent)]
    Tiers(#[from] TiersError),
    /// The DSA queues of this machine cannot be used.
    #[error(transparent)]
    Dsa(#[from] MoverError),
    /// The emulated device cannot be started.
    #[error(transparent)]
    Emulator(#[from] StartError),
    /// TPC-H data cannot be generated.
    #[error(transparent)]
    Tpch(#[from] TpchError),
    /// A file cannot be a table.
    #[error(transparent)]
    Register(Box<RegisterError>),
    /// A table cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The near budget is too small for a table.
    #[error(transparent)]
    Budget(#[from] BudgetTooSmall),
    /// DataFusion cannot plan or run the query.
    #[error(transparent)]
    DataFusion(#[from] DataFusionError),
    /// The threads of the queries cannot be started.
    #[error("the threads for the queries cannot be started")]
    Threads(#[source] std::io::Error),
    /// A benchmark has no such query.
    #[error("there is no query {name}; choose from {known}")]
    UnknownQuery {
        /// Its name.
        name: String,
        /// The names that the benchmark knows.
        known: String,
    },
    /// The server of a benchmark cannot listen.
    #[error("{address} cannot be listened at: {error}; choose another port, or 0 for a free one")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The model does not know the machine well enough.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Another engine cannot be compared with.
    #[error("{0}")]
    Peer(String),
    /// The benchmark would prove nothing.
    #[error("{0}")]
    Invalid(String),
}

impl From<RegisterError> for QueryError {
    fn from(error: RegisterError) -> QueryError {
        QueryError::Register(Box::new(error))
    }
}
