//! Measurements of a machine, and its profile as text.

use super::machine::{Link, Machine, NodeId};
use super::parameter::{Fact, Parameter};
use super::profile::{Figure, Matrix, Profile, ProfileAccelerator, ProfileNode, ProfilePersistentMemory};
use super::storage::Storage;
use super::{TopologyError, list};
use crate::copy_method::CopyMethods;

/// Measurements of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Short name of the measurement, with which the sources of its figures begin, and its description.
    pub reference: (String, String),
    /// Links from the CPUs of one node to the memory of another. `None` in them keeps the machine's figure.
    pub links: Vec<(NodeId, NodeId, Link)>,
    /// Bytes per second of accelerators, by the kernel's name. Others are unchanged.
    pub accelerators: Vec<(String, u64)>,
    /// Parameters for models. They replace those of the same name.
    pub parameters: Vec<Parameter>,
    /// The fastest copy methods of cores. `None` keeps the machine's.
    pub copy_methods: Option<CopyMethods>,
    /// Other figures.
    pub facts: Vec<Fact>,
    /// Storages. They replace those of the same directory.
    pub storage: Vec<Storage>,
}

impl Machine {
    /// This machine with measurements.
    ///
    /// # Errors
    /// [`TopologyError::Contradiction`] for impossible figures, such as a rate that is not a number.
    pub fn with_measured(mut self, measured: Measured) -> Result<Machine, TopologyError> {
        let Measured { reference, links, accelerators, parameters, copy_methods, facts, storage } = measured;
        let (name, full_name) = reference;
        for (device, bytes_per_s) in accelerators {
            let Some(found) = self.accelerators.iter_mut().find(|it| it.name == device) else {
                return Err(TopologyError::Contradiction {
                    machine: self.name,
                    what: format!("it has no accelerator {device}"),
                });
            };
            found.bytes_per_s_max = Some(bytes_per_s);
        }
        for (cpus, memory, link) in links {
            let (Some(from), Some(to)) = (self.position(cpus), self.position(memory)) else {
                let what = format!("it has no link from node {cpus} to node {memory}");
                return Err(TopologyError::Contradiction { machine: self.name, what });
            };
            let old = &mut self.links[from][to];
            *old = link.or(*old);
        }
        self.parameters.retain(|old| parameters.iter().all(|new| new.name != old.name));
        self.parameters.extend(parameters);
        let sourced = |value| Figure { value, source: name.clone() };
        self.copy_methods = copy_methods.map(sourced).or(self.copy_methods);
        self.facts.extend(facts);
        self.storage.retain(|old| storage.iter().all(|new| new.directory != old.directory));
        self.storage.extend(storage);
        self.references.insert(name, full_name);
        match self.contradiction() {
            Some(what) => Err(TopologyError::Contradiction { machine: self.name, what }),
            None => Ok(self),
        }
    }

    /// This machine as the text of a profile, which [`from_profile`](Machine::from_profile) reads: its nodes, links,
    /// accelerators, facts and parameters. A profile omits state: free memory, allowed CPUs and nodes, kernel settings.
    ///
    /// `source` is the source of nodes and links; it begins with one of the [`references`](Machine::references).
    ///
    /// # Errors
    /// [`serde_json::Error`] for a figure that JSON cannot represent; none in practice.
    pub fn profile_text(&self, source: &str) -> Result<String, serde_json::Error> {
        fn sourced<T>(value: T, source: &str) -> Figure<T> {
            Figure { value, source: source.to_owned() }
        }
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let accelerator = |it: &super::Accelerator| ProfileAccelerator {
            name: it.name.clone(),
            node: it.node,
            work_queues: it.work_queues_count,
            engines: it.engines_count,
            mb_per_s_max: it.bytes_per_s_max.map(mb),
        };
        let node = |node: &super::Node| ProfileNode {
            id: node.id,
            socket: node.socket,
            cpus: list::print(node.cpus.iter().copied()),
            memory_mib: node.memory_bytes.map(|bytes| bytes >> 20),
            tier: node.tier,
            cpu_node: node.cpu_node,
        };
        let accelerators: Vec<_> = self.accelerators.iter().map(accelerator).collect();
        let persistent: Vec<_> = (self.persistent_memory.iter())
            .map(|memory| ProfilePersistentMemory { node: memory.node, size_mib: memory.size_bytes >> 20 })
            .collect();
        let profile = Profile {
            name: self.name.clone(),
            placeholder: self.placeholder.clone(),
            references: self.references.clone(),
            cpu: sourced(self.cpu.clone().unwrap_or_else(|| "unknown".to_owned()), source),
            nodes: sourced(self.nodes.iter().map(node).collect(), source),
            distances: self.matrix(|link| link.distance).map(|it| sourced(it, source)),
            read_mb_per_s: self.matrix(|link| link.read_bytes_per_s.map(mb)).map(|it| sourced(it, source)),
            write_mb_per_s: self.matrix(|link| link.write_bytes_per_s.map(mb)).map(|it| sourced(it, source)),
            read_latency_ns: self.matrix(|link| link.read_latency_ns).map(|it| sourced(it, source)),
            write_latency_ns: self.matrix(|link| link.write_latency_ns).map(|it| sourced(it, source)),
            accelerators: (!accelerators.is_empty()).then(|| sourced(accelerators, source)),
            facts: self.facts.clone(),
            parameters: self.parameters.clone(),
            copy_methods: self.copy_methods.clone(),
            storage: self.storage.clone(),
            persistent_memory: (!persistent.is_empty()).then(|| sourced(persistent, source)),
            offline: self.offline.iter().collect(),
            placeholders: None,
        };
        Ok(serde_json::to_string_pretty(&profile)? + "\n")
    }

    /// A figure of all links; `None` if no link has it.
    fn matrix<T>(&self, figure: impl Fn(&Link) -> Option<T>) -> Option<Matrix<T>> {
        let rows: Matrix<T> = self.links.iter().map(|row| row.iter().map(&figure).collect()).collect();
        rows.iter().flatten().any(Option::is_some).then_some(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameter::Basis;
    use super::super::storage::ReadRate;
    use super::*;
    use crate::copy_method::CopyMethod;

    fn storage(source: &str) -> Storage {
        let rate = ReadRate { size_bytes: 4096, depth: 1, mb_per_s: 40.5 };
        Storage::new("/data".into(), 99.5, vec![rate], source.to_owned()).unwrap()
    }

    fn measured() -> Measured {
        let parameter = Parameter {
            name: "core_mb_per_s".to_owned(),
            value: 12_500.5,
            basis: Basis::Measured,
            rows: Vec::new(),
            source: "a test".to_owned(),
        };
        let fact =
            Fact { name: "f".to_owned(), value: 1.5, unit: "ns".to_owned(), source: "a test".to_owned() };
        let link =
            Link { read_bytes_per_s: Some(1_234_567_000), read_latency_ns: Some(99.5), ..Link::default() };
        Measured {
            reference: ("a test".to_owned(), "of this file".to_owned()),
            links: vec![(NodeId(0), NodeId(8), link)],
            accelerators: Vec::new(),
            parameters: vec![parameter],
            copy_methods: Some(CopyMethods::only(CopyMethod::RepMovsb)),
            facts: vec![fact],
            storage: vec![storage("a test: of a disk")],
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        let before = machine.link(NodeId(0), NodeId(8)).distance;
        let rates = vec![("dsa2".to_owned(), 12_000_000_000)];
        let machine = machine.with_measured(Measured { accelerators: rates, ..measured() }).unwrap();
        let rate = |index: usize| machine.accelerators()[index].bytes_per_s_max;
        assert_eq!((rate(0), rate(1)), (Some(32_212_254_720), Some(12_000_000_000)), "the others stay");
        let text = machine.profile_text("a test").unwrap();
        let again = Machine::from_profile_text("again", &text).unwrap();
        assert_eq!(again, machine);
        assert_eq!(again.copy_methods(), Some(CopyMethods::only(CopyMethod::RepMovsb)));
        let link = again.link(NodeId(0), NodeId(8));
        assert_eq!((link.read_bytes_per_s, link.read_latency_ns), (Some(1_234_567_000), Some(99.5)));
        assert_eq!(link.distance, before);
        assert_eq!(again.storage(), [storage("a test: of a disk")]);
        assert_eq!(again.parameter("core_mb_per_s"), Some(12_500.5), "in the place of the published one");
    }

    #[test]
    fn a_reading_that_cannot_be_is_refused() {
        let machine = || Machine::two_tiers().unwrap();
        let mut wrong = measured();
        let error = machine().with_measured(wrong.clone()).unwrap_err().to_string();
        assert!(error.contains("node 8"), "{error}");
        wrong.links.clear();
        let accelerators = vec![("dsa99".to_owned(), 1)];
        let error =
            machine().with_measured(Measured { accelerators, ..wrong.clone() }).unwrap_err().to_string();
        assert!(error.contains("no accelerator dsa99"), "{error}");
        wrong.parameters[0].value = f64::NAN;
        let error = machine().with_measured(wrong).unwrap_err().to_string();
        assert!(error.contains("core_mb_per_s is NaN"), "{error}");
    }

    #[test]
    fn a_discovered_machine_is_a_profile_too() {
        let machine = Machine::discover().unwrap();
        let nodes: Vec<_> =
            machine.nodes().iter().map(|node| (node.id, node.cpus.clone(), node.tier)).collect();
        let machine = machine.with_measured(Measured { links: Vec::new(), ..measured() }).unwrap();
        let again = Machine::from_profile_text("again", &machine.profile_text("a test").unwrap()).unwrap();
        assert!(!again.is_this_machine());
        assert_eq!(
            again.nodes().iter().map(|node| (node.id, node.cpus.clone(), node.tier)).collect::<Vec<_>>(),
            nodes
        );
    }
}
