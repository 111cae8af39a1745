//! Turns of nodes by weight.

use std::collections::BTreeSet;

use memferry::topology::{Machine, NodeId};

use super::{PlacementClause, PlacementError};

/// Weight of the node with the least bandwidth, so that the weights of others are off by an eighth at most.
const LEAST_WEIGHT: f64 = 4.0;

/// The nodes of consecutive row groups, repeated from the start at its end. Nodes with a high weight have turns spread over the
/// pattern.
///
/// # Errors
/// Nodes and weights that are not valid, or a node without memory that this process may use.
pub(super) fn pattern(clause: &PlacementClause, machine: &Machine) -> Result<Vec<NodeId>, PlacementError> {
    let PlacementClause { nodes, by_bandwidth, .. } = clause;
    let distinct: BTreeSet<NodeId> = nodes.iter().map(|(node, _)| *node).collect();
    let is_valid = |weight: u8| if *by_bandwidth { weight == 1 } else { weight > 0 };
    if nodes.is_empty() || distinct.len() < nodes.len() || !nodes.iter().all(|&(_, weight)| is_valid(weight))
    {
        return Err(PlacementError::Nodes { clause: clause.to_string() });
    }
    for &node in &distinct {
        // Fails for nodes that are not there, have no memory, or may not be used.
        machine.free_bytes(node)?;
    }
    let weights: Vec<(NodeId, u32)> = match by_bandwidth {
        true => by_bandwidths(nodes, machine)?,
        false => nodes.iter().map(|&(node, weight)| (node, u32::from(weight))).collect(),
    };
    Ok(turns(&weights))
}

fn by_bandwidths(nodes: &[(NodeId, u8)], machine: &Machine) -> Result<Vec<(NodeId, u32)>, PlacementError> {
    let rate =
        |node: NodeId| machine.memory_bytes_per_s(node).ok_or(PlacementError::UnknownBandwidth { node });
    let rates: Vec<(NodeId, u64)> =
        nodes.iter().map(|&(node, _)| Ok((node, rate(node)?))).collect::<Result<_, PlacementError>>()?;
    let least = rates.iter().map(|(_, rate)| *rate).min().unwrap_or(1).max(1) as f64;
    let weight = |rate: u64| (rate as f64 / least * LEAST_WEIGHT).round().clamp(1.0, 255.0) as u32;
    Ok(rates.into_iter().map(|(node, rate)| (node, weight(rate))).collect())
}

/// Each node as often as its weight says, in proportion at every point: the next is the one that lacks most.
fn turns(weights: &[(NodeId, u32)]) -> Vec<NodeId> {
    let divisor =
        weights.iter().fold(0, |divisor, (_, weight)| greatest_common_divisor(divisor, *weight)).max(1);
    let total: i64 = weights.iter().map(|(_, weight)| i64::from(weight / divisor)).sum();
    let mut lacks = vec![0_i64; weights.len()];
    let next = |_| {
        for (lack, (_, weight)) in lacks.iter_mut().zip(weights) {
            *lack += i64::from(weight / divisor);
        }
        // Of equals the first.
        let most = (0..weights.len()).rev().max_by_key(|&node| lacks[node]).unwrap_or(0);
        lacks[most] -= total;
        weights[most].0
    };
    (0..total).map(next).collect()
}

fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(clause: &PlacementClause, machine: &Machine) -> Vec<u32> {
        pattern(clause, machine).unwrap().into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn turns_are_in_proportion() {
        let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        let on = |nodes: &[(u32, u8)]| PlacementClause {
            nodes: nodes.iter().map(|&(node, weight)| (NodeId(node), weight)).collect(),
            ..PlacementClause::on(&[])
        };
        assert_eq!(of(&on(&[(3, 1)]), &machine), [3]);
        assert_eq!(of(&on(&[(0, 1), (1, 1)]), &machine), [0, 1]);
        assert_eq!(of(&on(&[(0, 6), (8, 2)]), &machine), [0, 0, 8, 0]);
        assert_eq!(of(&on(&[(0, 2), (1, 1), (2, 1)]), &machine), [0, 1, 2, 0]);
        for wrong in [&[][..], &[(0, 1), (0, 2)], &[(0, 0)]] {
            let error = pattern(&on(wrong), &machine).unwrap_err();
            assert!(matches!(error, PlacementError::Nodes { .. }), "{wrong:?}: {error}");
        }
        let error = pattern(&on(&[(99, 1)]), &machine).unwrap_err();
        assert!(matches!(error, PlacementError::Memory(_)), "{error}");
    }

    #[test]
    fn bandwidths_are_weights() {
        let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        let clause = PlacementClause { by_bandwidth: true, ..PlacementClause::on(&[NodeId(0), NodeId(8)]) };
        // HBM has 3.8 times the bandwidth of DDR.
        let pattern = of(&clause, &machine);
        assert_eq!((pattern.len(), pattern.iter().filter(|&&node| node == 8).count()), (19, 15));
        let unknown = Machine::two_tiers().unwrap();
        let clause = PlacementClause { nodes: vec![(NodeId(0), 1), (NodeId(1), 1)], ..clause };
        let error = super::pattern(&clause, &unknown).unwrap_err();
        assert!(matches!(error, PlacementError::UnknownBandwidth { .. }), "{error}");
    }
}
