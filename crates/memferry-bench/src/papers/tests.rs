//! No option is ignored: another value changes a row, or is refused with a reason.

use memferry::mover::Route;
use memferry::topology::NodeId;

use super::*;
use crate::dsa::load::LoadOperation;

/// An option: a point for which it matters, and another value.
pub(super) struct Change {
    pub(super) option: &'static str,
    pub(super) needs: fn(&mut Point),
    pub(super) change: fn(&mut Point),
}

const fn change(option: &'static str, change: fn(&mut Point)) -> Change {
    Change { option, needs: |_| (), change }
}

fn four_submitters(point: &mut Point) {
    point.submitters = 4;
}

/// Copies that keep a device busy.
fn two_tenants(point: &mut Point) {
    (point.submitters, point.queues, point.depth, point.size_bytes) = (2, 2, 16, 1 << 20);
}

fn small_batches(point: &mut Point) {
    (point.submitters, point.batch, point.size_bytes) = (4, 8, 256);
}

pub(super) const CHANGES: &[Change] = &[
    change("operations", |point| point.operation = LoadOperation::DifCheck),
    change("sizes", |point| point.size_bytes *= 2),
    change("batches", |point| point.batch = 8),
    change("submitters", |point| point.submitters = 3),
    change("depths", |point| point.depth = 8),
    Change {
        option: "queues",
        needs: |point| (point.submitters, point.entries) = (4, Some(1)),
        change: |point| point.queues = 4,
    },
    change("queues without submitters", |point| point.queues = 2),
    Change { option: "entries", needs: four_submitters, change: |point| point.entries = Some(1) },
    Change { option: "engines", needs: small_batches, change: |point| point.engines = Some(3) },
    change("routes", |point| point.route = Some(Route::All)),
    change("sources", |point| point.source = Some(NodeId(0))),
    change("targets", |point| point.target = Some(NodeId(0))),
    Change {
        option: "sources of routes",
        needs: |point| (point.route, point.target) = (Some(Route::All), Some(NodeId(0))),
        change: |point| point.source = Some(NodeId(0)),
    },
    change("huge pages", |point| point.pages = Pages::Huge),
    change("absent pages", |point| point.pages = Pages::AbsentBlock),
    change("absent pages that software touches", |point| point.pages = Pages::AbsentResume),
    change("data", |point| point.data = Data::CachedTarget),
    Change { option: "priorities", needs: two_tenants, change: |point| point.priorities = Some((15, 1)) },
    change("priorities of one tenant", |point| point.priorities = Some((15, 1))),
    change("working sets", |point| point.working_set_bytes = Some(1 << 20)),
    Change { option: "read buffers", needs: two_tenants, change: |point| point.read_buffers = Some((96, 4)) },
];

/// The metrics of benchmarks that run differently.
const METRICS: &[&[Metric]] = &[
    &[Metric::THROUGHPUT],
    &[Metric::TENANT1, Metric::TENANT2],
    &[Metric::LATENCY, Metric::ALLOCATE, Metric::PREPARE, Metric::SUBMIT, Metric::WAIT],
    &[Metric::ASLEEP],
    &[Metric::LOAD, Metric::SLOWDOWN],
];

fn base(way: Way) -> Point {
    Axes { ways: vec![way], ..Axes::default() }.points().remove(0)
}

/// The measurements of a point as text; `None` if it is refused, or has notes only.
fn told(backend: &dyn Backend, point: &Point, metrics: &[Metric]) -> Option<String> {
    match backend.run(point, metrics, RunLength::QUICK) {
        Ok(taken) => taken.iter().any(|taken| !taken.values.is_empty()).then(|| format!("{taken:?}")),
        Err(Skipped::Cannot(why)) => {
            assert!(why.len() > 10, "{why}");
            None
        }
        Err(error) => panic!("{point:?}: {error}"),
    }
}

/// Without noise every effect is visible.
#[test]
fn options_count_where_nothing_is_random() {
    let machine = || Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let model = OnModel::new(machine()).unwrap();
    let emulated = OnEmulated::new(machine()).unwrap();
    let backends: [(&dyn Backend, &[Way]); 2] =
        [(&model, &[Way::Core, Way::Shared, Way::Dedicated]), (&emulated, &[Way::Shared, Way::Dedicated])];
    let mut differing = 0;
    for (backend, ways) in backends {
        for (way, metrics) in ways.iter().flat_map(|way| METRICS.iter().map(move |metrics| (*way, *metrics)))
        {
            for Change { option, needs, change } in CHANGES {
                let mut before = base(way);
                needs(&mut before);
                let mut after = before.clone();
                change(&mut after);
                let Some(row) = told(backend, &before, metrics) else { continue };
                let Some(other) = told(backend, &after, metrics) else { continue };
                // Priorities divide the rate of a device and keep its sum. Nodes only choose the devices that share in a
                // copy and the memories that limit it, and both choices may be equal.
                let is_sum = *option == "priorities" && !metrics.contains(&Metric::TENANT1);
                let is_routed = row.contains("memories limit the devices");
                // Fewer read buffers make a device slower, not a core that submits.
                let is_of_core = *option == "read buffers" && metrics.contains(&Metric::SUBMIT);
                assert!(
                    row != other || is_routed || is_sum || is_of_core,
                    "{option} of {before:?}, {metrics:?}: {row}"
                );
                differing += 1;
            }
        }
    }
    assert!(differing > 40, "most are refused: only {differing} rows differ");
}

#[test]
fn every_option_has_an_effect_somewhere() {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let emulated = OnEmulated::new(machine).unwrap();
    let metrics = [Metric::THROUGHPUT, Metric::TENANT1];
    let has_effect = |change: &&Change| {
        let mut before = base(Way::Shared);
        (change.needs)(&mut before);
        let mut after = before.clone();
        (change.change)(&mut after);
        told(&emulated, &before, &metrics).zip(told(&emulated, &after, &metrics)).is_some_and(|(a, b)| a != b)
    };
    let effective: Vec<&str> = CHANGES.iter().filter(has_effect).map(|change| change.option).collect();
    let expected = [
        "operations",
        "sizes",
        "batches",
        "submitters",
        "depths",
        "queues",
        "entries",
        "engines",
        "routes",
        "absent pages",
        "absent pages that software touches",
        "data",
        "priorities",
        "read buffers",
    ];
    assert_eq!(effective, expected);
}

#[test]
fn repetitions_are_those_of_the_thesis() {
    let counts = [1 << 10, 8 << 10, 9 << 10, 1 << 20, 2 << 20].map(|size| RunLength::FULL.repetitions(size));
    assert_eq!(counts, [10_000, 10_000, 1000, 1000, 1]);
    assert_eq!([1 << 10, 1 << 20, 1 << 30].map(|size| RunLength::QUICK.repetitions(size)), [100, 10, 1]);
}
