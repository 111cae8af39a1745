//! The order in which a reader prefers nodes.

use crate::topology::{Machine, NodeId};

/// For each reading node, the cache's nodes in the order that its CPUs prefer.
#[derive(Debug)]
pub(super) struct Nearness {
    /// Ascending by reader.
    orders: Vec<Order>,
    /// The node of each CPU of this machine; empty for another machine.
    cpu_nodes: Vec<Option<NodeId>>,
}

#[derive(Debug)]
struct Order {
    reader: NodeId,
    /// All nodes with memory, best first.
    memories: Vec<NodeId>,
    /// Position among the cache's nodes and rank among `memories`, best first.
    near: Vec<(usize, usize)>,
}

impl Nearness {
    /// The orders for the cache's `nodes`.
    pub(super) fn new(machine: &Machine, nodes: &[NodeId]) -> Nearness {
        let order = |reader: NodeId| {
            let memories: Vec<NodeId> = machine.memories_near(reader).iter().map(|node| node.id).collect();
            let ranked = memories.iter().enumerate();
            let near =
                ranked.filter_map(|(rank, node)| Some((nodes.binary_search(node).ok()?, rank))).collect();
            Order { reader, memories, near }
        };
        let mut orders: Vec<Order> = machine.nodes().iter().map(|node| order(node.id)).collect();
        orders.sort_by_key(|order| order.reader);
        let mut cpu_nodes = Vec::new();
        for node in machine.nodes().iter().filter(|_| machine.is_this_machine()) {
            for &cpu in &node.cpus {
                let cpu = cpu as usize;
                cpu_nodes.resize(cpu_nodes.len().max(cpu + 1), None);
                cpu_nodes[cpu] = Some(node.id);
            }
        }
        Nearness { orders, cpu_nodes }
    }

    /// The node of the CPU that runs the calling thread.
    pub(super) fn caller(&self) -> Option<NodeId> {
        if self.cpu_nodes.is_empty() {
            return None;
        }
        *self.cpu_nodes.get(current_cpu()?)?
    }

    /// Positions of the cache's nodes that `reader` prefers to all of `others`, best first. Empty for an unknown reader.
    pub(super) fn better_than(
        &self,
        reader: NodeId,
        others: [Option<NodeId>; 2],
    ) -> impl Iterator<Item = usize> + '_ {
        let order = self.orders.binary_search_by_key(&reader, |order| order.reader).ok();
        let order = order.map(|index| &self.orders[index]);
        let rank_of = |other: NodeId| order?.memories.iter().position(|&node| node == other);
        let end = others.into_iter().flatten().filter_map(rank_of).min().unwrap_or(usize::MAX);
        let near = order.map_or(&[][..], |order| &order.near);
        near.iter().take_while(move |(_, rank)| *rank < end).map(|(position, _)| *position)
    }
}

#[allow(unsafe_code)]
fn current_cpu() -> Option<usize> {
    // SAFETY: the call takes nothing and touches no memory of this process.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn follows_the_order_of_the_machine_up_to_the_others() {
        let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        // HBM of the reader's domain, DRAM of the reader, HBM of another socket.
        let nodes = [NodeId(0), NodeId(8), NodeId(15)];
        let nearness = Nearness::new(&machine, &nodes);
        let better = |others| nearness.better_than(NodeId(0), others).collect::<Vec<_>>();
        let all = better([None, None]);
        assert_eq!(all.len(), 3);
        let order: Vec<NodeId> = machine.memories_near(NodeId(0)).iter().map(|node| node.id).collect();
        let ranks = all.iter().map(|&position| order.iter().position(|&id| id == nodes[position]));
        assert!(ranks.is_sorted(), "{all:?}");
        assert_eq!(better([Some(nodes[all[1]]), None]), all[..1]);
        assert_eq!(better([Some(nodes[all[2]]), Some(nodes[all[0]])]), all[..0]);
        assert_eq!(nearness.better_than(NodeId(99), [None, None]).count(), 0);
        assert_eq!(nearness.caller(), None, "the CPUs of a profile are not here");
    }
}
