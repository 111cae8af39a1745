//! Domains, CPUs with their memories, and sockets.

use serde::Serialize;

use super::{Machine, Node, NodeId};

/// The CPUs of one node and the memories that belong to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Domain {
    /// The node with the CPUs. It may have memory too.
    pub cpu_node: NodeId,
    /// Its CPUs that this process may run on, at the time of discovery; ascending.
    pub cpus: Vec<u32>,
    /// The memory-only nodes that belong to these CPUs, for example their HBM; ascending.
    pub memories: Vec<NodeId>,
    /// Its socket, if known.
    pub socket: Option<u32>,
}

/// A package and its domains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Socket {
    /// Its number; `None` for the domains whose socket is unknown.
    pub id: Option<u32>,
    /// Ascending by node, never empty.
    pub domains: Vec<Domain>,
}

impl Socket {
    /// Whether this socket is divided into several domains (sub-NUMA clustering, cluster on die).
    pub fn is_sub_numa(&self) -> bool {
        self.id.is_some() && self.domains.len() > 1
    }
}

impl Machine {
    /// Each node with CPUs, and the memory-only nodes that belong to it; ascending.
    ///
    /// A node without CPUs and memory (an initiator of another kind) is in no domain.
    pub fn domains(&self) -> Vec<Domain> {
        let cpu_nodes = self.nodes().iter().filter(|node| !node.cpus.is_empty());
        let domain = |cpu_node: &Node| Domain {
            cpu_node: cpu_node.id,
            cpus: cpu_node.allowed_cpus.clone(),
            memories: (self.nodes().iter())
                .filter(|node| node.cpu_node == cpu_node.id && node.cpus.is_empty() && node.has_memory())
                .map(|node| node.id)
                .collect(),
            socket: cpu_node.socket,
        };
        cpu_nodes.map(domain).collect()
    }

    /// The domains of each socket, ascending; those of unknown socket come last, as one.
    pub fn sockets(&self) -> Vec<Socket> {
        let mut domains = self.domains();
        domains.sort_by_key(|domain| (domain.socket.is_none(), domain.socket, domain.cpu_node));
        let of_a_socket = domains.chunk_by(|a, b| a.socket == b.socket);
        of_a_socket.map(|domains| Socket { id: domains[0].socket, domains: domains.to_vec() }).collect()
    }

    /// Whether a socket is divided into several domains.
    pub fn is_sub_numa(&self) -> bool {
        self.sockets().iter().any(Socket::is_sub_numa)
    }
}
