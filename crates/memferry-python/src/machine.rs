//! Machines: nodes and their memory.

use std::sync::Arc;

use memferry::topology::{Machine, NodeId};
use pyo3::prelude::*;

use crate::error::{failed, wrong};

/// A node of memory or CPUs.
#[pyclass(frozen, get_all, name = "Node", module = "memferry")]
pub(crate) struct PyNode {
    id: u32,
    /// The kind of its memory.
    tier: String,
    socket: Option<u32>,
    cpus: Vec<u32>,
    memory_bytes: Option<u64>,
    /// The node whose CPUs are nearest.
    cpu_node: u32,
    /// Whether this process may allocate on it.
    is_allowed: bool,
}

#[pymethods]
impl PyNode {
    fn __repr__(&self) -> String {
        let memory = self.memory_bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        format!("Node(id={}, tier={:?}, cpus={}, memory_bytes={memory})", self.id, self.tier, self.cpus.len())
    }
}

/// A machine: nodes, links, accelerators.
#[pyclass(frozen, name = "Machine", module = "memferry")]
pub(crate) struct PyMachine(pub(crate) Arc<Machine>);

#[pymethods]
impl PyMachine {
    /// Discovers this machine.
    #[staticmethod]
    pub(crate) fn discover() -> PyResult<Self> {
        Ok(Self(Arc::new(Machine::discover().map_err(failed)?)))
    }

    /// The machine of a profile. Its memory is memory of this machine.
    #[staticmethod]
    fn from_profile(name: &str) -> PyResult<Self> {
        Ok(Self(Arc::new(Machine::from_profile(name).map_err(wrong)?)))
    }

    /// A small machine with two kinds of memory, for tests.
    #[staticmethod]
    fn two_tiers() -> PyResult<Self> {
        Ok(Self(Arc::new(Machine::two_tiers().map_err(failed)?)))
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn nodes(&self) -> Vec<PyNode> {
        let nodes = self.0.nodes().iter();
        nodes
            .map(|node| PyNode {
                id: node.id.0,
                tier: node.tier.to_string(),
                socket: node.socket,
                cpus: node.cpus.clone(),
                memory_bytes: node.memory_bytes,
                cpu_node: node.cpu_node.0,
                is_allowed: node.is_allowed,
            })
            .collect()
    }

    /// Names of the DSA devices.
    #[getter]
    fn accelerators(&self) -> Vec<&str> {
        self.0.accelerators().iter().map(|device| device.name.as_str()).collect()
    }

    /// The nearest node with faster memory than `node`.
    fn nearest_faster(&self, node: u32) -> PyResult<Option<u32>> {
        let node = self.0.node(NodeId(node)).map_err(wrong)?;
        Ok(self.0.nearest_faster(node.id).map(|faster| faster.id.0))
    }

    fn __repr__(&self) -> String {
        format!("Machine({:?}, {} nodes)", self.0.name(), self.0.nodes().len())
    }
}
