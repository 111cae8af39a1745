//! `memferry bench sncdb`: the workload of the study about sub-NUMA clusters, on this machine.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use memferry::topology::Machine;
use memferry_bench::harness::Record;
use memferry_bench_query::sncdb::{
    Balancing, CLIENTS, Clients, PREDICATES, Protocol, RANGE_PREDS, ROWS, SncdbBenchmark, Statement, Workers,
    Workload,
};
use memferry_query::load::Progress;
use memferry_query::schedule::{Binding, Stealing};
use serde_json::json;

use super::ending::Ending;
use super::{BUILD_PROFILE, Keep, start_record};
use crate::error::usage;
use crate::progress::Bar;
use crate::query::query_error;
use crate::topology;

/// Many connections ask a database with a table on each of two domains: random access, and scans of both tables with a skew.
///
/// A run is a combination of the options below; those that this machine cannot have are left out and named.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// One run of each statement over little data: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Rows of each of the two tables [default: 50000000; 20000 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=i32::MAX as u64))]
    rows: Option<u64>,
    /// Seconds of each run that count [default: 10; 1 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    seconds: Option<u32>,
    /// Seconds of each run before those that count [default: 5; 0 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=SECONDS_MAX))]
    warm_up: Option<u32>,
    /// Connections, each of which sends a statement when it has the answer to the one before [default: 56; 4 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: Option<u16>,
    /// Statements: random (one row by its key), scan (rows that six predicates select).
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "random,scan")]
    statements: Vec<StatementKind>,
    /// Predicates of a scan on the first table; the others of the six are on the second [default: 6,5,4,3,2,1,0; 2 with
    /// --quick].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=PREDICATES as i64))]
    on_first: Vec<u8>,
    /// Rows of 50 million that each predicate selects, nearly [default: 10000,100000,1000000; 1000000 with --quick].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=ROWS))]
    range_pred: Vec<u64>,
    /// Where workers are: all (on both domains), half (of the CPUs of each), first, second [default: all four; all with
    /// --quick].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workers: Vec<Workers>,
    /// Which row groups workers claim after their own: off, neighbour, any, bulk(N) [default: off,neighbour; neighbour with
    /// --quick].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    stealing: Vec<Stealing>,
    /// Which operators run on the domain of their rows: none, preferred, opportunistic, always.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "opportunistic")]
    binding: Vec<Binding>,
    /// Where clients are: elsewhere (on other CPUs than the domains of the tables), anywhere [default: elsewhere if there is
    /// such a CPU].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    clients: Vec<Clients>,
    /// Automatic NUMA balancing of the kernel during a run: kept, off, on. The state before is restored at the end of the run, and
    /// on Ctrl-C.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "kept")]
    balancing: Vec<Balancing>,
    /// How connections reach the server: in-process, or postgres (its protocol, over TCP within this machine).
    #[arg(long, value_name = "PROTOCOL", default_value = "in-process")]
    protocol: ProtocolName,
    /// Instead of measuring: serves the tables tbl_0 and tbl_1 with the protocol of PostgreSQL at this address, such as
    /// 127.0.0.1:5432, for --seconds or until it is interrupted. Everyone who reaches it can read them.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["protocol", "balancing", "json", "out"])]
    listen: Option<SocketAddr>,
    /// Seed of the tables, of the CPUs of `half`, and of keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Instead of measuring, models all scans on the first socket of this machine: the name of a profile (see `memferry
    /// topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["quick", "rows", "seconds", "warm_up", "connections", "statements", "on_first", "range_pred", "workers", "stealing", "binding", "clients", "balancing", "protocol", "listen", "seed"])]
    machine: Option<String>,
    #[command(flatten)]
    keep: Keep,
}

/// Scans of packed and of plain columns, enough for an interval of confidence.
const PAIRS_COUNT: usize = 21;

/// A week.
const SECONDS_MAX: i64 = 7 * 24 * 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StatementKind {
    Random,
    Scan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProtocolName {
    InProcess,
    Postgres,
}

impl ProtocolName {
    /// The name of the record: one over the network does not replace one within the process.
    fn record(self) -> &'static str {
        match self {
            ProtocolName::InProcess => "sncdb",
            ProtocolName::Postgres => "sncdb-postgres",
        }
    }

    fn protocol(self) -> Result<Protocol> {
        match self {
            ProtocolName::InProcess => Ok(Protocol::InProcess),
            #[cfg(feature = "postgres")]
            ProtocolName::Postgres => Ok(Protocol::Postgres),
            #[cfg(not(feature = "postgres"))]
            ProtocolName::Postgres => Err(without_postgres()),
        }
    }
}

#[cfg(not(feature = "postgres"))]
fn without_postgres() -> anyhow::Error {
    usage(
        "this build cannot speak the protocol of PostgreSQL; build it with --features memferry-cli/postgres",
    )
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(profile) = &arguments.machine {
        return model(profile, &arguments.keep, out);
    }
    let directory = arguments.keep.directory(arguments.quick)?;
    let protocol = arguments.protocol.protocol()?;
    #[cfg(not(feature = "postgres"))]
    if arguments.listen.is_some() {
        return Err(without_postgres());
    }
    // Before any thread starts.
    let ending = Ending::install()?;
    let machine = Arc::new(Machine::discover()?);
    let (rows, seconds, warm_up) = if arguments.quick { (20_000, 1, 0) } else { (ROWS, 10, 5) };
    let rows = arguments.rows.unwrap_or(rows);
    let seconds = arguments.seconds.unwrap_or(seconds);
    let warm_up = arguments.warm_up.unwrap_or(warm_up);
    let bar = Bar::new("making tables");
    let mut bench =
        SncdbBenchmark::new(Arc::clone(&machine), rows, arguments.seed, &bar).map_err(query_error)?;
    bar.clear();
    let balancing = bench.balancing();
    ending.undo(move || balancing.restore());
    (bench.seconds, bench.warm_up) = (seconds, Duration::from_secs(warm_up.into()));
    bench.protocol = protocol;
    let [first, second, elsewhere] = bench.cpus();
    let workloads = workloads(arguments, rows, !elsewhere.is_empty());
    let (left_out, possible): (Vec<_>, Vec<_>) = workloads
        .into_iter()
        .map(|workload| (bench.obstacle(&workload), workload))
        .partition(|(why, _)| why.is_some());
    if possible.is_empty() {
        match left_out.into_iter().find_map(|(why, _)| why) {
            Some(why) => return Err(usage(why)),
            None => bail!("there is no run of these options; give each of them a value"),
        }
    }
    for (why, workload) in &left_out {
        // An error of standard error cannot be reported.
        let _ =
            writeln!(io::stderr(), "left out {}: {}", workload.name(), why.as_deref().unwrap_or_default());
    }
    #[cfg(feature = "postgres")]
    if let Some(address) = arguments.listen {
        return listen(&bench, &possible[0].1, address, arguments.seconds, out);
    }
    let options = json!({
        "quick": arguments.quick,
        "rows": rows,
        "seconds": seconds,
        "warm_up": warm_up,
        "connections": possible[0].1.connections,
        "protocol": format!("{protocol:?}"),
        "first_cpus": first,
        "second_cpus": second,
        "elsewhere_cpus": elsewhere,
        "parts_of_one_node": bench.are_parts_of_one_node(),
        "profile": BUILD_PROFILE,
    });
    let mut record: Record =
        start_record(arguments.protocol.record(), machine.as_ref().clone(), arguments.seed, options);
    record.rows.push(bench.column_row());
    let telemetry = arguments.keep.telemetry();
    let pairs_count = if arguments.quick { 2 } else { PAIRS_COUNT };
    record
        .rows
        .extend(telemetry.rows(|| bench.packed_rows(&possible[0].1, pairs_count)).map_err(query_error)?);
    let bar = Bar::of("running connections", possible.len());
    for (_, workload) in &possible {
        record.rows.extend(telemetry.rows(|| bench.run(workload)).map_err(query_error)?);
        bar.advance(1);
    }
    drop(bar);
    arguments.keep.finish(&record, directory, out)
}

/// Serves the tables, with the workers of the first run.
#[cfg(feature = "postgres")]
fn listen(
    bench: &SncdbBenchmark,
    workload: &Workload,
    address: SocketAddr,
    seconds: Option<u32>,
    out: &mut dyn Write,
) -> Result<()> {
    let mut written = Ok(());
    let ready = |address: SocketAddr| {
        let (host, port) = (address.ip(), address.port());
        written = writeln!(out, "listening at {address}: psql -h {host} -p {port} -U anyone any")
            .and_then(|()| out.flush());
    };
    let until = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds.into())).await,
            None => std::future::pending().await,
        }
    };
    bench.serve(workload, address, ready, until).map_err(query_error)?;
    Ok(written?)
}

/// The rows of a machine that need not be here.
fn model(profile: &str, keep: &Keep, out: &mut dyn Write) -> Result<()> {
    let machine = topology::open(Some(profile))?;
    let directory = keep.directory(false)?;
    let options = json!({ "machine": profile, "profile": BUILD_PROFILE });
    // A record of its own, so that it does not replace a measured one.
    let mut record: Record = start_record("sncdb-model", machine, 0, options);
    record.rows = memferry_bench::sncdb::rows(&record.machine)?;
    keep.finish(&record, directory, out)
}

/// All combinations of the options. Stealing needs workers on both domains; a random access reads one row group.
fn workloads(arguments: &Arguments, rows: u64, is_elsewhere: bool) -> Vec<Workload> {
    fn or<T: Clone>(given: &[T], quick: bool, for_quick: &[T], default: &[T]) -> Vec<T> {
        match (given.is_empty(), quick) {
            (false, _) => given.to_vec(),
            (true, true) => for_quick.to_vec(),
            (true, false) => default.to_vec(),
        }
    }
    let quick = arguments.quick;
    let default_clients = if is_elsewhere { Clients::Elsewhere } else { Clients::Anywhere };
    let connections = arguments.connections.map_or(if quick { 4 } else { CLIENTS }, usize::from);
    let all_workers = [Workers::All, Workers::Half, Workers::First, Workers::Second];
    let workers = or(&arguments.workers, quick, &all_workers[..1], &all_workers);
    let off_and_on = [Stealing::Off, Stealing::Neighbour];
    let stealing = or(&arguments.stealing, quick, &off_and_on[1..], &off_and_on);
    let on_first = or(&arguments.on_first, quick, &[2], &[6, 5, 4, 3, 2, 1, 0]);
    let range_pred = or(&arguments.range_pred, quick, &RANGE_PREDS[2..], &RANGE_PREDS);
    let clients = or(&arguments.clients, false, &[], &[default_clients]);
    let mut statements = Vec::new();
    for kind in &arguments.statements {
        match kind {
            StatementKind::Random => statements.push(Statement::Random),
            StatementKind::Scan => {
                for &range_pred in &range_pred {
                    let scan = |&on_first: &u8| Statement::Scan { on_first: on_first.into(), range_pred };
                    statements.extend(on_first.iter().map(scan));
                }
            }
        }
    }
    let mut workloads = Vec::new();
    for &statement in &statements {
        for (&workers, &binding) in
            workers.iter().flat_map(|it| arguments.binding.iter().map(move |to| (it, to)))
        {
            let is_stealing_possible =
                matches!(workers, Workers::All | Workers::Half) && binding != Binding::None;
            let without = [Stealing::Off];
            for &stealing in if is_stealing_possible { &stealing[..] } else { &without[..] } {
                for (&clients, &balancing) in
                    clients.iter().flat_map(|it| arguments.balancing.iter().map(move |to| (it, to)))
                {
                    workloads.push(Workload {
                        rows,
                        connections,
                        statement,
                        workers,
                        stealing,
                        binding,
                        clients,
                        balancing,
                    });
                }
            }
        }
    }
    workloads
}
