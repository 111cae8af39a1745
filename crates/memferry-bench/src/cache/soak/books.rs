//! What the threads of a soak did, and how it must compare with what was counted.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry::cache::{Cache, CacheStats, Region};
use memferry::mover::{EngineStats, MoverStats};

use super::{CHUNK_BYTES, REGION_BYTES, SoakReport, World, Wrong, within_patience};

/// What the threads did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) steps: AtomicU64,
    pub(super) checked_bytes: AtomicU64,
    pub(super) accesses: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) forgotten: AtomicU64,
    /// What `invalidate` returned.
    pub(super) invalidated: AtomicU64,
    /// What `refresh` returned: copies.
    pub(super) refreshed: AtomicU64,
    /// What `flush` and `clear` returned.
    pub(super) dropped: AtomicU64,
    pub(super) rewrites: AtomicU64,
    /// The largest number of a version whose publication had returned.
    pub(super) version: AtomicU64,
    pub(super) versions: AtomicU64,
    /// Copies of drafts, to and fro.
    pub(super) draft_copies: AtomicU64,
    /// Drafts that were outdated: perhaps copied before that was seen.
    pub(super) outdated: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Ordering::SeqCst);
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::SeqCst)
}

/// All that can be found.
fn entries_count(stats: &CacheStats) -> u64 {
    stats.nodes.iter().map(|node| node.entries_count as u64).sum()
}

impl World {
    /// Lets go of everything, and counts. No thread is at work any more.
    pub(super) fn finish(self) -> Result<SoakReport, Wrong> {
        let World { cache, nodes: _, regions, changing, rewritten, ended, registered, done } = self;
        let regions = regions.map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner).0);
        // Of regions that ended as well.
        let copies = cache.mover().drain();
        within_patience(|| copies.is_done())
            .map_err(|()| format!("copies did not come to an end: {cache:?}"))?;
        let stats = cache.stats();
        done.compare(&stats, changing.version())?;
        done.compare_copies(&stats, &cache.mover().stats())?;
        let report = SoakReport {
            steps_count: load(&done.steps),
            checked_bytes: load(&done.checked_bytes),
            panics_count: load(&done.panics),
            forgotten_count: load(&done.forgotten),
            versions_count: changing.version(),
            rewrites_count: load(&done.rewrites),
            stats,
        };
        empty(&cache, &regions, report.forgotten_count)?;
        drop((regions, changing, rewritten));
        // Each forgotten one keeps a copy of one byte, or of the chunk around it, and its source.
        let kept_bytes_max = report.forgotten_count as usize * CHUNK_BYTES;
        within_patience(|| {
            let used_bytes: usize = cache.stats().nodes.iter().map(|node| node.used_bytes).sum();
            used_bytes <= kept_bytes_max && load(&ended) + report.forgotten_count >= load(&registered)
        })
        .map_err(|()| {
            format!("memory was not freed, {} of {} ended: {cache:?}", load(&ended), load(&registered))
        })?;
        Ok(report)
    }
}

impl Done {
    /// The sums that [`CacheStats`] promises of a cache at rest, and what calls returned.
    fn compare(&self, stats: &CacheStats, version: u64) -> Result<(), Wrong> {
        let wrong = |what: &str| Err(format!("{what}: {stats:?}"));
        let left = stats.evictions + stats.invalidated + stats.dropped;
        let came_or_left = left + entries_count(stats);
        if stats.accesses != stats.hits_ready + stats.hits_in_flight + stats.misses + stats.unplaced
            || stats.misses != stats.submissions + stats.no_room + stats.absent
            || stats.submissions != stats.arrived + stats.failed
        {
            return wrong("the counters do not add up");
        }
        // Entries whose copy failed, or had no room, leave without being counted, if nobody was faster.
        if came_or_left < stats.arrived || came_or_left > stats.submissions + stats.no_room {
            return wrong("entries came from nowhere, or left for it");
        }
        if stats
            .nodes
            .iter()
            .any(|node| node.used_bytes > node.peak_bytes || node.peak_bytes > node.budget_bytes)
        {
            return wrong("a budget was exceeded");
        }
        // A refresh is one access for each entry that it invalidates; a publication invalidates as well.
        let [accesses, invalidated] = [&self.accesses, &self.invalidated].map(load);
        let by_others = stats.invalidated.checked_sub(invalidated);
        let by_refreshes = stats.accesses.checked_sub(accesses);
        let are_right = by_refreshes.is_some_and(|count| count >= load(&self.refreshed))
            && by_refreshes <= by_others
            && stats.dropped >= load(&self.dropped);
        if !are_right {
            return wrong(&format!(
                "threads made {accesses} accesses, {invalidated} invalidations, {} refreshed copies and {} drops",
                load(&self.refreshed),
                load(&self.dropped)
            ));
        }
        if version != load(&self.versions) {
            return wrong(&format!(
                "{} versions were published, the last is {version}",
                load(&self.versions)
            ));
        }
        Ok(())
    }

    /// The sums that [`EngineStats`] promises of an engine at rest, and who made the copies.
    fn compare_copies(&self, stats: &CacheStats, mover: &MoverStats) -> Result<(), Wrong> {
        let adds_up = |engine: &EngineStats| {
            let ended = engine.descriptors_done
                + engine.faults_resumed
                + engine.descriptors_failed
                + engine.descriptors_skipped
                + engine.descriptors_lost;
            engine.accepted == engine.operations + engine.errors
                && engine.accepted == engine.latencies.count()
                && engine.descriptors == ended
        };
        if let Some(engine) = mover.engines.iter().find(|engine| !adds_up(engine)) {
            return Err(format!("the counters of an engine do not add up: {engine:?}"));
        }
        let accepted: u64 = mover.engines.iter().map(|engine| engine.accepted).sum();
        let copies = accepted + mover.inline_operations;
        let expected = stats.submissions + load(&self.draft_copies);
        if !(expected..=expected + load(&self.outdated)).contains(&copies) {
            return Err(format!("{expected} copies or more were asked for, and {copies} made: {mover:?}"));
        }
        Ok(())
    }
}

/// Takes everything out: what each call returns is what then is gone, and counted.
fn empty(cache: &Cache, regions: &[Region], forgotten_count: u64) -> Result<(), Wrong> {
    let checked = |name: &str, counter: fn(&CacheStats) -> u64, take: &dyn Fn() -> usize| {
        let before = cache.stats();
        let returned = take() as u64;
        let after = cache.stats();
        let gone = entries_count(&before) - entries_count(&after);
        if returned == gone && returned == counter(&after) - counter(&before) {
            return Ok(entries_count(&after));
        }
        Err(format!("{name} returned {returned}: {before:?} became {after:?}"))
    };
    let invalidate = |region: &Region| cache.invalidate(region, 0..REGION_BYTES).unwrap_or(usize::MAX);
    checked("invalidate", |stats| stats.invalidated, &|| regions.iter().take(1).map(invalidate).sum())?;
    let left = checked("flush", |stats| stats.dropped, &|| cache.flush())?;
    if left > forgotten_count {
        return Err(format!("a flush left more than was forgotten: {cache:?}"));
    }
    match checked("clear", |stats| stats.dropped, &|| cache.clear())? {
        0 => Ok(()),
        _ => Err(format!("a clear left something: {cache:?}")),
    }
}
