//! Free memory of nodes, and the fastest node with enough of it.

use std::path::Path;

use super::binding::{allowed_now, is_allowed};
use super::{Binding, MemoryError, room};
use crate::topology::{Machine, Node, NodeId, NodeSet};

impl Machine {
    /// The available memory of a node: the most that a mapping bound to it gets without
    /// [`NoRoom`](MemoryError::NoRoom) now.
    ///
    /// On this machine it is the free or reclaimable memory of the node less the spare, limited by the machine and by the
    /// limits of this thread. For another machine it is the value of its description, limited by the memory of this
    /// machine.
    ///
    /// # Errors
    /// [`MemoryError::Topology`] for an unknown node or unreadable figures,
    /// [`NodeWithoutMemory`](MemoryError::NodeWithoutMemory), [`NotAllowed`](MemoryError::NotAllowed).
    pub fn free_bytes(&self, node: NodeId) -> Result<u64, MemoryError> {
        let binding = Binding::Bind(node);
        binding.check(self, allowed_now(self).as_ref())?;
        let (root, reach) = (Path::new("/"), binding.reach());
        let own = if self.is_this_machine() {
            room::on_node(root, self, &reach, node)?.map_or(u64::MAX, |place| place.room())
        } else {
            let Node { free_bytes, memory_bytes, .. } = self.node(node)?;
            free_bytes.or(*memory_bytes).unwrap_or(u64::MAX)
        };
        Ok(own.min(room::within_reach(root, &reach)?))
    }

    /// The node of the CPU that runs the calling thread; `None` on a machine that is only described, and for an unknown CPU. The
    /// kernel may move the thread at any time.
    ///
    /// Cost: a call that does not enter the kernel, and a look at the CPUs of the nodes.
    pub fn current_node(&self) -> Option<NodeId> {
        let cpu = super::syscall::current_cpu().filter(|_| self.is_this_machine())?;
        self.nodes().iter().find(|node| node.cpus.binary_search(&cpu).is_ok()).map(|node| node.id)
    }

    /// The fastest node for the CPUs of node `cpus` with `size_bytes` available, by [`free_bytes`](Machine::free_bytes).
    ///
    /// # Errors
    /// [`MemoryError::NoneWithRoom`] with the memory of each node; [`Topology`](MemoryError::Topology) for an unknown
    /// node. The error of one node is returned only if no other node has room.
    pub fn fastest_with_room(&self, cpus: NodeId, size_bytes: usize) -> Result<&Node, MemoryError> {
        choose(self, cpus, size_bytes, allowed_now(self).as_ref(), |node| self.free_bytes(node))
    }
}

fn choose<'m>(
    machine: &'m Machine,
    cpus: NodeId,
    size_bytes: usize,
    now: Option<&NodeSet>,
    free_bytes: impl Fn(NodeId) -> Result<u64, MemoryError>,
) -> Result<&'m Node, MemoryError> {
    let cpu_node = machine.node(cpus)?.cpu_node;
    let mut seen = Vec::new();
    let mut first_error = None;
    for node in machine.memories_near_if(cpu_node, |node| is_allowed(node, now)) {
        match free_bytes(node.id) {
            Ok(bytes) if bytes >= size_bytes as u64 => return Ok(node),
            Ok(bytes) => seen.push((node.id, bytes)),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or(MemoryError::NoneWithRoom { cpus, size_bytes, free_bytes: seen }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAM: NodeId = NodeId(0);
    const HBM: NodeId = NodeId(1);

    #[test]
    fn a_node_that_cannot_be_read_is_passed_over() {
        let machine = Machine::two_tiers().unwrap();
        let free_bytes = |node| match node {
            HBM => Err(MemoryError::NodeWithoutMemory { node }),
            _ => Ok(100),
        };
        assert_eq!(choose(&machine, DRAM, 100, None, free_bytes).unwrap().id, DRAM);
        let error = choose(&machine, DRAM, 101, None, free_bytes).unwrap_err();
        assert!(matches!(error, MemoryError::NodeWithoutMemory { node: HBM }), "{error:?}");
        let error = choose(&machine, DRAM, 101, None, |_| Ok(100)).unwrap_err();
        let MemoryError::NoneWithRoom { free_bytes, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*free_bytes, [(HBM, 100), (DRAM, 100)]);
    }

    /// A cpuset may have been widened since the machine was looked at, or narrowed.
    #[test]
    fn what_is_allowed_now_counts() {
        let mut machine = Machine::two_tiers().unwrap();
        let now = |nodes: &[NodeId]| Some(nodes.iter().copied().collect::<NodeSet>());
        let chosen = |machine: &Machine, now: Option<NodeSet>| {
            choose(machine, DRAM, 1, now.as_ref(), |_| Ok(9)).map(|node| node.id).ok()
        };
        assert_eq!(chosen(&machine, now(&[DRAM])), Some(DRAM));
        machine.forbid_memory(HBM);
        assert_eq!(chosen(&machine, None), Some(DRAM));
        assert_eq!(chosen(&machine, now(&[DRAM, HBM])), Some(HBM));
        assert_eq!(chosen(&machine, now(&[])), None);
        let check = |now: Option<NodeSet>| Binding::Bind(HBM).check(&machine, now.as_ref());
        check(now(&[HBM])).unwrap();
        assert!(check(None).is_err() && check(now(&[DRAM])).is_err());
    }
}
