//! Small runs: their answers are right, and their rows say what was run.

use memferry_query::schedule::{Binding, Domains, Stealing};
use memferry_testing::{Needs, skip};

use super::*;

/// Several row groups: fewer are not worth a hop to another domain.
const ROWS: u64 = 300_000;

fn small(statement: Statement) -> Workload {
    Workload {
        rows: ROWS,
        connections: 5,
        statement,
        workers: Workers::All,
        stealing: Stealing::Neighbour,
        binding: Binding::Opportunistic,
        clients: Clients::Anywhere,
        balancing: Balancing::Kept,
    }
}

fn bench() -> Option<SncdbBenchmark> {
    let machine = Arc::new(Machine::discover().unwrap());
    if Domains::of(&machine).unwrap()[0].cpus.len() < 2 {
        skip(Needs::Cpus(2), "the tables are on two domains");
        return None;
    }
    let mut bench = SncdbBenchmark::new(machine, ROWS, 7, &()).unwrap();
    (bench.warm_up, bench.seconds) = (Duration::from_millis(100), 2);
    Some(bench)
}

#[test]
fn all_kinds_of_runs_have_right_answers() {
    let Some(mut bench) = bench() else { return };
    let scan = |on_first| Statement::Scan { on_first, range_pred: 1_000_000 };
    let runs = [
        small(Statement::Random),
        small(scan(2)),
        Workload { stealing: Stealing::Off, ..small(scan(0)) },
        Workload { workers: Workers::First, ..small(scan(3)) },
        Workload { workers: Workers::Second, binding: Binding::None, ..small(scan(6)) },
        Workload { binding: Binding::Always, ..small(scan(3)) },
        Workload { binding: Binding::Preferred, ..small(Statement::Random) },
    ];
    for workload in runs {
        let rows = bench.run(&workload).unwrap();
        let name = workload.name();
        assert!(rows[0].name.starts_with(&format!("{name}_balancing_")), "{rows:?}");
        assert!(rows[0].value > 0.0 && rows[0].samples == 2, "{rows:?}");
        let row = |what: &str| rows.iter().find(|row| row.name.ends_with(what)).map(|row| row.value);
        let fairness = row("_fairness").unwrap();
        assert!(fairness > 0.2 && fairness <= 1.0, "{rows:?}");
        assert!(row("_connection").unwrap() > 0.0 && row("_rss").unwrap() > 0.0, "{rows:?}");
        let is_bound = workload.binding != Binding::None;
        let is_scan = workload.statement != Statement::Random;
        let workers = [0, 1].map(|domain| row(&format!("_workers_{domain}")).unwrap());
        let of_domain = |domain: usize| bench.places.domains[domain].cpus.len() as f64;
        let wanted = match workload.workers {
            Workers::First => [of_domain(0), 0.0],
            Workers::Second => [0.0, of_domain(1)],
            _ => [of_domain(0), of_domain(1)],
        };
        assert_eq!(workers, wanted, "{rows:?}");
        if is_bound && is_scan {
            for (domain, workers) in workers.into_iter().enumerate().filter(|(_, workers)| *workers == 0.0) {
                let of_domain = format!("_row_groups_{domain}_");
                assert!(!rows.iter().any(|row| row.name.contains(&of_domain)), "{workers} workers: {rows:?}");
            }
            // Counts of a query, whatever the speed: each row group of the scanned tables once.
            let sum = |what: &str| {
                rows.iter().filter(|row| row.name.contains(what)).map(|row| row.value).sum::<f64>()
            };
            let columns = workload.statement.columns();
            let scanned = columns.iter().zip(&bench.tables);
            let groups = |table: &TieredTable| table.data().partitions().iter().flatten().count() as f64;
            let wanted: f64 =
                scanned.filter(|(columns, _)| !columns.is_empty()).map(|(_, table)| groups(table)).sum();
            assert!((sum("_row_groups_") / wanted - 1.0).abs() < 1e-9, "{} of {wanted}", sum("_row_groups_"));
            assert!(sum("_bytes_") > wanted, "{rows:?}");
            assert!(rows.iter().any(|row| row.name.contains("_read_") && row.unit == "MB/s"), "{rows:?}");
        }
    }
}

#[test]
fn a_column_takes_as_many_bits_as_its_values() {
    let Some(bench) = bench() else { return };
    // Numbers up to 300 000 have 19 bits.
    assert_eq!(bench.column_bytes, ROWS * 19 / 8);
    let row = bench.column_row();
    // Of 50 million rows.
    assert!((row.value / 118.75 - 1.0).abs() < 1e-9, "{row:?}");
    assert_eq!(row.peer.and_then(|peer| peer.value), Some(276.0));
}

#[test]
fn packed_and_plain_columns_are_compared() {
    let Some(bench) = bench() else { return };
    let rows = bench.packed_rows(&small(Statement::Random), 2).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["packed_scan_10000", "packed_scan_100000", "packed_scan_1000000"]);
    assert!(rows.iter().all(|row| row.peer.as_ref().is_some_and(|peer| peer.ratio > Some(0.0))), "{rows:?}");
}

#[test]
fn impossible_runs_are_named() {
    let Some(mut bench) = bench() else { return };
    bench.places.elsewhere.clear();
    let workload = Workload { clients: Clients::Elsewhere, ..small(Statement::Random) };
    let why = bench.obstacle(&workload).unwrap();
    assert!(why.contains("--clients anywhere"), "{why}");
    assert_eq!(bench.run(&workload).unwrap_err().to_string(), why);
    let machine = Arc::new(Machine::discover().unwrap());
    assert!(SncdbBenchmark::new(machine, 0, 1, &()).is_err());
}

#[test]
fn rows_say_what_was_counted() {
    let named = |rows: &[Row]| rows.iter().map(|row| (row.name.clone(), row.value)).collect::<Vec<_>>();
    let is = |rows: &[(&str, f64)]| rows.iter().map(|&(name, it)| (name.to_owned(), it)).collect::<Vec<_>>();
    let counted = Counted {
        per_second: vec![10.0, 14.0, 12.0],
        per_connection: vec![3.0, 1.0],
        answers: 40,
        rss_bytes: vec![100.0, 150.0, 200.0],
    };
    let rows = rows_of("run", &counted, [2, 1]);
    let wanted = [
        ("run", 12.0),
        ("run_deviation", 2.0),
        ("run_fairness", 0.8),
        ("run_connection", 2.0),
        ("run_rss", 200.0),
        ("run_workers_0", 2.0),
        ("run_workers_1", 1.0),
    ];
    assert_eq!(named(&rows), is(&wanted));
    assert_eq!(rows[4].peer.as_ref().and_then(|peer| peer.value), Some(100.0));
    // Of the second domain, in memory of another socket.
    let (mut read, mut rates) = ([[Read::default(); 3]; 2], [[0.0; 3]; 2]);
    (read[1][2], rates[1][2]) = (Read { row_groups: 80, bytes: 4000 }, 7.0);
    let rows = rows_of_reads("run", &rates, &read, counted.answers);
    let wanted = [
        ("run_read_1_other_socket", 7.0),
        ("run_row_groups_1_other_socket", 2.0),
        ("run_bytes_1_other_socket", 100.0),
    ];
    assert_eq!(named(&rows), is(&wanted));
}
