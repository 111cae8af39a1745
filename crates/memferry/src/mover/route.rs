//! Which engine copies. Pure functions: what runs on a machine can be computed for any other.
//!
//! [`Route::first`] chooses one engine for a whole copy; how a copy is split over several devices is in `share.rs`.

use crate::topology::{Machine, NodeId};

use super::EngineKind;

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
pub struct Journey {
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
/// [`devices`](Route::devices) says which devices of a machine take part in a copy, and with which bytes.
///
/// Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), section
/// 3.2.3, with the captions of figure 3.6 in its LaTeX; `Smart` is of the draft, section 3.2.3 and chapter 5.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// The engine nearest to the source, or to the target where the source's node is unknown. A node without
    /// CPUs (HBM, CXL) counts as the CPU node it belongs to. Of several that are equally near, the first.
    #[default]
    Single,
    /// Whole copies in turn to all engines: best for many small copies, which would lose by being split. Once
    /// engines were added to a mover, its own CPU engines are left out: they take only what the others refuse.
    ///
    /// Source: Fürst 2024, section 5.2.
    RoundRobin,
    /// The devices of the source's and the target's node. An HBM node's device is that of its CPUs; where both are
    /// the same, the on-node device and the nearest off-node one.
    PushPull,
    /// All devices of the socket, or, between two sockets, half of each, the source's and the target's among them.
    Socket,
    /// All devices of the socket, or, between two sockets, only the source's and the target's. What is too small
    /// to be split is left to the device at the target, where whoever asked for the copy is.
    Smart,
    /// Every device.
    All,
    /// The fewest devices with which the memories, as far as their rates are known, and not the devices set the
    /// pace: of `Single`, `PushPull`, `Socket` and `All` the first that is within 5 % of the best. Push-pull, the
    /// thesis's recommendation, where nothing is known.
    Adaptive,
}

impl Route {
    /// The index in `sites` of the engine to ask first; `None` if there are none. For the routes that split a
    /// copy this is the engine that would do it alone.
    ///
    /// Nodes that the machine does not have count as unknown.
    pub fn first(self, machine: &Machine, sites: &[EngineSite], journey: Journey) -> Option<usize> {
        match self {
            _ if sites.is_empty() => None,
            Route::RoundRobin => Some(journey.turn % sites.len()),
            _ => {
                let home = [journey.source_node, journey.target_node]
                    .into_iter()
                    .flatten()
                    .find_map(|node| machine.node(node).ok())
                    .map(|node| node.cpu_node);
                (0..sites.len()).min_by_key(|&index| distance(machine, sites[index].node, home))
            }
        }
    }
}

/// Orders engines by how far they are from a node with CPUs: on it, on its socket, elsewhere; within these by
/// the kernel's distance, where it is known. What is unknown is farthest.
pub(super) fn distance(machine: &Machine, engine: Option<NodeId>, home: Option<NodeId>) -> (bool, bool, u32) {
    let socket = |node| machine.node(node).ok().and_then(|node| node.socket);
    match (engine, home) {
        (Some(engine), Some(home)) => {
            let same_socket = socket(engine).is_some_and(|one| socket(home) == Some(one));
            let distance = machine.link(engine, home).distance.unwrap_or(u32::MAX);
            (engine != home, !same_socket, distance)
        }
        _ => (true, true, u32::MAX),
    }
}
