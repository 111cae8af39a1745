//! Which memory is fast for these CPUs and has room now.

use std::path::Path;

use super::binding::allowed_now;
use super::{Binding, MemoryError, room};
use crate::topology::{Machine, Node, NodeId};

/// What can be had of a node's memory now: what a mapping bound to it may take without
/// [`NoRoom`](MemoryError::NoRoom). Some of it may be gone in the next moment.
///
/// On this machine the figure is fresh. It is what is free or easy to reclaim on the node, less what must
/// stay free, and no more than the machine and the limits around this process leave. For another machine it
/// is what its description says, and no more than this machine has.
///
/// # Errors
/// [`MemoryError::Topology`] for an unknown node or unreadable figures,
/// [`NodeWithoutMemory`](MemoryError::NodeWithoutMemory), [`NotAllowed`](MemoryError::NotAllowed).
pub fn free_bytes(machine: &Machine, node: NodeId) -> Result<u64, MemoryError> {
    let binding = Binding::Bind(node);
    binding.check(machine, allowed_now(machine).as_ref())?;
    let root = Path::new("/");
    let own = if machine.is_this_machine() {
        room::on_node(root, machine, node)?.map_or(u64::MAX, |place| place.room())
    } else {
        let Node { free_bytes, memory_bytes, .. } = machine.node(node)?;
        free_bytes.or(*memory_bytes).unwrap_or(u64::MAX)
    };
    let around = room::around(root, &binding.reach())?;
    Ok(around.iter().map(room::Place::room).fold(own, u64::min))
}

/// The fastest memory for the CPUs of node `cpus` with `size_bytes` free, by [`free_bytes`].
///
/// # Errors
/// [`MemoryError::NoneWithRoom`] tells what each memory has; [`Topology`](MemoryError::Topology) for an
/// unknown node.
pub fn fastest_with_room(machine: &Machine, cpus: NodeId, size_bytes: usize) -> Result<&Node, MemoryError> {
    let now = allowed_now(machine);
    let mut seen = Vec::new();
    for node in machine.memories_near(machine.node(cpus)?.cpu_node) {
        // The machine may have been read when more, or less, was allowed.
        if now.as_ref().is_some_and(|now| !now.contains(node.id)) {
            continue;
        }
        let bytes = free_bytes(machine, node.id)?;
        if bytes >= size_bytes as u64 {
            return Ok(node);
        }
        seen.push((node.id, bytes));
    }
    Err(MemoryError::NoneWithRoom { cpus, size_bytes, free_bytes: seen })
}
