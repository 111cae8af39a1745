//! Who copies. Pure functions: what runs on a machine can be computed for any other.
//!
//! [`Route::first`] is the engine that does a small copy, and costs no allocation; [`Route::shares`] says which
//! engines take part in a large one, each with its bytes, and is in `share.rs`.

mod adaptive;
mod share;

use serde::{Deserialize, Serialize};

use crate::topology::{Machine, NodeId};

pub use share::{SHARE_BYTES_MIN, Share};

/// The hardware that an engine copies with.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineKind {
    /// CPU cores.
    Cpu,
    /// Intel Data Streaming Accelerators.
    Dsa,
}

/// What a route knows of an engine.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EngineSite {
    /// What it copies with.
    pub kind: EngineKind,
    /// Where it is.
    pub node: Option<NodeId>,
}

/// What a route knows of a copy.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Node of the source, if known.
    pub source_node: Option<NodeId>,
    /// Node of the target, if known.
    pub target_node: Option<NodeId>,
    /// Size of the copy.
    pub size_bytes: usize,
    /// How many copies the mover started before this one.
    pub turn: usize,
}

/// Decides who copies.
///
/// A node without CPUs (HBM, CXL) has no engine of its own: where one is asked for, it is that of the CPU node it
/// belongs to. Of several engines that are equally near, the one on the node itself or next after it in order comes
/// first, so that neighbours do not all choose the same helper.
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
    /// Whole copies in turn to all engines: best for many small copies, which would lose by being split. Once
    /// engines were added to a mover, its own CPU engines are left out: they take only what the others refuse.
    ///
    /// Source: Fürst 2024, section 5.2.
    RoundRobin,
    /// The engines at the source and at the target; within a node, the one there and the nearest off-node one.
    ///
    /// What the thesis recommends: more than two gain little.
    PushPull,
    /// All engines of the socket; between two sockets half of each, those at the source and the target among them.
    Socket,
    /// All engines of the socket; between two sockets only those at the source and at the target. A copy that is too
    /// small to be split is left to the engine at the target: the draft says "the current node", and its cache puts
    /// copies on the node of the thread that asks for them.
    Smart,
    /// Every engine, wherever the copy begins and ends ("brute force").
    All,
    /// The fewest engines with which the memories set the pace, and not the engines: of `Single`, `PushPull`,
    /// `Socket` and `All` the first that is within 5 % of the best. `PushPull` where the machine does not tell what
    /// its engines and memories can do.
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

    /// The index in `sites` of the engine that does a copy which is not split; `None` if there are none.
    ///
    /// Nodes that the machine does not have count as unknown.
    pub fn first(self, machine: &Machine, sites: &[EngineSite], endpoints: Endpoints) -> Option<usize> {
        let ends = match self {
            _ if sites.is_empty() => return None,
            Route::RoundRobin => return Some(endpoints.turn % sites.len()),
            Route::Smart => [endpoints.target_node, endpoints.source_node],
            _ => [endpoints.source_node, endpoints.target_node],
        };
        let home = ends.into_iter().find_map(|node| home(machine, node));
        (0..sites.len()).min_by_key(|&index| distance(machine, sites[index].node, home))
    }
}

/// The node with the CPUs that `node` belongs to; `None` if the machine does not have it.
fn home(machine: &Machine, node: Option<NodeId>) -> Option<NodeId> {
    machine.node(node?).ok().map(|node| node.cpu_node)
}

/// The socket of a node, if somebody says.
fn socket(machine: &Machine, node: Option<NodeId>) -> Option<u32> {
    machine.node(node?).ok()?.socket
}

/// Orders engines by how far they are from a node with CPUs: on it, on its socket, elsewhere; within these by
/// the kernel's distance, where it is known. What is unknown is farthest.
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
