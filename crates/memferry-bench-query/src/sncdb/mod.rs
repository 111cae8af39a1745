//! The workload of the study about sub-NUMA clusters: many connections ask a database that has a table on each of two domains.
//!
//! ```text
//! Workload    statement, workers, stealing, binding, clients, NUMA balancing: one run
//! Places      the domains of the tables, CPUs elsewhere
//! Server      both tables; workers on the CPUs of the run; a session for each connection
//! clients     a closed loop, and a monitor that counts answers each second
//! ```
//!
//! Every answer is compared with the right one, which follows from the key or is counted without a database.
//!
//! Source: H. Greinsmark, *Effective Task Scheduling of In-Memory Databases on a Sub-NUMA Processor Topology*, master thesis,
//! KTH Stockholm, 2020, chapter 5, figures 8 to 14.

mod balancing;
mod clients;
mod packed;
mod places;
#[cfg(feature = "postgres")]
mod postgres;
mod server;
mod tables;
mod workload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::Array;
use memferry::topology::{Machine, NodeId};
use memferry_bench::harness::{Provenance, Row};
use memferry_query::load::Progress;
use memferry_query::{Layout, PackedColumns, TieredTable, Tiers};

pub use self::balancing::KernelBalancing;
pub use self::workload::{
    Balancing, CLIENTS, Clients, PREDICATES, RANGE_PREDS, ROWS, Statement, Workers, Workload,
};

use self::clients::{Counted, Expected, LocalConnection, Times, deviation, jain};
use self::places::Places;
use self::server::{Read, Server, confined_runtime};
use self::tables::{VALUES, Values};
use crate::QueryError;

/// Distances in names of rows, as counted by scans.
const DISTANCES: [&str; 3] = ["own", "neighbour", "other_socket"];

/// The tables of the study, and where runs over them are.
pub struct SncdbBenchmark {
    places: Places,
    values: Values,
    tables: [Arc<TieredTable>; 2],
    maker: TableMaker,
    balancing: KernelBalancing,
    /// Counts that were found without a database, by statement.
    known: Vec<(Statement, Vec<i64>)>,
    /// Bytes of a column of random integers.
    column_bytes: u64,
    /// Time before the first second that counts. 5 seconds by default.
    pub warm_up: Duration,
    /// Seconds of a run that count. 10 by default.
    pub seconds: u32,
    /// How connections reach the server. Within this process by default.
    pub protocol: Protocol,
}

/// What all tables have in common.
struct TableMaker {
    machine: Arc<Machine>,
    partitions: usize,
    tiers: Arc<Tiers>,
}

impl TableMaker {
    fn table(
        &self,
        values: Values,
        node: NodeId,
        packed: PackedColumns,
        progress: &dyn Progress,
    ) -> Result<Arc<TieredTable>, QueryError> {
        let layout =
            Layout { partitions: self.partitions, packed, ..Layout::new(Arc::clone(&self.machine), node) };
        let data = values.table(&layout, progress)?;
        Ok(Arc::new(TieredTable::try_new(Arc::new(data), Arc::clone(&self.tiers))?))
    }
}

/// How connections reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A task in the same process: nothing is transmitted.
    InProcess,
    /// The protocol of PostgreSQL, over TCP within this machine.
    #[cfg(feature = "postgres")]
    Postgres,
}

impl SncdbBenchmark {
    /// Makes both tables, of `rows` rows, on the first two domains of the first socket; a socket of one domain is divided into
    /// two, by its CPUs. The seed is that of the values, of the CPUs of [`Workers::Half`] and of keys.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: no rows, more rows than keys, or a single CPU. [`QueryError::Load`]: the memory does not suffice.
    pub fn new(
        machine: Arc<Machine>,
        rows: u64,
        seed: u64,
        progress: &dyn Progress,
    ) -> Result<SncdbBenchmark, QueryError> {
        if rows == 0 || rows > i32::MAX as u64 {
            return Err(QueryError::Invalid(format!(
                "a table of {rows} rows is not possible; choose 1 to {}",
                i32::MAX
            )));
        }
        let places = Places::of(&machine, seed)?;
        let values = Values { rows, seed };
        let tiers = Tiers::builder(Arc::clone(&machine)).build()?;
        let maker = TableMaker { machine, partitions: places.cpus_count(), tiers };
        let packed = PackedColumns::Named(VALUES.map(str::to_owned).to_vec());
        let mut column_bytes = 0;
        let mut table = |node| -> Result<Arc<TieredTable>, QueryError> {
            let table = maker.table(values, node, packed.clone(), progress)?;
            let groups = table.data();
            let groups = groups.partitions().iter().flatten();
            column_bytes = groups.map(|group| group.column(1).get_buffer_memory_size() as u64).sum();
            Ok(table)
        };
        let [first, second] = places.nodes;
        let tables = [table(first)?, table(second)?];
        let (warm_up, seconds) = (Duration::from_secs(5), 10);
        let (known, protocol) = (Vec::new(), Protocol::InProcess);
        let balancing = KernelBalancing::of_kernel();
        Ok(SncdbBenchmark {
            places,
            values,
            tables,
            maker,
            balancing,
            known,
            column_bytes,
            warm_up,
            seconds,
            protocol,
        })
    }

    /// The switch that runs change, to be restored if a signal ends the process.
    pub fn balancing(&self) -> KernelBalancing {
        self.balancing.clone()
    }

    /// Whether the two domains are parts of one node, which shares its memory between them.
    pub fn are_parts_of_one_node(&self) -> bool {
        self.places.are_parts
    }

    /// The CPUs of each domain, and those elsewhere.
    pub fn cpus(&self) -> [Vec<u32>; 3] {
        let [first, second] = [0, 1].map(|domain| self.places.domains[domain].cpus.clone());
        [first, second, self.places.elsewhere.clone()]
    }

    /// The size of a column of random integers beside the one that is published.
    pub fn column_row(&self) -> Row {
        let bytes = self.column_bytes as f64 * ROWS as f64 / self.values.rows as f64;
        Row::median("column", "MB", Provenance::Measured, &[bytes / 1e6]).beside_published(COLUMN_MB)
    }

    /// Why a run is impossible on this machine; `None` if it is not.
    pub fn obstacle(&self, workload: &Workload) -> Option<String> {
        self.places.obstacle(workload)
    }

    /// One run of a closed loop in this process: the rows that `rows_of` describes.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: the run is impossible here, or an answer is wrong. Others as the queries.
    pub fn run(&mut self, workload: &Workload) -> Result<Vec<Row>, QueryError> {
        let expected = self.expected(&workload.statement);
        let clients_on = self.places.clients(workload.clients)?;
        let server = Server::start(&self.places, workload, &self.tables)?;
        let balancing = self.balancing.set(workload.balancing)?;
        let threads_count = clients_on.as_ref().map_or(self.places.cpus_count(), Vec::len);
        let clients = confined_runtime("clients", threads_count.min(workload.connections), clients_on)?;
        let sql = workload.statement.sql(self.values.rows);
        let (sessions, times, seed) = (server.sessions(), self.times(), self.values.seed);
        let mut started = None;
        let at_start = || started = Some((Instant::now(), server.traffic().read()));
        let counted = match self.protocol {
            Protocol::InProcess => {
                let connection = |_| -> Result<LocalConnection, QueryError> {
                    let handle = server.handle();
                    Ok(LocalConnection {
                        prepared: handle.block_on(sessions.open().prepare(&sql))?,
                        server: handle,
                    })
                };
                let connections = (0..workload.connections).map(connection).collect::<Result<Vec<_>, _>>()?;
                clients::run(connections, clients.handle(), &expected, times, seed, at_start)?
            }
            #[cfg(feature = "postgres")]
            Protocol::Postgres => {
                let any = (std::net::Ipv4Addr::LOCALHOST, 0).into();
                let listener = postgres::Listener::start(&server, any)?;
                let connect = async {
                    let mut connections = Vec::new();
                    for _ in 0..workload.connections {
                        connections.push(postgres::PostgresConnection::open(listener.address(), &sql).await?);
                    }
                    Ok::<_, QueryError>(connections)
                };
                let connections = clients.block_on(connect)?;
                clients::run(connections, clients.handle(), &expected, times, seed, at_start)?
            }
        };
        let read = server.traffic().read();
        let rates = started.map(|(begin, before)| rates(before, read, begin.elapsed())).unwrap_or_default();
        let name = format!("{}_balancing_{}", workload.name(), balancing.state());
        let mut rows = rows_of(&name, &counted, server.workers());
        rows.extend(rows_of_reads(&name, &rates, &read, counted.answers));
        Ok(rows)
    }

    /// Serves both tables with the protocol of PostgreSQL at an address, such as `127.0.0.1:5432`, until `until` is complete.
    /// Everyone who reaches the address can read the tables; nobody can write.
    ///
    /// # Errors
    /// As [`run`](SncdbBenchmark::run), and [`QueryError::Listen`] for an address that cannot be had.
    #[cfg(feature = "postgres")]
    pub fn serve(
        &self,
        workload: &Workload,
        address: std::net::SocketAddr,
        ready: impl FnOnce(std::net::SocketAddr),
        until: impl Future<Output = ()>,
    ) -> Result<(), QueryError> {
        let server = Server::start(&self.places, workload, &self.tables)?;
        let _balancing = self.balancing.set(workload.balancing)?;
        let listener = postgres::Listener::start(&server, address)?;
        ready(listener.address());
        server.handle().block_on(until);
        Ok(())
    }

    fn times(&self) -> Times {
        Times { warm_up: self.warm_up, seconds: self.seconds, second: Duration::from_secs(1) }
    }

    fn expected(&mut self, statement: &Statement) -> Expected {
        if *statement == Statement::Random {
            return Expected::Random(self.values);
        }
        let known = self.known.iter().find(|(known, _)| known == statement).map(|(_, counts)| counts.clone());
        let counts = known.unwrap_or_else(|| {
            let counts = self.values.counts(statement);
            self.known.push((*statement, counts.clone()));
            counts
        });
        Expected::Counts(counts)
    }
}

/// The size of a column of random integers in the study, in MB: "around 276 MB" with its dictionary (section 5.1).
const COLUMN_MB: f64 = 276.0;

/// MB per second that the workers of each domain have read, by distance.
fn rates(before: [[Read; 3]; 2], after: [[Read; 3]; 2], elapsed: Duration) -> [[f64; 3]; 2] {
    let rate = |before: Read, after: Read| (after.bytes - before.bytes) as f64 / 1e6 / elapsed.as_secs_f64();
    [0, 1].map(|domain| [0, 1, 2].map(|it| rate(before[domain][it], after[domain][it])))
}

/// The rows of a run under its name: answers per second, with their deviation (`_deviation`), Jain's index over the connections
/// (`_fairness`), answers of a connection, least and most (`_connection`), resident memory (`_rss`, beside that after the first
/// second), and workers of each domain (`_workers_0`, `_workers_1`).
fn rows_of(name: &str, counted: &Counted, workers: [usize; 2]) -> Vec<Row> {
    let row = |what: &str, unit, samples: &[f64]| {
        Row::median(format!("{name}{what}"), unit, Provenance::Measured, samples)
    };
    let mut rows = vec![
        row("", "queries/s", &counted.per_second),
        row("_deviation", "queries/s", &[deviation(&counted.per_second)]),
        row("_fairness", "", &[jain(&counted.per_connection)]),
        row("_connection", "queries", &counted.per_connection),
    ];
    if let [first, .., last] = counted.rss_bytes[..] {
        rows.push(row("_rss", "bytes", &[last]).against("after the first second", first, first / last));
    }
    rows.extend([0, 1].map(|domain| row(&format!("_workers_{domain}"), "CPUs", &[workers[domain] as f64])));
    rows
}

/// What workers of each domain have read in memory of their own (`_own`), of the neighbour and of other sockets, if they are
/// bound: bytes per second (`_read_0_own` and so on), and row groups (`_row_groups_0_own`) and bytes (`_bytes_0_own`) of a query.
/// The latter are counts of all queries by their number: they do not depend on speed.
fn rows_of_reads(name: &str, rates: &[[f64; 3]; 2], read: &[[Read; 3]; 2], answers: u64) -> Vec<Row> {
    let of_query = |count: u64| count as f64 / answers.max(1) as f64;
    let mut rows = Vec::new();
    for (domain, (rates, read)) in rates.iter().zip(read).enumerate() {
        for ((word, &rate), read) in DISTANCES.iter().zip(rates).zip(read) {
            for (what, unit, value) in [
                ("read", "MB/s", rate),
                ("row_groups", "row groups/query", of_query(read.row_groups)),
                ("bytes", "bytes/query", of_query(read.bytes)),
            ] {
                if value > 0.0 {
                    let name = format!("{name}_{what}_{domain}_{word}");
                    rows.push(Row::median(name, unit, Provenance::Measured, &[value]));
                }
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests;
