//! What the backends have in common: a point as a load, and what was seen of it as figures.

use memferry::mover::Endpoints;
use memferry::topology::Machine;
use memferry_dsa_emulator::{BATCH_MAX, TRANSFER_BYTES_MAX};

use super::{Effort, Figure, Pages, Point, Skipped, Taken, Way};
use crate::dsa::load::{self, DEPTH_MAX, Load, Seen};

/// Most threads that a benchmark starts or emulates: as many as the largest machines have CPUs.
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

/// What each submitter of a point does.
pub(super) fn load_of(point: &Point, effort: Effort) -> Result<Load, Skipped> {
    let Some(size_bytes) = u32::try_from(point.size_bytes).ok().filter(|size| *size <= TRANSFER_BYTES_MAX)
    else {
        return Skipped::cannot("a descriptor is for 2 GiB at most");
    };
    if point.batch > BATCH_MAX {
        return Skipped::cannot(format!("a batch has {BATCH_MAX} descriptors at most"));
    }
    if point.submitters > SUBMITTERS_MAX || point.queues > SUBMITTERS_MAX || point.depth > DEPTH_MAX {
        return Skipped::cannot(format!(
            "there are {SUBMITTERS_MAX} submitters and queues at most, with {DEPTH_MAX} submissions under way each"
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
            Pages::Touched | Pages::Huge => load::Pages::Touched,
            Pages::AbsentBlock => load::Pages::AbsentBlock,
            Pages::AbsentResume => load::Pages::AbsentResume,
        },
    })
}

/// What would be ignored, of any backend: options of queues for cores, and queues and tenants that nobody submits to.
pub(super) fn check_ways(point: &Point) -> Result<(), Skipped> {
    if point.submitters == 0 || point.queues == 0 {
        return Skipped::cannot("somebody has to submit to some queue: counts begin at 1");
    }
    if point.way == Way::Core && *point != point.without_queue() {
        return Skipped::cannot(
            "a core works itself, one copy after the other: leave out batches, depths, queues, entries, engines, \
             priorities and read buffers, which are about queues",
        );
    }
    if point.queues > point.submitters && point.route.is_none() {
        return Skipped::cannot(format!(
            "nobody submits to some of {} queues: ask for as many submitters",
            point.queues
        ));
    }
    let is_divided = point.priorities.is_some() || point.read_buffers.is_some();
    if is_divided && (point.queues, point.submitters) != (2, 2) {
        return Skipped::cannot(
            "priorities and read buffers are those of two tenants: ask for 2 queues and 2 submitters",
        );
    }
    Ok(())
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
    let busy_ns = |seen: &Vec<Seen>| {
        let Seen { allocating_ns, preparing_ns, submitting_ns, .. } = *seen.first()?;
        Some(submitting_ns? + allocating_ns.unwrap_or(0.0) + preparing_ns.unwrap_or(0.0))
    };
    let own_rate = |seen: Option<&Seen>| Some(bytes / point.submitters as f64 / seen?.elapsed_ns * 1e9);
    let values = |figure: Figure| -> Option<Vec<f64>> {
        let value = |seen: &Vec<Seen>| match figure {
            Figure::Throughput => Some(bytes / slowest_ns(seen) * 1e9),
            Figure::Latency | Figure::Wait if point.depth > 1 => None,
            Figure::Latency => Some(slowest_ns(seen) / repetitions),
            Figure::Allocate => Some(seen.first()?.allocating_ns? / repetitions),
            Figure::Prepare => Some(seen.first()?.preparing_ns? / repetitions),
            Figure::Submit => Some(submitting_ns(seen)? / repetitions),
            Figure::Wait => Some((slowest_ns(seen) - busy_ns(seen)?) / repetitions),
            Figure::Asleep => Some(1.0 - submitting_ns(seen)? / slowest_ns(seen)),
            Figure::Tenant1 => own_rate(seen.first()),
            Figure::Tenant2 => own_rate(seen.get(1)),
            Figure::Load | Figure::Slowdown => None,
        };
        iterations.iter().map(value).collect()
    };
    let taken = |&figure: &Figure| match values(figure) {
        Some(values) => Taken::new(figure, values),
        None => Taken::missing(figure, untold(point, figure)),
    };
    figures.iter().map(taken).collect()
}

/// Why somebody who ran a point has nothing to say of a figure.
fn untold(point: &Point, figure: Figure) -> &'static str {
    match figure {
        _ if point.way == Way::Core => "a core that works itself neither submits nor waits",
        Figure::Latency | Figure::Wait if point.depth > 1 => "latencies are of submissions one at a time",
        Figure::Allocate | Figure::Prepare if point.depth > 1 => {
            "descriptors are made anew for submissions one at a time only"
        }
        Figure::Allocate | Figure::Prepare => "what the core does before it submits takes no virtual time",
        _ => "nobody looked at the clock between submissions",
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

    /// The slowest ends an iteration.
    #[test]
    fn throughput_is_that_of_the_slowest() {
        let seen = |elapsed_ns| Seen { elapsed_ns, ..Seen::default() };
        let two = Point { submitters: 2, ..point() };
        let taken = figures_of(&two, &[Figure::Throughput], 1, &[vec![seen(1000.0), seen(4000.0)]]);
        assert_eq!(taken[0].values, [2.0 * (1 << 20) as f64 / 4000.0 * 1e9]);
    }

    /// Phases of what runs in threads: as given, and waiting is the rest.
    #[test]
    fn phases_add_up() {
        let seen = Seen {
            elapsed_ns: 1000.0,
            allocating_ns: Some(100.0),
            preparing_ns: Some(200.0),
            submitting_ns: Some(300.0),
            ..Seen::default()
        };
        let figures = benchmark("latency").unwrap().figures;
        let taken = figures_of(&point(), figures, 2, &[vec![seen]]);
        let values: Vec<f64> = taken.iter().map(|taken| taken.values[0]).collect();
        assert_eq!(values, [500.0, 50.0, 100.0, 150.0, 200.0]);
    }
}
