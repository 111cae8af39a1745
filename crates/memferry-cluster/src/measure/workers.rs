//! Processes of workers on this machine.

use std::fmt::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use memferry_bench_query::{tpch_file, tpch_table_names};
use tokio::process::{Child, Command};

use crate::cluster::Cluster;
use crate::planning::PlanOptions;
use crate::report::WorkerReport;

/// The keys of the tables: lineitem and orders are joined in place, and partsupp and part.
const KEYS: [(&str, &str); 8] = [
    ("lineitem", "l_orderkey"),
    ("orders", "o_orderkey"),
    ("partsupp", "ps_partkey"),
    ("part", "p_partkey"),
    ("customer", "c_custkey"),
    ("supplier", "s_suppkey"),
    ("nation", "n_nationkey"),
    ("region", "r_regionkey"),
];

/// The first of them are sharded, and the others are on each worker.
const SHARDED: usize = 5;

/// Partitions of a task: as many as of the process beside.
fn partitions() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How long a worker may take to load its tables.
const LOADING_MAX: Duration = Duration::from_secs(300);

/// Ports below those that Linux gives to connections and to listeners without a port (`ip_local_port_range`, from 32768 by default).
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Addresses on loopback for workers that are started later, and again: of ports that the kernel gives to nobody meanwhile.
///
/// # Errors
/// All ports are in use.
pub fn free_addresses(count: usize) -> Result<Vec<String>> {
    // Another process begins elsewhere. ORDERING: Relaxed, each number is only taken once.
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(97);
    let ports = u32::from(PORTS.end - PORTS.start);
    let mut addresses = Vec::new();
    for _ in 0..ports {
        if addresses.len() == count {
            return Ok(addresses);
        }
        let port = begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % ports + u32::from(PORTS.start);
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            addresses.push(address);
        }
    }
    bail!("no {count} of the ports {PORTS:?} of 127.0.0.1 are free; end programs that listen there");
}

/// Workers of this program; killed when dropped.
pub(super) struct Workers {
    directory: tempfile::TempDir,
    addresses: Vec<String>,
    processes: Vec<Child>,
    cluster: Arc<Cluster>,
}

impl Workers {
    /// Starts them over the files, and waits until they have loaded their tables. Small tables are on each worker.
    pub(super) async fn start(count: usize, files: &Path) -> Result<Workers> {
        Workers::with_keys(count, files, &KEYS[..SHARDED]).await
    }

    /// The same with all tables sharded, as large ones are.
    pub(super) async fn all_sharded(count: usize, files: &Path) -> Result<Workers> {
        Workers::with_keys(count, files, &KEYS).await
    }

    async fn with_keys(count: usize, files: &Path, keys: &[(&str, &str)]) -> Result<Workers> {
        let directory = tempfile::tempdir()?;
        let addresses = free_addresses(count)?;
        let mut description = format!("version = 1\nworkers = {addresses:?}\n");
        for table in tpch_table_names() {
            let location = tpch_file(files, table);
            writeln!(description, "[[tables]]\nname = {table:?}\nlocation = {location:?}")?;
            if let Some((_, key)) = keys.iter().find(|(name, _)| *name == table) {
                writeln!(description, "key = {key:?}")?;
            }
        }
        std::fs::write(directory.path().join("cluster.toml"), description)?;
        let cluster = Arc::new(Cluster::new(addresses.clone(), partitions())?);
        let mut workers = Workers { directory, addresses, processes: Vec::new(), cluster };
        for worker in 0..count {
            let process = workers.process(worker)?;
            workers.processes.push(process);
        }
        workers.wait().await?;
        Ok(workers)
    }

    fn process(&self, worker: usize) -> Result<Child> {
        let program = std::env::current_exe().context("the path of this program is not known")?;
        Command::new(program)
            .arg("worker")
            .arg(self.directory.path().join("cluster.toml"))
            .args(["--name", &self.addresses[worker]])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start memferry-cluster worker")
    }

    async fn wait(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let reports = self.cluster.reports().await.unwrap_or_default();
            if reports.values().flatten().filter(|report| report.is_ready).count() == self.addresses.len() {
                return Ok(());
            }
            if began.elapsed() > LOADING_MAX {
                bail!("the workers do not load their tables");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The ids of the processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().filter_map(Child::id)
    }

    pub(super) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The same workers, with plans of `options`.
    pub(super) fn cluster_with(&self, options: PlanOptions) -> Result<Cluster> {
        Ok(Cluster::new(self.addresses.clone(), partitions())?.with_options(options))
    }

    /// Bytes that all workers have read, and received from each other.
    pub(super) async fn bytes(&self, cluster: &Cluster) -> Result<(u64, u64)> {
        let reports = cluster.reports().await?;
        let sum = |of: fn(&WorkerReport) -> u64| reports.values().flatten().map(of).sum();
        Ok((sum(|report| report.read_bytes), sum(|report| report.received_bytes)))
    }

    /// As `kill -9`.
    pub(super) async fn kill(&mut self, worker: usize) -> Result<()> {
        self.processes[worker].kill().await.context("cannot kill a worker")
    }

    /// Starts a killed worker, and waits until it has loaded its tables.
    pub(super) async fn start_again(&mut self, worker: usize) -> Result<()> {
        self.processes[worker] = self.process(worker)?;
        self.wait().await
    }
}
