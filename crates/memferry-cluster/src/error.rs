//! Errors of clusters.

use datafusion::error::DataFusionError;
use thiserror::Error;

use crate::description::{DescriptionError, MapId};
use crate::shards::{KeyError, MapError, QueryFailure, ShardMap, ShardsLost};

/// A query or a worker that failed because of the cluster.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The text is not an address.
    #[error("{address:?} is not the address of a worker; write HOST:PORT, such as 127.0.0.1:7070")]
    Address {
        /// The text.
        address: String,
    },
    /// No worker answers.
    #[error("no worker can be reached: {}; start one with `memferry worker`", .reasons.join("; "))]
    Unreachable {
        /// The workers with their reasons.
        reasons: Vec<String>,
    },
    /// Workers with one version and different descriptions.
    #[error(
        "the workers {first} and {second} have different descriptions of the cluster with the same version {version}; give \
         them the same file, with a higher `version` if it was changed"
    )]
    Contradiction {
        /// One worker.
        first: String,
        /// Another one.
        second: String,
        /// Their version.
        version: u64,
    },
    /// A worker failed, and its text reached the query through other machines: `worker_in` reads it.
    #[error("worker {worker} failed: {what}")]
    Worker {
        /// Its address.
        worker: String,
        /// What happened.
        what: String,
    },
    /// All replicas of a shard are lost.
    #[error("{source}{}", explained(.reasons))]
    Lost {
        /// The shard and its workers.
        source: ShardsLost,
        /// What happened to each lost worker.
        reasons: Vec<String>,
    },
    /// A worker was lost after rows had been returned.
    #[error(transparent)]
    Partial(#[from] QueryFailure),
    /// The description cannot be used.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// A key cannot divide its table.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No map can be made.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A table cannot be loaded.
    #[error("cannot load the table {table} from {location}: {source}")]
    Load {
        /// The table.
        table: String,
        /// Its files.
        location: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An address of this machine cannot be used.
    #[error("cannot listen on {address}: {source}; choose an address of this machine with a free port")]
    Listen {
        /// The address.
        address: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A certificate or its key cannot be used.
    #[error(
        "certificate and key cannot be used; --tls-certificate and --tls-key must be PEM files that belong together"
    )]
    Certificate {
        /// The reason.
        source: tonic::transport::Error,
    },
    /// The address is not in the description.
    #[error(
        "the description of the cluster has no worker {address}; its workers are {}: use one of them as --listen, or name this \
         one with --name",
        .workers.join(", ")
    )]
    NotAWorker {
        /// The address.
        address: String,
        /// The workers of the description.
        workers: Vec<String>,
    },
    /// The query is wrong, or reading failed.
    #[error(transparent)]
    Query(#[from] DataFusionError),
}

fn explained(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

impl From<ClusterError> for DataFusionError {
    fn from(error: ClusterError) -> DataFusionError {
        match error {
            ClusterError::Query(error) => error,
            // Text survives the way through several machines; types do not.
            ClusterError::Worker { .. } => DataFusionError::Execution(error.to_string()),
            error => DataFusionError::External(Box::new(error)),
        }
    }
}

/// A worker refuses a query of another description.
pub(crate) fn refusal(worker: &str, own: MapId, planned: MapId) -> ClusterError {
    let what =
        format!("it has version {own} of the cluster, and the query was planned with version {planned}");
    ClusterError::Worker { worker: worker.to_owned(), what }
}

/// The worker that an error names as failed, with what happened to it: the innermost, which saw it.
pub(crate) fn worker_in(text: &str, map: &ShardMap) -> Option<(usize, String)> {
    let found = |(number, worker): (usize, &String)| {
        let mark = format!("worker {worker} failed: ");
        text.rfind(&mark).map(|start| (start, number, start + mark.len()))
    };
    let (_, worker, what) = map.workers().iter().enumerate().filter_map(found).max()?;
    Some((worker, text[what..].lines().next().unwrap_or_default().to_owned()))
}
