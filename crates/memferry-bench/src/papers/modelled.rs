//! Points in the model.

use memferry::internals::{Hardware, Offload, copies_s, copy_s};
use memferry::model::ModelError;
use memferry::topology::Machine;
use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::internals::device_time::{
    AbsentPages, DeviceLoad, QueueLoad, READ_BUFFERS, SubmitterLoad, SubmitterTime, run,
};
use memferry_dsa_emulator::ENTRIES_MAX;

use super::load::{
    check_ways, data_note, endpoints, footprint_bytes, groups_of, is_into_cache, load_of, metrics_of,
};
use super::{Backend, Data, Measurement, Metric, Pages, Point, RunLength, Skipped, Way};
use crate::dsa::load::{LoadOperation, PageState, SubmitterTimes, TOUCH_NS};

/// Work queues of a device.
const QUEUES_MAX: usize = 8;

/// Runs points in the model of a machine.
#[derive(Debug)]
pub struct OnModel {
    machine: Machine,
    hardware: Hardware,
}

impl OnModel {
    /// # Errors
    /// [`ModelError`]: the machine lacks parameters.
    pub fn new(machine: Machine) -> Result<OnModel, ModelError> {
        let hardware = Hardware::of(&machine)?;
        Ok(OnModel { machine, hardware })
    }

    /// Times of the submitters of a point.
    fn device(&self, point: &Point, effort: RunLength) -> Result<Vec<SubmitterTimes>, Skipped> {
        let offload = Offload::of(&self.hardware).map_err(cannot)?;
        let costs = match point {
            Point { way: Way::Any, batch: 1, pages: Pages::Touched, .. } if !is_into_cache(point) => {
                offload.costs_of_singles()
            }
            _ if is_into_cache(point) => offload.costs_into_cache(footprint_bytes(point)).map_err(cannot)?,
            _ => offload.costs().map_err(cannot)?,
        };
        let load = load_of(point, effort)?;
        let write_ns = if point.way == Way::Write { offload.submit_write_ns().map_err(cannot)? } else { 0 };
        let (read_buffers, groups_count) = groups_of(point);
        let entries = point.entries.unwrap_or(ENTRIES_MAX / point.queues as u32) as usize;
        let queue = |number: usize| QueueLoad {
            group: number % groups_count,
            entries,
            priority: match point.priorities {
                None => 10,
                Some((first, second)) => [first, second][number],
            },
            submit_ns: match point.way {
                Way::Shared => costs.submit_shared_ns,
                Way::Write => write_ns,
                _ => costs.submit_dedicated_ns,
            },
        };
        let submitter = |number: usize| SubmitterLoad {
            queue: number % point.queues,
            bytes: point.size_bytes,
            batch: point.batch,
            depth: load.depth,
            repetitions: load.repetitions,
            absent: match load.pages {
                PageState::Touched => AbsentPages::None,
                PageState::AbsentBlock => AbsentPages::Block,
                PageState::AbsentResume => AbsentPages::Resume { touch_ns: TOUCH_NS },
            },
        };
        let times = run(&DeviceLoad {
            costs,
            groups: &vec![point.engines.unwrap_or(1) as usize; groups_count],
            read_buffers: &read_buffers,
            queues: &(0..point.queues).map(queue).collect::<Vec<_>>(),
            submitters: &(0..point.submitters).map(submitter).collect::<Vec<_>>(),
        });
        let seen = |time: &SubmitterTime| SubmitterTimes {
            elapsed_ns: time.elapsed_ns as f64,
            submitting_ns: Some(time.submitting_ns as f64),
            ..SubmitterTimes::default()
        };
        Ok(times.iter().map(seen).collect())
    }

    /// Seconds of a copy by each submitter itself. Submitters run on the node of the source, of the target, or on the first
    /// one with CPUs, which is the default node of the data.
    fn core_s(&self, point: &Point) -> Result<f64, Skipped> {
        let nodes = self.machine.nodes();
        let first = nodes.iter().find(|node| !node.cpus.is_empty() && node.has_memory()).map(|node| node.id);
        let Some(node) = point.source.or(point.target).or(first) else {
            return Skipped::cannot(format!("{} has no node with CPUs and memory", self.machine.name()));
        };
        let cpus = self.machine.node(node).map_err(|error| Skipped::Cannot(error.to_string()))?.cpu_node;
        let (source, target) = (point.source.unwrap_or(cpus), point.target.unwrap_or(cpus));
        let bytes = point.size_bytes as f64;
        let copying_s =
            copies_s(&self.hardware, cpus, (source, target), point.submitters, bytes).map_err(cannot)?;
        let absent =
            if point.pages == Pages::AbsentBlock { point.size_bytes.div_ceil(PAGE_BYTES) } else { 0 };
        Ok(copying_s + (absent * TOUCH_NS) as f64 * 1e-9)
    }

    /// Rate of routed copies, or of cores.
    fn throughput(&self, point: &Point) -> Result<f64, Skipped> {
        let bytes = point.size_bytes as f64;
        if let Some(route) = point.route {
            if (point.batch, point.submitters, point.depth) != (1, 1, 1) {
                return Skipped::cannot("the model computes routed copies one at a time");
            }
            let endpoints = endpoints(&self.machine, point)?;
            let seconds = copy_s(&self.machine, &self.hardware, route, endpoints).map_err(cannot)?;
            let longer_ns = match point.way {
                Way::Write => {
                    let offload = Offload::of(&self.hardware).map_err(cannot)?;
                    let write_ns = offload.submit_write_ns().map_err(cannot)?;
                    write_ns.saturating_sub(offload.costs_of_singles().submit_dedicated_ns)
                }
                Way::Shared => {
                    let costs = Offload::of(&self.hardware).and_then(|it| it.costs()).map_err(cannot)?;
                    costs.submit_shared_ns.saturating_sub(costs.submit_dedicated_ns)
                }
                _ => 0,
            };
            return Ok(bytes / (seconds + longer_ns as f64 * 1e-9));
        }
        Ok(point.submitters as f64 * bytes / self.core_s(point)?)
    }

    /// Refuses points that the model does not cover.
    fn check(&self, point: &Point) -> Result<(), Skipped> {
        let under_way = point.submitters.saturating_mul(point.depth);
        Skipped::cannot(match point {
            Point { way: Way::Write, batch: 2.., .. } => "the kernel submits no batches by write(2)",
            Point { size_bytes: 0, .. } | Point { batch: 0, .. } | Point { depth: 0, .. } => {
                "sizes and counts begin at 1"
            }
            Point { operation, .. } if *operation != LoadOperation::Copy => "the model knows copies only",
            Point { data, .. }
                if !matches!(data, Data::Any | Data::Memory)
                    && (point.way == Way::Core || point.route.is_some()) =>
            {
                "the model has no caches of cores, and routed copies write to memory"
            }
            Point { working_set_bytes: Some(_), .. } => "the model has no reader in a cache",
            Point { read_buffers: Some(_), priorities: Some(_), .. } => {
                "priorities are of queues of one group, and read buffers of two groups: leave out one of them"
            }
            Point { read_buffers: Some((first, second)), .. } if !are_buffers(&[*first, *second]) => {
                "a group has 1 to 96 read buffers"
            }
            Point { read_buffers: Some(_), engines: Some(3..), .. } => {
                "a device has four engines for both groups together"
            }
            Point { way: Way::Core, route: Some(_), .. } => {
                "in the model routes are of devices, not of cores"
            }
            Point { pages: Pages::Huge, .. } => "the model does not tell sizes of pages apart",
            Point { way: Way::Core, pages: Pages::AbsentResume, .. } => {
                "a core does not stop at an absent page: take absent-block"
            }
            Point { pages, batch, .. } if *pages != Pages::Touched && *batch > 1 => {
                "absent pages are for single copies, not for batches"
            }
            Point { route: Some(_), engines, pages, .. }
                if engines.is_some_and(|engines| engines != 1) || *pages != Pages::Touched =>
            {
                "in the model the devices of a route have one engine each, and all pages are present"
            }
            Point { route: Some(_), queues, .. } if *queues > 1 => {
                "in the model a route uses one queue of each device"
            }
            Point { engines: Some(engines), .. } if !(1..=4).contains(engines) => {
                "a device has one to four engines"
            }
            Point { queues, .. } if *queues > QUEUES_MAX => "a device has at most 8 work queues",
            Point { entries: Some(0), .. } => "a queue has at least one entry",
            Point { priorities: Some((first, second)), .. }
                if !(1..=15).contains(first) || !(1..=15).contains(second) =>
            {
                "priorities are 1 to 15"
            }
            Point { way: Way::Dedicated, submitters, queues, .. } if submitters > queues => {
                "a dedicated queue has one submitter"
            }
            Point { entries: Some(entries), .. }
                if point.way != Way::Shared
                    && under_way.div_ceil(point.queues.max(1)) > *entries as usize =>
            {
                "all submitters together cannot have more in flight than the queue has entries"
            }
            Point { way: Way::Shared | Way::Dedicated | Way::Any, route: None, source, target, .. }
                if source.or(*target).is_some() =>
            {
                "in the model nodes are for routes and cores; add a route"
            }
            _ => return check_ways(point),
        })
    }
}

impl Backend for OnModel {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    /// By default all queues are one way, which costs what a dedicated queue costs; `shared` can be asked for.
    fn ways(&self, wanted: &[Way]) -> Vec<Way> {
        let core = wanted.iter().copied().filter(|way| *way == Way::Core);
        let is_any = wanted.iter().any(|way| *way != Way::Core);
        core.chain(is_any.then_some(Way::Any))
            .chain(wanted.iter().copied().filter(|way| *way == Way::Write))
            .collect()
    }

    fn run(&self, point: &Point, metrics: &[Metric], effort: RunLength) -> Result<Vec<Measurement>, Skipped> {
        self.check(point)?;
        if metrics.iter().any(|metric| matches!(*metric, Metric::LOAD | Metric::SLOWDOWN)) {
            return Skipped::cannot("the model has no caches");
        }
        if point.way != Way::Core && point.route.is_none() {
            let seen = self.device(point, effort)?;
            let mut taken = metrics_of(point, metrics, effort.repetitions(point.size_bytes), &[seen]);
            for taken in taken.iter_mut().filter(|it| !it.values.is_empty()) {
                taken.overhead = Some(0.0);
                data_note(point).into_iter().for_each(|note| taken.add_note(note));
            }
            return Ok(taken);
        }
        let note = (point.way == Way::Core && point.source.or(point.target).is_some()).then(|| {
            "a core is as slow as its latencies; within a socket all memories count as equally near where these are unknown"
                .to_owned()
        });
        let taken = |&metric: &Metric| {
            let value = match metric {
                Metric::THROUGHPUT => self.throughput(point)?,
                Metric::LATENCY if point.way == Way::Core && point.submitters == 1 => {
                    self.core_s(point)? * 1e9
                }
                _ if point.way == Way::Core => {
                    let why = "a core that works itself neither submits nor waits";
                    return Ok(Measurement::missing(metric, why));
                }
                _ => return Skipped::cannot("the model has the throughput of routed copies only"),
            };
            // A computed result has no measuring overhead.
            let taken = Measurement { overhead: Some(0.0), ..Measurement::new(metric, vec![value]) };
            Ok(taken.with_note(note.clone()))
        };
        metrics.iter().map(taken).collect()
    }
}

/// Whether groups may have so many read buffers.
pub(super) fn are_buffers(counts: &[u32]) -> bool {
    counts.iter().all(|count| (1..=READ_BUFFERS).contains(count))
}

fn cannot(error: ModelError) -> Skipped {
    Skipped::Cannot(error.to_string())
}

#[cfg(test)]
mod tests {
    use memferry::mover::Route;
    use memferry::topology::NodeId;

    use super::*;
    use crate::papers::Axes;

    fn run(point: &Point, metric: Metric) -> Result<f64, Skipped> {
        let backend = OnModel::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap();
        backend.run(point, &[metric], RunLength::QUICK).map(|taken| taken[0].values[0])
    }

    fn point() -> Point {
        Axes { ways: vec![Way::Any], sizes_bytes: vec![1 << 30], ..Axes::default() }.points().remove(0)
    }

    #[test]
    fn the_rates_of_the_thesis() {
        let gib = f64::from(1 << 30);
        let one = run(&point(), Metric::THROUGHPUT).unwrap() / gib;
        assert!((one / 30.0 - 1.0).abs() < 0.01, "{one} GiB/s");
        let four =
            Point { route: Some(Route::Socket), source: Some(NodeId(0)), target: Some(NodeId(8)), ..point() };
        let four = run(&four, Metric::THROUGHPUT).unwrap() / gib;
        assert!((four / 64.0 - 1.0).abs() < 0.05, "{four} GiB/s");
        let small = Point { size_bytes: 4096, ..point() };
        let many = run(&Point { depth: 32, ..small.clone() }, Metric::THROUGHPUT).unwrap();
        assert!(many > 2.0 * run(&small, Metric::THROUGHPUT).unwrap());
    }

    /// The rate of a core: its own, or its share of a memory or link if that is less.
    #[test]
    fn cores_share_memories() {
        let by = |submitters, source, target| {
            let nodes = (Some(NodeId(source)), Some(NodeId(target)));
            let point = Point { way: Way::Core, submitters, source: nodes.0, target: nodes.1, ..point() };
            run(&point, Metric::THROUGHPUT).unwrap()
        };
        let plain = run(&Point { way: Way::Core, ..point() }, Metric::THROUGHPUT).unwrap();
        assert_eq!(by(1, 0, 0), plain);
        assert!(by(12, 0, 0) < 11.0 * plain, "12 cores on two channels: {}", by(12, 0, 0));
        assert!(by(12, 8, 8) > 1.2 * by(12, 0, 0), "HBM has more for them: {}", by(12, 8, 8));
    }

    /// A core brings in each absent page itself.
    #[test]
    fn cores_take_page_faults() {
        let of = |pages| {
            run(&Point { way: Way::Core, size_bytes: 10_000, pages, ..point() }, Metric::LATENCY).unwrap()
        };
        let difference = of(Pages::AbsentBlock) - of(Pages::Touched);
        assert!((difference - 3.0 * TOUCH_NS as f64).abs() < 1e-6, "{difference}");
    }

    /// The way changes what a submission takes of the core, and nothing else.
    #[test]
    fn a_system_call_takes_longer() {
        let small = Point { size_bytes: 4096, ..point() };
        let latency = |way| run(&Point { way, ..small.clone() }, Metric::LATENCY).unwrap();
        assert_eq!(latency(Way::Write) - latency(Way::Dedicated), 560.0);
        assert_eq!(latency(Way::Shared) - latency(Way::Dedicated), 360.0);
        let routed = |way| {
            let route = (Some(Route::Single), Some(NodeId(0)), Some(NodeId(8)));
            let point = Point { way, route: route.0, source: route.1, target: route.2, ..small.clone() };
            4096.0 / run(&point, Metric::THROUGHPUT).unwrap() * 1e9
        };
        assert!((routed(Way::Write) - routed(Way::Any) - 560.0).abs() < 1e-3);
    }

    /// Leaky DMA: Kuper et al. (2024), section 4.3.
    #[test]
    fn writes_to_the_cache_leak_beyond_its_part() {
        let rate = |size_bytes, data| {
            let point = Point { size_bytes, depth: 32, way: Way::Dedicated, data, ..point() };
            run(&point, Metric::THROUGHPUT).unwrap() / 1e9
        };
        let (fits, leaks) = (256 << 10, 1 << 20);
        assert_eq!(rate(fits, Data::CachedTarget), rate(fits, Data::Memory));
        assert!((rate(leaks, Data::CachedTarget) / 22.5 - 1.0).abs() < 0.05);
        assert!(rate(leaks, Data::Memory) > 30.0, "{}", rate(leaks, Data::Memory));
        assert_eq!(rate(leaks, Data::CachedSource), rate(leaks, Data::Memory));
    }

    #[test]
    fn parts_of_a_latency() {
        let small = Point { size_bytes: 4096, ..point() };
        let [all, submit, wait, asleep] = [Metric::LATENCY, Metric::SUBMIT, Metric::WAIT, Metric::ASLEEP]
            .map(|metric| run(&small, metric).unwrap());
        assert!(
            (all - submit - wait).abs() < 1e-6 && (asleep - wait / all).abs() < 1e-9,
            "{all} {submit} {wait}"
        );
    }

    #[test]
    fn what_it_does_not_know_it_refuses() {
        for (point, word) in [
            (Point { way: Way::Write, batch: 2, ..point() }, "no batches"),
            (Point { operation: LoadOperation::Crc, ..point() }, "copies only"),
            (Point { engines: Some(5), ..point() }, "four engines"),
            (Point { way: Way::Core, pages: Pages::AbsentResume, ..point() }, "does not stop"),
            (Point { entries: Some(4), depth: 8, ..point() }, "entries"),
            (Point { pages: Pages::Huge, ..point() }, "pages"),
            (Point { pages: Pages::AbsentBlock, batch: 2, ..point() }, "single copies"),
            (Point { data: Data::Cached, way: Way::Core, ..point() }, "caches"),
            (
                Point { read_buffers: Some((97, 4)), submitters: 2, queues: 2, ..point() },
                "1 to 96 read buffers",
            ),
            (Point { priorities: Some((1, 2)), ..point() }, "tenants"),
            (Point { read_buffers: Some((96, 4)), ..point() }, "tenants"),
            (Point { way: Way::Core, route: Some(Route::All), ..point() }, "of devices"),
            (Point { submitters: 4, depth: 8, entries: Some(16), ..point() }, "all submitters"),
            (Point { way: Way::Dedicated, submitters: 2, ..point() }, "one submitter"),
            (Point { submitters: 9, queues: 9, ..point() }, "work queues"),
            (Point { way: Way::Core, depth: 2, ..point() }, "about queues"),
            (Point { way: Way::Core, submitters: 99, ..point() }, "99 cores"),
            (Point { target: Some(NodeId(8)), ..point() }, "add a route"),
        ] {
            let error = run(&point, Metric::THROUGHPUT).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(run(&Point { source: Some(NodeId(0)), ..point() }, Metric::LATENCY).is_err());
        let backend = OnModel::new(Machine::from_profile("spr-56c").unwrap()).unwrap();
        let taken = backend.run(&point(), &[Metric::PREPARE], RunLength::QUICK).unwrap();
        assert!(
            taken[0].values.is_empty() && taken[0].note.as_ref().is_some_and(|it| it.contains("virtual"))
        );
    }
}
