//! Where tables, workers and clients of the study are on a machine: on the first two domains of its first socket, and elsewhere.

use memferry::topology::{Machine, NodeId};
use memferry_bench::harness::Random;
use memferry_dsa::internals::affinity;
use memferry_query::schedule::{Domain, Domains};

use super::workload::{Clients, Workers, Workload};
use crate::QueryError;

/// The domains of the two tables, and the CPUs beside them.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Two, those of the tables.
    pub(super) domains: Domains,
    /// Whether they are parts of one node: the machine has no sub-NUMA clusters.
    pub(super) are_parts: bool,
    /// The memory of each table.
    pub(super) nodes: [NodeId; 2],
    /// CPUs of the process that are in neither.
    pub(super) elsewhere: Vec<u32>,
    seed: u64,
}

impl Places {
    /// # Errors
    /// [`QueryError::Invalid`] if the process has a single CPU there.
    pub(super) fn of(machine: &Machine, seed: u64) -> Result<Places, QueryError> {
        let invalid = |error: &dyn std::fmt::Display| QueryError::Invalid(error.to_string());
        let all = Domains::of(machine).map_err(|error| invalid(&error))?;
        let socket = all[0].socket;
        let nodes: Vec<NodeId> = all
            .iter()
            .filter(|domain| domain.socket == socket)
            .map(|domain| domain.cpu_node)
            .take(2)
            .collect();
        let on = all.on(&nodes).map_err(|error| invalid(&error))?;
        let are_parts = on.len() < 2;
        let domains = if are_parts { on.split(2).map_err(|error| invalid(&error))? } else { on };
        let memory = |domain: usize| {
            let domain = &domains[domain];
            let has_memory = machine.node(domain.cpu_node).is_ok_and(|node| node.has_memory());
            match domain.memories.first() {
                Some(&memory) if !has_memory => memory,
                _ => domain.cpu_node,
            }
        };
        let nodes = [memory(0), memory(1)];
        let inside = cpus(&domains);
        let allowed = affinity::allowed().map_err(QueryError::Threads)?;
        let elsewhere = allowed.into_iter().filter(|cpu| !inside.contains(cpu)).collect();
        Ok(Places { domains, are_parts, nodes, elsewhere, seed })
    }

    /// Number of CPUs of both domains.
    pub(super) fn cpus_count(&self) -> usize {
        cpus(&self.domains).len()
    }

    /// The domains, with the CPUs that have workers.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: a domain of one CPU has no half.
    pub(super) fn workers(&self, workers: Workers) -> Result<Domains, QueryError> {
        let confined = match workers {
            Workers::All => return Ok(self.domains.clone()),
            Workers::First => self.domains[0].cpus.clone(),
            Workers::Second => self.domains[1].cpus.clone(),
            Workers::Half => {
                let mut random = Random(self.seed);
                let mut half = Vec::new();
                for domain in self.domains.iter() {
                    if domain.cpus.len() < 2 {
                        return Err(QueryError::Invalid(format!(
                            "workers on half of the CPUs need two in each domain, and one on node {} has {}; choose other \
                             workers",
                            domain.cpu_node,
                            domain.cpus.len()
                        )));
                    }
                    let mut left = domain.cpus.clone();
                    let drawn = (0..left.len() / 2).map(|_| left.swap_remove(random.below(left.len())));
                    half.extend(drawn.collect::<Vec<u32>>());
                }
                half
            }
        };
        self.domains.confined(&confined).map_err(|error| QueryError::Invalid(error.to_string()))
    }

    /// Which of the two domains has the CPUs of these workers.
    pub(super) fn index_of(&self, workers: &Domain) -> usize {
        usize::from(workers.cpus.iter().any(|cpu| self.domains[1].cpus.contains(cpu)))
    }

    /// The CPUs of the clients; `None`: any.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: there are none elsewhere.
    pub(super) fn clients(&self, clients: Clients) -> Result<Option<Vec<u32>>, QueryError> {
        match clients {
            Clients::Anywhere => Ok(None),
            Clients::Elsewhere if self.elsewhere.is_empty() => Err(QueryError::Invalid(
                "this process has no CPU elsewhere than on the domains of the tables; choose --clients anywhere".to_owned(),
            )),
            Clients::Elsewhere => Ok(Some(self.elsewhere.clone())),
        }
    }

    /// Why a run is impossible here; `None` if it is not.
    pub(super) fn obstacle(&self, workload: &Workload) -> Option<String> {
        let failed = self.workers(workload.workers).err().or_else(|| self.clients(workload.clients).err());
        failed.map(|error| error.to_string())
    }
}

/// The CPUs of all domains.
pub(super) fn cpus(domains: &Domains) -> Vec<u32> {
    domains.iter().flat_map(|domain| domain.cpus.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skylake() -> Places {
        let machine = Machine::from_profile("skylake-8180-snc-on").unwrap();
        Places::of(&machine, 1).unwrap()
    }

    #[test]
    fn the_first_socket_has_the_tables() {
        let places = skylake();
        assert_eq!((places.domains.len(), places.are_parts), (2, false));
        assert_eq!(places.nodes, [NodeId(0), NodeId(1)]);
        assert!(places.domains[0].cpus.iter().all(|cpu| !places.elsewhere.contains(cpu)));
    }

    #[test]
    fn workers_are_where_the_study_has_them() {
        let places = skylake();
        let count =
            |workers| places.workers(workers).unwrap().iter().map(|domain| domain.cpus.len()).collect();
        let all: Vec<usize> = count(Workers::All);
        let halves: Vec<usize> = count(Workers::Half);
        assert_eq!(halves, all.iter().map(|cpus| cpus / 2).collect::<Vec<_>>());
        let second = places.workers(Workers::Second).unwrap();
        assert_eq!((second.len(), &second[0].cpus), (1, &places.domains[1].cpus));
        let of_half = places.workers(Workers::Half).unwrap();
        let indices: Vec<usize> = of_half.iter().chain(second.iter()).map(|it| places.index_of(it)).collect();
        assert_eq!(indices, [0, 1, 1], "the second domain keeps its number without the first");
        let half = places.workers(Workers::Half).unwrap();
        assert!(half[1].cpus.iter().all(|cpu| places.domains[1].cpus.contains(cpu)), "{half:?}");
    }

    #[test]
    fn a_node_without_clusters_is_divided() {
        let machine = Machine::from_profile("skylake-8180-snc-off").unwrap();
        let places = Places::of(&machine, 1).unwrap();
        assert!(places.are_parts && places.domains.len() == 2);
        assert_eq!(places.nodes, [NodeId(0), NodeId(0)]);
    }
}
