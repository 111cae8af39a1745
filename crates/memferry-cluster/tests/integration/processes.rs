//! Clusters of real processes on loopback: answers, and what happens when workers die, hang, join or differ.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use memferry_bench::model::cluster::{ClusterWork, ExchangeKind};
use memferry_bench_query::{answers_equal, tpch, tpch_file, tpch_files, tpch_table_names};
use memferry_cluster::measure::free_addresses;
use memferry_cluster::{Cluster, ClusterError, DynamicFilters, PlanOptions, WorkerReport};
use memferry_query::{SessionOptions, session};

const SCALE: f64 = 0.01;

/// No query may take longer, whatever happens to workers.
const LIMIT: Duration = Duration::from_secs(10);

/// The keys by which tables are sharded: lineitem and orders are joined in place. Tables without key are on each worker.
const KEYS: [(&str, Option<&str>); 8] = [
    ("lineitem", Some("l_orderkey")),
    ("orders", Some("o_orderkey")),
    ("partsupp", Some("ps_partkey")),
    ("part", Some("p_partkey")),
    ("customer", Some("c_custkey")),
    ("supplier", None),
    ("nation", None),
    ("region", None),
];

fn files() -> PathBuf {
    tpch_files(SCALE, Path::new(env!("CARGO_TARGET_TMPDIR")), &()).unwrap()
}

/// One cluster at a time: a worker that gets no CPU for 2 s would be lost for its queries.
static ONE_CLUSTER: Mutex<()> = Mutex::new(());

/// Processes of workers; all are killed at the end.
pub(crate) struct Workers {
    _alone: MutexGuard<'static, ()>,
    directory: tempfile::TempDir,
    pub(crate) addresses: Vec<String>,
    processes: Vec<Option<Child>>,
    /// Bounds of tables that are sharded by range.
    bounds: Vec<(&'static str, &'static str)>,
}

impl Workers {
    /// Names for `count` workers; none runs.
    fn new(count: usize) -> Workers {
        // Poisoned by a test that failed.
        let alone = ONE_CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = free_addresses(count).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let processes = (0..count).map(|_| None).collect();
        Workers { _alone: alone, directory, addresses, processes, bounds: vec![] }
    }

    /// `count` workers that have loaded their tables.
    pub(crate) async fn ready(count: usize) -> Workers {
        let mut workers = Workers::new(count);
        (0..count).for_each(|worker| workers.start(worker, 1, ""));
        workers.wait(count).await;
        workers
    }

    pub(crate) fn start(&mut self, worker: usize, version: u64, more: &str) {
        self.start_with(worker, version, more, &[]);
    }

    /// The same, with the files of other tables, or other files, for some.
    pub(crate) fn start_with(&mut self, worker: usize, version: u64, more: &str, files_of: &[(&str, &str)]) {
        let tables: String = KEYS
            .iter()
            .map(|(name, key)| {
                let other = files_of.iter().find(|(table, _)| table == name);
                let location = match other {
                    Some((_, path)) if path.starts_with('/') => PathBuf::from(path),
                    other => tpch_file(&files(), other.map_or(name, |(_, other)| other)),
                };
                let mut key = key.map(|key| format!("key = '{key}'\n")).unwrap_or_default();
                if let Some((_, bounds)) = self.bounds.iter().find(|(table, _)| table == name) {
                    key.push_str(&format!("bounds = {bounds}\n"));
                }
                format!("[[tables]]\nname = '{name}'\nlocation = '{}'\n{key}", location.display())
            })
            .collect();
        let description = format!("version = {version}\nworkers = {:?}\n{more}\n{tables}", self.addresses);
        let path = self.directory.path().join(format!("{worker}-{version}.toml"));
        fs::write(&path, description).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"))
            .arg("worker")
            .arg(path)
            .args(["--name", &self.addresses[worker], "--threads", "2"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.processes[worker] = Some(process);
    }

    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::new(self.addresses.clone(), 2).unwrap()
    }

    /// Waits until `count` workers can be used.
    pub(crate) async fn wait(&self, count: usize) {
        let began = Instant::now();
        let cluster = self.cluster();
        loop {
            let reports = cluster.reports().await.unwrap_or_default();
            if reports.values().flatten().filter(|report| report.is_ready).count() >= count {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "workers do not load: {reports:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until `cluster` uses all workers. It gives a worker that did not answer before little time, and plans without it then.
    async fn used_by(&self, cluster: &Cluster) {
        let began = Instant::now();
        loop {
            let lost = match cluster.query_whole("SELECT count(*) FROM nation").await {
                Ok(answer) => answer.lost(),
                Err(error) => vec![error.to_string()],
            };
            if lost.is_empty() {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "workers are not used again: {lost:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn signal(&self, worker: usize, signal: i32) {
        let process = self.processes[worker].as_ref().expect("it runs").id();
        // SAFETY: kill takes numbers; the process is a child that was not waited for.
        let done = unsafe { libc::kill(process as libc::pid_t, signal) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }

    /// Waits until a worker ends by itself.
    async fn ended(&mut self, worker: usize) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(ended) = self.processes[worker].as_mut().unwrap().try_wait().unwrap() {
                return ended;
            }
            assert!(began.elapsed() < LIMIT, "it does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// CPU time of all workers, in ticks of 10 ms.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let of_process = |process: &Child| {
            let text = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
            // Fields 14 and 15, utime and stime; the second has the name in parentheses. See proc(5).
            let (_, fields) = text.rsplit_once(") ").unwrap();
            fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
        };
        self.processes.iter().flatten().map(of_process).sum()
    }

    /// As `kill -9`.
    pub(crate) fn kill(&mut self, worker: usize) {
        self.signal(worker, libc::SIGKILL);
        self.processes[worker].take().unwrap().wait().unwrap();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The tables in this process.
pub(crate) async fn alone() -> SessionContext {
    let context = session(&SessionOptions { partitions: 2, ..SessionOptions::default() });
    for table in tpch_table_names() {
        let file = tpch_file(&files(), table);
        context.register_parquet(table, file.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    }
    context
}

pub(crate) async fn expected(context: &SessionContext, sql: &str) -> Vec<RecordBatch> {
    context.sql(sql).await.unwrap().collect().await.unwrap()
}

async fn all_answers_are_equal(count: usize) {
    let workers = Workers::ready(count).await;
    let (cluster, alone) = (workers.cluster(), alone().await);
    for number in tpch::QUERIES {
        let sql = tpch::query(number, SCALE);
        let answer =
            cluster.query_whole(&sql).await.unwrap_or_else(|error| panic!("query {number}: {error}"));
        assert_eq!((answer.plans(), answer.lost()), (1, vec![]), "query {number}");
        let answer = answer.collect().await.unwrap();
        let expected = expected(&alone, &sql).await;
        answers_equal(&answer, &expected)
            .unwrap_or_else(|error| panic!("query {number}, {count} workers: {error}"));
    }
}

/// Exchanges by hash in the plan of a query.
async fn exchanges(cluster: &Cluster, sql: &str) -> usize {
    cluster.query_whole(sql).await.unwrap().plan().matches("Hash([").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_sharded_by_the_join_are_joined_in_place() {
    let workers = Workers::ready(2).await;
    let (cluster, alone) = (workers.cluster(), alone().await);
    let in_place = "SELECT count(*), sum(l_quantity) FROM lineitem JOIN orders ON l_orderkey = o_orderkey \
                    WHERE o_orderdate < DATE '1995-03-15'";
    assert_eq!(exchanges(&cluster, in_place).await, 0);
    // Joins of joins and groups by the key, and joins of a table that has been joined with one that all tasks have.
    let thrice = "SELECT count(*) FROM lineitem a JOIN orders ON a.l_orderkey = o_orderkey \
                  JOIN lineitem b ON o_orderkey = b.l_orderkey";
    let grouped = "SELECT l_orderkey, count(*) AS c FROM lineitem JOIN orders ON l_orderkey = o_orderkey \
                   GROUP BY l_orderkey ORDER BY c DESC, l_orderkey LIMIT 20";
    let of_groups = "SELECT count(*), sum(o_totalprice) FROM orders WHERE o_orderkey IN \
                     (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 200)";
    let with_small = "SELECT c_mktsegment, count(*), sum(l_quantity) FROM customer JOIN orders ON c_custkey = o_custkey \
                      JOIN lineitem ON l_orderkey = o_orderkey WHERE c_nationkey = 7 GROUP BY c_mktsegment";
    let outer = "SELECT count(*), count(l_orderkey), sum(o_totalprice) FROM orders LEFT JOIN lineitem \
                 ON o_orderkey = l_orderkey AND l_quantity > 49 AND l_linenumber > 5";
    let full = "SELECT count(*), count(l_orderkey), count(o_orderkey) FROM (SELECT * FROM orders WHERE o_custkey > 1000) o \
                FULL JOIN (SELECT * FROM lineitem WHERE l_suppkey > 50) l ON o_orderkey = l_orderkey";
    for (sql, most) in [(thrice, 0), (grouped, 0), (of_groups, 0), (with_small, 1), (outer, 0), (full, 0)] {
        let count = exchanges(&cluster, sql).await;
        assert!(count <= most, "{count} exchanges: {sql}");
    }
    // By other columns, and above a join in place.
    let by_other = "SELECT count(*) FROM lineitem FULL JOIN orders ON l_suppkey = o_custkey";
    let relied_on = "SELECT count(*), sum(l_quantity), count(p.o_orderkey) FROM lineitem JOIN orders o ON l_orderkey = o.o_orderkey \
                     FULL JOIN orders p ON l_orderkey = p.o_custkey";
    let by_both = "SELECT count(*), sum(b.l_quantity) FROM lineitem a JOIN lineitem b \
                   ON a.l_partkey = b.l_suppkey AND a.l_orderkey = b.l_linenumber";
    let by_key_and_other = "SELECT count(*), sum(b.l_quantity) FROM lineitem a JOIN lineitem b \
                            ON a.l_orderkey = b.l_orderkey AND a.l_linenumber = b.l_linenumber";
    let united = "SELECT k, count(*) AS c FROM (SELECT l_orderkey AS k FROM lineitem UNION ALL \
                  SELECT o_custkey FROM orders) GROUP BY k ORDER BY c DESC, k LIMIT 20";
    for (sql, least) in [(by_other, 2), (relied_on, 2), (by_both, 2), (united, 1)] {
        let count = exchanges(&cluster, sql).await;
        assert!(count >= least, "{count} exchanges: {sql}");
    }
    // Orders are four times smaller than lineitem, and larger than a side that DataFusion would collect.
    let far_smaller = "SELECT count(*) FROM lineitem JOIN orders ON l_suppkey = o_custkey";
    let plan = cluster.query_whole(far_smaller).await.unwrap().plan();
    assert!(plan.contains("NetworkBroadcastExec") && !plan.contains("Hash(["), "{plan}");
    let moved = [by_other, relied_on, by_both, by_key_and_other, united, far_smaller];
    for sql in [in_place, thrice, grouped, of_groups, with_small, outer, full].into_iter().chain(moved) {
        let answer = cluster.query_whole(sql).await.unwrap().collect().await.unwrap();
        answers_equal(&answer, &expected(&alone, sql).await).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

/// A range and a hash of equal keys are different shards, and so are ranges with other bounds.
#[tokio::test(flavor = "multi_thread")]
async fn tables_sharded_by_range_are_joined_in_place_if_their_bounds_are_equal() {
    let alone = alone().await;
    let sql = "SELECT count(*), count(l_orderkey), count(o_orderkey), sum(o_totalprice) \
               FROM (SELECT * FROM orders WHERE o_custkey > 1000) o \
               FULL JOIN (SELECT * FROM lineitem WHERE l_suppkey > 50) l ON o_orderkey = l_orderkey";
    let expected = expected(&alone, sql).await;
    // Keys of orders are up to 60 000.
    let lines = "[10000, 20000, 45000]";
    for (orders, is_in_place) in [(Some(lines), true), (Some("[5000, 30000, 50000]"), false), (None, false)] {
        let mut workers = Workers::new(2);
        workers.bounds = [("lineitem", lines)].into_iter().chain(orders.map(|it| ("orders", it))).collect();
        (0..2).for_each(|worker| workers.start(worker, 1, "shards = 4"));
        workers.wait(2).await;
        let cluster = workers.cluster();
        assert_eq!(exchanges(&cluster, sql).await == 0, is_in_place, "orders by {orders:?}");
        let answer = cluster.query_whole(sql).await.unwrap().collect().await.unwrap();
        answers_equal(&answer, &expected).unwrap_or_else(|error| panic!("orders by {orders:?}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_in_place_do_not_filter_by_a_hash_that_their_tables_do_not_have() {
    let workers = Workers::ready(2).await;
    // In eight partitions, the filter of a partitioned join finds the part of a row by DataFusion's hash: seven of eight rows would
    // be looked up in the part of another partition.
    let cluster = Cluster::new(workers.addresses.clone(), 8).unwrap();
    let sql = "SELECT count(*), sum(l_quantity) FROM lineitem JOIN orders ON l_orderkey = o_orderkey \
               WHERE o_orderdate < DATE '1995-03-15'";
    let answer = cluster.query_whole(sql).await.unwrap();
    let plan = answer.plan();
    assert_eq!((plan.matches("Hash([").count(), plan.matches("mode=Partitioned").count()), (0, 1), "{plan}");
    assert_eq!(answer.dynamic_filters().given, 0, "{plan}");
    let alone = alone().await;
    answers_equal(&answer.collect().await.unwrap(), &expected(&alone, sql).await).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_without_key_are_joined_where_the_other_table_is() {
    let mut workers = Workers::ready(3).await;
    let (cluster, alone) = (workers.cluster(), alone().await);
    let in_place = "SELECT n_name, count(*) FROM customer JOIN nation ON c_nationkey = n_nationkey \
                    JOIN region ON n_regionkey = r_regionkey WHERE r_name = 'ASIA' GROUP BY n_name";
    let queries = [
        in_place,
        "SELECT count(*) FROM nation",
        "SELECT n_name, count(c_custkey) FROM nation LEFT JOIN customer ON c_nationkey = n_nationkey \
         AND c_acctbal > 0 GROUP BY n_name",
        "SELECT count(*) FROM nation a, nation b WHERE a.n_regionkey = b.n_regionkey",
        "SELECT count(*) FROM customer WHERE c_nationkey NOT IN (SELECT n_nationkey FROM nation WHERE n_regionkey = 1)",
    ];
    // Also if they are too large to be sent to all workers.
    let no_broadcasts = PlanOptions { broadcast_max: Some((1, 1)), ..PlanOptions::default() };
    let without_broadcasts = workers.cluster().with_options(no_broadcasts);
    for cluster in [&cluster, &without_broadcasts] {
        let plan = cluster.query_whole(in_place).await.unwrap().plan();
        assert!(!plan.contains("Broadcast") && !plan.contains("mode=Partitioned"), "{plan}");
    }
    for lost in 0..2 {
        for sql in queries {
            let answer = cluster.query_whole(sql).await.unwrap();
            assert_eq!(answer.lost().len(), lost, "{sql}");
            let answer = answer.collect().await.unwrap();
            answers_equal(&answer, &expected(&alone, sql).await)
                .unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        if lost == 0 {
            // One of the workers that would read the only shard of such a table.
            workers.kill(0);
        }
    }
}

/// Sums of the workers' reports.
async fn sum(cluster: &Cluster, of: fn(&WorkerReport) -> u64) -> u64 {
    cluster.reports().await.unwrap().values().flatten().map(of).sum()
}

/// Bytes that the workers have read, when no scan adds any more: scans count when they are dropped.
async fn settled_read_bytes(cluster: &Cluster) -> u64 {
    let (began, mut before) = (Instant::now(), None);
    loop {
        let read = sum(cluster, |report| report.read_bytes).await;
        if before == Some(read) {
            return read;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the workers read on and on");
        before = Some(read);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_tell_scans_of_their_stage_which_rows_they_need() {
    let workers = Workers::ready(2).await;
    let filtered = workers.cluster();
    let unfiltered =
        workers.cluster().with_options(PlanOptions { dynamic_filters: false, ..PlanOptions::default() });
    let sql = "SELECT count(*), sum(o_totalprice) FROM orders JOIN customer ON o_custkey = c_custkey \
               WHERE c_name = 'Customer#000000007'";
    let expected = expected(&alone().await, sql).await;
    let mut read = Vec::new();
    for (cluster, filters) in [(&filtered, 1), (&unfiltered, 0)] {
        let before = settled_read_bytes(cluster).await;
        let answer = cluster.query_whole(sql).await.unwrap();
        assert_eq!(answer.dynamic_filters(), DynamicFilters { given: filters, in_stage: filters });
        answers_equal(&answer.collect().await.unwrap(), &expected).unwrap();
        read.push(settled_read_bytes(cluster).await - before);
    }
    // The price is read of shards with orders of the customer.
    assert!(read[0] * 10 < read[1] * 9, "bytes with and without filter: {read:?}");
}

/// Waits until no worker reads ahead. Nothing but the end of their query ends such reads.
async fn nothing_is_ahead(cluster: &Cluster) {
    let began = Instant::now();
    while sum(cluster, |report| report.ahead).await > 0 {
        assert!(began.elapsed() < LIMIT, "reads of a query that has ended go on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A query whose customers are read when the counts of orders are there: after about a second.
const WAITING: &str = "SELECT c_name, n FROM (SELECT a.o_custkey AS k, count(*) AS n FROM orders a JOIN orders b \
                       ON a.o_orderpriority = b.o_orderpriority GROUP BY a.o_custkey) LEFT JOIN customer ON k = c_custkey";

/// Waits until a worker reads ahead, or the query is over: on a busy machine nobody may have looked in between.
async fn is_ahead(cluster: &Cluster, mut is_over: impl FnMut() -> bool) -> bool {
    while !is_over() {
        if sum(cluster, |report| report.ahead).await > 0 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}

/// How long a test looks for a query that reads ahead.
const LOOKING_MAX: Duration = Duration::from_secs(60);

/// Not after the whole answer, nor after its first rows, and not if stages never start because the query is cancelled or fails.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_ahead_after_a_query() {
    let workers = Workers::ready(2).await;
    let cluster = workers.cluster();
    let sql = "SELECT l_orderkey, l_comment, p_name FROM lineitem LEFT JOIN part ON l_partkey = p_partkey";
    for whole in [true, false] {
        let answer = cluster.query(sql).await.unwrap();
        if whole {
            answer.collect().await.unwrap();
        } else {
            drop(answer);
        }
        nothing_is_ahead(&cluster).await;
    }
    let began = Instant::now();
    loop {
        let of_query = workers.cluster();
        let query = tokio::spawn(async move { of_query.query(WAITING).await });
        if is_ahead(&cluster, || query.is_finished()).await {
            query.abort();
            // Otherwise its stages have started meanwhile.
            if query.await.is_err_and(|error| error.is_cancelled()) {
                break;
            }
        }
        assert!(began.elapsed() < LOOKING_MAX, "nothing is read ahead");
    }
    nothing_is_ahead(&cluster).await;
    let read_bytes = settled_read_bytes(&cluster).await;
    // Later than that, nothing is read either.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(settled_read_bytes(&cluster).await, read_bytes);
    let fails = WAITING.replace("count(*) AS n", "count(1 / (a.o_orderkey - a.o_orderkey)) AS n");
    let error = cluster.query(&fails).await.unwrap_err();
    assert!(error.to_string().contains("ivide by zero"), "{error}");
    nothing_is_ahead(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_answers_as_one_process() {
    all_answers_are_equal(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_workers_answer_as_one_process() {
    all_answers_are_equal(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_workers_answer_as_one_process() {
    all_answers_are_equal(5).await;
}

/// A query with large intermediate rows: hundreds of milliseconds on any machine.
const LONG: &str = "SELECT count(*), sum(a.l_linenumber * b.l_linenumber) FROM lineitem a \
                    JOIN lineitem b ON a.l_partkey = b.l_partkey JOIN lineitem c ON b.l_suppkey = c.l_suppkey \
                    WHERE c.l_linenumber = 1";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_replaced_by_replicas() {
    let mut workers = Workers::ready(3).await;
    let expected = expected(&alone().await, LONG).await;
    let cluster = workers.cluster();
    // The first run makes connections.
    let mut whole = Duration::ZERO;
    for _ in 0..2 {
        let began = Instant::now();
        answers_equal(&cluster.query_whole(LONG).await.unwrap().collect().await.unwrap(), &expected).unwrap();
        whole = began.elapsed();
    }
    let mut again = 0;
    for round in 0..6_u32 {
        let victim = (round % 3) as usize;
        let began = Instant::now();
        let query = cluster.query_whole(LONG);
        let kill = async {
            tokio::time::sleep(whole * (round + 1) / 8).await;
            workers.kill(victim);
        };
        let (answer, ()) = tokio::join!(query, kill);
        let answer = answer.unwrap_or_else(|error| panic!("round {round}: {error}"));
        again += usize::from(answer.plans() > 1);
        answers_equal(&answer.collect().await.unwrap(), &expected).unwrap();
        assert!(began.elapsed() < LIMIT, "round {round}: {:?}", began.elapsed());
        workers.start(victim, 1, "");
        workers.wait(3).await;
        workers.used_by(&cluster).await;
    }
    assert!(again > 0, "no kill was in mid-query");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_after_rows_were_returned_is_named() {
    let mut workers = Workers::ready(3).await;
    let cluster = workers.cluster();
    // 36 million rows.
    let sql =
        "SELECT a.l_comment, b.l_shipinstruct FROM lineitem a JOIN lineitem b ON a.l_suppkey = b.l_suppkey";
    let mut answer = cluster.query(sql).await.unwrap();
    let first = answer.next().await.unwrap().unwrap();
    let victim = workers.addresses[1].clone();
    workers.kill(1);
    let began = Instant::now();
    let mut rows = first.num_rows() as u64;
    let error = loop {
        match answer.next().await {
            Some(Ok(batch)) => rows += batch.num_rows() as u64,
            Some(Err(error)) => break error,
            None => panic!("{rows} rows look like the whole answer"),
        }
    };
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    assert!(answer.next().await.is_none());
    let ClusterError::Partial(lost) = &error else { panic!("{error}") };
    assert_eq!((&lost.worker, lost.rows), (&victim, rows));
    assert!(error.to_string().contains("run the query again"), "{error}");
}

/// Its queries go on to their end. New ones use a connection that is there, or the replicas of its shards.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_end_ends_after_its_queries() {
    let mut workers = Workers::ready(3).await;
    let cluster = workers.cluster();
    // More rows than connections hold, and no stage that would start later.
    let from = "FROM lineitem a JOIN lineitem b ON a.l_orderkey = b.l_orderkey \
                JOIN lineitem c ON b.l_orderkey = c.l_orderkey";
    let expected = count(&expected(&alone().await, &format!("SELECT count(*) {from}")).await) as usize;
    let columns = "repeat(a.l_comment, 10), b.l_comment, c.l_comment";
    let mut answer = cluster.query(&format!("SELECT {columns} {from}")).await.unwrap();
    let mut rows = answer.next().await.unwrap().unwrap().num_rows();
    workers.signal(1, libc::SIGTERM);
    // It has stopped to listen while its query runs.
    let began = Instant::now();
    while TcpStream::connect(&workers.addresses[1]).is_ok() {
        assert!(began.elapsed() < LIMIT, "it listens on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Others go on, with it on the connection that is there, or without it.
    let orders = "SELECT count(*) FROM orders";
    let others = cluster.query_whole(orders).await.unwrap().collect().await.unwrap();
    answers_equal(&others, &self::expected(&alone().await, orders).await).unwrap();
    // Connections without queries have 2 s to end.
    tokio::time::sleep(Duration::from_secs(3)).await;
    while let Some(batch) = answer.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, expected);
    drop(answer);
    let ended = workers.ended(1).await;
    assert!(ended.success(), "{ended}");
}

/// Not even a handshake, as of a machine that was switched off.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_sends_nothing_does_not_keep_a_worker_from_ending() {
    let mut workers = Workers::ready(1).await;
    let silent = TcpStream::connect(&workers.addresses[0]).unwrap();
    // Connections are accepted one after the other.
    assert_eq!(workers.cluster().reports().await.unwrap().len(), 1);
    workers.signal(0, libc::SIGTERM);
    let ended = workers.ended(0).await;
    assert!(ended.success(), "{ended}");
    drop(silent);
}

/// `sql` with an expression for `ONE` that is 1, and panics in the row whose `key` is `value`: no memory has so many bytes.
fn panicking(sql: &str, key: &str, value: i64) -> String {
    let count = format!("CASE WHEN {key} = {value} THEN {} ELSE 1 END", i64::MAX);
    sql.replace("ONE", &format!("octet_length(repeat(arrow_cast('x', 'LargeUtf8'), {count}))"))
}

/// Of one of its tasks. Without the error, the rows of that task are missing in an answer that looks whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_on_a_worker_is_an_error_of_the_query() {
    let workers = Workers::ready(2).await;
    let counted = PlanOptions { are_tasks_counted: true, ..PlanOptions::default() };
    for cluster in [workers.cluster(), workers.cluster().with_options(counted)] {
        for (sql, key, operator) in [
            ("SELECT max(ONE) FROM orders", "o_orderkey", "NetworkCoalesceExec"),
            (
                "SELECT max(n) FROM lineitem JOIN (SELECT o_custkey, ONE AS n FROM orders) ON l_suppkey = o_custkey",
                "o_orderkey",
                "NetworkBroadcastExec",
            ),
            (
                "SELECT max(n) FROM (SELECT o_custkey, max(ONE) AS n FROM orders GROUP BY o_custkey)",
                "o_orderkey",
                "NetworkShuffleExec",
            ),
            // The coordinator reads from a worker, which filters.
            ("SELECT count(*) FROM nation WHERE ONE = 1 AND n_nationkey = 7", "n_nationkey", "ShardScanExec"),
        ] {
            let error = cluster.query_whole(&panicking(sql, key, 7)).await.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, ClusterError::Query(_)) && text.contains("please report it"), "{text}");
            assert!(workers.addresses.iter().any(|worker| text.contains(worker)), "{text}");
            // The workers go on.
            let answer = cluster.query_whole(&panicking(sql, key, -1)).await.unwrap();
            assert!(answer.lost().is_empty() && answer.plan().contains(operator), "{}", answer.plan());
            assert_eq!(count(&answer.collect().await.unwrap()), 1, "{sql}");
        }
    }
}

/// A join of the coordinator has no exchange below it.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_below_a_join_of_the_coordinator_does_not_shorten_the_answer() {
    let workers = Workers::ready(2).await;
    let sql = "SELECT max(n) FROM (SELECT n_nationkey, ONE AS n FROM nation) \
               JOIN (SELECT c_nationkey FROM customer ORDER BY c_acctbal LIMIT 500) ON n_nationkey = c_nationkey";
    let cluster = workers.cluster();
    let answer = cluster.query_whole(&panicking(sql, "n_nationkey", -1)).await.unwrap();
    let plan = answer.plan();
    assert!(plan.contains("HashJoinExec: mode=CollectLeft"), "{plan}");
    assert_eq!(count(&answer.collect().await.unwrap()), 1);
    let query = async move { cluster.query_whole(&panicking(sql, "n_nationkey", 7)).await.map(|_| ()) };
    let ended = tokio::spawn(query).await;
    assert!(!matches!(ended, Ok(Ok(()))), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_worker_is_left_out() {
    let workers = Workers::ready(3).await;
    let expected = expected(&alone().await, LONG).await;
    let cluster = workers.cluster();
    let began = Instant::now();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        workers.signal(2, libc::SIGSTOP);
    };
    let (answer, ()) = tokio::join!(cluster.query_whole(LONG), stop);
    let answer = answer.unwrap();
    answers_equal(&answer.collect().await.unwrap(), &expected).unwrap();
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    // It is known by now, so that queries do not wait 2 s for it. One of them may wait for a busy machine.
    let mut seconds = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        let answer = cluster.query_whole("SELECT count(*) FROM orders").await.unwrap();
        assert!(answer.lost()[0].contains(&workers.addresses[2]), "{:?}", answer.lost());
        seconds.push(began.elapsed().as_secs_f64());
    }
    assert!(seconds.iter().any(|&seconds| seconds < 2.0), "{seconds:?}");
    workers.signal(2, libc::SIGCONT);
    workers.used_by(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_replicas_are_an_error_that_names_them() {
    let mut workers = Workers::ready(3).await;
    let cluster = workers.cluster();
    workers.kill(0);
    workers.kill(2);
    let began = Instant::now();
    let error = cluster.query_whole("SELECT count(*) FROM orders").await.unwrap_err();
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    assert!(matches!(error, ClusterError::Lost { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&workers.addresses[0]) && text.contains(&workers.addresses[2]), "{text}");
    workers.kill(1);
    let error = cluster.query_whole("SELECT 1").await.unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable { .. }), "{error}");
}

/// Not of each shard, and not of each task that a side of a join is sent to.
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_of_the_whole_answer() {
    let workers = Workers::ready(3).await;
    for partitions in [1, 2, 8] {
        let cluster = Cluster::new(workers.addresses.clone(), partitions).unwrap();
        for (sql, expected) in [
            ("SELECT count(*) FROM (SELECT o_orderkey FROM orders LIMIT 10)", 10),
            ("SELECT count(*) FROM (SELECT n_name FROM nation LIMIT 10)", 10),
            (
                "SELECT max(c_custkey) - min(c_custkey) FROM orders CROSS JOIN (SELECT c_custkey FROM customer LIMIT 1)",
                0,
            ),
            (
                "SELECT max(n_nationkey) - min(n_nationkey) FROM orders CROSS JOIN (SELECT n_nationkey FROM nation LIMIT 1)",
                0,
            ),
            (
                "SELECT count(DISTINCT c_custkey) FROM orders JOIN (SELECT c_custkey FROM customer LIMIT 50) c \
                 ON o_custkey % 2 = c_custkey % 2",
                50,
            ),
        ] {
            // The order in which rows arrive changes.
            for _ in 0..5 {
                let answer = cluster.query_whole(sql).await.unwrap();
                let plan = answer.plan();
                assert_eq!(count(&answer.collect().await.unwrap()), expected, "{sql}\n{plan}");
            }
        }
    }
}

fn count(batches: &[RecordBatch]) -> i64 {
    batches[0].column(0).as_primitive::<Int64Type>().value(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_worker_joins_and_shards_are_read_from_others_until_then() {
    let mut workers = Workers::new(3);
    workers.start(0, 1, "");
    workers.start(1, 1, "");
    workers.wait(2).await;
    let cluster = workers.cluster();
    let answer = cluster.query_whole("SELECT count(*) FROM lineitem").await.unwrap();
    assert!(answer.lost()[0].contains(&workers.addresses[2]), "{:?}", answer.lost());
    assert_eq!(count(&answer.collect().await.unwrap()), 60_175);
    workers.start(2, 1, "");
    workers.wait(3).await;
    workers.used_by(&cluster).await;
    let answer = cluster.query_whole("SELECT count(*) FROM lineitem").await.unwrap();
    assert_eq!(answer.lost(), Vec::<String>::new());
    assert_eq!(count(&answer.collect().await.unwrap()), 60_175);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_another_version_are_not_used() {
    let mut workers = Workers::new(3);
    workers.start(0, 2, "");
    workers.start(1, 2, "");
    workers.start(2, 1, "");
    workers.wait(3).await;
    let cluster = workers.cluster();
    let answer = cluster.query_whole("SELECT count(*) FROM lineitem").await.unwrap();
    let lost = answer.lost();
    assert!(lost[0].contains(&workers.addresses[2]) && lost[0].contains("version 1"), "{lost:?}");
    assert_eq!(count(&answer.collect().await.unwrap()), 60_175);
    // The same version with another number of shards.
    workers.kill(2);
    workers.start(2, 2, "shards = 5");
    workers.wait(3).await;
    let error = cluster.query_whole("SELECT count(*) FROM lineitem").await.unwrap_err();
    assert!(matches!(error, ClusterError::Contradiction { version: 2, .. }), "{error}");
}

/// A file that was replaced when some workers had loaded it: their rows are of another time.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_other_files_is_not_used() {
    let mut workers = Workers::new(3);
    let changed = workers.directory.path().join("changed.parquet");
    let file = changed.to_str().unwrap().to_owned();
    fs::copy(tpch_file(&files(), "nation"), &changed).unwrap();
    workers.start_with(0, 1, "", &[("nation", &file)]);
    workers.start_with(2, 1, "", &[("nation", &file)]);
    workers.wait(2).await;
    fs::copy(tpch_file(&files(), "region"), &changed).unwrap();
    workers.start_with(1, 1, "", &[("nation", &file)]);
    workers.wait(3).await;
    let answer = workers.cluster().query_whole("SELECT count(*) FROM nation").await.unwrap();
    let lost = answer.lost();
    assert!(
        lost.len() == 1 && lost[0].contains(&workers.addresses[1]) && lost[0].contains("other files"),
        "{lost:?}"
    );
    assert_eq!(count(&answer.collect().await.unwrap()), 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_changes_is_noticed_by_the_next_query() {
    let mut workers = Workers::ready(2).await;
    let cluster = workers.cluster();
    for version in 2..4 {
        for worker in 0..2 {
            workers.kill(worker);
            workers.start(worker, version, &format!("shards = {version}"));
        }
        workers.wait(2).await;
        let answer = cluster.query_whole("SELECT count(*), max(l_comment) FROM lineitem").await.unwrap();
        assert_eq!(count(&answer.collect().await.unwrap()), 60_175);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_changes_under_a_query_gives_all_rows_or_an_error() {
    let mut workers = Workers::ready(3).await;
    let expected = expected(&alone().await, LONG).await;
    let cluster = workers.cluster();
    for (version, worker) in [(2, 0), (2, 1), (2, 2), (3, 0)] {
        let change = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            workers.kill(worker);
            workers.start(worker, version, &format!("shards = {}", 6 * version));
        };
        let began = Instant::now();
        let (answer, ()) = tokio::join!(cluster.query_whole(LONG), change);
        assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        match answer {
            Ok(answer) => answers_equal(&answer.collect().await.unwrap(), &expected).unwrap(),
            // With two workers of another version, no worker has some shards.
            Err(ClusterError::Lost { .. }) => {}
            Err(error) => panic!("version {version} of worker {worker}: {error}"),
        }
        workers.wait(3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_worker_is_waited_for() {
    let workers = Workers::ready(3).await;
    let expected = expected(&alone().await, LONG).await;
    let cluster = workers.cluster();
    let slow = async {
        loop {
            // It runs a quarter of the time, and answers pings in time.
            workers.signal(1, libc::SIGSTOP);
            tokio::time::sleep(Duration::from_millis(60)).await;
            workers.signal(1, libc::SIGCONT);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = tokio::select! {
        answer = cluster.query_whole(LONG) => answer.unwrap(),
        () = slow => unreachable!("it never ends"),
    };
    workers.signal(1, libc::SIGCONT);
    assert_eq!((answer.plans(), answer.lost()), (1, vec![]));
    answers_equal(&answer.collect().await.unwrap(), &expected).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_dies_leaves_nothing_behind_and_the_next_one_answers() {
    let workers = Workers::ready(2).await;
    let next = workers.cluster();
    let began = Instant::now();
    loop {
        let mut coordinator = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"))
            .args(["sql", "--cluster", &workers.addresses[0], WAITING])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let dies_early = is_ahead(&next, || coordinator.try_wait().unwrap().is_some()).await;
        coordinator.kill().unwrap();
        coordinator.wait().unwrap();
        if dies_early {
            break;
        }
        assert!(began.elapsed() < LOOKING_MAX, "nothing is read ahead");
    }
    nothing_is_ahead(&next).await;
    // They may still be busy with the query when they learn of its end.
    workers.used_by(&next).await;
    let answer = next.query_whole(LONG).await.unwrap();
    assert_eq!((answer.plans(), answer.lost()), (1, vec![]));
    answers_equal(&answer.collect().await.unwrap(), &expected(&alone().await, LONG).await).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_queries_are_errors_of_the_query() {
    let workers = Workers::ready(1).await;
    let cluster = workers.cluster();
    for (sql, expected) in [
        ("SELECT count(*) FROM nowhere", "nowhere"),
        ("SELECT o_orderkey / (o_orderkey - o_orderkey) FROM orders", "ivide by zero"),
        ("CREATE TABLE t (a INT)", "DDL"),
        ("SELECT", "xpected"),
    ] {
        let error = cluster.query_whole(sql).await.unwrap_err();
        assert!(matches!(error, ClusterError::Query(_)), "{sql}: {error}");
        assert!(error.to_string().contains(expected), "{sql}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_rows_and_names_lost_workers() {
    let mut workers = Workers::ready(2).await;
    workers.kill(0);
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_memferry-cluster"))
            .args(["sql", "--cluster", &workers.addresses.join(",")])
            .args(arguments)
            .output()
            .unwrap()
    };
    let output =
        run(&["--format", "csv", "SELECT n_name, n_nationkey FROM nation ORDER BY n_nationkey LIMIT 2;"]);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{err}");
    assert_eq!(out, "n_name,n_nationkey\nALGERIA,0\nARGENTINA,1\n");
    assert!(err.contains(&format!("note: worker {} failed", workers.addresses[0])), "{err}");
    let output = run(&["SELECT x FROM nation"]);
    assert!(!output.status.success());
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.starts_with("error: ") && err.contains('x'), "{err}");
}

/// The work that `bench cluster --machine` predicts from: bytes that follow from the tables and from the plans.
#[test]
fn work_of_queries_follows_from_tables_and_plans() {
    let _alone = ONE_CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("work");
    let output = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"))
        .args(["work", "--tpch", "0.04", "--rounds", "1", "--files"])
        .arg(&directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let work: ClusterWork = serde_json::from_slice(&output.stdout).unwrap();
    let query = |number: usize| work.queries.iter().find(|query| query.query == number).unwrap();
    let of = |number: usize, kind: ExchangeKind| -> f64 {
        let exchanges = query(number).exchanges.iter().filter(|exchange| exchange.kind == kind);
        exchanges.map(|exchange| exchange.sent_bytes[1]).sum()
    };
    assert_eq!((work.scales, work.workers, work.queries.len()), ([0.01, 0.04], [2, 6], 22));
    // Three decimals of 16 bytes, and a date; lineitem has about 6 million rows for each unit of scale.
    let rows = query(6).scanned_bytes.map(|bytes| bytes / 52.0);
    assert!((rows[0] / 60_000.0 - 1.0).abs() < 0.02 && (rows[1] / 240_000.0 - 1.0).abs() < 0.02, "{rows:?}");
    // Of a sum, each worker sends a row.
    let sum = of(6, ExchangeKind::Gather);
    assert!(sum > 0.0 && sum < 20_000.0, "{sum}");
    // Orders and lineitem are joined where they are. Orders go to their customers: two integers of 8 bytes, and five of six cross
    // between six workers. Few have a comment that the query excludes.
    let kept = of(12, ExchangeKind::Shuffle);
    assert!(kept < 0.01 * query(12).scanned_bytes[1], "{kept}");
    let orders = 60_000.0 * 16.0 * 5.0 / 6.0;
    let sent = of(13, ExchangeKind::Shuffle);
    assert!((0.5 * orders..3.0 * orders).contains(&sent), "{sent} for {orders}");
    // Customers of an order, and parts of a line, are elsewhere: as at a large scale, no table but nation and region is sent to all.
    assert!(of(9, ExchangeKind::Shuffle) > 20.0 * of(9, ExchangeKind::Broadcast), "{:?}", query(9));
    let broadcast = of(5, ExchangeKind::Broadcast);
    assert!(broadcast > 0.0, "nation goes to all workers: {:?}", query(5));
    // With tables this small, messages take most of the CPU time, so it need not grow with the rows.
    let cpu = |scale: usize| work.queries.iter().map(|query| query.workers_cpu_s[scale]).sum::<f64>();
    assert!(cpu(0) > 0.0 && cpu(1) > 0.0, "{} and {}", cpu(0), cpu(1));
    assert!(work.queries.iter().map(|query| query.coordinator_cpu_s[0]).sum::<f64>() > 0.0);
    assert!((0.0..0.5).contains(&work.shard_skew) && work.shard_skew > 0.0, "{}", work.shard_skew);
}
