//! Points on the machine of the tests: its cores, and the reasons for missing parts.

use memferry::memory::Mapping;
use memferry::mover::Route;
use memferry::topology::NodeId;
use memferry_dsa::system::DeviceId;
use memferry_dsa_emulator::{FakeDevice, FakeDriver};

use super::*;
use crate::dsa::load::Lane;
use crate::papers::Axes;
use crate::papers::tests::{CHANGES, Change};

fn run(point: &Point, metrics: &[Metric]) -> Result<Vec<Measurement>, Skipped> {
    let (machine, state) = (Machine::discover().unwrap(), SystemState::discover().unwrap());
    OnMachine::new(machine, state, false).run(point, metrics, RunLength::QUICK)
}

fn point() -> Point {
    Axes { ways: vec![Way::Core], sizes_bytes: vec![64 << 10], ..Axes::default() }.points().remove(0)
}

#[test]
fn cores_copy() {
    for point in [
        point(),
        Point { submitters: 2, ..point() },
        Point { operation: LoadOperation::Dualcast, ..point() },
        Point { operation: LoadOperation::DifUpdate, submitters: 2, ..point() },
        Point { operation: LoadOperation::ApplyDelta, ..point() },
        Point { pages: Pages::AbsentBlock, ..point() },
        Point { pages: Pages::Huge, ..point() },
    ] {
        let taken = run(&point, &[Metric::THROUGHPUT]).unwrap().remove(0);
        assert_eq!((taken.metric, taken.values.len()), (Metric::THROUGHPUT, 2));
        assert!(taken.values.iter().all(|value| *value > 0.0), "{taken:?}");
        assert!(taken.overhead.is_some_and(|share| share > 0.0), "{taken:?}");
    }
}

#[test]
fn copies_by_workers_and_beside_a_reader() {
    let large = Point { size_bytes: 4 << 20, route: Some(Route::All), ..point() };
    assert!(run(&large, &[Metric::THROUGHPUT]).unwrap()[0].values[0] > 0.0);
    let cached = Point { data: Data::CachedTarget, ..point() };
    match run(&cached, &[Metric::THROUGHPUT]) {
        Ok(taken) => assert!(taken[0].values[0] > 0.0),
        Err(error) => assert!(error.to_string().contains("MiB are free"), "{error}"),
    }
    match run(&Point { submitters: 4, ..point() }, &[Metric::LOAD, Metric::SLOWDOWN]) {
        Ok(taken) => {
            assert!(taken.iter().all(|it| it.values.iter().all(|value| *value > 0.0)), "{taken:?}");
            assert!(taken[0].peer.is_some_and(|(_, alone)| alone > 0.1), "{taken:?}");
        }
        // On a machine with one CPU.
        Err(error) => assert!(error.to_string().contains("two CPUs"), "{error}"),
    }
}

/// Figures 3.4 and 3.5 of the thesis: by the device of node 0, from node 0 to node 0.
#[test]
fn memory_and_threads_are_where_the_device_is() {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let driver = FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 4)]);
    let state = SystemState::read(&driver).unwrap();
    let device = state.devices[0].clone();
    let backend = OnMachine::new(machine, state, false);
    let cpus = |node| backend.machine.node(NodeId(node)).unwrap().allowed_cpus.clone();
    let nodes = |home: &Home| [home.source, home.target].map(|node| node.map(|node| node.0));
    let far = Point { source: Some(NodeId(0)), target: Some(NodeId(8)), ..point() };

    let own = backend.home(&point(), &[&device]);
    assert_eq!((nodes(&own), &own.cpus), ([Some(4); 2], &cpus(4)));
    let given = backend.home(&far, &[&device]);
    assert_eq!(
        (nodes(&given), &given.cpus),
        ([Some(0), Some(8)], &cpus(4)),
        "the submitter is near its device"
    );
    let core = backend.home(&point(), &[]);
    assert_eq!((nodes(&core), &core.cpus), ([Some(0); 2], &cpus(0)));
    let core = backend.home(&Point { source: None, target: Some(NodeId(12)), ..point() }, &[]);
    assert_eq!((nodes(&core), &core.cpus), ([Some(4), Some(12)], &cpus(4)), "HBM has its cores");
    let crowd = backend.home(&Point { submitters: 1000, ..point() }, &[]);
    assert!(crowd.crowded.is_some_and(|words| words.contains("1000 submitters share")));
}

#[test]
fn what_is_not_there_is_said() {
    let cannot = |point: Point, metrics: &[Metric]| match run(&point, metrics) {
        Err(Skipped::Cannot(what)) => what,
        other => panic!("{other:?}"),
    };
    let metrics = [Metric::THROUGHPUT];
    // No device has that many queues.
    assert!(
        cannot(Point { way: Way::Shared, queues: 99, submitters: 99, ..point() }, &metrics)
            .contains("configure")
    );
    assert!(cannot(Point { submitters: 1000, size_bytes: 1 << 30, ..point() }, &metrics).contains("MiB"));
    assert!(cannot(Point { target: Some(NodeId(4000)), ..point() }, &metrics).contains("4000"));
    let two = Point { way: Way::Shared, queues: 2, submitters: 2, ..point() };
    let tenants = Point { priorities: Some((15, 1)), ..two.clone() };
    assert!(cannot(tenants, &metrics).contains("priorities 15 and 1"));
    assert!(cannot(Point { priorities: Some((15, 1)), ..point() }, &metrics).contains("about queues"));
    assert!(cannot(point(), &[Metric::ASLEEP]).contains("does not wait"));
    assert!(cannot(Point { way: Way::Any, ..point() }, &metrics).contains("core"));
    let buffers = Point { read_buffers: Some((95, 1)), ..two };
    assert!(cannot(buffers.clone(), &metrics).contains("read buffers 95 and 1"));
    assert!(cannot(Point { way: Way::Core, ..buffers }, &metrics).contains("about queues"));
    let batch = Point { way: Way::Write, batch: 4, ..point() };
    assert!(cannot(batch, &metrics).contains("no batches"));
    assert!(
        cannot(Point { way: Way::Write, queues: 99, submitters: 99, ..point() }, &metrics)
            .contains("mode any")
    );
}

/// Values always differ here; the lanes of a run show whether an option counts.
#[test]
fn options_of_cores_count_or_are_refused() {
    let backend = OnMachine::new(Machine::discover().unwrap(), SystemState::discover().unwrap(), false);
    let told = |point: &Point| {
        let taken = match backend.run(point, &[Metric::THROUGHPUT], RunLength::QUICK) {
            Ok(taken) => taken,
            Err(Skipped::Cannot(why)) => {
                assert!(why.len() > 10, "{why}");
                return None;
            }
            Err(error) => panic!("{point:?}: {error}"),
        };
        let home = backend.home(point, &[]);
        let lanes =
            backend.lanes(point, load_of(point, RunLength::QUICK).unwrap(), &executors(Vec::new()), &home);
        let lane = |lane: &Lane<Mapping>| {
            format!(
                "{:?} {:?} {:?}",
                lane.load,
                lane.placed,
                lane.regions.each_ref().map(|region| region.len())
            )
        };
        Some((
            format!("{home:?}"),
            lanes.unwrap().iter().map(lane).collect::<Vec<_>>(),
            taken[0].note.clone(),
        ))
    };
    for Change { option, needs, change } in CHANGES {
        let mut before = Point { size_bytes: 4096, ..point() };
        needs(&mut before);
        let mut after = before.clone();
        change(&mut after);
        let (before, after) = (told(&before), told(&after));
        assert!(before.is_none() || before != after, "{option} changes nothing: {after:?}");
    }
}
