//! Copy policies: functions of the program that choose the engines of a copy.
//!
//! A [`Route`] is the choice of the papers. A policy replaces it by any function of the source, the target, the size and the
//! requester (Fürst 2024, section 4.1.1), and also says how much each engine copies.

use std::ops::Range;
use std::sync::Arc;

use super::split::{CUT, Lane, Split};
use super::split_engines::MoverEngines;
use super::{Scheduler, submit_to_any};
use crate::mover::engine::Rejected;
use crate::mover::request::RawRequest;
use crate::route::{Endpoints, EngineSite, Route, SHARE_BYTES_MIN, engine_shares};
use crate::topology::{Machine, NodeId};

/// A copy, as a copy policy sees it.
#[derive(Copy, Clone, Debug)]
#[non_exhaustive]
pub struct CopyRequest<'a> {
    /// Node of the source, if known.
    pub source_node: Option<NodeId>,
    /// Node of the target, if known.
    pub target_node: Option<NodeId>,
    /// Size of the copy.
    pub size_bytes: usize,
    /// The node whose CPUs asked for the copy, if the [options](crate::mover::CopyOptions::requester) say it.
    pub requester: Option<NodeId>,
    /// The engines of the mover: first those that were added, in their order, then its own CPU engines, one for each node with
    /// CPUs. The order is that of [`MoverStats::engines`](crate::mover::MoverStats::engines).
    pub engines: &'a [EngineSite],
    turn: usize,
}

/// An engine that takes part in a copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EngineShare {
    /// Position in [`CopyRequest::engines`].
    pub engine: usize,
    /// Its part of the bytes, relative to the other engines of the copy. An engine of weight 0 takes no part.
    pub weight: u32,
}

/// A copy policy.
pub(in crate::mover) type CopyPolicy =
    Box<dyn Fn(&Machine, &CopyRequest<'_>) -> Vec<EngineShare> + Send + Sync>;

impl CopyRequest<'_> {
    /// The choice of a route among all engines, with equal weights: for policies that change it or use it for some copies.
    pub fn by_route(&self, machine: &Machine, route: Route) -> Vec<EngineShare> {
        let CopyRequest { source_node, target_node, size_bytes, turn, .. } = *self;
        let endpoints = Endpoints { source_node, target_node, size_bytes, turn };
        let shares = engine_shares(route, machine, self.engines, endpoints).into_iter();
        shares.map(|share| EngineShare { engine: share.engine, weight: 1 }).collect()
    }
}

/// The engines that the policy chooses for a copy; `None` if the route decides.
///
/// # Panics
/// If the policy names an engine that the mover does not have.
pub(super) fn chosen(
    scheduler: &Scheduler,
    copy: &RawRequest,
    endpoints: Endpoints,
) -> Option<Vec<EngineShare>> {
    let policy = scheduler.policy.as_ref().filter(|_| copy.route().is_none())?;
    let Endpoints { source_node, target_node, size_bytes, turn } = endpoints;
    let engines = &scheduler.sites;
    let request =
        CopyRequest { source_node, target_node, size_bytes, requester: copy.requester(), engines, turn };
    let mut shares = policy(&scheduler.machine, &request);
    for EngineShare { engine, .. } in &shares {
        let count = engines.len();
        assert!(
            *engine < count,
            "the copy policy chose engine {engine}, but the mover has 0 to {}",
            count - 1
        );
    }
    shares.retain(|it| it.weight > 0 && scheduler.engines[it.engine].supports(copy.opcode()));
    (!shares.is_empty()).then_some(shares)
}

/// Offers a request to the engines that a policy chose: split if it is large, otherwise whole to the first that takes it.
///
/// # Errors
/// [`Rejected`], if none of them takes it.
pub(super) fn try_chosen(
    scheduler: &Arc<Scheduler>,
    copy: RawRequest,
    endpoints: Endpoints,
    shares: &[EngineShare],
) -> Result<(), Rejected> {
    let width = |engine: usize| scheduler.engines[engine].width();
    let workers_count: usize = shares.iter().map(|share| width(share.engine)).sum();
    if endpoints.size_bytes < 2 * SHARE_BYTES_MIN || workers_count < 2 || copy.is_operation() {
        return submit_to_any(&scheduler.engines, shares.iter().map(|share| share.engine), copy);
    }
    let ranges = by_weight(endpoints.size_bytes, shares);
    let lane =
        |(share, bytes): (&EngineShare, Range<usize>)| Lane::new(share.engine, width(share.engine), bytes);
    let lanes = shares.iter().zip(ranges).map(lane).collect();
    Split::begin(MoverEngines::new(scheduler.clone(), endpoints), copy, lanes, CUT)
}

/// Contiguous ranges in proportion to the weights, of which one is positive.
fn by_weight(size_bytes: usize, shares: &[EngineShare]) -> Vec<Range<usize>> {
    let total: u128 = shares.iter().map(|share| u128::from(share.weight)).sum();
    let mut before: u128 = 0;
    let mut end_of = |share: &EngineShare| {
        before += u128::from(share.weight);
        // At most `size_bytes`.
        (size_bytes as u128 * before / total) as usize
    };
    let mut begin = 0;
    let range = |share: &EngineShare| {
        let end = end_of(share);
        std::mem::replace(&mut begin, end)..end
    };
    shares.iter().map(range).collect()
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_divided_by_weight() {
        let divided = |size_bytes, weights: &[u32]| {
            let share = |(engine, &weight): (usize, &u32)| EngineShare { engine, weight };
            by_weight(size_bytes, &weights.iter().enumerate().map(share).collect::<Vec<_>>())
        };
        assert_eq!(divided(100, &[3, 1]), [0..75, 75..100]);
        assert_eq!(divided(10, &[1, 1, 1]), [0..3, 3..6, 6..10]);
        assert_eq!(
            divided(usize::MAX, &[u32::MAX, u32::MAX]),
            [0..usize::MAX / 2, usize::MAX / 2..usize::MAX]
        );
        assert_eq!(divided(5, &[7, 0]), [0..5, 5..5]);
    }
}
