use super::*;

fn discovered() -> Atomics {
    Atomics::on_machine(Machine::discover().unwrap())
}

fn point(work: SharedWork) -> Point {
    Point { work, threads: 1, distance: None, is_churned: false }
}

#[test]
fn cpus_by_distance() {
    let xeon_max = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    // CPU 1 is the sibling of CPU 0, 3 that of 2, and so on.
    let pairs = |cpu: u32| Some(vec![cpu & !1, cpu | 1]);
    let places = Places::with(&xeon_max, &pairs);
    assert_eq!(places.cpus(Distance::Sibling), [0, 1]);
    assert_eq!(places.cpus(Distance::Node), [0, 2, 4, 6, 8, 10]);
    assert_eq!(places.cpus(Distance::Nodes)[..6], [0, 12, 24, 36, 2, 14]);
    assert_eq!(places.cpus(Distance::Sockets)[..4], [0, 48, 12, 60]);
    assert_eq!(places.first(), Some(0));
    let places = Places::of(&xeon_max);
    assert_eq!(places.cpus(Distance::Sibling), [] as [u32; 0]);
    assert_eq!(places.cpus(Distance::Sockets).len(), 96);
    let small = Places::with(&Machine::from_profile("skylake-8180-snc-off").unwrap(), &|_| None);
    assert_eq!(small.cpus(Distance::Nodes), [] as [u32; 0], "a node for each socket");
    assert!(!small.cpus(Distance::Sockets).is_empty());
}

#[test]
fn points_make_sense_and_come_once() {
    let places = Places::of(&Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
    let points = Axes::default().points(&places);
    for (index, point) in points.iter().enumerate() {
        assert_eq!(point.distance.is_some(), point.threads > 1, "{point:?}");
        assert!(point.work.is_of_cache() || !point.is_churned, "{point:?}");
        assert!(!points[index + 1..].contains(point), "{point:?}");
    }
    let all =
        |distance| points.iter().filter(move |it| it.distance == Some(distance)).map(|it| it.threads).max();
    // Without siblings the point has two of them, so that a row gives the reason.
    assert_eq!(
        [all(Distance::Sibling), all(Distance::Nodes), all(Distance::Sockets)],
        [Some(2), Some(48), Some(96)]
    );
    let name = |point: Point| point.row_name(Metric::LATENCY);
    let far =
        Point { threads: 2, distance: Some(Distance::Sockets), is_churned: true, ..point(SharedWork::Entry) };
    assert_eq!(name(far), "atomics_entry_threads2_sockets_churn");
    assert_eq!(far.row_name(Metric::HIT_RATE), "atomics_hit_rate_entry_threads2_sockets_churn");
    assert_eq!(name(point(SharedWork::Own)), "atomics_own_threads1");
    assert_eq!(far.columns().len(), Point::COLUMNS.len());
}

#[test]
fn all_works_run_here() {
    let atomics = discovered();
    for point in Axes::default().points(atomics.places()) {
        match atomics.run(&point, AtomicsRuns::QUICK) {
            Ok(taken) => {
                assert_eq!((taken[0].metric, taken[0].values.len()), (Metric::LATENCY, 2));
                assert!(taken.iter().flat_map(|taken| &taken.values).all(|value| *value > 0.0), "{taken:?}");
                assert_eq!(taken.len() > 1, point.is_churned, "{taken:?}");
                assert!(taken.iter().all(|taken| taken.metric != Metric::HIT_RATE || taken.values[0] <= 1.0));
            }
            Err(Skipped::Cannot(why)) => {
                assert!(point.threads > 1 && why.contains("has only"), "{point:?}: {why}");
            }
            Err(Skipped::Failed(error)) => panic!("{point:?}: {error}"),
        }
    }
}

/// Timing starts after the first eviction.
#[test]
fn under_churn_blocks_leave() {
    let churned = Point { is_churned: true, ..point(SharedWork::Hit) };
    let taken = discovered().run(&churned, AtomicsRuns::QUICK).unwrap();
    let note = taken[0].note.as_deref().unwrap();
    let evicted: u64 = note.split(' ').next().unwrap().parse().unwrap();
    assert!(evicted > 0, "{note}");
    // Without churn nothing is evicted, and every access is a hit.
    let taken = discovered().run(&point(SharedWork::Hit), AtomicsRuns::QUICK).unwrap();
    assert_eq!((taken.len(), &taken[0].note), (1, &None));
}

#[test]
fn the_model_knows_latencies() {
    let model = Atomics::on_model(Machine::from_profile("skylake-8180-snc-off").unwrap());
    let shared = |threads, distance| Point { threads, distance: Some(distance), ..point(SharedWork::Shared) };
    let latency = |point: Point| model.run(&point, AtomicsRuns::QUICK).unwrap()[0].values[0];
    let machine = model.machine();
    let link = |from: usize, to: usize| {
        machine.link(machine.nodes()[from].id, machine.nodes()[to].id).read_latency_ns.unwrap()
    };
    // Up and down, there and back.
    let expected = 2.0 * (link(0, 1) + link(1, 0));
    assert!((latency(shared(2, Distance::Sockets)) - expected).abs() < 1e-9);
    assert!(latency(shared(2, Distance::Node)) < latency(shared(2, Distance::Sockets)));
    assert!((latency(shared(4, Distance::Node)) / latency(shared(2, Distance::Node)) - 2.0).abs() < 1e-9);
    let cannot = |atomics: &Atomics, point: Point| match atomics.run(&point, AtomicsRuns::QUICK) {
        Err(Skipped::Cannot(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(cannot(&model, point(SharedWork::Hit)).contains("own cache"));
    assert!(cannot(&model, shared(2, Distance::Sibling)).contains("hardware threads in one core"));
    assert!(cannot(&model, shared(1, Distance::Node)).contains("one thread has no distance"));
    assert!(
        cannot(&model, Point { is_churned: true, ..point(SharedWork::Own) }).contains("no blocks to evict")
    );
    let unknown = Atomics::on_model(Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
    assert!(cannot(&unknown, shared(2, Distance::Node)).contains("calibrate"));
    let emulated = Atomics::on_emulated(Machine::two_tiers().unwrap());
    assert!(cannot(&emulated, point(SharedWork::Own)).contains("no cores"));
}
