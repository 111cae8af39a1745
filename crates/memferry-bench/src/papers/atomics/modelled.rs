//! Points by the latencies of a machine.

use memferry::topology::{Machine, Node};

use super::{Figure, Point, Skipped, Taken, Work};

/// Operations on the counter for an access and its release.
const OPERATIONS_COUNT: f64 = 2.0;

/// The most that a shared counter costs: its line changes hands before each operation, in turn, and each time that
/// takes as long as a read of the other's memory. **Assumed**: what caches answer comes sooner, and a core that has the
/// line may do more than one operation with it.
pub(super) fn run(machine: &Machine, cpus: &[u32], point: &Point) -> Result<Taken, Skipped> {
    if point.work != Work::Shared || point.threads < 2 {
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
    let note = Some("at most: as if the line came from the other's memory before every operation".to_owned());
    Ok(Taken { figure: Figure::Latency, values: vec![OPERATIONS_COUNT * around_ns], note })
}
