//! Weighted max-min fair rates.
//!
//! Flows share resources. All rates grow together, each in proportion to its weight, until a resource is full or a flow
//! reaches its own limit. These flows are frozen, and the others continue to grow. In the result, no flow can be faster
//! unless a flow that has no more for its weight becomes slower.
//!
//! ```text
//! until all flows are frozen:
//!     grow all others by the same step x weight, as far as some resource or some flow's own limit allows
//!     freeze the flows at their limit and those on a full resource
//! ```
//!
//! Source: D. Bertsekas, R. Gallager, *Data Networks*, 2nd edition, 1992, section 6.5.2.

/// The demand of a flow on resources: `(resource, bytes there per byte of the flow)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Demand {
    uses: [(usize, f64); Demand::USES_MAX],
    uses_count: usize,
    /// The rate of the flow alone, in bytes per second; may be infinite.
    pub(super) rate_max: f64,
    /// Its weight against other flows; positive.
    pub(super) weight: f64,
}

impl Demand {
    /// Most resources that a flow uses: an engine, two memories, and the ways to them.
    pub(super) const USES_MAX: usize = 6;

    /// A flow of weight 1 that nothing limits.
    pub(super) fn new() -> Demand {
        Demand { uses: [(0, 0.0); Demand::USES_MAX], uses_count: 0, rate_max: f64::INFINITY, weight: 1.0 }
    }

    /// Adds a resource, or more of one that is there: a copy inside one memory uses it twice. Panics beyond
    /// [`USES_MAX`](Demand::USES_MAX) resources.
    pub(super) fn uses(mut self, resource: usize, bytes_per_byte: f64) -> Demand {
        match self.uses[..self.uses_count].iter_mut().find(|(known, _)| *known == resource) {
            Some((_, bytes)) => *bytes += bytes_per_byte,
            None => {
                self.uses[self.uses_count] = (resource, bytes_per_byte);
                self.uses_count += 1;
            }
        }
        self
    }

    /// The resources it uses, and how much of each per byte.
    pub(super) fn resources(&self) -> &[(usize, f64)] {
        &self.uses[..self.uses_count]
    }
}

impl Default for Demand {
    fn default() -> Demand {
        Demand::new()
    }
}

/// A resource counts as full, and a flow as at its limit, within this share.
const TOLERANCE: f64 = 1e-9;

/// Writes the rates of `flows` on resources of these capacities into `rates`, in bytes per second.
///
/// An unlimited flow gets an infinite rate. `scratch` is reused memory.
pub(super) fn max_min<'a>(
    capacities: &[f64],
    flows: impl ExactSizeIterator<Item = &'a Demand> + Clone,
    rates: &mut Vec<f64>,
    scratch: &mut Scratch,
) {
    let Scratch { left, load, frozen } = scratch;
    left.clear();
    left.extend_from_slice(capacities);
    rates.clear();
    rates.resize(flows.len(), 0.0);
    frozen.clear();
    frozen.resize(flows.len(), false);
    // Each round freezes at least one flow.
    for _ in 0..flows.len() {
        load.clear();
        load.resize(capacities.len(), 0.0);
        let mut step = f64::INFINITY;
        for ((flow, rate), _) in
            flows.clone().zip(rates.iter()).zip(frozen.iter()).filter(|(_, frozen)| !**frozen)
        {
            for &(resource, bytes) in flow.resources() {
                load[resource] += bytes * flow.weight;
            }
            step = step.min((flow.rate_max - rate) / flow.weight);
        }
        for (left, load) in left.iter().zip(load.iter()).filter(|(_, load)| **load > 0.0) {
            step = step.min(left / load);
        }
        let step = step.max(0.0);
        for (resource, load) in load.iter().enumerate().filter(|(_, load)| **load > 0.0) {
            left[resource] -= load * step;
        }
        let mut is_done = true;
        for ((flow, rate), frozen) in flows.clone().zip(rates.iter_mut()).zip(frozen.iter_mut()) {
            if *frozen {
                continue;
            }
            *rate += flow.weight * step;
            let is_full = |&(resource, bytes): &(usize, f64)| {
                bytes > 0.0 && left[resource] <= TOLERANCE * capacities[resource]
            };
            *frozen = *rate >= flow.rate_max * (1.0 - TOLERANCE) || flow.resources().iter().any(is_full);
            is_done &= *frozen;
        }
        if is_done {
            break;
        }
    }
}

/// Memory that [`max_min`] works in.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    left: Vec<f64>,
    load: Vec<f64>,
    frozen: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rates(capacities: &[f64], flows: &[Demand]) -> Vec<f64> {
        let mut rates = Vec::new();
        max_min(capacities, flows.iter(), &mut rates, &mut Scratch::default());
        rates
    }

    #[test]
    fn what_one_leaves_the_others_share() {
        let free = Demand::new().uses(0, 1.0);
        let slow = Demand { rate_max: 2.0, ..free.clone() };
        let heavy = Demand { weight: 3.0, ..free.clone() };
        assert_eq!(rates(&[12.0], &[slow.clone(), free.clone(), free.clone()]), [2.0, 5.0, 5.0]);
        assert_eq!(rates(&[12.0], &[heavy, free.clone()]), [9.0, 3.0]);
        // A copy inside one memory reads and writes there.
        assert_eq!(rates(&[12.0], &[Demand::new().uses(0, 1.0).uses(0, 1.0)]), [6.0]);
        assert_eq!(rates(&[], &[Demand::new()]), [f64::INFINITY]);
        // The first flow cannot use more of the second resource than the first leaves it.
        let both = Demand::new().uses(0, 1.0).uses(1, 1.0);
        assert_eq!(rates(&[4.0, 10.0], &[both, free, Demand::new().uses(1, 1.0)]), [2.0, 2.0, 8.0]);
    }

    prop_compose! {
        fn a_flow()(
            uses in prop::collection::vec((0..4_usize, 0.5..2.0), 1..4),
            rate_max in prop_oneof![Just(f64::INFINITY), 0.1..50.0],
            weight in 0.1..10.0,
        ) -> Demand {
            let flow = uses.into_iter().fold(Demand::new(), |flow, (resource, bytes)| flow.uses(resource, bytes));
            Demand { rate_max, weight, ..flow }
        }
    }

    proptest! {
        #[test]
        fn no_resource_gives_more_than_it_has_and_none_is_left_that_somebody_could_use(
            capacities in prop::collection::vec(1.0..100.0, 4),
            flows in prop::collection::vec(a_flow(), 1..12),
        ) {
            let rates = rates(&capacities, &flows);
            let used = |resource: usize| -> f64 {
                let bytes = |flow: &Demand| -> f64 {
                    flow.resources().iter().filter(|uses| uses.0 == resource).map(|uses| uses.1).sum()
                };
                flows.iter().zip(&rates).map(|(flow, rate)| bytes(flow) * rate).sum()
            };
            for (resource, &capacity) in capacities.iter().enumerate() {
                prop_assert!(used(resource) <= capacity * (1.0 + 1e-6));
            }
            // Max-min: a flow below its limit is on a full resource where no flow has more for its weight.
            for (flow, rate) in flows.iter().zip(&rates) {
                prop_assert!(*rate <= flow.rate_max * (1.0 + 1e-6));
                let is_bottleneck = |&(resource, _): &(usize, f64)| {
                    let on_it = |other: &&(&Demand, &f64)| {
                        other.0.resources().iter().any(|uses| uses.0 == resource)
                    };
                    used(resource) >= capacities[resource] * (1.0 - 1e-6)
                        && flows.iter().zip(&rates).collect::<Vec<_>>().iter().filter(on_it).all(|(other, others)| {
                            *others / other.weight <= rate / flow.weight * (1.0 + 1e-6)
                        })
                };
                prop_assert!(
                    *rate >= flow.rate_max * (1.0 - 1e-6) || flow.resources().iter().any(is_bottleneck)
                );
            }
        }
    }
}
