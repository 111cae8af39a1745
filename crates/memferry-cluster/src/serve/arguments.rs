//! The options of `memferry serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use memferry_session::SessionArguments;
use memferry_session::error::usage;
use memferry_session::options::size_bytes;

use super::access::Access;
use super::limits::Limits;
use super::log::Log;
use super::server::ServerOptions;
use crate::cluster::Cluster;
use crate::credentials::{CredentialArguments, tls_files};

/// Answers queries of any client of Arrow Flight SQL (ADBC, JDBC, ODBC) over the tables of the options.
///
/// The log is JSON on standard error. SIGTERM and SIGINT end the server when its queries have ended; a second signal ends
/// it at once.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Address and port of the service.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:31337")]
    listen: SocketAddr,
    /// Address and port of metrics and health: /metrics for Prometheus, /health and /ready.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Certificate of the server for TLS, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Bearer tokens, one on each line, with a name before a colon if wanted; only the owner may read the file.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Users with passwords, a line NAME:PASSWORD for each; a user logs in and gets a token.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Allows addresses that other machines reach without TLS, or without tokens and users.
    #[arg(long)]
    insecure: bool,
    /// Memory for joins, groups and sorts of one query.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, default_value = "1GiB")]
    memory: u64,
    /// Time of one query, until its last row was sent.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5m")]
    time: Duration,
    /// Queries at the same time [default: twice the number of CPUs, at least 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    queries: Option<u32>,
    /// How long a further query waits for one of them to end.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    wait: Duration,
    /// Largest message of a client.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, default_value = "4MiB")]
    message: u64,
    /// How long queries go on after SIGTERM or SIGINT.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    grace: Duration,
    /// Executes statements that create, change or write something, as `memferry sql` does; clients can then read and write
    /// files of this machine.
    #[arg(long)]
    updates: bool,
    /// Logs the text of statements; it may hold personal data.
    #[arg(long)]
    log_statements: bool,
    /// Loads the tables of --table into memory first, on the home node or where --place says.
    #[arg(long)]
    pub(super) load: bool,
    /// Answers from the tables of a cluster: addresses of its workers, see `memferry worker`.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', conflicts_with_all = NOT_OF_CLUSTERS)]
    cluster: Vec<String>,
    /// The credentials of this server for workers.
    #[command(flatten)]
    credentials: CredentialArguments,
    /// The tables.
    #[command(flatten)]
    pub(super) session: SessionArguments,
}

/// Options of tables in this process, and of statements that write.
const NOT_OF_CLUSTERS: [&str; 16] = [
    "updates",
    "load",
    "tables",
    "places",
    "tpch",
    "prefetch",
    "home",
    "near",
    "budget",
    "dsa",
    "seed",
    "machine",
    "calibration",
    "binding",
    "stealing",
    "domains_per_node",
];

impl Arguments {
    /// The cluster to answer from, if there is one.
    ///
    /// # Errors
    /// A text that is not an address; files or a token that cannot be used.
    pub(super) fn cluster(&self) -> Result<Option<Cluster>> {
        if self.cluster.is_empty() {
            if self.credentials.are_given() {
                return Err(usage("--tls-ca and --token-file are for workers; name some with --cluster"));
            }
            return Ok(None);
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let partitions = self.session.partitions.unwrap_or(cpus);
        let credentials = self.credentials.credentials()?;
        Ok(Some(Cluster::with_credentials(self.cluster.clone(), partitions, credentials)?))
    }

    /// The settings of the server.
    ///
    /// # Errors
    /// A usage error: options that do not go together, files of secrets that cannot be used.
    pub(super) fn server(&self) -> Result<ServerOptions> {
        let mut access = Access::open();
        if let Some(file) = &self.tokens {
            access = access.with_tokens(file)?;
        }
        if let Some(file) = &self.users {
            access = access.with_users(file)?;
        }
        let tls = tls_files(self.tls_certificate.as_deref(), self.tls_key.as_deref())?;
        if !self.listen.ip().is_loopback() && !self.insecure && (access.is_open() || tls.is_none()) {
            return Err(usage(format!(
                "other machines reach {}: add --tls-certificate and --tls-key, and --tokens or --users; or say --insecure",
                self.listen
            )));
        }
        let limits = Limits {
            query_memory_bytes: usize::try_from(self.memory).unwrap_or(usize::MAX),
            query_time: self.time,
            wait: self.wait,
            message_bytes: usize::try_from(self.message).unwrap_or(usize::MAX),
            grace: self.grace,
            ..Limits::default()
        };
        let queries = self.queries.map_or(limits.queries, |queries| queries as usize);
        Ok(ServerOptions {
            listen: self.listen,
            http: self.http,
            tls,
            access,
            limits: Limits { queries, ..limits },
            updates: self.updates,
            log: Log::to_standard_error(self.log_statements),
        })
    }
}

/// Parses a time such as `500ms`, `30s` or `5m`.
fn time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        Ok(_) => Err("the time must be above 0, such as 30s".to_owned()),
        Err(_) => Err("a time is a number with a unit, such as 500ms, 30s or 5m".to_owned()),
    }
}
