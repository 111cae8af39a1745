//! Points on this machine: in threads, by the cores themselves or through the queues that there are.

mod pollution;
mod queues;

use std::sync::Arc;

use memferry_dsa::measure::load::{self, Lane, Load, Seen, Work, threads};
use memferry_dsa::measure::waiting;
use memferry_dsa::system::State;
use memferry_dsa::{Portal, QueueMode, Wait};

use super::emulated::{figures_of, journey, load_of};
use super::{Backend, Data, Effort, Figure, Pages, Point, Taken, Unrun, Way};
use crate::memory::{Binding, HugePages, Mapping, MappingOptions};
use crate::topology::{Machine, Node, NodeId};

/// The cores of this machine, and its DSA queues.
#[derive(Debug)]
pub struct OnMachine {
    machine: Machine,
    state: State,
}

/// From this size on the cost of measuring is told.
const OVERHEAD_BYTES_MIN: u64 = 64 << 10;

/// What is larger than the last-level caches of today; those of two sockets of Sapphire Rapids have 210 MB.
const MEMORY_BYTES: usize = 256 << 20;

/// Memory that absent pages are taken from, for each thread.
const ABSENT_BYTES_MAX: u64 = 64 << 20;

impl OnMachine {
    /// `machine` is this one, and `state` what it has of DSA.
    pub fn new(machine: Machine, state: State) -> OnMachine {
        OnMachine { machine, state }
    }

    /// The CPUs of the submitters: those of the source's node, if it has some.
    fn cpus(&self, point: &Point) -> Vec<u32> {
        let home = point.source.and_then(|node| self.machine.node(node).ok()).map(|node| node.cpu_node);
        let is_meant = |node: &&Node| home.is_none_or(|home| node.id == home);
        self.machine
            .nodes()
            .iter()
            .filter(is_meant)
            .flat_map(|node| node.allowed_cpus.iter().copied())
            .collect()
    }

    /// A lane for each submitter.
    fn lanes(&self, point: &Point, load: Load, ways: &[load::Way]) -> Result<Vec<Lane<Mapping>>, Unrun> {
        let plain = Lane::<Mapping>::region_bytes(&load);
        let large = MEMORY_BYTES.next_multiple_of(plain.max(1));
        let (source, target) = match point.data {
            Data::Any | Data::Cached => (plain, plain),
            Data::Memory => (large, large),
            Data::CachedSource => (plain, large),
            Data::CachedTarget => (large, plain),
        };
        // Each submission has absent pages of its own.
        let target = match is_absent(point) {
            true => Lane::<Mapping>::region_bytes(&Load { depth: load.repetitions, ..load }),
            false => target,
        };
        let extra = Lane::<Mapping>::extra_bytes(&load);
        let needed =
            source.saturating_add(target).saturating_add(extra).saturating_mul(point.submitters) as u64;
        let free: u64 = self.machine.nodes().iter().filter_map(|node| node.free_bytes).sum();
        // Half: other programs want to live.
        if free > 0 && needed > free / 2 {
            return Unrun::cannot(format!(
                "this takes {} MiB of memory, and {} MiB are free, of which half may be taken",
                needed >> 20,
                free >> 20
            ));
        }
        let cpus = self.cpus(point);
        let lane = |number: usize| {
            let regions = [
                self.region(source, point.source, Pages::Touched)?,
                self.region(target, point.target, point.pages)?,
                self.region(extra.max(1), point.target, Pages::Touched)?,
            ];
            let cpu = cpus.get(number % cpus.len().max(1)).copied();
            let times_submissions = false;
            Ok(Lane { load, way: ways[number % ways.len()].clone(), cpu, regions, times_submissions })
        };
        (0..point.submitters).map(lane).collect()
    }

    fn region(&self, size_bytes: usize, node: Option<NodeId>, pages: Pages) -> Result<Mapping, Unrun> {
        let options = MappingOptions {
            binding: node.map_or(Binding::Any, Binding::Bind),
            huge_pages: if pages == Pages::Huge { HugePages::Advised } else { HugePages::Never },
            populate: matches!(pages, Pages::Touched | Pages::Huge),
        };
        let mut mapping = Mapping::with(&self.machine, size_bytes, options)
            .map_err(|error| Unrun::Cannot(error.to_string()))?;
        if matches!(pages, Pages::Touched | Pages::Huge) {
            load::prepare(&mut mapping);
        }
        Ok(mapping)
    }

    /// Targets whose pages come while a core writes to them: others in each iteration.
    fn absent(&self, point: &Point, load: Load, effort: Effort) -> Result<(Vec<Vec<Seen>>, usize), Unrun> {
        if load.work != Work::Copy || load.batch > 1 || point.submitters > 1 || point.data != Data::Any {
            return Unrun::cannot(
                "absent pages are for copies by one core, not in batches, and not of cached data",
            );
        }
        let fitting = (ABSENT_BYTES_MAX / point.size_bytes.max(1)).max(1) as usize;
        let load = Load { repetitions: fitting.min(load.repetitions), ..load };
        let iteration = |_| {
            let lanes = self.lanes(point, load, &[load::Way::Core])?;
            let (mut seen, _) = threads(lanes, 1)?;
            Ok(seen.remove(0))
        };
        let seen = (0..effort.iterations).map(iteration).collect::<Result<Vec<_>, Unrun>>()?;
        Ok((seen, load.repetitions))
    }

    /// What remains of the same run without anything to do.
    fn overhead(&self, point: &Point, load: Load, seen: &[Vec<Seen>]) -> Result<Taken, Unrun> {
        // Nothing is done with the memory, so that it may be small.
        let nothing = Load { work: Work::Nothing, size_bytes: 1, ..load };
        let anywhere = Point { data: Data::Any, pages: Pages::Touched, ..point.clone() };
        let lanes = self.lanes(&anywhere, nothing, &[load::Way::Core])?;
        let (empty, _) = threads(lanes, seen.len())?;
        let slowest = |seen: &Vec<Seen>| seen.iter().map(|seen| seen.elapsed_ns).fold(0.0, f64::max);
        let shares = empty.iter().zip(seen).map(|(empty, seen)| slowest(empty) / slowest(seen));
        Ok(Taken::new(Figure::Overhead, shares.collect()))
    }

    /// The share of a core that a waiter leaves to others. In UMWAIT it would leave none: the thread still has the core.
    fn asleep(&self, point: &Point, portal: &dyn Portal, effort: Effort) -> Result<Taken, Unrun> {
        let (Ok(size_bytes), 1) = (u32::try_from(point.size_bytes), point.batch) else {
            return Unrun::cannot("waiting is measured for single descriptors");
        };
        let costs = waiting::costs(portal, &[Wait::Block], size_bytes, effort.iterations)
            .map_err(|error| Unrun::Failed(error.into()))?;
        let asleep = costs.iter().flat_map(|cost| &cost.core_shares).map(|share| 1.0 - share);
        let note = Some("sleeps until the completer wakes it, whose time counts as well".to_owned());
        Ok(Taken { note, ..Taken::new(Figure::Asleep, asleep.collect()) })
    }
}

fn is_absent(point: &Point) -> bool {
    matches!(point.pages, Pages::AbsentBlock | Pages::AbsentResume)
}

/// Those of submitters: queues, or without any the cores.
fn ways(portals: Vec<Arc<dyn Portal>>) -> Vec<load::Way> {
    match portals.is_empty() {
        true => vec![load::Way::Core],
        false => portals.into_iter().map(load::Way::Queue).collect(),
    }
}

impl Backend for OnMachine {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn ways(&self, wanted: &[Way]) -> Vec<Way> {
        wanted.to_vec()
    }

    fn run(&self, point: &Point, figures: &[Figure], effort: Effort) -> Result<Vec<Taken>, Unrun> {
        let load = load_of(point, effort)?;
        journey(&self.machine, point)?;
        if point.data != Data::Any && point.way != Way::Core {
            return Unrun::cannot(
                "where a device finds its data is for the core's caches to say, and not measured",
            );
        }
        if let Some(route) = point.route {
            if point.way == Way::Any {
                return Unrun::cannot("a machine has queues; ask for the ways core, shared or dedicated");
            }
            let seen = self.routed(point, route, load, effort)?;
            let mut taken = figures_of(point, figures, load.repetitions, &seen);
            if point.way != Way::Core {
                let note = "by the mover, whose CPU workers take what devices refuse";
                taken.iter_mut().for_each(|taken| taken.note = Some(note.to_owned()));
            }
            return Ok(taken);
        }
        if point.priorities.is_some() && point.way == Way::Core {
            return Unrun::cannot("cores have no queues with priorities");
        }
        let portals = match point.way {
            Way::Core => Vec::new(),
            Way::Shared => self.portals(point, QueueMode::Shared)?,
            Way::Dedicated => self.portals(point, QueueMode::Dedicated)?,
            Way::Any => {
                return Unrun::cannot("a machine has queues; ask for the ways core, shared or dedicated");
            }
        };
        if figures == [Figure::Asleep] {
            return match portals.first() {
                Some(portal) => Ok(vec![self.asleep(point, &**portal, effort)?]),
                None => Unrun::cannot("a core that copies does not wait"),
            };
        }
        if point.way == Way::Core && point.pages == Pages::AbsentResume {
            return Unrun::cannot("a core does not stop at absent pages, so it does not resume");
        }
        if figures.contains(&Figure::Load) {
            return self.pollution(point, load, &ways(portals), effort);
        }
        let (seen, repetitions) = match (is_absent(point), portals.is_empty()) {
            (true, true) => self.absent(point, load, effort)?,
            (true, false) => {
                return Unrun::cannot("page faults of devices are emulated, not measured; add --on emulated");
            }
            (false, _) => {
                let mut lanes = self.lanes(point, load, &ways(portals))?;
                let is_timed = figures.contains(&Figure::Submit);
                lanes.iter_mut().for_each(|lane| lane.times_submissions = is_timed);
                (threads(lanes, effort.iterations)?.0, load.repetitions)
            }
        };
        let mut taken = figures_of(point, figures, repetitions, &seen);
        if figures.contains(&Figure::Overhead) && point.size_bytes >= OVERHEAD_BYTES_MIN {
            taken.push(self.overhead(point, load, &seen)?);
        }
        if point.pages == Pages::Huge {
            let note = "huge pages are asked for; the kernel gives what it has";
            taken.iter_mut().for_each(|taken| taken.note = Some(note.to_owned()));
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Axes;
    use crate::mover::Route;

    fn run(point: &Point, figures: &[Figure]) -> Result<Vec<Taken>, Unrun> {
        let (machine, state) = (Machine::discover().unwrap(), State::discover().unwrap());
        OnMachine::new(machine, state).run(point, figures, Effort::QUICK)
    }

    fn point() -> Point {
        Axes { ways: vec![Way::Core], sizes_bytes: vec![64 << 10], ..Axes::default() }.points().remove(0)
    }

    #[test]
    fn cores_copy() {
        for point in [
            point(),
            Point { submitters: 2, ..point() },
            Point { operation: Work::Dualcast, ..point() },
            Point { pages: Pages::AbsentBlock, depth: 4, ..point() },
            Point { pages: Pages::Huge, ..point() },
        ] {
            let taken = run(&point, &[Figure::Throughput, Figure::Overhead]).unwrap();
            assert_eq!(
                taken.iter().map(|it| it.figure).collect::<Vec<_>>(),
                [Figure::Throughput, Figure::Overhead]
            );
            assert!(taken.iter().all(|it| it.values.len() == 2 && it.values.iter().all(|it| *it > 0.0)));
        }
    }

    #[test]
    fn copies_by_workers_and_beside_a_reader() {
        let large = Point { size_bytes: 4 << 20, route: Some(Route::All), ..point() };
        assert!(run(&large, &[Figure::Throughput]).unwrap()[0].values[0] > 0.0);
        let cached = Point { data: Data::CachedTarget, ..point() };
        match run(&cached, &[Figure::Throughput]) {
            Ok(taken) => assert!(taken[0].values[0] > 0.0),
            Err(error) => assert!(error.to_string().contains("MiB are free"), "{error}"),
        }
        match run(&Point { submitters: 4, ..point() }, &[Figure::Load, Figure::Slowdown]) {
            Ok(taken) => {
                assert!(taken.iter().all(|it| it.values.iter().all(|value| *value > 0.0)), "{taken:?}");
                assert!(taken[0].peer.is_some_and(|(_, alone)| alone > 0.1), "{taken:?}");
            }
            // On a machine with one CPU.
            Err(error) => assert!(error.to_string().contains("two CPUs"), "{error}"),
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        let cannot = |point: Point, figures: &[Figure]| match run(&point, figures) {
            Err(Unrun::Cannot(what)) => what,
            other => panic!("{other:?}"),
        };
        let figures = [Figure::Throughput];
        // No device has that many queues.
        assert!(cannot(Point { way: Way::Shared, queues: 99, ..point() }, &figures).contains("configure"));
        assert!(cannot(Point { depth: 1 << 16, size_bytes: 1 << 30, ..point() }, &figures).contains("MiB"));
        assert!(cannot(Point { target: Some(NodeId(4000)), ..point() }, &figures).contains("4000"));
        let tenants = Point { way: Way::Shared, queues: 2, priorities: Some((15, 1)), ..point() };
        assert!(cannot(tenants, &figures).contains("priorities 15 and 1"));
        assert!(cannot(Point { priorities: Some((15, 1)), ..point() }, &figures).contains("no queues"));
        assert!(cannot(point(), &[Figure::Asleep]).contains("does not wait"));
        assert!(cannot(Point { way: Way::Any, ..point() }, &figures).contains("core"));
    }
}
