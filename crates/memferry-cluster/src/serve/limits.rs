//! Limits of the server, each with an option of the command line.

use std::time::Duration;

/// Limits of the server. A request beyond one of them is refused, and the others go on.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes that the joins, groups and sorts of one query may take; beyond them, sorts and groups use files, and other
    /// queries fail.
    pub query_memory_bytes: usize,
    /// Time of a query from its start to its last row, planning included.
    pub query_time: Duration,
    /// Queries that run at the same time.
    pub queries: usize,
    /// How long a further query waits for one of them to end.
    pub wait: Duration,
    /// Largest message that a client may send.
    pub message_bytes: usize,
    /// How long queries may go on after the server was asked to stop.
    pub grace: Duration,
    /// Queries that were planned and not fetched; the oldest is forgotten.
    pub planned: usize,
    /// How long a planned query waits to be fetched.
    pub planned_time: Duration,
    /// Prepared statements that are kept; the one whose last use is longest ago is forgotten.
    pub prepared: usize,
    /// How long a prepared statement is kept after its last use, and a token of a handshake.
    pub idle_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Limits {
            query_memory_bytes: 1 << 30,
            query_time: Duration::from_secs(300),
            // A query uses all CPUs most of the time; twice as many keep them busy while rows are sent.
            queries: (2 * cpus).max(4),
            wait: Duration::from_secs(30),
            // The limit of tonic and of gRPC's other implementations.
            message_bytes: 4 << 20,
            grace: Duration::from_secs(30),
            planned: 1024,
            planned_time: Duration::from_secs(300),
            prepared: 1024,
            idle_time: Duration::from_secs(3600),
        }
    }
}
