//! Counts of the threads' calls, and their comparison with the counters of cache and engines.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry::cache::{Cache, CacheStats, Region};
use memferry::mover::{EngineStats, MoverStats};

use super::{CHUNK_BYTES, REGION_BYTES, SoakReport, SoakState, Violation, within_patience};

/// Counts of the threads' calls. Every thread adds to them; `finish` reads them after the threads are joined.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) steps: AtomicU64,
    pub(super) checked_bytes: AtomicU64,
    pub(super) accesses: AtomicU64,
    pub(super) panics: AtomicU64,
    pub(super) forgotten: AtomicU64,
    /// Sum of the results of `invalidate`.
    pub(super) invalidated: AtomicU64,
    /// Sum of the results of `refresh`: copies.
    pub(super) refreshed: AtomicU64,
    /// Sum of the results of `flush` and `clear`.
    pub(super) dropped: AtomicU64,
    pub(super) rewrites: AtomicU64,
    /// The largest version number whose publication has returned.
    pub(super) version: AtomicU64,
    pub(super) versions: AtomicU64,
    /// Copies of drafts, in both directions.
    pub(super) draft_copies: AtomicU64,
    /// Drafts that were outdated, perhaps after their copy.
    pub(super) outdated: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, amount: usize) {
    // ORDERING: Relaxed, no partner: joining the threads publishes the counts.
    counter.fetch_add(amount as u64, Ordering::Relaxed);
}

fn load(counter: &AtomicU64) -> u64 {
    // ORDERING: SeqCst, as strong as the increment in `CheckedOwner::drop`; other counters need no ordering.
    counter.load(Ordering::SeqCst)
}

/// Number of entries on all nodes.
fn entries_count(stats: &CacheStats) -> u64 {
    stats.nodes.iter().map(|node| node.entries_count as u64).sum()
}

impl SoakState {
    /// Releases everything and checks the counts, after all threads are joined.
    pub(super) fn finish(self) -> Result<SoakReport, Violation> {
        let SoakState { cache, nodes: _, regions, changing, rewritten, dropped_owners, registered, ledger } =
            self;
        let regions = regions.map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner).0);
        // Includes copies of dropped regions.
        let copies = cache.mover().drain();
        within_patience(|| copies.is_done()).map_err(|()| format!("copies did not complete: {cache:?}"))?;
        let stats = cache.stats();
        ledger.compare(&stats, changing.version())?;
        ledger.compare_copies(&stats, &cache.mover().stats())?;
        let report = SoakReport {
            steps_count: load(&ledger.steps),
            checked_bytes: load(&ledger.checked_bytes),
            panics_count: load(&ledger.panics),
            forgotten_count: load(&ledger.forgotten),
            versions_count: changing.version(),
            rewrites_count: load(&ledger.rewrites),
            stats,
        };
        empty(&cache, &regions, report.forgotten_count)?;
        drop((regions, changing, rewritten));
        // Each forgotten entry keeps its source and a copy of one byte, or of the chunk around it.
        let kept_bytes_max = report.forgotten_count as usize * CHUNK_BYTES;
        within_patience(|| {
            let used_bytes: usize = cache.stats().nodes.iter().map(|node| node.used_bytes).sum();
            used_bytes <= kept_bytes_max
                && load(&dropped_owners) + report.forgotten_count >= load(&registered)
        })
        .map_err(|()| {
            format!(
                "memory was not freed, {} of {} sources were dropped: {cache:?}",
                load(&dropped_owners),
                load(&registered)
            )
        })?;
        Ok(report)
    }
}

impl Ledger {
    /// Checks the sums that [`CacheStats`] promises of an idle cache, and the results of calls.
    fn compare(&self, stats: &CacheStats, version: u64) -> Result<(), Violation> {
        let wrong = |what: &str| Err(format!("{what}: {stats:?}"));
        let left = stats.evictions + stats.invalidated + stats.dropped;
        let came_or_left = left + entries_count(stats);
        if stats.accesses != stats.hits_ready + stats.hits_in_flight + stats.misses + stats.unplaced
            || stats.misses != stats.submissions + stats.no_room + stats.absent
            || stats.submissions != stats.arrived + stats.failed
        {
            return wrong("the counters do not add up");
        }
        // Entries without a copy, after a failure or without room, are removed without being counted, unless another call
        // removed and counted them first.
        if came_or_left < stats.arrived || came_or_left > stats.submissions + stats.no_room {
            return wrong("the numbers of created and removed entries do not match");
        }
        if stats
            .nodes
            .iter()
            .any(|node| node.used_bytes > node.peak_bytes || node.peak_bytes > node.budget_bytes)
        {
            return wrong("a budget was exceeded");
        }
        // A refresh makes one access per entry that it invalidates; a publication invalidates as well.
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

    /// Checks the sums that [`EngineStats`] promises of an idle engine, and the number of copies.
    fn compare_copies(&self, stats: &CacheStats, mover: &MoverStats) -> Result<(), Violation> {
        let adds_up = |engine: &EngineStats| {
            let completed = engine.descriptors_done
                + engine.faults_resumed
                + engine.descriptors_failed
                + engine.descriptors_skipped
                + engine.descriptors_lost;
            engine.accepted == engine.operations + engine.errors
                && engine.accepted == engine.latencies.count()
                && engine.descriptors == completed
        };
        if let Some(engine) = mover.engines.iter().find(|engine| !adds_up(engine)) {
            return Err(format!("the counters of an engine do not add up: {engine:?}"));
        }
        let accepted: u64 = mover.engines.iter().map(|engine| engine.accepted).sum();
        let copies = accepted + mover.inline_operations;
        let expected = stats.submissions + load(&self.draft_copies);
        if !(expected..=expected + load(&self.outdated)).contains(&copies) {
            return Err(format!("at least {expected} copies were requested, and {copies} made: {mover:?}"));
        }
        Ok(())
    }
}

/// Removes all entries. The result of each call must match the removed and the counted entries.
fn empty(cache: &Cache, regions: &[Region], forgotten_count: u64) -> Result<(), Violation> {
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
        return Err(format!("a flush left more entries than were forgotten: {cache:?}"));
    }
    match checked("clear", |stats| stats.dropped, &|| cache.clear())? {
        0 => Ok(()),
        _ => Err(format!("a clear left entries: {cache:?}")),
    }
}
