//! The domains of a machine, and how far they are from each other.

use memferry::internals::Domain;
use memferry::topology::{Machine, NodeId};
use thiserror::Error;

/// How far the CPUs of one domain are from the memory of another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// The domain itself.
    Own,
    /// Another domain of the same socket, or another part of the same node: a neighbour.
    SameSocket,
    /// A domain of another socket, or of an unknown one.
    OtherSocket,
}

/// Domains of a machine that have CPUs for this process, each with an index.
///
/// The machine's order: ascending by node, the parts of a node one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domains {
    domains: Vec<Domain>,
    /// The distance of ACPI between the nodes of two domains, `u32::MAX` if unknown; row by row.
    acpi: Vec<u32>,
    /// Whether CPUs of the machine that this process may use were left out.
    is_part: bool,
}

impl Domains {
    /// Each node of `machine` that has CPUs for this process. Nodes whose CPUs its cpuset or affinity forbids are left out.
    ///
    /// # Errors
    /// [`DomainsError::NoCpus`] if no node is left.
    pub fn of(machine: &Machine) -> Result<Domains, DomainsError> {
        let domains: Vec<Domain> =
            machine.domains().into_iter().filter(|domain| !domain.cpus.is_empty()).collect();
        if domains.is_empty() {
            return Err(DomainsError::NoCpus);
        }
        let acpi = |from: &Domain, to: &Domain| {
            machine.link(from.cpu_node, to.cpu_node).distance.unwrap_or(u32::MAX)
        };
        let acpi = domains.iter().flat_map(|from| domains.iter().map(move |to| acpi(from, to))).collect();
        Ok(Domains { domains, acpi, is_part: false })
    }

    /// The domains of `nodes` alone, to confine work to a part of the machine.
    ///
    /// # Errors
    /// [`DomainsError::NoDomain`] for a node that has no domain here.
    pub fn on(&self, nodes: &[NodeId]) -> Result<Domains, DomainsError> {
        if let Some(&node) =
            nodes.iter().find(|node| self.domains.iter().all(|domain| domain.cpu_node != **node))
        {
            return Err(DomainsError::NoDomain { node });
        }
        let kept: Vec<usize> =
            (0..self.len()).filter(|&index| nodes.contains(&self[index].cpu_node)).collect();
        match kept.is_empty() {
            true => Err(DomainsError::NoCpus),
            false => Ok(self.select(&kept, |index| vec![self[index].clone()])),
        }
    }

    /// The domains with those of their CPUs that are in `cpus`, and without domains that have none of them.
    ///
    /// # Errors
    /// [`DomainsError::NoCpus`] if no CPU is left.
    pub fn confined(&self, cpus: &[u32]) -> Result<Domains, DomainsError> {
        let left = |index: usize| -> Vec<u32> {
            self[index].cpus.iter().copied().filter(|cpu| cpus.contains(cpu)).collect()
        };
        let kept: Vec<usize> = (0..self.len()).filter(|&index| !left(index).is_empty()).collect();
        if kept.is_empty() {
            return Err(DomainsError::NoCpus);
        }
        Ok(self.select(&kept, |index| {
            let mut domain = self[index].clone();
            domain.cpus = left(index);
            vec![domain]
        }))
    }

    /// Each domain divided into `parts` logical domains, by CPUs: the first parts have one more if the division leaves some.
    ///
    /// # Errors
    /// [`DomainsError::TooFewCpus`] for a domain with fewer CPUs than `parts`, or if `parts` is 0.
    pub fn split(&self, parts: usize) -> Result<Domains, DomainsError> {
        if let Some(domain) =
            self.domains.iter().find(|domain| domain.cpus.len() < parts.max(1) || parts == 0)
        {
            return Err(DomainsError::TooFewCpus { node: domain.cpu_node, cpus: domain.cpus.len(), parts });
        }
        let all: Vec<usize> = (0..self.len()).collect();
        Ok(self.select(&all, |index| {
            let mut rest = &self[index].cpus[..];
            let part = |part| {
                let (cpus, others) = rest.split_at(rest.len().div_ceil(parts - part));
                rest = others;
                let mut domain = self[index].clone();
                domain.cpus = cpus.to_vec();
                domain
            };
            (0..parts).map(part).collect()
        }))
    }

    /// The domains that `make` makes of each of those in `indices`.
    fn select(&self, indices: &[usize], make: impl Fn(usize) -> Vec<Domain>) -> Domains {
        let made: Vec<(usize, Domain)> = indices
            .iter()
            .flat_map(|&index| make(index).into_iter().map(move |domain| (index, domain)))
            .collect();
        let acpi = made
            .iter()
            .flat_map(|(from, _)| made.iter().map(move |(to, _)| self.acpi[from * self.len() + to]));
        let cpus_count = |domains: &[Domain]| domains.iter().map(|domain| domain.cpus.len()).sum::<usize>();
        let acpi = acpi.collect();
        let domains: Vec<Domain> = made.into_iter().map(|(_, domain)| domain).collect();
        let is_part = self.is_part || cpus_count(&domains) < cpus_count(&self.domains);
        Domains { domains, acpi, is_part }
    }

    /// Whether [`on`](Self::on) or [`confined`](Self::confined) left out CPUs of the machine that this process may use.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// How many there are, at least one.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.domains.len()
    }

    /// The domains, in order of their indices.
    pub fn iter(&self) -> std::slice::Iter<'_, Domain> {
        self.domains.iter()
    }

    /// How far the domain `to` is from the CPUs of `from`. Panics if one of them is not below [`len`](Self::len).
    pub fn distance(&self, from: usize, to: usize) -> Distance {
        let (a, b) = (&self[from], &self[to]);
        if from == to {
            Distance::Own
        } else if a.cpu_node == b.cpu_node || (a.socket.is_some() && a.socket == b.socket) {
            Distance::SameSocket
        } else {
            Distance::OtherSocket
        }
    }

    /// All domains, the nearest to `from` first, which is `from`. Equally near ones begin behind `from` and go around, so
    /// that not all domains choose the same neighbour.
    pub(crate) fn by_distance(&self, from: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).map(|step| (from + step) % self.len()).collect();
        let is_other_node = |to: usize| self[from].cpu_node != self[to].cpu_node;
        order.sort_by_key(|&to| {
            (self.distance(from, to), is_other_node(to), self.acpi[from * self.len() + to])
        });
        order
    }
}

impl std::ops::Index<usize> for Domains {
    type Output = Domain;

    fn index(&self, index: usize) -> &Domain {
        &self.domains[index]
    }
}

/// Domains that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DomainsError {
    /// No node has a CPU for this process.
    #[error("no node has a CPU that this process may use; widen its cpuset or affinity")]
    NoCpus,
    /// A node that is no domain.
    #[error(
        "node {node} has no CPU that this process may use; name a node with such CPUs (`memferry topology` lists them), or widen the cpuset or affinity"
    )]
    NoDomain {
        /// The node.
        node: NodeId,
    },
    /// More parts than CPUs, or none.
    #[error(
        "node {node} has {cpus} CPUs and cannot be divided into {parts} domains; choose from 1 to {cpus}"
    )]
    TooFewCpus {
        /// The node.
        node: NodeId,
        /// Its CPUs for this process.
        cpus: usize,
        /// The parts asked for.
        parts: usize,
    },
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    fn xeon_max() -> Domains {
        Domains::of(&Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap()
    }

    #[test]
    fn neighbours_share_a_socket_and_come_first() {
        let domains = xeon_max();
        assert_eq!(domains.len(), 8);
        assert_eq!(domains.distance(1, 1), Distance::Own);
        assert_eq!(domains.distance(1, 3), Distance::SameSocket);
        assert_eq!(domains.distance(1, 4), Distance::OtherSocket);
        assert_eq!(domains.by_distance(1), [1, 2, 3, 0, 4, 5, 6, 7]);
        assert_eq!(domains.by_distance(6), [6, 7, 4, 5, 0, 1, 2, 3]);
    }

    #[test]
    fn parts_of_a_node_are_neighbours_and_share_its_cpus() {
        let whole = xeon_max();
        let parts = whole.split(5).unwrap();
        assert_eq!(parts.len(), 40);
        let sizes: Vec<usize> = parts.iter().take(5).map(|part| part.cpus.len()).collect();
        assert_eq!(sizes, [3, 3, 2, 2, 2]);
        let cpus: Vec<u32> = parts.iter().take(5).flat_map(|part| part.cpus.clone()).collect();
        assert_eq!(cpus, whole[0].cpus);
        assert_eq!(parts.distance(0, 4), Distance::SameSocket);
        assert_eq!(parts.distance(0, 20), Distance::OtherSocket);
        assert_eq!(parts.by_distance(4)[..6], [4, 0, 1, 2, 3, 5]);
        assert!(!whole.is_part() && !parts.is_part());
    }

    #[test]
    fn domains_are_confined_to_cpus() {
        let domains = xeon_max();
        let (first, last) = (&domains[1].cpus, &domains[6].cpus);
        let kept = domains.confined(&[last[2], first[1], first[0], u32::MAX]).unwrap();
        let cpus: Vec<&[u32]> = kept.iter().map(|domain| &domain.cpus[..]).collect();
        assert_eq!(cpus, [&first[..2], &last[2..3]]);
        assert_eq!((kept[0].cpu_node, kept.distance(0, 1)), (domains[1].cpu_node, Distance::OtherSocket));
        assert_eq!(domains.confined(&[u32::MAX]).unwrap_err(), DomainsError::NoCpus);
        let all: Vec<u32> = domains.iter().flat_map(|domain| domain.cpus.clone()).collect();
        assert!(kept.is_part() && !domains.confined(&all).unwrap().is_part());
        let again = kept.confined(&[first[0], first[1], last[2]]).unwrap();
        assert!(again.is_part(), "nothing was left out the second time");
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let domains = xeon_max();
        let error = domains.on(&[NodeId(0), NodeId(9)]).unwrap_err();
        assert_eq!(error, DomainsError::NoDomain { node: NodeId(9) });
        let error = domains.split(13).unwrap_err();
        assert_eq!(error, DomainsError::TooFewCpus { node: NodeId(0), cpus: 12, parts: 13 });
        assert!(domains.split(0).is_err());
        assert_eq!(domains.on(&[]).unwrap_err(), DomainsError::NoCpus);
        let kept = domains.on(&[NodeId(6), NodeId(1)]).unwrap();
        assert_eq!(kept.iter().map(|domain| domain.cpu_node.0).collect::<Vec<_>>(), [1, 6]);
        assert_eq!(kept.distance(0, 1), Distance::OtherSocket);
    }
}
