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
        let is_bound = workload.workers == Workers::All && workload.binding != Binding::None;
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
