//! Points on the emulated device, in virtual time.

use memferry_dsa::emulator::{
    BATCH_MAX, DeviceConfig, ENTRIES_MAX, GroupConfig, TRANSFER_BYTES_MAX, Timing, dedicated_queue,
    shared_queue,
};
use memferry_dsa::measure::load::{self, DEPTH_MAX, Load, Seen, TOUCH_NS, emulated};

use super::{Backend, Data, Effort, Figure, Pages, Point, Taken, Unrun, Way};
use crate::mover::Journey;
use crate::topology::Machine;

/// A device with the emulator's timing model; several, on the nodes of a machine's devices, for copies by routes.
#[derive(Debug)]
pub struct OnEmulated {
    machine: Machine,
    timing: Timing,
}

impl OnEmulated {
    /// Devices where `machine` has some, all with this timing.
    pub fn new(machine: Machine, timing: Timing) -> OnEmulated {
        OnEmulated { machine, timing }
    }

    /// A device with the queues and engines of a point.
    fn device(&self, point: &Point) -> Result<DeviceConfig, Unrun> {
        let entries = point.entries.unwrap_or(ENTRIES_MAX / point.queues.max(1) as u32);
        let queue = |number| {
            let name = format!("wq0.{number}");
            let queue = match point.way {
                Way::Dedicated => dedicated_queue(&name, entries),
                _ => shared_queue(&name, entries),
            };
            let priority = match point.priorities {
                None => queue.priority,
                Some((first, second)) => {
                    if number == 0 {
                        first
                    } else {
                        second
                    }
                }
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
        let config = DeviceConfig::new(vec![GroupConfig { engines: point.engines.unwrap_or(1), queues }]);
        config.validate().map_err(|error| Unrun::Cannot(error.to_string()))?;
        Ok(config.with_timing(self.timing))
    }

    /// A copy that the devices of a route share: the slowest of them.
    fn routed(&self, point: &Point, load: Load) -> Result<Vec<Seen>, Unrun> {
        let journey = journey(&self.machine, point)?;
        let shares = point.route.map(|route| route.devices(&self.machine, journey)).unwrap_or_default();
        if shares.is_empty() {
            return Unrun::cannot(format!(
                "{} has no devices that could share in a copy; add --machine PROFILE for one that has",
                self.machine.name()
            ));
        }
        let config = self.device(point)?;
        let mut seen = Vec::with_capacity(shares.len());
        for share in shares {
            let load = Load { size_bytes: share.bytes.len() as u32, ..load };
            seen.extend(emulated(&config, &[(0, load)])?);
        }
        Ok(seen)
    }
}

impl Backend for OnEmulated {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn ways(&self, wanted: &[Way]) -> Vec<Way> {
        wanted.iter().copied().filter(|way| *way != Way::Core).collect()
    }

    fn run(&self, point: &Point, figures: &[Figure], effort: Effort) -> Result<Vec<Taken>, Unrun> {
        if !matches!(point.way, Way::Shared | Way::Dedicated) {
            return Unrun::cannot("only a device is emulated; ask for the ways shared and dedicated");
        }
        if figures.contains(&Figure::Load) {
            return Unrun::cannot("the emulated device has no caches that others could miss");
        }
        if point.data != Data::Any {
            return Unrun::cannot("the emulated device has no caches");
        }
        let load = load_of(point, effort)?;
        let load = match point.pages {
            Pages::Huge => return Unrun::cannot("the emulated device translates pages of 4 KiB only"),
            Pages::Touched => load,
            Pages::AbsentBlock => Load { pages: load::Pages::AbsentBlock, ..load },
            Pages::AbsentResume => Load { pages: load::Pages::AbsentResume, ..load },
        };
        let seen = match point.route {
            Some(_) if point.submitters > 1 => {
                return Unrun::cannot(
                    "a routed copy has one submitter; leave out the route or the submitters",
                );
            }
            Some(_) => self.routed(point, load)?,
            None if point.source.or(point.target).is_some() => {
                return Unrun::cannot(
                    "the emulated device knows no nodes; only a route chooses devices by them",
                );
            }
            None => {
                let loads: Vec<_> = (0..point.submitters).map(|it| (it % point.queues, load)).collect();
                emulated(&self.device(point)?, &loads)?
            }
        };
        let mut taken = figures_of(point, figures, effort.repetitions(point.size_bytes), &[seen]);
        for taken in &mut taken {
            taken.note = match (point.route, point.pages) {
                (Some(_), _) => Some("devices alone: memories set no limit here".to_owned()),
                (None, Pages::AbsentResume) => {
                    Some(format!("touching a page is assumed to take {TOUCH_NS} ns"))
                }
                _ => None,
            };
        }
        Ok(taken)
    }
}

/// Most threads that a benchmark starts or emulates: as many as the largest machines have CPUs.
const SUBMITTERS_MAX: usize = 1024;

/// The journey of a point whose copies are between nodes.
pub(super) fn journey(machine: &Machine, point: &Point) -> Result<Journey, Unrun> {
    for node in [point.source, point.target].into_iter().flatten() {
        machine.node(node).map_err(|error| Unrun::Cannot(error.to_string()))?;
    }
    let Ok(size_bytes) = usize::try_from(point.size_bytes) else {
        return Unrun::cannot("no memory is that large");
    };
    Ok(Journey { source_node: point.source, target_node: point.target, size_bytes, turn: 0 })
}

/// What each submitter of a point does, in memory that was touched before.
pub(super) fn load_of(point: &Point, effort: Effort) -> Result<Load, Unrun> {
    let Some(size_bytes) = u32::try_from(point.size_bytes).ok().filter(|size| *size <= TRANSFER_BYTES_MAX)
    else {
        return Unrun::cannot("a descriptor is for 2 GiB at most");
    };
    if point.batch > BATCH_MAX {
        return Unrun::cannot(format!("a batch has {BATCH_MAX} descriptors at most"));
    }
    if point.submitters > SUBMITTERS_MAX || point.queues > SUBMITTERS_MAX || point.depth > DEPTH_MAX {
        return Unrun::cannot(format!(
            "there are {SUBMITTERS_MAX} submitters and queues at most, with {DEPTH_MAX} submissions under way each"
        ));
    }
    if point.submitters == 0 || point.queues == 0 {
        return Unrun::cannot("somebody has to submit to some queue: counts begin at 1");
    }
    Ok(Load {
        work: point.operation,
        size_bytes,
        batch: point.batch,
        depth: point.depth,
        repetitions: effort.repetitions(point.size_bytes),
        pages: load::Pages::Touched,
    })
}

/// What the submitters saw in each iteration, as figures.
pub(super) fn figures_of(
    point: &Point,
    figures: &[Figure],
    repetitions: usize,
    iterations: &[Vec<Seen>],
) -> Vec<Taken> {
    let repetitions = repetitions as f64;
    let bytes = point.size_bytes as f64 * f64::from(point.batch) * repetitions * point.submitters as f64;
    let slowest_ns = |seen: &Vec<Seen>| seen.iter().map(|seen| seen.elapsed_ns).fold(0.0, f64::max);
    // What is known of submitting only where the submitter is part of the simulation.
    let submitting_ns = |seen: &Vec<Seen>| seen.first().and_then(|seen| seen.submitting_ns);
    let own_rate = |seen: Option<&Seen>| Some(bytes / point.submitters as f64 / seen?.elapsed_ns * 1e9);
    let values = |figure: Figure| -> Option<Vec<f64>> {
        let value = |seen: &Vec<Seen>| match figure {
            Figure::Throughput => Some(bytes / slowest_ns(seen) * 1e9),
            Figure::Latency => Some(slowest_ns(seen) / repetitions),
            Figure::Submit => Some(submitting_ns(seen)? / repetitions),
            Figure::Wait => Some((slowest_ns(seen) - submitting_ns(seen)?) / repetitions),
            Figure::Asleep => Some(1.0 - submitting_ns(seen)? / slowest_ns(seen)),
            Figure::Tenant1 => own_rate(seen.first()),
            Figure::Tenant2 => own_rate(seen.get(1)),
            Figure::Overhead | Figure::Load | Figure::Slowdown => None,
        };
        iterations.iter().map(value).collect()
    };
    let taken = |&figure: &Figure| match values(figure) {
        Some(values) => Taken::new(figure, values),
        None => Taken::missing(figure, "a core that works itself neither submits nor waits"),
    };
    figures.iter().filter(|figure| **figure != Figure::Overhead).map(taken).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Axes, benchmark};
    use crate::mover::Route;
    use crate::topology::NodeId;

    fn backend() -> OnEmulated {
        OnEmulated::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap(), Timing::sapphire_rapids())
    }

    fn throughput(point: &Point) -> f64 {
        let taken = backend().run(point, &[Figure::Throughput], Effort::QUICK).unwrap();
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
        assert!((one / 30e9 - 1.0).abs() < 0.01 && (two / one - 2.0).abs() < 0.02, "{one} and {two}");
    }

    #[test]
    fn queues_are_filled_by_their_submitters() {
        let four = Point { submitters: 4, queues: 4, way: Way::Dedicated, size_bytes: 1024, ..point() };
        let one = Point { submitters: 1, queues: 1, ..four.clone() };
        assert!(throughput(&four) > 3.0 * throughput(&one), "one does not keep a device busy");
        let error = backend().run(&Point { queues: 9, ..four }, &[Figure::Throughput], Effort::QUICK);
        assert!(error.unwrap_err().to_string().contains("work queues"));
    }

    #[test]
    fn what_is_no_device_is_refused() {
        let run = |point: Point| backend().run(&point, &[Figure::Throughput], Effort::QUICK).unwrap_err();
        assert!(run(Point { way: Way::Core, ..point() }).to_string().contains("only a device"));
        assert!(run(Point { pages: Pages::Huge, ..point() }).to_string().contains("4 KiB"));
        assert!(run(Point { target: Some(NodeId(8)), ..point() }).to_string().contains("no nodes"));
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

    #[test]
    fn priorities_divide_a_device() {
        let rates = |priorities| {
            let point =
                Point { submitters: 2, queues: 2, depth: 16, priorities: Some(priorities), ..point() };
            let figures = [Figure::Tenant1, Figure::Tenant2];
            let taken = backend().run(&point, &figures, Effort::FULL).unwrap();
            [0, 1].map(|index| taken[index].values[0])
        };
        let [first, second] = rates((10, 10));
        assert!((first / second - 1.0).abs() < 0.05, "{first} and {second}");
        let [first, second] = rates((15, 1));
        assert!(first > 1.5 * second, "{first} and {second}");
        assert!(backend().run(&Point { priorities: Some((16, 1)), ..point() }, &[], Effort::QUICK).is_err());
    }

    #[test]
    fn waiting_is_what_is_not_submitting() {
        let figures = benchmark("latency").unwrap().figures;
        let taken = backend().run(&point(), figures, Effort::QUICK).unwrap();
        let [latency, submit, wait] = [0, 1, 2].map(|index| taken[index].values[0]);
        assert_eq!(submit, 400.0);
        assert!((latency - submit - wait).abs() < 1e-6 && wait > 34_000.0, "{latency} = {submit} + {wait}");
    }
}
