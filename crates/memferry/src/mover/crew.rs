//! The mover's engines as the crew of a split copy.

use std::ops::Range;
use std::sync::Arc;

use super::split::{CUT, Crew, Lane, Split, SplitCounters};
use super::{Endpoints, Inner, RawRequest, Refusal, Rejected, Route, SHARE_BYTES_MIN};

struct MoverCrew {
    inner: Arc<Inner>,
    endpoints: Endpoints,
}

/// Begins a copy as several pieces, if the route has several workers for it among the engines in `range`.
///
/// # Errors
/// [`Rejected`], when nobody took a piece, or the copy is one to be done whole: then the refusal says `Gone`, which
/// is what nobody having been asked comes to.
pub(super) fn try_split(
    inner: &Arc<Inner>,
    range: Range<usize>,
    copy: RawRequest,
    endpoints: Endpoints,
) -> Result<(), Rejected> {
    let whole = |copy| Err(Rejected { copy, why: Refusal::Gone });
    let route = inner.route_of(&copy);
    if endpoints.size_bytes < 2 * SHARE_BYTES_MIN || route == Route::RoundRobin || copy.is_operation() {
        return whole(copy);
    }
    let able: Vec<usize> = range.filter(|&index| inner.engines[index].supports(copy.opcode())).collect();
    let sites: Vec<_> = able.iter().map(|&index| inner.sites[index]).collect();
    let shares = route.shares(&inner.machine, &sites, endpoints);
    let width = |share: &super::Share| inner.engines[able[share.engine]].width();
    let workers_count: usize = shares.iter().map(width).sum();
    if workers_count < 2 {
        return whole(copy);
    }
    let lane = |share: super::Share| Lane::new(able[share.engine], width(&share), share.bytes);
    let lanes = shares.into_iter().map(lane).collect();
    Split::begin(MoverCrew { inner: inner.clone(), endpoints }, copy, lanes, CUT)
}

impl Crew for MoverCrew {
    fn submit(&self, engine: usize, piece: RawRequest) -> Result<(), Rejected> {
        self.inner.engines[engine].submit(piece)
    }

    fn take_over(&self, piece: RawRequest) {
        let Endpoints { source_node, target_node, .. } = self.endpoints;
        let cpu = self.inner.nearest_cpu(source_node, target_node);
        if let Err(Rejected { copy, .. }) = cpu.submit_beyond_limit(piece) {
            self.inner.copy_inline(copy);
        }
    }

    fn counters(&self) -> &SplitCounters {
        &self.inner.split
    }
}
