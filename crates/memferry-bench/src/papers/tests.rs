//! No option is ignored: with another value a row differs, or something says why not.

use memferry::mover::Route;
use memferry::topology::NodeId;
use memferry_dsa_emulator::Timing;

use super::*;
use crate::dsa::load::Work;

/// An option: what it needs to matter, and another value of it.
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

/// That keep a device busy.
fn two_tenants(point: &mut Point) {
    (point.submitters, point.queues, point.depth, point.size_bytes) = (2, 2, 16, 1 << 20);
}

fn small_batches(point: &mut Point) {
    (point.submitters, point.batch, point.size_bytes) = (4, 8, 256);
}

pub(super) const CHANGES: &[Change] = &[
    change("operations", |point| point.operation = Work::DifCheck),
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
    Change { option: "read buffers", needs: two_tenants, change: |point| point.read_buffers = Some((96, 4)) },
];

/// The figures of benchmarks that are run in different ways.
const FIGURES: &[&[Figure]] = &[
    &[Figure::Throughput],
    &[Figure::Tenant1, Figure::Tenant2],
    &[Figure::Latency, Figure::Allocate, Figure::Prepare, Figure::Submit, Figure::Wait],
    &[Figure::Asleep],
    &[Figure::Load, Figure::Slowdown],
];

fn base(way: Way) -> Point {
    Axes { ways: vec![way], ..Axes::default() }.points().remove(0)
}

/// What a point yields as text; `None` if it is refused, or has notes only.
fn told(backend: &dyn Backend, point: &Point, figures: &[Figure]) -> Option<String> {
    match backend.run(point, figures, Effort::QUICK) {
        Ok(taken) => taken.iter().any(|taken| !taken.values.is_empty()).then(|| format!("{taken:?}")),
        Err(Skipped::Cannot(why)) => {
            assert!(why.len() > 10, "{why}");
            None
        }
        Err(error) => panic!("{point:?}: {error}"),
    }
}

/// Without noise: whatever has an effect shows.
#[test]
fn options_count_where_nothing_is_random() {
    let machine = || Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let model = OnModel::new(machine()).unwrap();
    let emulated = OnEmulated::new(machine(), Timing::sapphire_rapids());
    let backends: [(&dyn Backend, &[Way]); 2] =
        [(&model, &[Way::Core, Way::Any]), (&emulated, &[Way::Shared, Way::Dedicated])];
    let mut differing = 0;
    for (backend, ways) in backends {
        for (way, figures) in ways.iter().flat_map(|way| FIGURES.iter().map(move |figures| (*way, *figures)))
        {
            for Change { option, needs, change } in CHANGES {
                let mut before = base(way);
                needs(&mut before);
                let mut after = before.clone();
                change(&mut after);
                let Some(row) = told(backend, &before, figures) else { continue };
                let Some(other) = told(backend, &after, figures) else { continue };
                // Priorities divide what a device does, and leave its sum. Which devices share in a copy is the nodes' only
                // effect on emulated ones, and may be the same.
                let is_sum = *option == "priorities" && !figures.contains(&Figure::Tenant1);
                let is_said = row.contains("memories set no limit here");
                assert!(row != other || is_said || is_sum, "{option} of {before:?}, {figures:?}: {row}");
                differing += 1;
            }
        }
    }
    assert!(differing > 40, "most are refused: only {differing} rows differ");
}

#[test]
fn every_option_has_an_effect_somewhere() {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let emulated = OnEmulated::new(machine, Timing::sapphire_rapids());
    let figures = [Figure::Throughput, Figure::Tenant1];
    let has_effect = |change: &&Change| {
        let mut before = base(Way::Shared);
        (change.needs)(&mut before);
        let mut after = before.clone();
        (change.change)(&mut after);
        told(&emulated, &before, &figures).zip(told(&emulated, &after, &figures)).is_some_and(|(a, b)| a != b)
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
        "priorities",
    ];
    assert_eq!(effective, expected);
}

#[test]
fn repetitions_are_those_of_the_thesis() {
    let counts = [1 << 10, 8 << 10, 9 << 10, 1 << 20, 2 << 20].map(|size| Effort::FULL.repetitions(size));
    assert_eq!(counts, [10_000, 10_000, 1000, 1000, 1]);
    assert_eq!([1 << 10, 1 << 20, 1 << 30].map(|size| Effort::QUICK.repetitions(size)), [100, 10, 1]);
}
