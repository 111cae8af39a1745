//! What is measured of points.

/// Something that is measured of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Bytes of descriptors that all submitters together get done in a second; the slowest ends an iteration.
    Throughput,
    /// From a submission to its completion, one at a time.
    Latency,
    /// The part of the latency in which the core makes room for a descriptor and its record.
    Allocate,
    /// The part in which it writes the descriptor.
    Prepare,
    /// The part of the latency that the core is busy submitting.
    Submit,
    /// The part of the latency in which the core waits.
    Wait,
    /// Share of the time in which the core has nothing to do.
    Asleep,
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
            Figure::Allocate => "allocate",
            Figure::Prepare => "prepare",
            Figure::Submit => "submit",
            Figure::Wait => "wait",
            Figure::Asleep => "asleep",
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
            Figure::Latency
            | Figure::Allocate
            | Figure::Prepare
            | Figure::Submit
            | Figure::Wait
            | Figure::Load => "ns",
            Figure::Asleep | Figure::Slowdown => "1",
        }
    }

    /// Whether more of it is better.
    pub fn is_more_better(self) -> bool {
        matches!(self, Figure::Throughput | Figure::Tenant1 | Figure::Tenant2 | Figure::Asleep)
    }
}
