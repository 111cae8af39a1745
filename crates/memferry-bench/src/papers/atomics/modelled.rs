//! Points by the latencies of a machine.

use memferry::topology::{Machine, Node};

use super::{Measurement, Metric, Point, SharedWork, Skipped};

/// Operations on the counter for an access and its release.
const OPERATIONS_COUNT: f64 = 2.0;

/// The maximum cost of a shared counter: its line moves before each operation, which takes as long as a read of the other
/// node's memory. **Assumed**: caches answer sooner, and a core may do several operations while it has the line.
pub(super) fn run(machine: &Machine, cpus: &[u32], point: &Point) -> Result<Measurement, Skipped> {
    if point.work != SharedWork::Shared || point.threads < 2 {
        return Skipped::cannot("the model has latencies of memories, and none of a core's own cache");
    }
    let node = |cpu: &u32| machine.nodes().iter().find(|node| node.allowed_cpus.contains(cpu));
    let nodes: Vec<&Node> = cpus.iter().filter_map(node).collect();
    let hops = nodes.iter().zip(nodes.iter().cycle().skip(1));
    let latency = |(from, to): (&&Node, &&Node)| machine.link(from.id, to.id).read_latency_ns;
    let Some(around_ns) = hops.map(latency).sum::<Option<f64>>() else {
        return Skipped::cannot(format!(
            "the latencies between the nodes of {} are not known; `memferry calibrate` measures them",
            machine.name()
        ));
    };
    let note = "at most: as if the line came from the other's memory before every operation".to_owned();
    Ok(Measurement::new(Metric::LATENCY, vec![OPERATIONS_COUNT * around_ns]).with_note(Some(note)))
}
