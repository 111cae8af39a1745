//! The overlay of a profile's figures on a machine with the same nodes.

use super::machine::{Link, Machine, Node, NodeId, Tier};
use super::{Accelerator, TopologyError};

/// Sizes of a node's memory are equal if they differ by less than this part of the larger one: kernels reserve different
/// amounts, and publications print the size of the modules.
const MEMORY_PART_MAX: u64 = 8;

impl Machine {
    /// This machine with the figures of a profile of it: one that `memferry calibrate` wrote here, or one that was
    /// published for such a machine.
    ///
    /// The profile supplies rates and latencies of links, parameters, copy methods, storages, facts, references, and the rate
    /// of each device, matched by node and order. Figures that it lacks are unchanged; so are nodes, free memory, devices,
    /// distances and [`is_this_machine`](Machine::is_this_machine). If the profile's figures are not those of a real
    /// machine, neither are the result's ([`placeholder`](Machine::placeholder)).
    ///
    /// # Errors
    /// [`TopologyError::Misfit`] with the first difference: in the ids of nodes, the number of CPUs of a node, the CPU node
    /// of a memory, its kind (where both are known), or its size by more than an eighth. Ids of CPUs do not matter, because
    /// figures are per node. [`TopologyError::Contradiction`], like for a profile.
    pub fn with_profile(mut self, profile: &Machine) -> Result<Machine, TopologyError> {
        if let Some(what) = misfit(&self, profile) {
            let (machine, profile) = (self.name, profile.name.clone());
            return Err(TopologyError::Misfit { machine, profile, what });
        }
        // The nodes are the same, so links have the same indices.
        for (own, overlay) in self.links.iter_mut().flatten().zip(profile.links.iter().flatten()) {
            *own = Link { distance: own.distance.or(overlay.distance), ..overlay.or(*own) };
        }
        let nodes: Vec<_> = self.accelerators.iter().map(|device| device.node).collect();
        for (index, device) in self.accelerators.iter_mut().enumerate() {
            let rate = profile.alike(&nodes, index).and_then(|device| device.bytes_per_s_max);
            device.bytes_per_s_max = rate.or(device.bytes_per_s_max);
        }
        self.parameters.retain(|own| profile.parameter(&own.name).is_none());
        self.parameters.extend(profile.parameters.iter().cloned());
        self.copy_methods = profile.copy_methods.clone().or(self.copy_methods);
        self.storage.retain(|own| profile.storage.iter().all(|it| it.directory != own.directory));
        self.storage.extend(profile.storage.iter().cloned());
        self.facts.extend(profile.facts.iter().cloned());
        self.references.extend(profile.references.clone());
        self.placeholder = self.placeholder.or_else(|| profile.placeholder.clone());
        match self.contradiction() {
            Some(what) => Err(TopologyError::Contradiction { machine: self.name, what }),
            None => Ok(self),
        }
    }

    /// This machine with one device on each of `nodes`: those that a program copies with, fewer than the machine has, or
    /// emulated ones. Each is the machine's device on the same node, in order, or a device with unknown figures.
    pub fn with_devices_on(mut self, nodes: &[Option<NodeId>]) -> Machine {
        let unknown = |index| Accelerator {
            name: format!("device {index}"),
            node: nodes[index],
            work_queues_count: None,
            engines_count: None,
            bytes_per_s_max: None,
        };
        let device = |index| self.alike(nodes, index).cloned().unwrap_or_else(|| unknown(index));
        self.accelerators = (0..nodes.len()).map(device).collect();
        self
    }

    /// The own device that corresponds to the one at `index` of devices on `nodes`: of the same node and the same ordinal
    /// on it.
    fn alike(&self, nodes: &[Option<NodeId>], index: usize) -> Option<&Accelerator> {
        let nth = nodes[..index].iter().filter(|before| **before == nodes[index]).count();
        self.accelerators.iter().filter(|own| own.node == nodes[index]).nth(nth)
    }
}

impl Link {
    /// This link, with figures of `other` where it has none.
    pub(super) fn or(self, other: Link) -> Link {
        Link {
            distance: self.distance.or(other.distance),
            read_bytes_per_s: self.read_bytes_per_s.or(other.read_bytes_per_s),
            write_bytes_per_s: self.write_bytes_per_s.or(other.write_bytes_per_s),
            read_latency_ns: self.read_latency_ns.or(other.read_latency_ns),
            write_latency_ns: self.write_latency_ns.or(other.write_latency_ns),
        }
    }
}

/// The first difference between a machine and a profile.
fn misfit(machine: &Machine, profile: &Machine) -> Option<String> {
    let lacks = |machine: &Machine, id: NodeId| machine.position(id).is_none();
    if let Some(node) = machine.nodes.iter().find(|node| lacks(profile, node.id)) {
        return Some(format!("node {} is here and not in the profile", node.id));
    }
    if let Some(node) = profile.nodes.iter().find(|node| lacks(machine, node.id)) {
        return Some(format!("node {} is in the profile and not here", node.id));
    }
    machine.nodes.iter().zip(&profile.nodes).find_map(|(own, overlay)| misfit_of(own, overlay))
}

fn misfit_of(own: &Node, lent: &Node) -> Option<String> {
    let differs = |verb: &str, here: String, there: String| {
        Some(format!("node {} {verb} {here} here and {there} in the profile", own.id))
    };
    if own.cpus.len() != lent.cpus.len() {
        let cpus = |node: &Node| match node.cpus.len() {
            1 => "1 CPU".to_owned(),
            count => format!("{count} CPUs"),
        };
        return differs("has", cpus(own), cpus(lent));
    }
    if own.cpu_node != lent.cpu_node {
        let owner = |node: &Node| format!("the CPUs of node {}", node.cpu_node);
        return differs("belongs to", owner(own), owner(lent));
    }
    let is_told = |tier| tier != Tier::Unknown;
    if is_told(own.tier) && is_told(lent.tier) && own.tier != lent.tier {
        return differs("is", own.tier.to_string(), lent.tier.to_string());
    }
    let (here, there) = (own.memory_bytes?, lent.memory_bytes?);
    if here.abs_diff(there) > here.max(there) / MEMORY_PART_MAX {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        return differs("has", mib(here), mib(there));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::measured::Measured;
    use super::super::parameter::Parameter;
    use super::super::storage::{ReadRate, Storage};
    use super::*;
    use crate::copy_method::{CopyMethod, CopyMethods};

    fn xeon_max() -> Machine {
        Machine::from_profile("xeon-max-9468-2s-flat").unwrap()
    }

    /// As a machine is discovered: nodes and devices, without figures.
    fn bare() -> Machine {
        let mut bare = xeon_max();
        bare.name = "here".to_owned();
        bare.origin = super::super::machine::Origin::Discovered;
        bare.parameters.clear();
        bare.facts.clear();
        bare.references.clear();
        bare.links
            .iter_mut()
            .flatten()
            .for_each(|link| *link = Link { distance: Some(10), ..Link::default() });
        bare.accelerators.iter_mut().for_each(|device| device.bytes_per_s_max = None);
        bare
    }

    #[test]
    fn figures_are_lent_and_the_machine_stays() {
        let mut profile = xeon_max();
        profile.links[0][8] = Link { distance: Some(77), read_bytes_per_s: Some(5), ..Link::default() };
        let mut own = bare();
        own.nodes[0].free_bytes = Some(1 << 30);
        own.links[0][8].write_bytes_per_s = Some(3);
        own.parameters.push(Parameter::assumed("core_mb_per_s", 1.0, "a test"));
        let copy_methods = Some(CopyMethods::only(CopyMethod::RepMovsb));
        let reference = ("a test".to_owned(), "of this file".to_owned());
        let rate = ReadRate { size_bytes: 4096, depth: 1, mb_per_s: 40.5 };
        let storage = Storage::new("/data".into(), 99.5, vec![rate], "a test".to_owned());
        let storage = Vec::from_iter(storage);
        let profile = profile
            .with_measured(Measured { copy_methods, reference, storage, ..Measured::default() })
            .unwrap();
        let lent = own.clone().with_profile(&profile).unwrap();
        assert_eq!(lent.copy_methods(), copy_methods);
        assert!(lent.is_this_machine() && lent.name() == "here");
        assert_eq!((lent.nodes(), lent.parameters()), (own.nodes(), profile.parameters()));
        assert_eq!((lent.facts(), lent.references()), (profile.facts(), profile.references()));
        assert_eq!(lent.accelerators(), profile.accelerators());
        assert_eq!((lent.storage().len(), lent.storage()), (1, profile.storage()));
        let link = lent.link(NodeId(0), NodeId(8));
        assert_eq!(
            (link.distance, link.read_bytes_per_s, link.write_bytes_per_s),
            (Some(10), Some(5), Some(3))
        );
    }

    /// Devices are told apart by where they are: their names depend on what the kernel found first.
    #[test]
    fn rates_of_devices_are_those_of_their_nodes() {
        let (mut own, mut profile) = (bare(), xeon_max());
        own.accelerators.truncate(2);
        own.accelerators[0].name = "dsa14".to_owned();
        own.accelerators[1].node = own.accelerators[0].node;
        profile.accelerators[0].bytes_per_s_max = Some(7);
        let lent = own.with_profile(&profile).unwrap();
        let rates: Vec<_> = lent.accelerators().iter().map(|device| device.bytes_per_s_max).collect();
        assert_eq!(rates, [Some(7), None], "the profile has one device on that node");
    }

    #[test]
    fn devices_are_those_that_copy() {
        let node = |id| Some(NodeId(id));
        let devices = xeon_max().with_devices_on(&[node(2), node(2), None, node(0)]);
        let of = |index: usize| {
            let Accelerator { name, node, bytes_per_s_max, .. } = &devices.accelerators()[index];
            (name.as_str(), *node, bytes_per_s_max.is_some())
        };
        assert_eq!(devices.accelerators().len(), 4);
        assert_eq!((of(0), of(3)), (("dsa4", node(2), true), ("dsa0", node(0), true)));
        assert_eq!((of(1), of(2)), (("device 1", node(2), false), ("device 2", None, false)));
    }

    #[test]
    fn what_is_made_up_stays_made_up() {
        let made_up = Machine::two_tiers().unwrap();
        let lent = Machine { placeholder: None, ..made_up.clone() }.with_profile(&made_up).unwrap();
        assert_eq!(lent.placeholder(), made_up.placeholder());
    }

    #[test]
    fn the_first_difference_is_named() {
        type Change = fn(&mut Machine);
        let changes: [(Change, &str); 6] = [
            (|it| drop(it.nodes.remove(3)), "node 3 is here and not in the profile"),
            (|it| it.nodes[15].id = NodeId(99), "node 15 is here and not in the profile"),
            (|it| it.nodes[1].cpus.truncate(11), "node 1 has 12 CPUs here and 11 CPUs in the profile"),
            (
                |it| it.nodes[9].cpu_node = NodeId(2),
                "node 9 belongs to the CPUs of node 1 here and the CPUs of node 2 in",
            ),
            (|it| it.nodes[10].tier = Tier::Cxl, "node 10 is HBM here and CXL in the profile"),
            (|it| it.nodes[8].memory_bytes = Some(13 << 30), "node 8 has 16384 MiB here and 13312 MiB in"),
        ];
        for (change, words) in changes {
            let mut profile = xeon_max();
            change(&mut profile);
            let error = bare().with_profile(&profile).unwrap_err();
            assert!(matches!(error, TopologyError::Misfit { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(words) && error.contains("memferry calibrate"), "{error}");
        }
        let mut more = bare();
        more.nodes.pop();
        let error = more.with_profile(&xeon_max()).unwrap_err().to_string();
        assert!(error.contains("node 15 is in the profile and not here"), "{error}");
    }

    #[test]
    fn what_differs_a_little_or_is_not_told_fits() {
        let mut profile = xeon_max();
        profile.nodes[8].memory_bytes = Some(15 << 30);
        profile.nodes[9].memory_bytes = None;
        profile.nodes[10].tier = Tier::Unknown;
        profile.nodes[0].cpus.iter_mut().for_each(|cpu| *cpu += 1000);
        assert!(bare().with_profile(&profile).is_ok());
    }

    #[test]
    fn a_calibration_of_this_machine_fits_it() {
        let reference = ("a test".to_owned(), "of this file".to_owned());
        let here = || Machine::discover().unwrap();
        let measured = here().with_measured(Measured { reference, ..Measured::default() }).unwrap();
        let profile = Machine::from_profile_text("mine", &measured.profile_text("a test").unwrap()).unwrap();
        let lent = here().with_profile(&profile).unwrap();
        assert!(lent.is_this_machine());
        assert!(lent.references().contains_key("a test"));
    }
}
