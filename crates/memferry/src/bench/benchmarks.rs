//! The benchmarks: what each varies, and what it looks at.

use memferry_dsa::measure::load::Work;

use super::axis::Axis;
use super::point::{Axes, Data, Pages, Point, Way};
use crate::mover::Route;
use crate::topology::{Machine, NodeId};

/// Something that is measured of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Bytes of descriptors that all submitters together get done in a second; the slowest ends an iteration.
    Throughput,
    /// From a submission to its completion, one at a time.
    Latency,
    /// The part of the latency that the core is busy submitting.
    Submit,
    /// The part of the latency in which the core waits.
    Wait,
    /// Share of the time in which the core has nothing to do.
    Asleep,
    /// What measuring costs against what is measured.
    Overhead,
    /// Bytes a second of the submitter of the first queue, until it is done.
    Tenant1,
    /// The same of the second queue.
    Tenant2,
    /// Of a dependent load of somebody else, in a working set of 4 MiB.
    Load,
    /// How many times as long such a load takes as without the copies.
    Slowdown,
}

impl Figure {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Throughput => "throughput",
            Figure::Latency => "latency",
            Figure::Submit => "submit",
            Figure::Wait => "wait",
            Figure::Asleep => "asleep",
            Figure::Overhead => "overhead",
            Figure::Tenant1 => "tenant1",
            Figure::Tenant2 => "tenant2",
            Figure::Load => "load",
            Figure::Slowdown => "slowdown",
        }
    }

    /// Its unit in records.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Throughput | Figure::Tenant1 | Figure::Tenant2 => "bytes/s",
            Figure::Latency | Figure::Submit | Figure::Wait | Figure::Load => "ns",
            Figure::Asleep | Figure::Overhead | Figure::Slowdown => "1",
        }
    }

    /// Whether more of it is better.
    pub fn is_more_better(self) -> bool {
        matches!(self, Figure::Throughput | Figure::Tenant1 | Figure::Tenant2 | Figure::Asleep)
    }
}

/// A benchmark of the papers.
#[derive(Debug)]
pub struct Benchmark {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, and where that was published.
    pub about: &'static str,
    /// What it looks at, first of all the first.
    pub figures: &'static [Figure],
    /// What it varies, and names rows by.
    pub varied: &'static [Axis],
    /// The values of the axes; few and small ones if the run is to be quick.
    pub axes: fn(is_quick: bool) -> Axes,
    /// Which of the combinations are meant.
    pub is_meant: fn(&Point) -> bool,
}

impl Benchmark {
    /// The values of the axes on a machine: where it does not have the papers' nodes, all of its own.
    pub fn axes_on(&self, machine: &Machine, is_quick: bool) -> Axes {
        let mut axes = (self.axes)(is_quick);
        let is_there = |node: &Option<NodeId>| node.is_none_or(|node| machine.node(node).is_ok());
        if !axes.sources.iter().chain(&axes.targets).all(is_there) {
            let with_cpus = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
            let with_memory = machine.nodes().iter().filter(|node| node.has_memory());
            axes.sources = with_cpus.map(|node| Some(node.id)).take(axes.sources.len()).collect();
            axes.targets = with_memory.map(|node| Some(node.id)).collect();
        }
        axes
    }

    /// The points of these axes.
    pub fn points(&self, axes: &Axes) -> Vec<Point> {
        axes.points().into_iter().filter(self.is_meant).collect()
    }

    /// Name of a point's row: the figure, unless it is the benchmark's first, what the benchmark varies, and what these
    /// axes do.
    pub fn row_name(&self, axes: &Axes, point: &Point, figure: Figure) -> String {
        let varied = axes.varied();
        let is_named = |axis: &Axis| self.varied.contains(axis) || varied.contains(axis);
        let named: Vec<Axis> = Axis::ALL.into_iter().filter(is_named).collect();
        let figure = if figure == self.figures[0] { "" } else { figure.name() };
        let words = [self.name.to_owned(), figure.to_owned(), point.name(&named)];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
    }
}

/// The benchmark with this name.
pub fn benchmark(name: &str) -> Option<&'static Benchmark> {
    BENCHMARKS.iter().find(|benchmark| benchmark.name == name)
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The sizes of the thesis's figure 3.4.
const SIZES: [u64; 8] = [KIB, 4 * KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB, GIB];

/// All values, or those at these places if it is to be quick.
fn some<T: Copy>(all: &[T], is_quick: bool, quick: &[usize]) -> Vec<T> {
    if is_quick { quick.iter().filter_map(|&index| all.get(index).copied()).collect() } else { all.to_vec() }
}

fn all_combinations(_: &Point) -> bool {
    true
}

/// A core needs no queue, so that what is varied of those is asked of it once.
fn by_queues(point: &Point) -> bool {
    point.way != Way::Core
}

/// All benchmarks of the papers.
pub const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "submit",
        about: "single submissions and batches by size, each waited for (Fürst 2024, figure 3.4)",
        figures: &[Figure::Throughput, Figure::Overhead],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Batch],
        axes: |is_quick| Axes {
            sizes_bytes: some(&SIZES, is_quick, &[1, 3, 5]),
            batches: some(&[1, 10, 50], is_quick, &[0, 1]),
            ..Axes::default()
        },
        is_meant: |point| point.way != Way::Core || point.batch == 1,
    },
    Benchmark {
        name: "threads",
        about: "threads that submit to one shared queue, each waiting for its copies (Fürst 2024, figure 3.5)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Submitters],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Shared],
            sizes_bytes: some(&[MIB, GIB], is_quick, &[0]),
            submitters: some(&[1, 2, 12], is_quick, &[0, 1]),
            ..Axes::default()
        },
        is_meant: all_combinations,
    },
    Benchmark {
        name: "queues",
        about: "one dedicated queue with batches, as many dedicated queues as submitters, or one shared by them \
                (Kuper et al. 2024, figure 9)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Batch, Axis::Submitters, Axis::Queues],
        axes: |is_quick| Axes {
            ways: vec![Way::Shared, Way::Dedicated],
            sizes_bytes: some(&[256, KIB, 4 * KIB, 16 * KIB, 64 * KIB], is_quick, &[1, 3]),
            batches: some(&[1, 2, 4, 8], is_quick, &[0, 2]),
            submitters: some(&[1, 2, 4, 8], is_quick, &[0, 2]),
            queues: some(&[1, 2, 4, 8], is_quick, &[0, 2]),
            depths: vec![16],
            entries: vec![Some(16)],
            ..Axes::default()
        },
        is_meant: |point| match point.way {
            Way::Dedicated => point.submitters == point.queues && (point.batch == 1 || point.queues == 1),
            _ => point.queues == 1 && point.batch == 1,
        },
    },
    Benchmark {
        name: "routes",
        about: "copies between nodes by the devices that share in each, and by a core (Fürst 2024, figures 3.6, 3.8)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::Route, Axis::Source, Axis::Target, Axis::SizeBytes],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[GIB, MIB], is_quick, &[1]),
            routes: [None, Some(Route::Single), Some(Route::PushPull), Some(Route::Socket)]
                .into_iter()
                .chain([Some(Route::Smart), Some(Route::All)])
                .collect(),
            sources: vec![Some(NodeId(0))],
            targets: some(&[8, 11, 12, 15].map(|node| Some(NodeId(node))), is_quick, &[0, 3]),
            ..Axes::default()
        },
        is_meant: |point| point.way == Way::Core || point.route.is_some(),
    },
    Benchmark {
        name: "operations",
        about: "each operation by size, waited for and 32 under way, by a device and by a core (Kuper et al. 2024, \
                figure 2)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::Operation, Axis::SizeBytes, Axis::Depth],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Dedicated],
            operations: Work::ALL.to_vec(),
            sizes_bytes: some(&[256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB], is_quick, &[2, 4]),
            depths: vec![1, 32],
            ..Axes::default()
        },
        is_meant: |point| point.way != Way::Core || point.depth == 1,
    },
    Benchmark {
        name: "depth",
        about: "entries of a queue, all of them used (Kuper et al. 2024, figure 4)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Depth],
        axes: |is_quick| Axes {
            ways: vec![Way::Dedicated],
            sizes_bytes: some(&[KIB, 4 * KIB, 16 * KIB, 64 * KIB], is_quick, &[1]),
            depths: some(&[1, 2, 4, 8, 16, 32, 64, 128], is_quick, &[0, 5]),
            ..Axes::default()
        },
        is_meant: by_queues,
    },
    Benchmark {
        name: "engines",
        about: "engines of a group, with small and large descriptors under way (Kuper et al. 2024, figure 7)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Batch, Axis::Engines],
        axes: |is_quick| Axes {
            ways: vec![Way::Dedicated],
            sizes_bytes: some(&[256, KIB, 4 * KIB, 64 * KIB], is_quick, &[0, 2]),
            batches: some(&[1, 8], is_quick, &[0, 1]),
            engines: some(&[Some(1), Some(2), Some(3), Some(4)], is_quick, &[0, 3]),
            depths: vec![32],
            ..Axes::default()
        },
        is_meant: by_queues,
    },
    Benchmark {
        name: "latency",
        about: "what a submission takes that is waited for, and of that submitting and waiting (Kuper et al. 2024, \
                figure 5)",
        figures: &[Figure::Latency, Figure::Submit, Figure::Wait],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Batch],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[KIB, 4 * KIB, 16 * KIB, 64 * KIB], is_quick, &[1]),
            batches: some(&[1, 8, 64], is_quick, &[0, 1]),
            ..Axes::default()
        },
        is_meant: |point| point.way != Way::Core || point.batch == 1,
    },
    Benchmark {
        name: "wait",
        about: "share of the time that a core may sleep that waits for its copies (Kuper et al. 2024, figure 11)",
        figures: &[Figure::Asleep],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Batch],
        axes: |is_quick| Axes {
            ways: vec![Way::Shared, Way::Dedicated],
            sizes_bytes: some(&[256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, MIB], is_quick, &[2, 4]),
            batches: some(&[1, 8, 64], is_quick, &[0, 1]),
            ..Axes::default()
        },
        is_meant: by_queues,
    },
    Benchmark {
        name: "pages",
        about: "small and huge pages (Kuper et al. 2024, figure 8)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Pages],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB, 16 * MIB], is_quick, &[1, 2]),
            pages: vec![Pages::Touched, Pages::Huge],
            ..Axes::default()
        },
        is_meant: all_combinations,
    },
    Benchmark {
        name: "faults",
        about: "targets whose pages are there, are brought in while the device waits, or by software that resumes",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Engines, Axis::Pages],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Shared],
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB, 16 * MIB], is_quick, &[1]),
            engines: vec![Some(1), Some(4)],
            depths: vec![4],
            pages: vec![Pages::Touched, Pages::AbsentBlock, Pages::AbsentResume],
            ..Axes::default()
        },
        is_meant: |point| {
            point.way != Way::Core || (point.engines == Some(1) && point.pages != Pages::AbsentResume)
        },
    },
    Benchmark {
        name: "remote",
        about: "sources and targets on other nodes, one device or a core at the source (Kuper et al. 2024, figure 6)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::Source, Axis::Target, Axis::SizeBytes],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB, GIB], is_quick, &[1]),
            routes: vec![None, Some(Route::Single)],
            sources: vec![Some(NodeId(0)), Some(NodeId(4))],
            targets: vec![Some(NodeId(0)), Some(NodeId(4))],
            ..Axes::default()
        },
        is_meant: |point| (point.way == Way::Core) == point.route.is_none(),
    },
    Benchmark {
        name: "target",
        about: "source and target in a cache or in memory (Kuper et al. 2024, figure 15)",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Data],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[KIB, 4 * KIB, 64 * KIB, 256 * KIB], is_quick, &[1, 2]),
            data: vec![Data::Memory, Data::CachedSource, Data::CachedTarget, Data::Cached],
            ..Axes::default()
        },
        is_meant: all_combinations,
    },
    Benchmark {
        name: "priority",
        about: "two tenants of one device, each with a queue, by the priorities of the queues",
        figures: &[Figure::Tenant1, Figure::Tenant2],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Priorities],
        axes: |is_quick| Axes {
            ways: vec![Way::Shared, Way::Dedicated],
            sizes_bytes: some(&[KIB, 4 * KIB, 64 * KIB, MIB], is_quick, &[2]),
            submitters: vec![2],
            queues: vec![2],
            depths: vec![16],
            entries: vec![Some(16)],
            priorities: some(&[Some((10, 10)), Some((15, 5)), Some((15, 1))], is_quick, &[0, 2]),
            ..Axes::default()
        },
        is_meant: |point| point.queues == 2 && point.submitters == 2,
    },
    Benchmark {
        name: "interference",
        about: "copies side by side, each by a core or through a queue of its own",
        figures: &[Figure::Throughput],
        varied: &[Axis::Way, Axis::SizeBytes, Axis::Submitters],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Dedicated],
            sizes_bytes: some(&[64 * KIB, MIB, 16 * MIB], is_quick, &[1]),
            submitters: some(&[1, 2, 4, 8], is_quick, &[0, 1]),
            queues: some(&[1, 2, 4, 8], is_quick, &[0, 1]),
            entries: vec![Some(16)],
            ..Axes::default()
        },
        is_meant: |point| match point.way {
            Way::Dedicated => point.submitters == point.queues,
            _ => point.queues == 1,
        },
    },
    Benchmark {
        name: "pollution",
        about: "a reader that lives in its cache beside four submitters of copies (Kuper et al. 2024, figure 13)",
        figures: &[Figure::Load, Figure::Slowdown],
        varied: &[Axis::Way, Axis::SizeBytes],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB], is_quick, &[0]),
            submitters: vec![4],
            ..Axes::default()
        },
        is_meant: all_combinations,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A record is read by names; two rows with the same one would hide each other.
    #[test]
    fn names_tell_rows_apart() {
        for benchmark in BENCHMARKS {
            for is_quick in [true, false] {
                let axes = (benchmark.axes)(is_quick);
                let points = benchmark.points(&axes);
                assert!(!points.is_empty(), "{}", benchmark.name);
                let name = |point: &Point| benchmark.row_name(&axes, point, benchmark.figures[0]);
                let mut names: Vec<String> = points.iter().map(name).collect();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), points.len(), "{}", benchmark.name);
                assert!(names.iter().all(|name| name.starts_with(benchmark.name)), "{names:?}");
            }
        }
    }

    #[test]
    fn nodes_are_those_of_the_machine() {
        let routes = benchmark("routes").unwrap();
        let axes = |name| routes.axes_on(&Machine::from_profile(name).unwrap(), false);
        assert_eq!(axes("xeon-max-9468-2s-flat"), (routes.axes)(false));
        let other = axes("skylake-8180-snc-off");
        assert_eq!((other.sources, other.targets.len()), (vec![Some(NodeId(0))], 2));
    }

    #[test]
    fn queues_are_compared_with_as_many_submitters() {
        let benchmark = benchmark("queues").unwrap();
        let points = benchmark.points(&(benchmark.axes)(false));
        assert!(points.iter().all(|it| it.way != Way::Dedicated || it.queues == it.submitters));
        assert!(points.iter().any(|it| it.way == Way::Shared && it.submitters == 8));
        assert!(points.iter().any(|it| it.way == Way::Dedicated && it.batch == 8 && it.queues == 1));
    }
}
