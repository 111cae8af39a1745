//! The place of a point on this machine, and the memory of its submitters.

use memferry::memory::{Binding, HugePages, Mapping, MappingOptions, Placement};
use memferry::topology::{Node, NodeId};
use memferry_dsa::internals::affinity::confine;
use memferry_dsa::system::{Device, DeviceId};

use super::{OnMachine, is_absent};
use crate::dsa::load::{self, Lane, Load, Placed};
use crate::papers::{Data, Pages, Point, Skipped, Way};

/// Larger than today's last-level caches; those of two sockets of Sapphire Rapids have 210 MB.
const MEMORY_BYTES: usize = 256 << 20;

/// The place of a point: the nodes that it names, otherwise the node of its device or of its cores.
///
/// Source: Fürst 2024, figures 3.4 and 3.5: from node 0 to node 0, by the device of node 0.
#[derive(Debug)]
pub(super) struct Home {
    /// CPUs of the submitters; empty: any.
    pub(super) cpus: Vec<u32>,
    /// Their node, if there are several.
    node: Option<NodeId>,
    /// The devices, and their nodes.
    devices: Vec<(DeviceId, Option<u32>)>,
    /// Node of the memory; `None`: there is only one, or the node has none.
    pub(super) source: Option<NodeId>,
    pub(super) target: Option<NodeId>,
    /// Resources that submitters share.
    pub(super) crowded: Option<String>,
}

impl OnMachine {
    /// The place of a point: its first device, if it has any.
    pub(super) fn home(&self, point: &Point, devices: &[&Device]) -> Home {
        let node = |node: NodeId| self.machine.node(node).ok();
        let has_cpus = |node: &&Node| !node.allowed_cpus.is_empty();
        let of_device = devices.first().and_then(|device| device.node).map(NodeId);
        let wanted = of_device.or(point.source).or(point.target).and_then(node);
        let wanted = wanted.and_then(|wanted| node(wanted.cpu_node)).filter(has_cpus);
        let with_both = || self.machine.nodes().iter().find(|node| has_cpus(node) && node.has_memory());
        let home = wanted.or_else(with_both);
        let memories = self.machine.nodes().iter().filter(|node| node.has_memory());
        let own = home.filter(|node| node.has_memory() && memories.count() > 1).map(|node| node.id);
        let cpus = home.map_or(Vec::new(), |home| home.allowed_cpus.clone());
        Home {
            node: home.map(|node| node.id).filter(|_| self.machine.nodes().len() > 1),
            devices: devices.iter().map(|device| (device.id, device.node)).collect(),
            source: point.source.or(own),
            target: point.target.or(own),
            crowded: crowded(point.submitters, cpus.len()),
            cpus,
        }
    }

    /// One lane per submitter.
    pub(super) fn lanes(
        &self,
        point: &Point,
        load: Load,
        executors: &[load::Executor],
        home: &Home,
    ) -> Result<Vec<Lane<Mapping>>, Skipped> {
        let plain = Lane::<Mapping>::region_bytes(&load);
        let large = MEMORY_BYTES.next_multiple_of(plain.max(1));
        let (source, target) = match point.data {
            // A device is told where its data is; a core finds recently used data in its caches.
            _ if is_absent(point) => (plain, Lane::<Mapping>::target_bytes(&load)),
            _ if point.way != Way::Core => (plain, plain),
            Data::Any | Data::Cached => (plain, plain),
            Data::Memory => (large, large),
            Data::CachedSource => (plain, large),
            Data::CachedTarget => (large, plain),
        };
        let extra = Lane::<Mapping>::extra_bytes(&load);
        let needed =
            source.saturating_add(target).saturating_add(extra).saturating_mul(point.submitters) as u64;
        let free: u64 = self.machine.nodes().iter().filter_map(|node| node.free_bytes).sum();
        // Half: the rest remains for other programs.
        if free > 0 && needed > free / 2 {
            return Skipped::cannot(format!(
                "this takes {} MiB of memory, and {} MiB are free, of which half may be taken",
                needed >> 20,
                free >> 20
            ));
        }
        let lane = |number: usize| {
            let regions = [
                self.region(source, home.source, Pages::Touched)?,
                self.region(target, home.target, point.pages)?,
                self.region(extra.max(1), home.target, Pages::Touched)?,
            ];
            let cpu = home.cpus.get(number % home.cpus.len().max(1)).copied();
            let (executor, placed) = (executors[number % executors.len()].clone(), placed(point.data));
            Ok(Lane { load, executor, cpu, regions, times_submissions: false, placed })
        };
        (0..point.submitters).map(lane).collect()
    }

    /// Memory on a node, with pages in a given state.
    pub(super) fn region(
        &self,
        size_bytes: usize,
        node: Option<NodeId>,
        pages: Pages,
    ) -> Result<Mapping, Skipped> {
        let options = MappingOptions {
            binding: node.map_or(Binding::Any, Binding::Bind),
            huge_pages: if pages == Pages::Huge { HugePages::Advised } else { HugePages::Never },
            populate: matches!(pages, Pages::Touched | Pages::Huge),
        };
        let mut mapping = Mapping::with(&self.machine, size_bytes, options)
            .map_err(|error| Skipped::Cannot(error.to_string()))?;
        if matches!(pages, Pages::Touched | Pages::Huge) {
            load::prepare(&mut mapping);
        }
        Ok(mapping)
    }

    /// The place of the lanes after the run.
    pub(super) fn place(&self, home: &Home, lanes: &[Lane<Mapping>]) -> Option<String> {
        let [source, target, _] = &lanes.first()?.regions;
        self.place_of(home, source, target)
    }

    /// The nodes of source and target after the run, as reported by the kernel, and the executors. Empty on a machine with one
    /// node.
    pub(super) fn place_of(&self, home: &Home, source: &Mapping, target: &Mapping) -> Option<String> {
        let memory = || format!("source on {}, target on {}", nodes_of(source), nodes_of(target));
        let words: Vec<String> = home.node.map(|_| memory()).into_iter().chain(home.words()).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

impl Home {
    /// Moves this thread to the first of the CPUs, if the kernel allows it.
    pub(super) fn pin(&self) {
        if let Some(&cpu) = self.cpus.first() {
            let _ = confine(&[cpu]);
        }
    }

    /// The executors and their nodes, if there are several nodes.
    pub(super) fn words(&self) -> Option<String> {
        let mut words: Vec<String> =
            self.node.iter().map(|node| format!("threads on CPUs of node {node}")).collect();
        for (device, node) in &self.devices {
            words.push(node.map_or(format!("by {device}"), |node| format!("by {device} of node {node}")));
        }
        words.extend(self.crowded.clone());
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// More submitters than CPUs.
pub(super) fn crowded(submitters: usize, cpus_count: usize) -> Option<String> {
    (submitters > cpus_count && cpus_count > 0)
        .then(|| format!("{submitters} submitters share {cpus_count} CPU(s)"))
}

fn nodes_of(region: &[u8]) -> String {
    let Ok(placement) = Placement::of(region) else {
        return "a node that the kernel does not tell".to_owned();
    };
    let nodes: Vec<String> =
        placement.iter().filter_map(|(node, _)| node).map(|node| format!("node {node}")).collect();
    if nodes.is_empty() { "no node".to_owned() } else { nodes.join(" and ") }
}

/// The data that an iteration finds in a cache.
fn placed(data: Data) -> Placed {
    let (is_source_cached, is_target_cached) = match data {
        Data::Any | Data::Memory => (false, false),
        Data::CachedSource => (true, false),
        Data::CachedTarget => (false, true),
        Data::Cached => (true, true),
    };
    Placed { is_source_cached, is_target_cached }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_where_a_point_says() {
        let of = |data| {
            let Placed { is_source_cached, is_target_cached } = placed(data);
            (is_source_cached, is_target_cached)
        };
        assert_eq!(
            [Data::Any, Data::Memory, Data::CachedSource, Data::CachedTarget, Data::Cached].map(of),
            [(false, false), (false, false), (true, false), (false, true), (true, true)]
        );
    }
}
