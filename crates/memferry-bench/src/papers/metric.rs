//! Metrics of points.

/// A metric of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name in records.
    pub name: &'static str,
    /// Its unit in records.
    pub unit: &'static str,
    /// Whether larger values are better.
    pub is_more_better: bool,
}

const fn more(name: &'static str, unit: &'static str) -> Metric {
    Metric { name, unit, is_more_better: true }
}

const fn less(name: &'static str, unit: &'static str) -> Metric {
    Metric { name, unit, is_more_better: false }
}

impl Metric {
    /// Bytes per second of all submitters together; the slowest one ends an iteration.
    pub const THROUGHPUT: Metric = more("throughput", "bytes/s");
    /// Time from a submission to its completion, one at a time; in [`atomics`](super::atomics) of an access and its
    /// release.
    pub const LATENCY: Metric = less("latency", "ns");
    /// The part of the latency in which the core allocates a descriptor and its record.
    pub const ALLOCATE: Metric = less("allocate", "ns");
    /// The part in which it writes the descriptor.
    pub const PREPARE: Metric = less("prepare", "ns");
    /// The part of the latency in which the core submits.
    pub const SUBMIT: Metric = less("submit", "ns");
    /// The part of the latency in which the core waits.
    pub const WAIT: Metric = less("wait", "ns");
    /// Share of the time in which the core is idle.
    pub const ASLEEP: Metric = more("asleep", "1");
    /// Bytes per second of the submitter of the first queue.
    pub const TENANT1: Metric = more("tenant1", "bytes/s");
    /// Bytes per second of the submitter of the second queue.
    pub const TENANT2: Metric = more("tenant2", "bytes/s");
    /// Time of a dependent load of another program in its working set.
    pub const LOAD: Metric = less("load", "ns");
    /// Time of such a load divided by its time without the copies.
    pub const SLOWDOWN: Metric = less("slowdown", "1");

    /// Share of the accesses that found their block near; of the chunks of b that were near when AGGREGATE read them.
    pub const HIT_RATE: Metric = more("hit_rate", "1");

    /// Time of a query from its start to the end of the last AGGREGATE.
    pub const TOTAL: Metric = less("total", "ms");
    /// Mean time of a group in SCAN_a.
    pub const SCAN_A: Metric = less("scan_a", "ms");
    /// Mean time of a group in SCAN_b: until all copies are submitted, or, with a barrier, complete.
    pub const SCAN_B: Metric = less("scan_b", "ms");
    /// Mean time of a group in AGGREGATE.
    pub const AGGREGATE: Metric = less("aggregate", "ms");
    /// The time of [`Variant::Baseline`](super::qdp::Variant::Baseline) divided by this time.
    pub const SPEED_UP: Metric = more("speed_up", "1");
}
