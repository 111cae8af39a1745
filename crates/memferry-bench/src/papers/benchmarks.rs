//! The benchmarks of the papers: their axes and metrics.

use memferry::mover::Route;
use memferry::topology::{NodeId, Tier};

use super::benchmark::Benchmark;
use super::metric::Metric;
use super::point::{Axes, Data, Pages, Point, Way};
use crate::dsa::load::LoadOperation;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The sizes of the thesis's figure 3.4.
const SIZES: [u64; 8] = [KIB, 4 * KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB, GIB];

/// All values, or those at these positions for a quick run.
fn some<T: Copy>(all: &[T], is_quick: bool, quick: &[usize]) -> Vec<T> {
    if is_quick { quick.iter().filter_map(|&index| all.get(index).copied()).collect() } else { all.to_vec() }
}

/// All combinations of the axes' values, by their throughput.
const THROUGHPUT: Benchmark = Benchmark {
    name: "",
    about: "",
    metrics: &[Metric::THROUGHPUT],
    varied: &[],
    axes: |_| Axes::default(),
    is_meant: |_| true,
    tiers: &[],
};

/// Executors are compared on data in memory. Data in caches is a variant of small copies, one at a time: other operations
/// of a device cannot be told where their data is.
fn is_comparable(point: &Point) -> bool {
    let is_small = point.size_bytes <= MIB && (point.batch, point.depth) == (1, 1);
    matches!(point.data, Data::Memory | Data::Any)
        || is_small && (point.way == Way::Core || point.operation == LoadOperation::Copy)
}

fn by_queues(point: &Point) -> bool {
    point.way != Way::Core
}

/// All benchmarks of the papers.
pub const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "submit",
        about: "single submissions and batches by size and way in, each waited for (Fürst 2024, figure 3.4)",
        varied: &["way", "size_bytes", "batch", "data"],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Shared, Way::Dedicated, Way::Write],
            sizes_bytes: some(&SIZES, is_quick, &[1, 3, 5]),
            batches: some(&[1, 10, 50], is_quick, &[0, 1]),
            data: vec![Data::Memory, Data::Cached],
            ..Axes::default()
        },
        // The kernel submits no batches by write(2).
        is_meant: |point| (point.way != Way::Write || point.batch == 1) && is_comparable(point),
        ..THROUGHPUT
    },
    Benchmark {
        name: "threads",
        about: "threads that submit to one shared queue, each waiting for its copies (Fürst 2024, figure 3.5)",
        varied: &["way", "size_bytes", "submitters"],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Shared],
            sizes_bytes: some(&[MIB, GIB], is_quick, &[0]),
            submitters: some(&[1, 2, 12], is_quick, &[0, 1]),
            ..Axes::default()
        },
        ..THROUGHPUT
    },
    Benchmark {
        name: "queues",
        about: "one dedicated queue with batches, dedicated queues with a submitter and an engine each, or one queue and \
                engine shared by submitters (Kuper et al. 2024, figure 9)",
        varied: &["way", "size_bytes", "batch", "submitters", "queues", "engines"],
        axes: |is_quick| Axes {
            ways: vec![Way::Shared, Way::Dedicated],
            sizes_bytes: some(&[256, KIB, 4 * KIB, 16 * KIB, 64 * KIB], is_quick, &[1, 3]),
            batches: some(&[1, 2, 4, 8], is_quick, &[0, 2]),
            submitters: some(&[1, 2, 4, 8], is_quick, &[0, 2]),
            // A device has four engines.
            queues: some(&[1, 2, 4], is_quick, &[0, 2]),
            engines: some(&[Some(1), Some(2), Some(4)], is_quick, &[0, 2]),
            depths: vec![16],
            entries: vec![Some(16)],
            ..Axes::default()
        },
        is_meant: |point| match point.way {
            // An option may leave the number of engines to the configuration.
            _ if point.engines.is_some_and(|engines| engines as usize != point.queues) => false,
            Way::Dedicated => point.submitters == point.queues && (point.batch == 1 || point.queues == 1),
            _ => point.queues == 1 && point.batch == 1,
        },
        ..THROUGHPUT
    },
    Benchmark {
        name: "routes",
        about: "copies between nodes by the devices that share in each, and by a core (Fürst 2024, figures 3.6, 3.8)",
        varied: &["way", "route", "source", "target", "size_bytes"],
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
        ..THROUGHPUT
    },
    Benchmark {
        name: "operations",
        about: "each operation by size, waited for and 32 under way, by a device and by a core (Kuper et al. 2024, \
                figure 2)",
        varied: &["way", "operation", "size_bytes", "depth", "data"],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Dedicated],
            operations: LoadOperation::ALL.to_vec(),
            sizes_bytes: some(&[256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB], is_quick, &[2, 4]),
            depths: vec![1, 32],
            data: vec![Data::Memory, Data::Cached],
            ..Axes::default()
        },
        is_meant: is_comparable,
        ..THROUGHPUT
    },
    Benchmark {
        name: "depth",
        about: "entries of a queue, all of them used (Kuper et al. 2024, figure 4)",
        varied: &["way", "size_bytes", "depth"],
        axes: |is_quick| Axes {
            ways: vec![Way::Dedicated],
            sizes_bytes: some(&[KIB, 4 * KIB, 16 * KIB, 64 * KIB], is_quick, &[1]),
            depths: some(&[1, 2, 4, 8, 16, 32, 64, 128], is_quick, &[0, 5]),
            ..Axes::default()
        },
        is_meant: by_queues,
        ..THROUGHPUT
    },
    Benchmark {
        name: "engines",
        about: "engines of a group, with small and large descriptors under way (Kuper et al. 2024, figure 7)",
        varied: &["way", "size_bytes", "batch", "engines"],
        axes: |is_quick| Axes {
            ways: vec![Way::Dedicated],
            sizes_bytes: some(&[256, KIB, 4 * KIB, 64 * KIB], is_quick, &[0, 2]),
            batches: some(&[1, 8], is_quick, &[0, 1]),
            engines: some(&[Some(1), Some(2), Some(3), Some(4)], is_quick, &[0, 3]),
            depths: vec![32],
            ..Axes::default()
        },
        is_meant: by_queues,
        ..THROUGHPUT
    },
    Benchmark {
        name: "latency",
        about: "what a submission takes that is waited for: allocating, preparing, submitting, waiting (Kuper et al. 2024, \
                figure 5)",
        metrics: &[Metric::LATENCY, Metric::ALLOCATE, Metric::PREPARE, Metric::SUBMIT, Metric::WAIT],
        varied: &["way", "size_bytes", "batch"],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[KIB, 4 * KIB, 16 * KIB, 64 * KIB], is_quick, &[1]),
            batches: some(&[1, 8, 64], is_quick, &[0, 1]),
            ..Axes::default()
        },
        ..THROUGHPUT
    },
    Benchmark {
        name: "wait",
        about: "share of the time that a core is in UMWAIT, or sleeps, while it waits for its copies (Kuper et al. 2024, figure 11)",
        metrics: &[Metric::ASLEEP],
        varied: &["way", "size_bytes", "batch"],
        axes: |is_quick| Axes {
            ways: vec![Way::Shared, Way::Dedicated],
            sizes_bytes: some(&[256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, MIB], is_quick, &[2, 4]),
            batches: some(&[1, 8, 64], is_quick, &[0, 1]),
            ..Axes::default()
        },
        is_meant: by_queues,
        ..THROUGHPUT
    },
    Benchmark {
        name: "pages",
        about: "small and huge pages (Kuper et al. 2024, figure 8)",
        varied: &["way", "size_bytes", "pages"],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB, 16 * MIB], is_quick, &[1, 2]),
            pages: vec![Pages::Touched, Pages::Huge],
            ..Axes::default()
        },
        ..THROUGHPUT
    },
    Benchmark {
        name: "faults",
        about: "targets whose pages are there, are brought in while the device waits, or by software that resumes",
        varied: &["way", "size_bytes", "engines", "pages"],
        axes: |is_quick| Axes {
            ways: vec![Way::Core, Way::Shared],
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB, 16 * MIB], is_quick, &[1]),
            engines: vec![Some(1), Some(4)],
            depths: vec![4],
            pages: vec![Pages::Touched, Pages::AbsentBlock, Pages::AbsentResume],
            ..Axes::default()
        },
        // A core does not stop at an absent page.
        is_meant: |point| point.way != Way::Core || point.pages != Pages::AbsentResume,
        ..THROUGHPUT
    },
    Benchmark {
        name: "remote",
        about: "sources and targets on other nodes and behind CXL, by one device or a core (Kuper et al. 2024, figure 6)",
        varied: &["way", "source", "target", "size_bytes"],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB, GIB], is_quick, &[1]),
            routes: vec![None, Some(Route::Single)],
            sources: vec![Some(NodeId(0)), Some(NodeId(4))],
            targets: vec![Some(NodeId(0)), Some(NodeId(4))],
            ..Axes::default()
        },
        tiers: &[Tier::Cxl],
        is_meant: |point| (point.way == Way::Core) == point.route.is_none(),
        ..THROUGHPUT
    },
    Benchmark {
        name: "target",
        about: "source and target in a cache or in memory (Kuper et al. 2024, figure 15)",
        varied: &["way", "size_bytes", "data"],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[KIB, 4 * KIB, 64 * KIB, 256 * KIB], is_quick, &[1, 2]),
            data: vec![Data::Memory, Data::CachedSource, Data::CachedTarget, Data::Cached],
            ..Axes::default()
        },
        ..THROUGHPUT
    },
    Benchmark {
        name: "priority",
        about: "two tenants of one device, each with a queue, by the queues' priorities or the read buffers of their groups",
        metrics: &[Metric::TENANT1, Metric::TENANT2],
        varied: &["way", "size_bytes", "priorities", "read_buffers"],
        axes: |is_quick| Axes {
            ways: vec![Way::Shared, Way::Dedicated],
            sizes_bytes: some(&[KIB, 4 * KIB, 64 * KIB, MIB], is_quick, &[2]),
            submitters: vec![2],
            queues: vec![2],
            depths: vec![16],
            entries: vec![Some(16)],
            priorities: some(&[None, Some((10, 10)), Some((15, 5)), Some((15, 1))], is_quick, &[0, 1, 3]),
            // A device has 96 read buffers; an engine needs at least 4.
            read_buffers: some(&[None, Some((96, 96)), Some((96, 16)), Some((92, 4))], is_quick, &[0, 1, 3]),
            ..Axes::default()
        },
        // Queues of one group have priorities, groups have read buffers.
        is_meant: |point| {
            let is_one_of_both = point.priorities.is_some() != point.read_buffers.is_some();
            point.queues == 2 && point.submitters == 2 && is_one_of_both
        },
        ..THROUGHPUT
    },
    Benchmark {
        name: "interference",
        about: "copies side by side, each by a core or through a queue of its own",
        varied: &["way", "size_bytes", "submitters"],
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
        ..THROUGHPUT
    },
    Benchmark {
        name: "pollution",
        about: "eight readers that live in their caches beside four submitters of copies (Kuper et al. 2024, figure 13)",
        metrics: &[Metric::LOAD, Metric::SLOWDOWN],
        varied: &["way", "size_bytes", "working_set_bytes"],
        axes: |is_quick| Axes {
            sizes_bytes: some(&[4 * KIB, 64 * KIB, MIB], is_quick, &[0]),
            working_sets_bytes: some(
                &[Some(MIB), Some(4 * MIB), Some(16 * MIB), Some(64 * MIB)],
                is_quick,
                &[1],
            ),
            submitters: vec![4],
            ..Axes::default()
        },
        ..THROUGHPUT
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::benchmark;

    /// Records are read by the names of rows, which must be unique.
    #[test]
    fn names_tell_rows_apart() {
        for benchmark in BENCHMARKS {
            for is_quick in [true, false] {
                let axes = (benchmark.axes)(is_quick);
                let points = benchmark.points(&axes);
                assert!(!points.is_empty(), "{}", benchmark.name);
                let name = |point: &Point| benchmark.row_name(&axes, point, benchmark.metrics[0]);
                let mut names: Vec<String> = points.iter().map(name).collect();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), points.len(), "{}", benchmark.name);
                assert!(names.iter().all(|name| name.starts_with(benchmark.name)), "{names:?}");
            }
        }
    }

    /// A core that copies out of its cache is not beside a device that reads memory.
    #[test]
    fn executors_are_compared_on_the_same_data() {
        for name in ["submit", "operations"] {
            let benchmark = benchmark(name).unwrap();
            for is_quick in [true, false] {
                let points = benchmark.points(&(benchmark.axes)(is_quick));
                assert!(points.iter().all(|it| matches!(it.data, Data::Memory | Data::Cached)), "{name}");
                let of_cores = points.iter().filter(|it| it.way == Way::Core);
                for core in of_cores.filter(|it| it.operation == LoadOperation::Copy) {
                    let is_beside = |it: &&Point| {
                        it.way == Way::Dedicated
                            && (it.operation, it.size_bytes, it.data)
                                == (core.operation, core.size_bytes, core.data)
                    };
                    assert!(points.iter().any(|it| is_beside(&it)), "{core:?}");
                }
            }
        }
    }

    #[test]
    fn queues_are_compared_with_as_many_submitters() {
        let benchmark = benchmark("queues").unwrap();
        let points = benchmark.points(&(benchmark.axes)(false));
        assert!(points.iter().all(|it| it.way != Way::Dedicated || it.queues == it.submitters));
        assert!(points.iter().all(|it| it.engines == Some(it.queues as u32)), "one engine for each queue");
        assert!(points.iter().any(|it| it.way == Way::Dedicated && it.queues == 4));
        assert!(points.iter().any(|it| it.way == Way::Shared && it.submitters == 8));
        assert!(points.iter().any(|it| it.way == Way::Dedicated && it.batch == 8 && it.queues == 1));
    }
}
