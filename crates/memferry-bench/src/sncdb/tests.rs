//! The study beside what its publication prints.

use memferry::topology::Machine;

use super::*;

fn study(mode: &str) -> Study {
    Study::of(&Machine::from_profile(&format!("skylake-8180-snc-{mode}")).unwrap()).unwrap()
}

const ALL: Setting = Setting { workers: Workers::All, is_stealing: false };
const FIRST: Setting = Setting { workers: Workers::First, is_stealing: false };

/// The two fitted gains come back, and the third is predicted.
#[test]
fn results_give_the_gains_that_they_were_fitted_to() {
    let on = study("on");
    let gain = |range_pred| {
        let of = |on_first| on.run(FIRST, on_first, range_pred).unwrap().queries_per_s;
        100.0 * (of(0) / of(6) - 1.0)
    };
    let [few, some, many] = RANGE_PREDS.map(gain);
    assert!((few - 2.6).abs() < 0.05 && (some - 6.8).abs() < 0.05, "{few} {some}");
    assert!((many - 44.0).abs() < 4.4, "{many}");
}

/// More predicates find more rows, but a row only once.
#[test]
fn a_row_is_found_once() {
    let results = Results { bytes_per_column: 0.0, bytes_per_row: 1.0 };
    assert!((results.bytes(1, 1_000_000) - 1e6).abs() < 1.0);
    assert!((results.bytes(6, 1_000_000) / 5.708e6 - 1.0).abs() < 1e-3);
    let columns = Results { bytes_per_column: 3.0, bytes_per_row: 0.0 };
    assert_eq!(columns.bytes(6, 10_000), 18.0);
}

#[test]
fn columns_have_the_printed_sizes() {
    let (key, value) = (Layout::KEY, Layout::VALUE);
    assert_eq!((key.vector_bytes(), value.vector_bytes()), (162.5e6, 156.25e6));
    assert!((key.bytes() / 513e6 - 1.0).abs() < 0.03, "{}", key.bytes());
    assert!((value.bytes() / 276e6 - 1.0).abs() < 0.03, "{}", value.bytes());
    assert_eq!(value.index_bytes(), 0.0);
}

/// A table of one sub-domain has half of the cache: one step of the search more is a miss.
#[test]
fn random_accesses_lose_a_part_of_the_cache() {
    let of =
        |mode: &str| lookups(&Machine::from_profile(&format!("skylake-8180-snc-{mode}")).unwrap()).unwrap();
    let (off, on) = (of("off"), of("on"));
    assert!((on.misses - off.misses - 1.0).abs() < 1e-9, "{off:?} {on:?}");
    // log2 of the dictionary's 3.1 million lines by the cache's 0.63 million, and three reads beside.
    assert!((off.misses - 5.31).abs() < 0.01 && (off.wait_ns() - 429.0).abs() < 1.0, "{off:?}");
    assert!((on.latency_ns - 78.1).abs() < 0.1 && (off.latency_ns - 80.8).abs() < 0.1, "{off:?} {on:?}");
    let unknown = lookups(&Machine::from_profile("broadwell-2699v4-cod-on").unwrap()).unwrap_err();
    assert!(unknown.to_string().contains("l3_per_socket"), "{unknown}");
}

#[test]
fn settings_fit_the_socket() {
    let (off, on) = (study("off"), study("on"));
    assert_eq!((off.settings().len(), on.settings().len()), (2, 6));
    let refuses = |study: &Study, setting, on_first, range_pred, word: &str| {
        let error = study.run(setting, on_first, range_pred).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refuses(&off, FIRST, 3, 10_000, "two domains");
    refuses(&off, Setting { is_stealing: true, ..ALL }, 3, 10_000, "two domains");
    refuses(&on, ALL, 7, 10_000, "7 predicates");
    refuses(&on, ALL, 3, 0, "below 0");
    refuses(&on, ALL, 3, ROWS + 1, "from 1 to 50000000");
    let unmeasured = Study::of(&Machine::two_tiers().unwrap()).unwrap();
    refuses(&unmeasured, ALL, 3, 10_000, "not known");
}

#[test]
fn workers_and_scans_are_where_the_setting_says() {
    let on = study("on");
    let nodes: Vec<NodeId> = on.domains().collect();
    let scans = |workers, on_first| {
        let scans = on.scans(Setting { workers, is_stealing: false }, on_first, 10_000).unwrap();
        let columns: Vec<(NodeId, usize)> =
            scans.scans.iter().map(|it| (it.node, it.columns_count)).collect();
        (scans.workers, columns)
    };
    let (first, second) = (nodes[0], nodes[1]);
    assert_eq!(scans(Workers::All, 2), (vec![(first, 28), (second, 28)], vec![(first, 2), (second, 4)]));
    assert_eq!(scans(Workers::Half, 6), (vec![(first, 14), (second, 14)], vec![(first, 6)]));
    assert_eq!(scans(Workers::First, 0), (vec![(first, 28)], vec![(second, 6)]));
    assert_eq!(scans(Workers::Second, 3).0, [(second, 28)]);
    assert!(on.scans(Setting { is_stealing: true, ..ALL }, 3, 10_000).unwrap().is_stealing);
}

/// Without sub-domains it does not matter which table has the predicates.
#[test]
fn skew_matters_on_sub_domains_only() {
    let (off, on) = (study("off"), study("on"));
    let spread = |study: &Study| {
        let rates: Vec<f64> = (0..=PREDICATES)
            .map(|on_first| study.run(ALL, on_first, 10_000).unwrap().queries_per_s)
            .collect();
        let (low, high) =
            rates.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &it| (low.min(it), high.max(it)));
        low / high
    };
    assert!(spread(&off) > 0.99, "{}", spread(&off));
    assert!(spread(&on) < 0.55, "{}", spread(&on));
}

#[test]
fn rows_have_a_name_each() {
    let names = |profile: &str| -> Vec<String> {
        rows(&Machine::from_profile(profile).unwrap()).unwrap().into_iter().map(|row| row.name).collect()
    };
    let mut on = names("skylake-8180-snc-on");
    assert!(on.contains(&"scan_1000000_all_stealing_2_4_memory".to_owned()), "{on:?}");
    assert_eq!(on.len(), 2 + 3 * 6 * 7 * 6);
    on.sort();
    on.dedup();
    assert_eq!(on.len(), 2 + 3 * 6 * 7 * 6);
    // Its profile has no cache.
    assert!(!names("broadwell-2699v4-cod-on").contains(&"random_wait".to_owned()));
}

#[test]
fn rows_say_what_a_run_was() {
    let (one, other) = (NodeId(0), NodeId(1));
    let run = TaskRun {
        queries_per_s: 7.0,
        deviation: 2.0,
        fairness: 0.5,
        traffic: vec![(one, one, 3e9), (one, other, 1e9)],
        away: 0.25,
    };
    let rows: Vec<(String, f64)> =
        rows_of("x", ": ", &run).into_iter().map(|row| (row.name, row.value)).collect();
    let wanted = [("", 7.0), (": deviation", 2.0), (": memory", 4.0), (": away", 1.0), (": stolen", 25.0)];
    let wanted = wanted.into_iter().chain([(": fairness", 0.5)]);
    assert!(rows.iter().cloned().eq(wanted.map(|(what, value)| (format!("x{what}"), value))), "{rows:?}");
}
