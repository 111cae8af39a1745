//! Metrics of points.

/// A metric of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// Bytes per second of all submitters together; the slowest one ends an iteration.
    Throughput,
    /// Time from a submission to its completion, one at a time.
    Latency,
    /// The part of the latency in which the core allocates a descriptor and its record.
    Allocate,
    /// The part in which it writes the descriptor.
    Prepare,
    /// The part of the latency in which the core submits.
    Submit,
    /// The part of the latency in which the core waits.
    Wait,
    /// Share of the time in which the core is idle.
    Asleep,
    /// Bytes per second of the submitter of the first queue.
    Tenant1,
    /// Bytes per second of the submitter of the second queue.
    Tenant2,
    /// Time of a dependent load of another program in a working set of 4 MiB.
    Load,
    /// Time of such a load divided by its time without the copies.
    Slowdown,
}

impl Metric {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Throughput => "throughput",
            Metric::Latency => "latency",
            Metric::Allocate => "allocate",
            Metric::Prepare => "prepare",
            Metric::Submit => "submit",
            Metric::Wait => "wait",
            Metric::Asleep => "asleep",
            Metric::Tenant1 => "tenant1",
            Metric::Tenant2 => "tenant2",
            Metric::Load => "load",
            Metric::Slowdown => "slowdown",
        }
    }

    /// Its unit in records.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Throughput | Metric::Tenant1 | Metric::Tenant2 => "bytes/s",
            Metric::Latency
            | Metric::Allocate
            | Metric::Prepare
            | Metric::Submit
            | Metric::Wait
            | Metric::Load => "ns",
            Metric::Asleep | Metric::Slowdown => "1",
        }
    }

    /// Whether larger values are better.
    pub fn is_more_better(self) -> bool {
        matches!(self, Metric::Throughput | Metric::Tenant1 | Metric::Tenant2 | Metric::Asleep)
    }
}
