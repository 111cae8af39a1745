//! The engines of a mover as the engines of one split copy.

use std::ops::Range;
use std::sync::Arc;

use super::Scheduler;
use super::split::{CUT, Lane, Split, SplitCounters, SplitEngines};
use crate::mover::engine::{Refusal, Rejected};
use crate::mover::request::RawRequest;
use crate::route::{Endpoints, Route, SHARE_BYTES_MIN, Share, engine_shares};

pub(super) struct MoverEngines {
    scheduler: Arc<Scheduler>,
    endpoints: Endpoints,
}

impl MoverEngines {
    /// The engines of a copy between these ends.
    pub(super) fn new(scheduler: Arc<Scheduler>, endpoints: Endpoints) -> MoverEngines {
        MoverEngines { scheduler, endpoints }
    }
}

/// Begins a split copy if the route has several workers for it among the engines in `range`.
///
/// # Errors
/// [`Rejected`], if no engine took a work item, or if the copy should not be split. In the second case no engine was
/// asked, and the refusal is `Gone`.
pub(super) fn try_split(
    scheduler: &Arc<Scheduler>,
    range: Range<usize>,
    copy: RawRequest,
    endpoints: Endpoints,
) -> Result<(), Rejected> {
    let whole = |copy| Err(Rejected { copy, why: Refusal::Gone });
    let route = scheduler.route_of(&copy);
    if endpoints.size_bytes < 2 * SHARE_BYTES_MIN || route == Route::RoundRobin || copy.is_operation() {
        return whole(copy);
    }
    let suits = scheduler.suits(&copy);
    let able: Vec<usize> = range.filter(|&index| suits(index)).collect();
    let sites: Vec<_> = able.iter().map(|&index| scheduler.sites[index]).collect();
    let shares = engine_shares(route, &scheduler.machine, &sites, endpoints);
    let width = |share: &Share| scheduler.engines[able[share.engine]].width();
    let workers_count: usize = shares.iter().map(width).sum();
    if workers_count < 2 {
        return whole(copy);
    }
    let lane = |share: Share| Lane::new(able[share.engine], width(&share), share.bytes);
    let lanes = shares.into_iter().map(lane).collect();
    Split::begin(MoverEngines::new(scheduler.clone(), endpoints), copy, lanes, CUT)
}

impl SplitEngines for MoverEngines {
    fn submit(&self, engine: usize, item: RawRequest) -> Result<(), Rejected> {
        self.scheduler.engines[engine].submit(item)
    }

    fn take_over(&self, item: RawRequest) {
        let Endpoints { source_node, target_node, .. } = self.endpoints;
        let cpu = self.scheduler.nearest_cpu(source_node, target_node);
        if let Err(Rejected { copy, .. }) = cpu.submit_beyond_limit(item) {
            self.scheduler.copy_inline(copy);
        }
    }

    fn counters(&self) -> &SplitCounters {
        &self.scheduler.split
    }
}
