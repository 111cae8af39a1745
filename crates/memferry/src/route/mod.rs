//! Routes: the engines of a copy. Pure functions, so that the routes of any machine can be computed.
//!
//! [`first_engine`] chooses the engine of a small copy, without allocation. [`engine_shares`] (`share.rs`) chooses the
//! engines of a large one, each with its bytes.

mod adaptive;
mod share;

use serde::{Deserialize, Serialize};

use crate::topology::{Machine, NodeId};

pub use share::{SHARE_BYTES_MIN, Share, device_shares, engine_shares};

/// The hardware that an engine copies with.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineKind {
    /// CPU cores.
    Cpu,
    /// Intel Data Streaming Accelerators.
    Dsa,
    /// Disks: engines that read files.
    Storage,
}

/// An engine, as routes see it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EngineSite {
    /// Its kind of hardware.
    pub kind: EngineKind,
    /// Its node, if known.
    pub node: Option<NodeId>,
}

/// A copy, as routes see it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Node of the source, if known.
    pub source_node: Option<NodeId>,
    /// Node of the target, if known.
    pub target_node: Option<NodeId>,
    /// Size of the copy.
    pub size_bytes: usize,
    /// Number of copies that the mover started before.
    pub turn: usize,
}

/// The rule that chooses the engines of a copy.
///
/// A node without CPUs (HBM, CXL) has no engine; its CPU node's engine stands in. Of equally near engines the one on the
/// node, or next after it in order, comes first, so that neighbours do not all choose the same engine.
///
/// | route | within a node | within a socket | between sockets |
/// |---|---|---|---|
/// | `Single`, `RoundRobin` | 1 | 1 | 1 |
/// | `PushPull` | the node's and one off-node | the source's and the target's | the same |
/// | `Socket` | all of the socket | all of the socket | half of each socket |
/// | `Smart` | all of the socket | all of the socket | the source's and the target's |
/// | `All` | all | all | all |
///
/// Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), section
/// 3.2.3, figure 3.6 and its captions; `Smart` is that of the thesis's draft, sections 3.2.3 and 5.2.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Route {
    /// The engine nearest to the source, or to the target where the source's node is unknown.
    #[default]
    Single,
    /// Whole copies to all engines in turn: best for many small copies, for which splitting does not pay. If engines were
    /// added to a mover, its own CPU engines take only copies that the others refuse.
    ///
    /// Source: Fürst 2024, section 5.2.
    RoundRobin,
    /// The engines at the source and at the target; within a node, the one there and the nearest off-node one.
    ///
    /// Recommended by the thesis: more than two engines gain little.
    PushPull,
    /// All engines of the socket; between two sockets half of each, including those at the source and the target.
    Socket,
    /// All engines of the socket; between two sockets only those at the source and at the target. The engine at the target
    /// does copies that are too small to be split: the draft says "the current node", and its cache puts copies on the
    /// node of the requesting thread.
    Smart,
    /// All engines, for any source and target ("brute force").
    All,
    /// The fewest engines that saturate the memories: of `Single`, `PushPull`, `Socket` and `All` the first that is within
    /// 5 % of the best. `PushPull` if the rates of engines or memories are unknown.
    Adaptive,
}

impl Route {
    /// Its name on command lines and in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Route::Single => "single",
            Route::RoundRobin => "round-robin",
            Route::PushPull => "push-pull",
            Route::Socket => "socket",
            Route::Smart => "smart",
            Route::All => "all",
            Route::Adaptive => "adaptive",
        }
    }
}

/// The index in `sites` of the engine for a copy that is not split; `None` without engines.
///
/// Nodes that the machine does not have count as unknown.
pub fn first_engine(
    route: Route,
    machine: &Machine,
    sites: &[EngineSite],
    endpoints: Endpoints,
) -> Option<usize> {
    let ends = match route {
        _ if sites.is_empty() => return None,
        Route::RoundRobin => return Some(endpoints.turn % sites.len()),
        Route::Smart => [endpoints.target_node, endpoints.source_node],
        _ => [endpoints.source_node, endpoints.target_node],
    };
    let home = ends.into_iter().find_map(|node| home(machine, node));
    (0..sites.len()).min_by_key(|&index| distance(machine, sites[index].node, home))
}

/// The node with the CPUs that `node` belongs to; `None` if the machine does not have it.
fn home(machine: &Machine, node: Option<NodeId>) -> Option<NodeId> {
    machine.node(node?).ok().map(|node| node.cpu_node)
}

/// The socket of a node, if known.
fn socket(machine: &Machine, node: Option<NodeId>) -> Option<u32> {
    machine.node(node?).ok()?.socket
}

/// Orders engines by how far they are from a node with CPUs: on it, on its socket, elsewhere; within these by
/// the kernel's distance, if known. Unknown engines are farthest.
fn distance(machine: &Machine, engine: Option<NodeId>, home: Option<NodeId>) -> (bool, bool, u32) {
    match (engine, home) {
        (Some(engine), Some(home)) => {
            let its_socket = socket(machine, Some(engine));
            let same_socket = its_socket.is_some() && its_socket == socket(machine, Some(home));
            let distance = machine.link(engine, home).distance.unwrap_or(u32::MAX);
            (engine != home, !same_socket, distance)
        }
        _ => (true, true, u32::MAX),
    }
}
