//! Nodes and weights of `memferry place`, from the options, the machine, a calibration and the kernel.

use std::collections::BTreeMap;

use memferry::Machine;
use memferry::memory::MemoryError;
use memferry::topology::{Node, NodeId, NodeSet};
use memferry_offload::place::Pattern;

/// The user's choice.
#[derive(Clone, Copy)]
pub(super) enum Chosen<'a> {
    All,
    Nodes(&'a [u32]),
    Weights(&'a [(u32, u32)]),
}

/// The nodes to interleave over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) weights: Vec<(u32, u32)>,
    pub(super) pattern: Pattern,
    /// The nodes of replicas, by lists of CPUs.
    pub(super) near: Vec<(String, u32)>,
    /// The weights and their source, as a sentence.
    pub(super) note: String,
}

/// Weights as small as this may differ from the ratio of bandwidths.
const RATIO_ERROR_MAX: f64 = 0.05;
/// The largest weight that a bandwidth gets, unless a ratio is larger: a unit of weight is a stripe, and short periods mix
/// the nodes well. The kernel's own choice also keeps weights small (`weightiness` in mm/mempolicy.c).
const WEIGHT_MAX_BY_BANDWIDTH: u32 = 32;

/// Chooses weights and the way to interleave. `of_kernel` are the kernel's weights, if it has any.
pub(super) fn choose(
    machine: &Machine,
    chosen: Chosen<'_>,
    of_kernel: Option<&BTreeMap<NodeId, u32>>,
) -> Result<Plan, MemoryError> {
    let nodes: Vec<NodeId> = match chosen {
        Chosen::All => usable(machine).map(|node| node.id).collect(),
        Chosen::Nodes(nodes) => nodes.iter().copied().map(NodeId).collect::<NodeSet>().iter().collect(),
        Chosen::Weights(weights) => weights.iter().map(|&(node, _)| NodeId(node)).collect(),
    };
    check(machine, &nodes)?;
    let kernel: Option<Vec<u32>> =
        of_kernel.map(|weights| nodes.iter().map(|node| weights.get(node).copied().unwrap_or(1)).collect());
    let (weights, source) = match (chosen, by_bandwidth(machine, &nodes), &kernel) {
        (Chosen::Weights(weights), _, _) => (weights.iter().map(|&(_, weight)| weight).collect(), "as given"),
        (_, Some(weights), _) => (weights, "by bandwidth"),
        (_, None, Some(weights)) => (weights.clone(), "the kernel's"),
        (_, None, None) => (
            vec![1; nodes.len()],
            "equal, because the bandwidths are not known; `memferry calibrate --out FILE` measures them",
        ),
    };
    let is_even = weights.windows(2).all(|pair| pair[0] == pair[1]);
    let (pattern, way) = match kernel.as_deref() {
        _ if is_even => (Pattern::Even, "by the kernel"),
        Some(kernel) if is_same_ratio(kernel, &weights) => (Pattern::Kernel, "by the kernel"),
        _ => (
            Pattern::Stripes,
            "by ranges of this process, because the kernel's weights are others or missing",
        ),
    };
    let pairs: Vec<(u32, u32)> = nodes.iter().map(|node| node.0).zip(weights).collect();
    let shown: Vec<String> = pairs.iter().map(|(node, weight)| format!("{node}={weight}")).collect();
    let note = format!("weights {} ({source}), {way}", shown.join(","));
    Ok(Plan { near: near(machine, &nodes), weights: pairs, pattern, note })
}

/// Nodes whose memory this process may use.
fn usable(machine: &Machine) -> impl Iterator<Item = &Node> {
    machine.nodes().iter().filter(|node| node.has_memory() && node.is_allowed)
}

fn check(machine: &Machine, nodes: &[NodeId]) -> Result<(), MemoryError> {
    let allowed = || usable(machine).map(|node| node.id).collect();
    if nodes.is_empty() {
        return Err(MemoryError::NoNodes { allowed: allowed() });
    }
    for &id in nodes {
        let node = machine.node(id)?;
        if !node.has_memory() {
            return Err(MemoryError::NodeWithoutMemory { node: id });
        }
        if !node.is_allowed {
            return Err(MemoryError::NotAllowed { node: id, allowed: allowed() });
        }
    }
    Ok(())
}

/// The sentence about a machine where memory has one place only.
pub(super) fn only_one_node(machine: &Machine) -> Option<String> {
    let with_memory = machine.nodes().iter().filter(|node| node.has_memory()).count();
    let nodes: Vec<NodeId> = usable(machine).map(|node| node.id).collect();
    match (nodes.as_slice(), with_memory) {
        ([node], 1) => Some(format!("this machine has one node with memory (node {node})")),
        ([node], _) => {
            Some(format!("this process may use the memory of one node only (node {node}, by its cpuset)"))
        }
        _ => None,
    }
}

/// The allowed CPUs of a node.
pub(super) fn cpus_of(machine: &Machine, node: NodeId) -> Result<Vec<u32>, String> {
    let found = machine.node(node).map_err(|error| error.to_string())?;
    if !found.allowed_cpus.is_empty() {
        return Ok(found.allowed_cpus.clone());
    }
    let others: NodeSet =
        machine.nodes().iter().filter(|node| !node.allowed_cpus.is_empty()).map(|node| node.id).collect();
    Err(format!("node {node} has no CPU that this process may run on; choose from {others}"))
}

/// Small weights in the ratio of the bandwidths, if all are known.
fn by_bandwidth(machine: &Machine, nodes: &[NodeId]) -> Option<Vec<u32>> {
    let rates: Option<Vec<f64>> =
        nodes.iter().map(|&node| machine.memory_bytes_per_s(node).map(|rate| rate as f64)).collect();
    let rates = rates?;
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    if least <= 0.0 {
        return None;
    }
    let ratios: Vec<f64> = rates.iter().map(|rate| rate / least).collect();
    let largest = ratios.iter().copied().fold(1.0, f64::max);
    let of = |unit: u32| ratios.iter().map(move |ratio| (ratio * f64::from(unit)).round().clamp(1.0, 255.0));
    let error = |unit: u32| {
        of(unit)
            .zip(&ratios)
            .map(|(weight, ratio)| (weight / (ratio * f64::from(unit)) - 1.0).abs())
            .fold(0.0, f64::max)
    };
    let most = ((f64::from(WEIGHT_MAX_BY_BANDWIDTH) / largest) as u32).max(1);
    let unit = (1..=most).find(|&unit| error(unit) <= RATIO_ERROR_MAX).unwrap_or(most);
    Some(of(unit).map(|weight| weight as u32).collect())
}

fn is_same_ratio(a: &[u32], b: &[u32]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(&x, &y)| u64::from(x) * u64::from(b[0]) == u64::from(y) * u64::from(a[0]))
}

/// For the CPUs of each node, the nearest of the nodes: its own, or the fastest near it.
fn near(machine: &Machine, nodes: &[NodeId]) -> Vec<(String, u32)> {
    let with_cpus = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
    let nearest = |cpus: &Node| {
        let own = nodes.iter().copied().find(|&node| node == cpus.id);
        let others =
            || machine.memories_near(cpus.id).into_iter().map(|node| node.id).find(|id| nodes.contains(id));
        own.or_else(others)
    };
    with_cpus.filter_map(|node| Some((id_list(&node.cpus), nearest(node)?.0))).collect()
}

/// CPUs in the kernel's format: `0-3,8`.
fn id_list(cpus: &[u32]) -> String {
    cpus.iter().map(|&cpu| NodeId(cpu)).collect::<NodeSet>().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xeon_max() -> Machine {
        Machine::from_profile("xeon-max-9468-2s-flat").unwrap()
    }

    #[test]
    fn weights_follow_bandwidth_the_kernel_or_nothing() {
        let machine = xeon_max();
        let known = choose(&machine, Chosen::All, None).unwrap();
        assert_eq!(known.weights.len(), machine.nodes().iter().filter(|node| node.has_memory()).count());
        assert!(known.note.contains("by bandwidth"), "{}", known.note);
        let weight = |node: u32| known.weights.iter().find(|it| it.0 == node).unwrap().1;
        let rate = |node: u32| machine.memory_bytes_per_s(NodeId(node)).unwrap() as f64;
        // Nodes 0 and 8: DDR and HBM of one domain.
        let (found, wanted) = (f64::from(weight(8)) / f64::from(weight(0)), rate(8) / rate(0));
        assert!(wanted > 1.0 && (found / wanted - 1.0).abs() < 2.0 * RATIO_ERROR_MAX, "{found} {wanted}");
        assert_eq!(known.pattern, Pattern::Stripes);

        let unknown = Machine::discover().unwrap();
        let node = unknown.nodes()[0].id;
        let kernel = BTreeMap::from([(node, 7)]);
        if unknown.memory_bytes_per_s(node).is_none() {
            let plan = choose(&unknown, Chosen::Nodes(&[node.0]), Some(&kernel)).unwrap();
            assert_eq!((plan.weights, plan.pattern), (vec![(node.0, 7)], Pattern::Even));
            let plan = choose(&unknown, Chosen::Nodes(&[node.0]), None).unwrap();
            assert!(plan.note.contains("equal") && plan.note.contains("memferry calibrate"), "{}", plan.note);
        }
    }

    #[test]
    fn the_kernel_interleaves_by_its_own_weights_only() {
        let machine = xeon_max();
        let pattern = |weights: &[(u32, u32)], kernel: Option<&[(u32, u32)]>| {
            let kernel: Option<BTreeMap<NodeId, u32>> =
                kernel.map(|weights| weights.iter().map(|&(node, weight)| (NodeId(node), weight)).collect());
            choose(&machine, Chosen::Weights(weights), kernel.as_ref()).unwrap().pattern
        };
        assert_eq!(pattern(&[(0, 2), (8, 2)], None), Pattern::Even);
        assert_eq!(pattern(&[(0, 2), (8, 2)], Some(&[(0, 1), (8, 3)])), Pattern::Even);
        assert_eq!(pattern(&[(0, 1), (8, 3)], Some(&[(0, 2), (8, 6), (9, 1)])), Pattern::Kernel);
        assert_eq!(pattern(&[(0, 1), (8, 3)], Some(&[(0, 1), (8, 4)])), Pattern::Stripes);
        assert_eq!(pattern(&[(0, 1), (8, 3)], None), Pattern::Stripes);
    }

    #[test]
    fn nodes_are_checked() {
        let machine = xeon_max();
        let error = |chosen| choose(&machine, chosen, None).unwrap_err().to_string();
        assert!(error(Chosen::Nodes(&[0, 77])).contains("no node 77"));
        assert!(error(Chosen::Weights(&[(99, 1)])).contains("no node 99"));
        assert!(error(Chosen::Nodes(&[])).contains("0-"), "it names the nodes to choose from");
        let odd = Machine::from_profile("made-up-odd-nodes").unwrap();
        let empty = odd.nodes().iter().find(|node| !node.has_memory()).expect("it has a node with CPUs only");
        let error = choose(&odd, Chosen::Nodes(&[empty.id.0]), None).unwrap_err();
        assert!(matches!(error, MemoryError::NodeWithoutMemory { node } if node == empty.id), "{error}");
    }

    /// A node of memory only has no CPU to run on, and the CPUs of each node have one place for copies.
    #[test]
    fn cpus_have_a_nearest_node() {
        let machine = xeon_max();
        assert!(!cpus_of(&machine, NodeId(0)).unwrap().is_empty());
        let error = cpus_of(&machine, NodeId(8)).unwrap_err();
        assert!(error.contains("node 8 has no CPU") && error.contains("0-7"), "{error}");
        let near = choose(&machine, Chosen::Nodes(&[0, 1]), None).unwrap().near;
        assert_eq!(near.len(), 8);
        assert_eq!((near[0].1, near[1].1), (0, 1));
        assert!(near.iter().all(|(cpus, node)| !cpus.is_empty() && *node < 2));
        let hbm = choose(&machine, Chosen::Nodes(&[8, 9]), None).unwrap().near;
        assert_eq!((hbm[0].1, hbm[1].1), (8, 9), "the HBM of the same domain");
    }

    #[test]
    fn one_node_is_one_place() {
        assert_eq!(only_one_node(&xeon_max()), None);
        let one = Machine::discover().unwrap();
        let with_memory = one.nodes().iter().filter(|node| node.has_memory()).count();
        assert_eq!(only_one_node(&one).is_some(), with_memory == 1);
    }
}
