//! Code that the backends share: a point as a load, and its times as metrics.

use memferry::internals::Endpoints;
use memferry::topology::Machine;
use memferry_dsa_emulator::{BATCH_MAX, TRANSFER_BYTES_MAX};

use super::{Data, Measurement, Metric, Pages, Point, RunLength, Skipped, Way};
use crate::dsa::load::{self, DEPTH_MAX, Load, SubmitterTimes};

/// Maximum of threads that a benchmark starts or emulates: as many as the largest machines have CPUs.
const SUBMITTERS_MAX: usize = 1024;

/// The endpoints of a point whose copies are between nodes.
pub(super) fn endpoints(machine: &Machine, point: &Point) -> Result<Endpoints, Skipped> {
    for node in [point.source, point.target].into_iter().flatten() {
        machine.node(node).map_err(|error| Skipped::Cannot(error.to_string()))?;
    }
    let Ok(size_bytes) = usize::try_from(point.size_bytes) else {
        return Skipped::cannot("no memory is that large");
    };
    Ok(Endpoints { source_node: point.source, target_node: point.target, size_bytes, turn: 0 })
}

/// The load of each submitter of a point.
pub(super) fn load_of(point: &Point, effort: RunLength) -> Result<Load, Skipped> {
    let Some(size_bytes) = u32::try_from(point.size_bytes).ok().filter(|size| *size <= TRANSFER_BYTES_MAX)
    else {
        return Skipped::cannot("a descriptor covers at most 2 GiB");
    };
    if point.batch > BATCH_MAX {
        return Skipped::cannot(format!("a batch has at most {BATCH_MAX} descriptors"));
    }
    if point.submitters > SUBMITTERS_MAX || point.queues > SUBMITTERS_MAX || point.depth > DEPTH_MAX {
        return Skipped::cannot(format!(
            "there are at most {SUBMITTERS_MAX} submitters and queues, with {DEPTH_MAX} submissions in flight each"
        ));
    }
    check_ways(point)?;
    Ok(Load {
        work: point.operation,
        size_bytes,
        batch: point.batch,
        depth: point.depth,
        repetitions: effort.repetitions(point.size_bytes),
        pages: match point.pages {
            Pages::Touched | Pages::Huge => load::PageState::Touched,
            Pages::AbsentBlock => load::PageState::AbsentBlock,
            Pages::AbsentResume => load::PageState::AbsentResume,
        },
    })
}

/// Refuses options that every backend would ignore: options of queues for cores, and queues without submitters.
pub(super) fn check_ways(point: &Point) -> Result<(), Skipped> {
    if point.submitters == 0 || point.queues == 0 {
        return Skipped::cannot("counts of submitters and queues begin at 1");
    }
    if point.way == Way::Core && *point != point.without_queue() {
        return Skipped::cannot(
            "a core copies itself, one copy after the other: leave out batches, depths, queues, entries, engines, \
             priorities and read buffers, which are about queues",
        );
    }
    if point.queues > point.submitters && point.route.is_none() {
        return Skipped::cannot(format!(
            "some of {} queues have no submitter: use as many submitters",
            point.queues
        ));
    }
    let is_divided = point.priorities.is_some() || point.read_buffers.is_some();
    if is_divided && (point.queues, point.submitters) != (2, 2) {
        return Skipped::cannot(
            "priorities and read buffers need two tenants: use 2 queues and 2 submitters",
        );
    }
    Ok(())
}

/// Whether a device writes to the last-level cache.
pub(super) fn is_into_cache(point: &Point) -> bool {
    point.way != Way::Core && matches!(point.data, Data::CachedTarget | Data::Cached)
}

/// Bytes that a device writes to before it writes to the same ones again: each submission in flight has a target.
pub(super) fn footprint_bytes(point: &Point) -> u64 {
    let in_flight = point.submitters as u64 * point.depth as u64 * u64::from(point.batch);
    point.size_bytes.saturating_mul(in_flight)
}

/// Read buffers of the groups of a point, and the number of groups: one, or one for each tenant with buffers of its own.
pub(super) fn groups_of(point: &Point) -> (Vec<u32>, usize) {
    match point.read_buffers {
        Some((first, second)) => (vec![first, second], 2),
        None => (Vec::new(), 1),
    }
}

/// What a model says of data in caches.
pub(super) fn data_note(point: &Point) -> Option<&'static str> {
    let is_said = point.way != Way::Core && !matches!(point.data, Data::Any | Data::Memory);
    is_said.then_some(
        "a device reads caches as fast as memory (Kuper et al. 2024, figure 15); what it writes there is limited to its part",
    )
}

/// Metrics of the submitters' times in each iteration.
pub(super) fn metrics_of(
    point: &Point,
    metrics: &[Metric],
    repetitions: usize,
    iterations: &[Vec<SubmitterTimes>],
) -> Vec<Measurement> {
    let repetitions = repetitions as f64;
    let bytes = point.size_bytes as f64 * f64::from(point.batch) * repetitions * point.submitters as f64;
    let slowest_ns = |seen: &Vec<SubmitterTimes>| seen.iter().map(|seen| seen.elapsed_ns).fold(0.0, f64::max);
    // Known only if submissions were timed or simulated.
    let submitting_ns = |seen: &Vec<SubmitterTimes>| seen.first().and_then(|seen| seen.submitting_ns);
    let busy_ns = |seen: &Vec<SubmitterTimes>| {
        let SubmitterTimes { allocating_ns, preparing_ns, submitting_ns, .. } = *seen.first()?;
        Some(submitting_ns? + allocating_ns.unwrap_or(0.0) + preparing_ns.unwrap_or(0.0))
    };
    let own_rate =
        |seen: Option<&SubmitterTimes>| Some(bytes / point.submitters as f64 / seen?.elapsed_ns * 1e9);
    let values = |metric: Metric| -> Option<Vec<f64>> {
        let value = |seen: &Vec<SubmitterTimes>| match metric {
            Metric::THROUGHPUT => Some(bytes / slowest_ns(seen) * 1e9),
            Metric::LATENCY | Metric::WAIT if point.depth > 1 => None,
            Metric::LATENCY => Some(slowest_ns(seen) / repetitions),
            Metric::ALLOCATE => Some(seen.first()?.allocating_ns? / repetitions),
            Metric::PREPARE => Some(seen.first()?.preparing_ns? / repetitions),
            Metric::SUBMIT => Some(submitting_ns(seen)? / repetitions),
            Metric::WAIT => Some((slowest_ns(seen) - busy_ns(seen)?) / repetitions),
            Metric::ASLEEP => Some(1.0 - submitting_ns(seen)? / slowest_ns(seen)),
            Metric::TENANT1 => own_rate(seen.first()),
            Metric::TENANT2 => own_rate(seen.get(1)),
            _ => None,
        };
        iterations.iter().map(value).collect()
    };
    let taken = |&metric: &Metric| match values(metric) {
        Some(values) => Measurement::new(metric, values),
        None => Measurement::missing(metric, missing_reason(point, metric)),
    };
    metrics.iter().map(taken).collect()
}

/// The reason why a run has no value of a metric.
fn missing_reason(point: &Point, metric: Metric) -> &'static str {
    match metric {
        _ if point.way == Way::Core => "a core that copies itself neither submits nor waits",
        Metric::LATENCY | Metric::WAIT if point.depth > 1 => {
            "latencies are measured with one submission at a time"
        }
        Metric::ALLOCATE | Metric::PREPARE if point.depth > 1 => {
            "new descriptors are made only with one submission at a time"
        }
        Metric::ALLOCATE | Metric::PREPARE => "work of the core before a submission takes no virtual time",
        _ => "submissions were not timed one by one",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::{Axes, benchmark};

    fn point() -> Point {
        let axes = Axes { ways: vec![Way::Shared], sizes_bytes: vec![1 << 20], ..Axes::default() };
        axes.points().remove(0)
    }

    /// The slowest submitter ends an iteration.
    #[test]
    fn throughput_is_that_of_the_slowest() {
        let seen = |elapsed_ns| SubmitterTimes { elapsed_ns, ..SubmitterTimes::default() };
        let two = Point { submitters: 2, ..point() };
        let taken = metrics_of(&two, &[Metric::THROUGHPUT], 1, &[vec![seen(1000.0), seen(4000.0)]]);
        assert_eq!(taken[0].values, [2.0 * (1 << 20) as f64 / 4000.0 * 1e9]);
    }

    /// Phases in threads: waiting is the rest.
    #[test]
    fn phases_add_up() {
        let seen = SubmitterTimes {
            elapsed_ns: 1000.0,
            allocating_ns: Some(100.0),
            preparing_ns: Some(200.0),
            submitting_ns: Some(300.0),
            ..SubmitterTimes::default()
        };
        let metrics = benchmark("latency").unwrap().metrics;
        let taken = metrics_of(&point(), metrics, 2, &[vec![seen]]);
        let values: Vec<f64> = taken.iter().map(|taken| taken.values[0]).collect();
        assert_eq!(values, [500.0, 50.0, 100.0, 150.0, 200.0]);
    }
}
