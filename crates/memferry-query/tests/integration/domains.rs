//! Queries on two logical domains of one CPU each: the answers of plain DataFusion, on the right threads, and nothing is left.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use memferry::mover::{DsaEngine, DsaOptions, EngineKind};
use memferry::topology::{Machine, NodeId};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_query::{
    DomainExec, Prefetch, QueryDomains, SessionOptions, TableData, TieredScanExec, TieredTable, Tiers,
    session,
};
use memferry_schedule::{Binding, Domains, Stealing};
use memferry_testing::{Needs, skip};

use crate::dsa_support::Dsa;
use crate::prefetch::{
    PARTITIONS, QUERIES, explain, options, plain, run, set, table, table_of, tiers, two_tiers,
};

const BINDINGS: [&str; 4] = ["none", "preferred", "opportunistic", "always"];
const STEALING: [&str; 4] = ["off", "neighbour", "any", "bulk(3)"];

/// One CPU each, of the first node; `None` with fewer CPUs.
pub(crate) fn two_domains() -> Option<Arc<QueryDomains>> {
    let domains = Domains::of(&Machine::discover().unwrap()).unwrap();
    let domains = domains.on(&[domains[0].cpu_node]).unwrap().split(2);
    if domains.is_err() {
        skip(Needs::Cpus(2), "the first node has one CPU");
    }
    domains.ok().map(QueryDomains::new)
}

/// A session on `domains` with the table `t`, and the function `seen`, which returns its argument.
async fn on(
    domains: &Arc<QueryDomains>,
    prefetch: Prefetch,
    binding: &str,
    stealing: &str,
) -> SessionContext {
    let context = session(&SessionOptions { domains: Some(Arc::clone(domains)), ..options(prefetch) });
    register_table(&context, "t", table(&two_tiers()));
    set(&context, &format!("memferry.binding = '{binding}'")).await;
    set(&context, &format!("memferry.stealing = '{stealing}'")).await;
    context
}

fn register_table(context: &SessionContext, name: &str, data: Arc<TableData>) {
    let table = TieredTable::try_new(data, tiers(&two_tiers(), Dsa::None)).unwrap();
    context.register_table(name, Arc::new(table)).unwrap();
}

/// Registers `name`, which calls `look` for each batch and returns its argument.
fn register(context: &SessionContext, name: &str, look: impl Fn(&ArrayRef) + Send + Sync + 'static) {
    let function = move |arguments: &[ColumnarValue]| -> Result<ColumnarValue> {
        let [ColumnarValue::Array(values)] = arguments else { return Ok(arguments[0].clone()) };
        look(values);
        Ok(arguments[0].clone())
    };
    context.register_udf(create_udf(
        name,
        vec![DataType::Int64],
        DataType::Int64,
        Volatility::Volatile,
        Arc::new(function),
    ));
}

async fn planned(context: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    context.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

fn metric(plan: &dyn ExecutionPlan, name: &str) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name(name)).map_or(0, |sum| sum.as_usize());
    own + plan.children().into_iter().map(|child| metric(child.as_ref(), name)).sum::<usize>()
}

fn count<T: ExecutionPlan>(plan: &dyn ExecutionPlan) -> usize {
    let own = usize::from(plan.downcast_ref::<T>().is_some());
    own + plan.children().into_iter().map(|child| count::<T>(child.as_ref())).sum::<usize>()
}

/// Waits until no task is left on the domains: an aborted one ends when its worker comes to it.
async fn nothing_is_left(domains: &QueryDomains, binding: Binding) {
    let scheduler = domains.scheduler(binding).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while scheduler.metrics().iter().any(|domain| domain.tasks_alive > 0) {
        assert!(Instant::now() < until, "tasks are left: {:?}", scheduler.metrics());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_binding_with_each_way_of_stealing_has_the_answers_of_plain_datafusion() {
    let Some(domains) = two_domains() else { return };
    let plain = plain(&table(&two_tiers()));
    let mut expected = vec![];
    for sql in QUERIES {
        expected.push(run(&plain, sql).await.0);
    }
    for binding in BINDINGS {
        for stealing in STEALING {
            let context = on(&domains, Prefetch::Always, binding, stealing).await;
            for (sql, expected) in QUERIES.iter().zip(&expected) {
                assert_eq!(&run(&context, sql).await.0, expected, "{binding}, {stealing}: {sql}");
            }
        }
    }
    for binding in [Binding::Preferred, Binding::Opportunistic, Binding::Always] {
        nothing_is_left(&domains, binding).await;
    }
}

/// The caller's runtime has one thread, which polls everything that is not on a domain.
#[tokio::test]
async fn the_caller_may_have_one_thread() {
    let Some(domains) = two_domains() else { return };
    let plain = plain(&table(&two_tiers()));
    for binding in BINDINGS {
        let context = on(&domains, Prefetch::Off, binding, "any").await;
        for sql in QUERIES {
            assert_eq!(run(&context, sql).await.0, run(&plain, sql).await.0, "{binding}: {sql}");
        }
    }
}

#[tokio::test]
async fn with_one_domain_plans_are_those_without() {
    let Some(two) = two_domains() else { return };
    let one = Domains::of(&Machine::discover().unwrap()).unwrap();
    let one = QueryDomains::new(one.on(&[one[0].cpu_node]).unwrap());
    let unbound = on(&two, Prefetch::Off, "none", "any").await;
    let machine = two_tiers();
    let without = session(&options(Prefetch::Off));
    let t = TieredTable::try_new(table(&machine), tiers(&machine, Dsa::None)).unwrap();
    without.register_table("t", Arc::new(t)).unwrap();
    for binding in BINDINGS {
        let context = on(&one, Prefetch::Off, binding, "any").await;
        for sql in QUERIES {
            let expected = explain(&without, sql).await;
            assert_eq!(explain(&context, sql).await, expected, "{binding}: {sql}");
            assert_eq!(explain(&unbound, sql).await, expected, "{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_the_placement_and_metrics_count_it() {
    let Some(domains) = two_domains() else { return };
    let sql = "select a, count(*), sum(b) from t group by a order by a";
    let row_groups = table(&two_tiers()).partitions().iter().map(Vec::len).sum::<usize>();
    // A hop below: the hash exchange, the final merge. With `preferred` the scan alone.
    for (binding, hops) in [("preferred", 1), ("opportunistic", 2), ("always", 3)] {
        let context = on(&domains, Prefetch::Off, binding, "bulk(3)").await;
        let plan = planned(&context, sql).await;
        let shown = displayable(plan.as_ref()).indent(true).to_string();
        assert!(shown.contains(&format!("DomainExec: binding={binding}, domains=[0, 1]")), "{shown}");
        assert!(shown.contains("stealing=bulk(3)"), "{shown}");
        assert_eq!(count::<DomainExec>(plan.as_ref()), hops, "{shown}");

        collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
        assert!(metric(plan.as_ref(), "hops") > 0, "{binding}");
        let read = ["row_groups_local", "row_groups_same_socket", "row_groups_remote"]
            .map(|name| metric(plan.as_ref(), name));
        assert_eq!(read.iter().sum::<usize>(), row_groups, "{binding}: {read:?}");
        let bytes =
            ["bytes_local", "bytes_same_socket", "bytes_remote"].map(|name| metric(plan.as_ref(), name));
        assert!(bytes[0] > 0 && (bytes[1] > 0) == (read[1] > 0) && bytes[2] == 0, "{binding}: {bytes:?}");
        // All of `a`, and `b` with its bitmap.
        let all = 20_000 * 16;
        assert!((all..all + 20_000).contains(&bytes.iter().sum::<usize>()), "{binding}: {bytes:?}");
        let shown = displayable_with_metrics(plan.as_ref());
        assert!(shown.contains("row_groups_local{partition=0, domain=0}"), "{shown}");
    }
    // A table of fewer row groups than domains is not worth a hop.
    let context = on(&domains, Prefetch::Off, "opportunistic", "any").await;
    context.register_batch("small", RecordBatch::try_from_iter([("a", int64([1, 2]))]).unwrap()).unwrap();
    let plan = planned(&context, "select sum(a) from small group by a").await;
    assert_eq!(count::<DomainExec>(plan.as_ref()), 0);
}

/// A partition that runs alone reads all row groups: its own, and those of the other domain of the socket.
#[tokio::test]
async fn metrics_say_how_far_row_groups_are() {
    let Some(domains) = two_domains() else { return };
    let context = on(&domains, Prefetch::Off, "opportunistic", "any").await;
    let plan = planned(&context, "select a from t").await;
    assert_eq!(rows(plan.as_ref(), &context.task_ctx(), &[1]).await.len(), 20_000);
    let found = |unit: &str| {
        ["local", "same_socket", "remote"].map(|it| metric(plan.as_ref(), &format!("{unit}_{it}")))
    };
    // Partitions lie in the two domains in turns.
    let data = table(&two_tiers());
    let of_domain = |domain: usize| data.partitions().iter().skip(domain).step_by(2).flatten();
    let groups = [1, 0].map(|domain| of_domain(domain).count());
    assert_eq!(found("row_groups"), [groups[0], groups[1], 0]);
    let rows = [1, 0].map(|domain| of_domain(domain).map(|group| group.rows()).sum::<usize>());
    let bytes = found("bytes");
    for (rows, bytes) in rows.into_iter().zip(bytes) {
        // Values and their validity, and each buffer is rounded up.
        assert!((8 * rows..8 * rows + rows / 4).contains(&bytes), "{bytes} bytes of {rows} rows");
    }
    assert_eq!(bytes[2], 0);
}

/// On the same domain they would all wait for its scans, and the other domains would be idle.
#[tokio::test]
async fn the_ends_of_aggregations_take_the_domains_in_turns() {
    let Some(domains) = two_domains() else { return };
    let context = on(&domains, Prefetch::Off, "opportunistic", "any").await;
    let count = "select count(*) from t where b > 3";
    let shown = explain(&context, &format!("{count} union all {count} union all {count}")).await;
    let of = |domains: &str| shown.matches(&format!("domains=[{domains}]")).count();
    let (first, second) = (of("0"), of("1"));
    assert!(first + second == 3 && first.abs_diff(second) == 1, "{shown}");
    assert_eq!(of("0, 1"), 3, "the scans: {shown}");
}

fn displayable_with_metrics(plan: &dyn ExecutionPlan) -> String {
    datafusion::physical_plan::display::DisplayableExecutionPlan::with_full_metrics(plan)
        .indent(true)
        .to_string()
}

fn int64(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// The rows of `partitions` of a plan, which are executed one after the other.
async fn rows(plan: &dyn ExecutionPlan, context: &Arc<TaskContext>, partitions: &[usize]) -> Vec<i64> {
    let mut rows = vec![];
    for &partition in partitions {
        let mut stream = plan.execute(partition, Arc::clone(context)).unwrap();
        while let Some(batch) = stream.next().await {
            rows.extend(batch.unwrap().column(0).as_primitive::<Int64Type>().values());
        }
    }
    rows.sort_unstable();
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_run_alone_in_any_order_and_again() {
    let Some(domains) = two_domains() else { return };
    let sql = "select a from t";
    let all_partitions: Vec<usize> = (0..PARTITIONS).collect();
    let reversed: Vec<usize> = (0..PARTITIONS).rev().collect();
    for stealing in STEALING {
        let context = on(&domains, Prefetch::Always, "preferred", stealing).await;
        let plan = planned(&context, sql).await;
        assert_eq!((count::<DomainExec>(plan.as_ref()), count::<TieredScanExec>(plan.as_ref())), (1, 1));
        let task = context.task_ctx();
        let all = rows(plan.as_ref(), &task, &all_partitions).await;
        assert_eq!(all.len(), 20_000, "{stealing}");
        // In the same execution, and in another one after a partition that ran alone.
        assert_eq!(rows(plan.as_ref(), &task, &reversed).await, all, "{stealing}");
        let alone = rows(plan.as_ref(), &context.task_ctx(), &[1]).await;
        assert_eq!(
            alone.len() == all.len(),
            matches!(stealing, "any" | "neighbour" | "bulk(3)"),
            "{stealing}"
        );
        assert_eq!(rows(plan.as_ref(), &context.task_ctx(), &reversed).await, all, "{stealing}");
        // Two executions at once, whose partitions take turns.
        let (one, other) = (context.task_ctx(), context.task_ctx());
        let (mut of_one, mut of_other) = (vec![], vec![]);
        for &partition in &all_partitions {
            of_one.extend(rows(plan.as_ref(), &one, &[partition]).await);
            of_other.extend(rows(plan.as_ref(), &other, &[PARTITIONS - 1 - partition]).await);
        }
        of_one.sort_unstable();
        of_other.sort_unstable();
        assert!(of_one == all && of_other == all, "{stealing}");
    }
}

/// The scan of a plan.
fn scan_of(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    if plan.downcast_ref::<TieredScanExec>().is_some() { plan } else { scan_of(plan.children()[0]) }
}

/// Its row groups were once read by the next execution in the same context, which had them from its own partitions too.
#[tokio::test]
async fn an_execution_that_was_dropped_early_leaves_no_claims() {
    let Some(domains) = two_domains() else { return };
    let all_partitions: Vec<usize> = (0..PARTITIONS).collect();
    for stealing in STEALING {
        let context = on(&domains, Prefetch::Off, "preferred", stealing).await;
        let plan = planned(&context, "select a from t").await;
        let (scan, task) = (scan_of(&plan).as_ref(), context.task_ctx());
        for dropped in [vec![0], vec![1, 0], vec![0, 0, 0]] {
            for partition in dropped {
                let mut stream = scan.execute(partition, Arc::clone(&task)).unwrap();
                stream.next().await.unwrap().unwrap();
            }
            assert_eq!(rows(scan, &task, &all_partitions).await.len(), 20_000, "{stealing}");
        }
    }
}

/// Partitions that were executed first once opened the row groups of the others for their windows.
#[tokio::test]
async fn a_partition_opens_its_own_row_groups_ahead_and_steals_none() {
    const COUNT: usize = 4;
    let Some(domains) = two_domains() else { return };
    for stealing in STEALING {
        let context = on(&domains, Prefetch::Always, "preferred", stealing).await;
        register_table(&context, "groups", table_of(&two_tiers(), COUNT as i64 * 1024, COUNT, 1024));
        let plan = planned(&context, "select b from groups where a >= 0").await;
        let (scan, task) = (scan_of(&plan), context.task_ctx());
        let streams: Vec<_> =
            (0..COUNT).map(|partition| scan.execute(partition, Arc::clone(&task)).unwrap()).collect();
        for stream in streams {
            let rows: usize =
                stream.map(|batch| batch.unwrap().num_rows()).collect::<Vec<_>>().await.iter().sum();
            assert_eq!(rows, 1024, "{stealing}");
        }
    }
}

#[tokio::test]
async fn a_consumer_on_the_domain_of_a_partition_needs_no_hop() {
    let Some(domains) = two_domains() else { return };
    let context = on(&domains, Prefetch::Off, "opportunistic", "any").await;
    let scheduler = domains.scheduler(Binding::Opportunistic).unwrap();
    for consumer in [0, 1] {
        let plan = planned(&context, "select a from t").await;
        let mut stream = plan.execute(1, context.task_ctx()).unwrap();
        let rows = scheduler.spawn(Some(consumer), async move {
            let mut rows = 0;
            while let Some(batch) = stream.next().await {
                rows += batch.unwrap().num_rows();
            }
            rows
        });
        assert!(rows.await.unwrap() > 0);
        assert_eq!(metric(plan.as_ref(), "hops") > 0, consumer == 0);
    }
}

/// A scan says on which domain it runs, also in a plan without an exchange, or with a union.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_scan_on_domains_runs_there() {
    let Some(domains) = two_domains() else { return };
    let context = on(&domains, Prefetch::Off, "opportunistic", "any").await;
    // Otherwise DataFusion would put an exchange above the table of one partition.
    set(&context, "datafusion.execution.target_partitions = 1").await;
    register_table(&context, "whole", table_of(&two_tiers(), 8 * 1024, 1, 1024));
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let here = Arc::clone(&seen);
    register(&context, "seen", move |_| {
        here.lock().unwrap().insert(std::thread::current().name().unwrap_or_default().to_owned());
    });
    for (sql, hops) in [
        ("select seen(a) from t where b > 7", 1),
        ("select seen(a) from whole", 1),
        ("select seen(a) from t union all select seen(b) from whole", 2),
        (
            "select x, count(*) from (select seen(a) as x from t union all select seen(b) from whole) group by x",
            3,
        ),
    ] {
        let plan = planned(&context, sql).await;
        let shown = displayable(plan.as_ref()).indent(true).to_string();
        assert_eq!(count::<DomainExec>(plan.as_ref()), hops, "{shown}");
        collect(plan, context.task_ctx()).await.unwrap();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert!(!seen.is_empty() && seen.iter().all(|name| name.starts_with("domain-")), "{sql}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_work_stealing_a_partition_reads_its_own_rows() {
    let Some(domains) = two_domains() else { return };
    let context = on(&domains, Prefetch::Off, "opportunistic", "any").await;
    set(&context, "datafusion.execution.enable_file_stream_work_stealing = false").await;
    let plan = planned(&context, "select a from t").await;
    let data = table(&two_tiers());
    for (partition, groups) in data.partitions().iter().enumerate() {
        let mut own: Vec<i64> =
            groups.iter().flat_map(|it| it.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        own.sort_unstable();
        assert_eq!(rows(plan.as_ref(), &context.task_ctx(), &[partition]).await, own, "{partition}");
    }
    assert!(metric(plan.as_ref(), "row_groups_local") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_query_leaves_nothing_behind() {
    let Some(domains) = two_domains() else { return };
    for (name, binding) in [
        ("preferred", Binding::Preferred),
        ("opportunistic", Binding::Opportunistic),
        ("always", Binding::Always),
    ] {
        let context = on(&domains, Prefetch::Off, name, "any").await;
        let (begins, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        register(&context, "held", move |_| {
            let _ = begins.send(());
            // Until the sender is dropped.
            let _ = held.lock().unwrap().recv_timeout(Duration::from_secs(20));
        });
        // Millions of rows, in the joins below exchanges.
        let sql = "select t.b, count(*) from t join t o on held(t.a) % 10 = o.a % 10 group by t.b";
        let query = context.sql(sql).await.unwrap();
        let mut stream = query.execute_stream().await.unwrap();
        tokio::select! {
            _ = begun.recv() => {}
            answer = stream.next() => panic!("{name}: the query does not wait: {answer:?}"),
        }
        let metrics = domains.scheduler(binding).unwrap().metrics();
        assert!(metrics.iter().any(|domain| domain.tasks_alive > 0), "{name}: the query begins on no domain");
        drop(stream);
        drop(release);
        nothing_is_left(&domains, binding).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_and_panics_of_the_input_reach_the_caller() {
    let Some(domains) = two_domains() else { return };
    for (name, binding) in [
        ("preferred", Binding::Preferred),
        ("opportunistic", Binding::Opportunistic),
        ("always", Binding::Always),
    ] {
        let context = on(&domains, Prefetch::Off, name, "any").await;
        let failing = context.sql("select sum(1000 / (a - 5)) from t group by b").await.unwrap();
        let error = failing.collect().await.unwrap_err();
        assert!(error.to_string().contains("ivide by zero"), "{name}: {error}");
        nothing_is_left(&domains, binding).await;

        register(&context, "burst", |values| {
            let values = values.as_primitive::<Int64Type>();
            assert!(values.iter().all(|value| value != Some(7)), "a function that panics");
        });
        let panicking = context.sql("select sum(burst(a)) from t group by b").await.unwrap();
        // As in plain DataFusion: an exchange makes an error of a panic, or the caller gets it.
        match tokio::spawn(panicking.collect()).await {
            Err(error) => assert!(error.is_panic(), "{name}: {error}"),
            Ok(Err(error)) => assert!(error.to_string().contains("panic"), "{name}: {error}"),
            Ok(Ok(_)) => panic!("{name}: the panic is lost"),
        }
        nothing_is_left(&domains, binding).await;
        assert_eq!(
            run(&context, "select count(*) from t where a < 1000").await.0.matches("20000").count(),
            1
        );
    }
}

/// The names of the threads that evaluate `seen`, an expression between the scan and the exchange.
async fn threads(context: &SessionContext) -> BTreeSet<String> {
    let threads = Arc::new(Mutex::new(BTreeSet::new()));
    let here = Arc::clone(&threads);
    register(context, "seen", move |_| {
        here.lock().unwrap().insert(std::thread::current().name().unwrap_or_default().to_owned());
    });
    let (answer, _) =
        run(context, "select count(x) from (select b % 7 as g, seen(a) as x from t) group by g").await;
    assert!(answer.contains("count"), "{answer}");
    let seen = threads.lock().unwrap().clone();
    assert!(!seen.is_empty());
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_run_on_the_domains_that_the_binding_names() {
    let Some(domains) = two_domains() else { return };
    let of_domain = |name: &String| name.starts_with("domain-");
    for binding in ["opportunistic", "always"] {
        let context = on(&domains, Prefetch::Off, binding, "any").await;
        let seen = threads(&context).await;
        assert!(seen.iter().all(of_domain), "{binding}: {seen:?}");
    }
    for binding in ["none", "preferred"] {
        let seen = threads(&on(&domains, Prefetch::Off, binding, "any").await).await;
        assert!(!seen.iter().any(of_domain), "{binding}: {seen:?}");
    }
    for binding in ["opportunistic", "always"] {
        let context = on(&domains, Prefetch::Off, binding, "off").await;
        set(&context, "memferry.domains = '1'").await;
        assert_eq!(threads(&context).await, BTreeSet::from(["domain-1".to_owned()]), "{binding}");
        let plain = plain(&table(&two_tiers()));
        for sql in QUERIES {
            assert_eq!(run(&context, sql).await.0, run(&plain, sql).await.0, "{binding}: {sql}");
        }
    }
}

/// A session on a part of the CPUs once ran anywhere if the part was one domain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_on_one_domain_of_several_runs_there() {
    let Some(two) = two_domains() else { return };
    let cpus = &two.domains()[1].cpus;
    let one = QueryDomains::new(two.domains().confined(cpus).unwrap());
    let plain = plain(&table(&two_tiers()));
    for binding in ["opportunistic", "always"] {
        let context = on(&one, Prefetch::Off, binding, "off").await;
        let cpus_seen = Arc::new(Mutex::new(BTreeSet::new()));
        let here = Arc::clone(&cpus_seen);
        register(&context, "place", move |_| {
            here.lock().unwrap().extend(memferry_dsa::internals::affinity::allowed().unwrap());
        });
        // One partition without an exchange, and several with one.
        register_table(&context, "short", table_of(&two_tiers(), 4000, 1, 1024));
        for table in ["short", "t"] {
            run(&context, &format!("select sum(place(a)) from {table}")).await;
            let seen = std::mem::take(&mut *cpus_seen.lock().unwrap());
            assert_eq!(seen, cpus.iter().copied().collect(), "{binding}: {table}");
        }
        for sql in QUERIES {
            assert_eq!(run(&context, sql).await.0, run(&plain, sql).await.0, "{binding}: {sql}");
        }
    }
    let unbound = on(&one, Prefetch::Off, "none", "any").await;
    assert_eq!(run(&unbound, QUERIES[0]).await.0, run(&plain, QUERIES[0]).await.0);
}

#[tokio::test]
async fn settings_that_cannot_be_met_are_refused() {
    let Some(domains) = two_domains() else { return };
    let context = on(&domains, Prefetch::Off, "none", "any").await;
    let refused = async |context: &SessionContext| {
        let plan = context.sql("select a from t").await.unwrap().create_physical_plan().await;
        plan.unwrap_err().to_string()
    };
    set(&context, "memferry.domains = '1'").await;
    let error = refused(&context).await;
    assert!(error.contains("set memferry.binding to opportunistic or always"), "{error}");
    set(&context, "memferry.binding = 'always'").await;
    set(&context, "memferry.domains = '2'").await;
    let error = refused(&context).await;
    assert!(error.contains("name domains from 0 to 1"), "{error}");
    for wrong in ["memferry.binding = 'sometimes'", "memferry.stealing = 'bulk'"] {
        let error = context.sql(&format!("set {wrong}")).await.unwrap_err();
        assert!(error.to_string().contains("; use "), "{wrong}");
    }
}

/// A machine whose nodes 0 and 1 have one CPU of this machine each, and whose nodes 2 and 3 are faster memory beside them.
fn two_nodes_with_faster_memory() -> Option<Arc<Machine>> {
    let this = Machine::discover().unwrap();
    let cpus: Vec<u32> = this.nodes().iter().flat_map(|node| node.allowed_cpus.clone()).collect();
    let [one, other, ..] = cpus[..] else {
        skip(Needs::Cpus(2), "each node needs one");
        return None;
    };
    let node = |id: u32, cpus: String, tier: &str, cpu_node: u32| {
        format!(
            r#"{{"id": {id}, "socket": 0, "cpus": "{cpus}", "tier": "{tier}", "memory_mib": 4096, "cpu_node": {cpu_node}}}"#
        )
    };
    let nodes = [
        node(0, one.to_string(), "dram", 0),
        node(1, other.to_string(), "dram", 1),
        node(2, String::new(), "hbm", 0),
        node(3, String::new(), "hbm", 1),
    ];
    let text = include_str!("../../../memferry/machines/made-up-two-tiers.json");
    let (before, rest) = text.split_once("\"value\": [").unwrap();
    let (_, after) = rest.split_once("],\n").unwrap();
    let after = after.split_once(",\n  \"placeholders\"").unwrap().0;
    let text = format!("{before}\"value\": [{}],\n{after}}}", nodes.join(", "));
    Some(Arc::new(Machine::from_profile_text("two nodes with faster memory", &text).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_domain_copies_to_its_near_node_by_its_device() {
    let Some(machine) = two_nodes_with_faster_memory() else { return };
    let domains = QueryDomains::new(Domains::of(&machine).unwrap());
    let sql = "select sum(b) from t where a < 300";
    for is_near_of_domains in [true, false] {
        let mut builder = Tiers::builder(Arc::clone(&machine)).budget_bytes(Some(64 << 20));
        for node in [0, 1] {
            let config = DeviceConfig::one_shared_queue().on_node(node);
            let device = Emulator::start(&config, FaultPlan::none()).unwrap();
            let engine = DsaEngine::new(vec![device.portal(0)], DsaOptions::default()).unwrap();
            builder = builder.engine(Arc::new(engine));
        }
        let tiers = builder.near_of_domains(is_near_of_domains).build().unwrap();
        let table = TieredTable::try_new(table_of(&machine, 40_000, 2, 4096), Arc::clone(&tiers)).unwrap();
        table.place(&"numa node (0, 1)".parse().unwrap(), Arc::new(())).await.unwrap();
        let data = table.data();
        let moved: Vec<u64> = tiers.mover().stats().engines.iter().map(|engine| engine.bytes).collect();
        let context = session(&SessionOptions {
            domains: Some(Arc::clone(&domains)),
            binding: Binding::Opportunistic,
            stealing: Stealing::Off,
            ..options(Prefetch::Always)
        });
        context.register_table("t", Arc::new(table)).unwrap();
        set(&context, "memferry.wait_us_max = 10000000").await;
        let decision = match is_near_of_domains {
            true => "CPUs of node 0: always to node 2; CPUs of node 1: always to node 3",
            false => "prefetch=always to node 2",
        };
        let plan = explain(&context, sql).await;
        assert!(plan.contains(decision), "{plan}");
        let (answer, report) = run(&context, sql).await;
        assert_eq!(answer, run(&plain(&data), sql).await.0);
        assert_eq!(report.late_bytes_near, report.late_bytes, "{report:?}");

        // A row group is copied from its home by the device there, to the near node of the domain there.
        let bytes_of = |home: u32| -> u64 {
            let groups = data.partitions().iter().flatten().filter(|group| group.node(1) == NodeId(home));
            groups.map(|group| group.rows() as u64 * 8).sum()
        };
        let engines = tiers.mover().stats().engines;
        let of_device = |home: u32| -> u64 {
            let of = engines
                .iter()
                .zip(&moved)
                .filter(|(engine, _)| engine.kind == EngineKind::Dsa && engine.node == Some(NodeId(home)));
            of.map(|(engine, moved)| engine.bytes - moved).sum()
        };
        assert_eq!((of_device(0), of_device(1)), (bytes_of(0), bytes_of(1)), "{engines:?}");
        let near = tiers.cache().stats().nodes;
        let (budgets, entries): (Vec<_>, Vec<_>) =
            near.iter().map(|usage| (usage.budget_bytes, (usage.node.0, usage.entries_count))).unzip();
        match is_near_of_domains {
            true => assert_eq!((budgets, entries), (vec![32 << 20; 2], vec![(2, 5), (3, 5)])),
            false => assert_eq!((budgets, entries), (vec![64 << 20], vec![(2, 10)])),
        }
        drop(context);
        nothing_is_left(&domains, Binding::Opportunistic).await;
    }
}
