//! Points on the emulated device, in virtual time.

use memferry::internals::{Hardware, Offload, Origin, device_shares};
use memferry::model::ModelError;
use memferry::topology::Machine;
use memferry_dsa::internals::device_time::{CachePart, SUBMIT_WRITE_NS};
use memferry_dsa_emulator::{
    BATCH_MAX, DeviceConfig, DeviceCosts, ENTRIES_MAX, GroupConfig, TRANSFER_BYTES_MAX, dedicated_queue,
    shared_queue,
};

use super::load::{data_note, endpoints, footprint_bytes, groups_of, is_into_cache, load_of, metrics_of};
use super::modelled::are_buffers;
use super::{Backend, Data, Measurement, Metric, Pages, Point, RunLength, Skipped, Way};
use crate::dsa::load::{Load, SubmitterTimes, TOUCH_NS, emulated};

/// An emulated device with a timing; for routed copies one per device of the machine. Measuring takes no virtual time.
#[derive(Debug)]
pub struct OnEmulated {
    machine: Machine,
    timing: DeviceCosts,
    /// What a submission by write(2) takes of a core.
    write_ns: u64,
    cache: CachePart,
}

impl OnEmulated {
    /// Devices on the nodes of `machine`'s devices, with the costs of its profile.
    ///
    /// # Errors
    /// [`ModelError::Unknown`]: the profile has devices and lacks a cost of them.
    pub fn new(machine: Machine) -> Result<OnEmulated, ModelError> {
        let timing = timing_of(&machine)?;
        let (write_ns, cache) = match is_of_profile(&machine) {
            true => {
                let offload = Offload::of(&Hardware::of(&machine)?)?;
                (offload.submit_write_ns()?, offload.cache_part()?)
            }
            false => (SUBMIT_WRITE_NS, CachePart::sapphire_rapids()),
        };
        Ok(OnEmulated { machine, timing, write_ns, cache })
    }

    /// The configuration of a device with the queues and engines of a point.
    fn device(&self, point: &Point) -> Result<DeviceConfig, Skipped> {
        let entries = point.entries.unwrap_or(ENTRIES_MAX / point.queues.max(1) as u32);
        let queue = |number| {
            let name = format!("wq0.{number}");
            let queue = match point.way {
                Way::Dedicated => dedicated_queue(&name, entries),
                _ => shared_queue(&name, entries),
            };
            let priority = match point.priorities {
                None => queue.priority,
                Some((first, _)) if number == 0 => first,
                Some((_, second)) => second,
            };
            memferry_dsa::WorkQueueInfo {
                priority,
                transfer_bytes_max: TRANSFER_BYTES_MAX,
                batch_max: BATCH_MAX,
                block_on_fault: true,
                ..queue
            }
        };
        let queues: Vec<_> = (0..point.queues).map(queue).collect();
        let engines = point.engines.unwrap_or(1);
        let (read_buffers, groups_count) = groups_of(point);
        let groups = match groups_count {
            1 => vec![GroupConfig { engines, queues }],
            _ => queues.into_iter().map(|queue| GroupConfig { engines, queues: vec![queue] }).collect(),
        };
        let config = DeviceConfig { read_buffers, ..DeviceConfig::new(groups) };
        config.validate().map_err(|error| Skipped::Cannot(error.to_string()))?;
        Ok(config.with_timing(self.timing_at(point)))
    }

    /// The costs at a point. The kernel submits what a program writes with ENQCMD, so that such a queue is a shared one whose
    /// submissions take longer.
    fn timing_at(&self, point: &Point) -> DeviceCosts {
        let submit_shared_ns =
            if point.way == Way::Write { self.write_ns } else { self.timing.submit_shared_ns };
        let timing = DeviceCosts { submit_shared_ns, ..self.timing };
        if is_into_cache(point) { self.cache.apply(timing, footprint_bytes(point)) } else { timing }
    }

    /// A copy that the devices of a route share within the limits of the memories: the slowest part.
    fn routed(&self, point: &Point, load: Load) -> Result<Vec<SubmitterTimes>, Skipped> {
        let endpoints = endpoints(&self.machine, point)?;
        let shares =
            point.route.map(|route| device_shares(route, &self.machine, endpoints)).unwrap_or_default();
        if shares.is_empty() {
            return Skipped::cannot(format!(
                "{} has no devices that could share in a copy; add --machine PROFILE for one that has",
                self.machine.name()
            ));
        }
        let config = self.device(point)?;
        let devices: Vec<usize> = shares.iter().map(|share| share.engine).collect();
        let most = Hardware::of(&self.machine).ok().and_then(|it| it.copy_rate(&devices, endpoints));
        let mut seen = Vec::with_capacity(shares.len());
        for share in &shares {
            let load = Load { size_bytes: share.bytes.len() as u32, ..load };
            let mut config = config.clone();
            if let (Some(most), Some(timing)) = (most, &mut config.timing) {
                // The devices share what the memories give, by their parts of the copy.
                let part = most * share.bytes.len() as f64 / point.size_bytes as f64;
                timing.bytes_per_second = timing.bytes_per_second.min(part as u64).max(1);
            }
            seen.extend(emulated(&config, &[(0, load)])?);
        }
        Ok(seen)
    }

    /// Refuses what the emulated device does not have.
    fn check(&self, point: &Point, metrics: &[Metric]) -> Result<(), Skipped> {
        let is_here = self.machine.origin() == Origin::Discovered;
        Skipped::cannot(match point {
            Point { way: Way::Write, batch: 2.., .. } => "the kernel submits no batches by write(2)",
            Point { read_buffers: Some(_), priorities: Some(_), .. } => {
                "priorities are of queues of one group, and read buffers of two groups: leave out one of them"
            }
            Point { read_buffers: Some((first, second)), .. } if !are_buffers(&[*first, *second]) => {
                "a group has 1 to 96 read buffers"
            }
            _ if !is_here && self.machine.accelerators().is_empty() => {
                let why = "its queues cannot be emulated; leave out --machine, or choose one that has";
                return Skipped::cannot(format!("{} has no DSA: {why}", self.machine.name()));
            }
            Point { way: Way::Core | Way::Any, .. } => {
                "only a device is emulated; ask for the ways shared and dedicated"
            }
            _ if metrics.contains(&Metric::LOAD) => {
                "the emulated device has no caches that others could miss"
            }
            Point { data, route: Some(_), .. } if !matches!(data, Data::Any | Data::Memory) => {
                "routed copies write to memory"
            }
            Point { working_set_bytes: Some(_), .. } => "the emulated device has no reader beside it",
            Point { pages: Pages::Huge, .. } => "the emulated device translates pages of 4 KiB only",
            Point { route: Some(_), submitters, queues, .. } if *submitters > 1 || *queues > 1 => {
                "a routed copy has one submitter, and of each device one queue; leave out the route, or submitters \
                 and queues"
            }
            Point { route: None, source, target, .. } if source.or(*target).is_some() => {
                "the emulated device knows no nodes; only a route chooses devices by them"
            }
            _ => return Ok(()),
        })
    }
}

/// The costs of the devices of a profile. A device that is emulated on this machine is one of Sapphire Rapids.
pub(super) fn timing_of(machine: &Machine) -> Result<DeviceCosts, ModelError> {
    if !is_of_profile(machine) {
        return Ok(DeviceCosts::sapphire_rapids());
    }
    Offload::of(&Hardware::of(machine)?)?.costs()
}

/// Whether the devices are those of a profile.
fn is_of_profile(machine: &Machine) -> bool {
    machine.origin() != Origin::Discovered && !machine.accelerators().is_empty()
}

impl Backend for OnEmulated {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn ways(&self, wanted: &[Way]) -> Vec<Way> {
        wanted.iter().copied().filter(|way| *way != Way::Core).collect()
    }

    fn run(&self, point: &Point, metrics: &[Metric], effort: RunLength) -> Result<Vec<Measurement>, Skipped> {
        self.check(point, metrics)?;
        let load = load_of(point, effort)?;
        let seen = match point.route {
            Some(_) => self.routed(point, load)?,
            None => {
                let loads: Vec<_> = (0..point.submitters).map(|it| (it % point.queues, load)).collect();
                emulated(&self.device(point)?, &loads)?
            }
        };
        let mut taken = metrics_of(point, metrics, effort.repetitions(point.size_bytes), &[seen]);
        for taken in taken.iter_mut().filter(|taken| !taken.values.is_empty()) {
            taken.overhead = Some(0.0);
            if point.route.is_some() {
                taken.add_note("memories limit the devices as in the model, where their rates are known");
            } else if self.machine.origin() != Origin::Discovered {
                taken.add_note("a device with the costs of the profile, whose nodes count for routes only");
            }
            data_note(point).into_iter().for_each(|note| taken.add_note(note));
            if point.pages == Pages::AbsentResume {
                taken.add_note(&format!("touching a page is assumed to take {TOUCH_NS} ns"));
            }
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use memferry::mover::Route;
    use memferry::topology::NodeId;

    use super::*;
    use crate::papers::{Axes, benchmark};

    fn backend() -> OnEmulated {
        OnEmulated::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap()
    }

    fn throughput(point: &Point) -> f64 {
        let taken = backend().run(point, &[Metric::THROUGHPUT], RunLength::QUICK).unwrap();
        assert_eq!((taken.len(), taken[0].values.len()), (1, 1));
        taken[0].values[0]
    }

    fn point() -> Point {
        let axes = Axes { ways: vec![Way::Shared], sizes_bytes: vec![1 << 20], ..Axes::default() };
        axes.points().remove(0)
    }

    #[test]
    fn devices_of_a_route_add_up() {
        let routed = |route, target| {
            throughput(&Point {
                route: Some(route),
                source: Some(NodeId(0)),
                target,
                size_bytes: 1 << 30,
                ..point()
            })
        };
        let (one, two) = (routed(Route::Single, Some(NodeId(8))), routed(Route::PushPull, Some(NodeId(12))));
        assert!((one / 32.2e9 - 1.0).abs() < 0.01 && (two / one - 2.0).abs() < 0.02, "{one} and {two}");
        // Four devices have 129 GB/s, the memory of the source has less.
        let four = routed(Route::Socket, Some(NodeId(8)));
        assert!((four / 67.5e9 - 1.0).abs() < 0.01, "{four}");
    }

    /// The costs are those of the profile, not of any other device.
    #[test]
    fn costs_are_those_of_the_profile() {
        const PROFILE: &str = include_str!("../../../memferry/machines/spr-56c.json");
        let with = |from: &str, to: &str| {
            assert!(PROFILE.contains(from));
            OnEmulated::new(Machine::from_profile_text("made up", &PROFILE.replace(from, to)).unwrap())
        };
        let latency = |backend: OnEmulated| {
            let taken =
                backend.run(&Point { size_bytes: 64, ..point() }, &[Metric::LATENCY], RunLength::QUICK);
            taken.unwrap()[0].values[0]
        };
        let longer =
            with("\"device_offload_ns\", \"value\": 679.0", "\"device_offload_ns\", \"value\": 979.0");
        let plain = with("spr-56c", "spr-56c").unwrap();
        // A device that is emulated on this machine is the same one.
        assert_eq!(plain.timing, DeviceCosts::sapphire_rapids());
        assert_eq!((plain.write_ns, plain.cache), (SUBMIT_WRITE_NS, CachePart::sapphire_rapids()));
        assert_eq!(latency(longer.unwrap()) - latency(plain), 300.0);
        let error = with("device_batch_ns", "query_ns").unwrap_err();
        assert!(error.to_string().contains("device_batch_ns"), "{error}");
    }

    #[test]
    fn queues_are_filled_by_their_submitters() {
        let four = Point { submitters: 4, queues: 4, way: Way::Dedicated, size_bytes: 1024, ..point() };
        let one = Point { submitters: 1, queues: 1, ..four.clone() };
        assert!(throughput(&four) > 3.0 * throughput(&one), "one does not keep a device busy");
        let error = backend().run(
            &Point { queues: 9, submitters: 9, ..four },
            &[Metric::THROUGHPUT],
            RunLength::QUICK,
        );
        assert!(error.unwrap_err().to_string().contains("work queues"));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        let run = |point: Point| backend().run(&point, &[Metric::THROUGHPUT], RunLength::QUICK).unwrap_err();
        assert!(run(Point { way: Way::Core, ..point() }).to_string().contains("only a device"));
        assert!(run(Point { way: Way::Write, batch: 2, ..point() }).to_string().contains("no batches"));
        let limited = Point { read_buffers: Some((0, 16)), submitters: 2, queues: 2, ..point() };
        assert!(run(limited).to_string().contains("1 to 96 read buffers"));
        assert!(run(Point { pages: Pages::Huge, ..point() }).to_string().contains("4 KiB"));
        assert!(run(Point { target: Some(NodeId(8)), ..point() }).to_string().contains("no nodes"));
        let tenants = Point { priorities: Some((15, 1)), submitters: 2, ..point() };
        assert!(run(tenants).to_string().contains("2 queues and 2 submitters"));
        assert!(run(Point { queues: 2, ..point() }).to_string().contains("have no submitter"));
        let routed = Point { route: Some(Route::All), submitters: 2, queues: 2, ..point() };
        assert!(run(routed).to_string().contains("one queue"));
        let far = Point { route: Some(Route::Single), target: Some(NodeId(99)), ..point() };
        assert!(run(far).to_string().contains("99"));
        assert!(run(Point { size_bytes: 1 << 33, ..point() }).to_string().contains("2 GiB"));
        for many in [
            Point { submitters: usize::MAX, ..point() },
            Point { queues: usize::MAX, ..point() },
            Point { depth: usize::MAX, ..point() },
        ] {
            assert!(run(many).to_string().contains("at most"));
        }
    }

    /// Its row would be of a device that the machine does not have.
    #[test]
    fn a_machine_without_devices_has_none() {
        let machine = Machine::from_profile("skylake-8180-snc-off").unwrap();
        let error = OnEmulated::new(machine).unwrap().run(&point(), &[], RunLength::QUICK);
        assert!(error.unwrap_err().to_string().contains("has no DSA"));
        let taken = backend().run(&point(), &[Metric::THROUGHPUT], RunLength::QUICK).unwrap();
        assert!(
            taken[0].note.as_ref().is_some_and(|note| note.contains("costs of the profile")),
            "{taken:?}"
        );
    }

    #[test]
    fn priorities_divide_a_device() {
        let rates = |priorities| {
            let point =
                Point { submitters: 2, queues: 2, depth: 16, priorities: Some(priorities), ..point() };
            let metrics = [Metric::TENANT1, Metric::TENANT2];
            let taken = backend().run(&point, &metrics, RunLength::FULL).unwrap();
            [0, 1].map(|index| taken[index].values[0])
        };
        let [first, second] = rates((10, 10));
        assert!((first / second - 1.0).abs() < 0.05, "{first} and {second}");
        // Both have n to do. While the first does, the second does its share; then it has the device for itself.
        for (priorities, ratio) in [((15, 1), 30.0 / 16.0), ((12, 4), 24.0 / 16.0)] {
            let [first, second] = rates(priorities);
            assert!((first / second / ratio - 1.0).abs() < 0.05, "{priorities:?}: {first} and {second}");
        }
        assert!(
            backend().run(&Point { priorities: Some((16, 1)), ..point() }, &[], RunLength::QUICK).is_err()
        );
    }

    /// A tenant whose group has a sixth of the read buffers has a sixth of the device's rate.
    #[test]
    fn read_buffers_divide_a_device() {
        let rates = |buffers| {
            let point = Point { submitters: 2, queues: 2, depth: 16, ..point() };
            let metrics = [Metric::TENANT1, Metric::TENANT2];
            let taken =
                backend().run(&Point { read_buffers: buffers, ..point }, &metrics, RunLength::FULL).unwrap();
            [0, 1].map(|index| taken[index].values[0] / 1e9)
        };
        let [first, second] = rates(Some((96, 16)));
        assert!((second / (32.2 / 6.0) - 1.0).abs() < 0.05, "{first} and {second}");
        assert!((first / (32.2 * 5.0 / 6.0) - 1.0).abs() < 0.05, "{first} and {second}");
        let [first, second] = rates(Some((96, 96)));
        assert!((first / second - 1.0).abs() < 0.05, "{first} and {second}");
    }

    #[test]
    fn writes_to_the_cache_leak_beyond_its_part() {
        let rate = |depth, data| throughput(&Point { way: Way::Dedicated, depth, data, ..point() }) / 1e9;
        assert_eq!(rate(8, Data::CachedTarget), rate(8, Data::Memory));
        assert!(rate(32, Data::CachedTarget) < 0.8 * rate(32, Data::Memory));
    }

    #[test]
    fn waiting_is_what_is_not_submitting() {
        let metrics = benchmark("latency").unwrap().metrics;
        let taken = backend().run(&point(), metrics, RunLength::QUICK).unwrap();
        let value = |metric| taken.iter().find(|it| it.metric == metric).map(|it| it.values.clone()).unwrap();
        let [latency, submit, wait] =
            [Metric::LATENCY, Metric::SUBMIT, Metric::WAIT].map(|metric| value(metric)[0]);
        for metric in [Metric::ALLOCATE, Metric::PREPARE] {
            let taken = taken.iter().find(|it| it.metric == metric).unwrap();
            assert!(taken.values.is_empty() && taken.note.as_ref().is_some_and(|it| it.contains("virtual")));
        }
        assert_eq!(submit, backend().timing.submit_shared_ns as f64);
        assert!((latency - submit - wait).abs() < 1e-6 && wait > 32_552.0, "{latency} = {submit} + {wait}");
    }
}
