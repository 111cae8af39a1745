//! The steps of a thread.

use std::ops::Range;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Instant;
use std::{mem, thread};

use memferry::cache::{Access, DraftError, Region, WriteBackError};
use memferry::topology::NodeId;
use memferry_dsa::internals::panics;

use super::ledger::count;
use super::source::{Expected, Forgotten, register, version_of, write_version};
use super::{
    CHANGING_BYTES, CHUNK_BYTES, FORGOTTEN_MAX, HeldEntry, PAGE_BYTES, PATIENCE, REGION_BYTES, REGIONS_COUNT,
    SoakState, Violation,
};
use crate::harness::Random;

impl SoakState {
    /// Makes one random step.
    pub(super) fn step(&self, random: &mut Random, held: &mut Vec<HeldEntry>) -> Result<(), Violation> {
        match random.below(1000) {
            0..280 => {
                let (region, seed) = self.region(random);
                let entry = self.cache.access(&region, range(random), self.access(random)).map_err(wrong)?;
                let expected = Expected::Seed(seed);
                self.check(entry.as_slice(), entry.range(), &expected)?;
                match random.below(4) {
                    0 => drop(entry.wait()),
                    1 => block_on(entry.ready())?,
                    _ => {}
                }
                self.check(entry.as_slice(), entry.range(), &expected)?;
                held.push(HeldEntry { entry, expected });
            }
            280..640 => {
                let (region, seed) = self.region(random);
                let expected = Expected::Seed(seed);
                let (first, second) = (self.access(random), self.access(random));
                let outer = self.cache.view(&region, range(random), first).map_err(wrong)?;
                let inner = self.cache.view(&region, range(random), second).map_err(wrong)?;
                if random.below(8) == 0 {
                    outer.wait();
                }
                drop(region);
                self.check(inner.as_slice(), inner.range(), &expected)?;
                self.check(outer.as_slice(), outer.range(), &expected)?;
                let owned = (random.below(2) == 0).then(|| inner.to_owned());
                drop(inner);
                self.check(outer.as_slice(), outer.range(), &expected)?;
                held.extend(owned.map(|entry| HeldEntry { entry, expected }));
            }
            640..680 => {
                let (region, seed) = self.region(random);
                let found =
                    self.cache.access_weak(&region, range(random), self.access(random)).map_err(wrong)?;
                held.extend(found.map(|entry| HeldEntry { entry, expected: Expected::Seed(seed) }));
            }
            680..820 if !held.is_empty() => {
                let HeldEntry { entry, expected } = held.swap_remove(random.below(held.len()));
                // Pages that change in place may only be read from a near copy.
                if !matches!(expected, Expected::Pages(_)) || entry.is_ready() {
                    self.check(entry.as_slice(), entry.range(), &expected)?;
                }
            }
            820..880 => self.read_rewritten(random, held)?,
            880..885 => self.rewrite(random)?,
            885..905 => {
                let (region, _) = self.region(random);
                self.invalidate(&region, range(random))?;
            }
            905..910 => {
                let (region, _) = self.region(random);
                self.refresh(&region, range(random))?;
            }
            910..915 => {
                let new = register(&self.cache, self.nodes[0], &self.registered, &self.dropped_owners);
                let place = &self.regions[random.below(REGIONS_COUNT)];
                drop(mem::replace(&mut *place.lock().unwrap_or_else(PoisonError::into_inner), new));
            }
            915 => count(&self.ledger.dropped, self.cache.flush()),
            916 => count(&self.ledger.dropped, self.cache.clear()),
            917..925 => self.region(random).0.drain(),
            925..965 => self.read_version(random, held)?,
            965..972 => self.mutate()?,
            972..979 => self.write_back(random)?,
            979..988 => self.panic(random)?,
            988..993 => self.forget(random)?,
            _ => thread::yield_now(),
        }
        Ok(())
    }

    /// Reads the rewritten region: bytes are those of the last change, near or at home. A ready copy keeps them through the
    /// next change.
    fn read_rewritten(&self, random: &mut Random, held: &mut Vec<HeldEntry>) -> Result<(), Violation> {
        let access = self.access(random);
        let (region, seeds) = self.rewritten.read();
        let expected = Expected::Pages(*seeds);
        if random.below(2) == 0 {
            let view = self.cache.view(region, range(random), access).map_err(wrong)?;
            return self.check(view.as_slice(), view.range(), &expected);
        }
        let entry = self.cache.access(region, range(random), access).map_err(wrong)?;
        if random.below(4) == 0 {
            entry.wait();
        }
        self.check(entry.as_slice(), entry.range(), &expected)?;
        held.push(HeldEntry { entry, expected });
        Ok(())
    }

    fn rewrite(&self, random: &mut Random) -> Result<(), Violation> {
        match self.rewritten.rewrite(&self.cache, random).map_err(wrong)? {
            Forgotten::Invalidated(entries_count) => count(&self.ledger.invalidated, entries_count),
            Forgotten::Refreshed(copies_count) => count(&self.ledger.refreshed, copies_count),
        }
        count(&self.ledger.rewrites, 1);
        Ok(())
    }

    fn invalidate(&self, region: &Region, range: Range<usize>) -> Result<(), Violation> {
        count(&self.ledger.invalidated, self.cache.invalidate(region, range).map_err(wrong)?);
        Ok(())
    }

    fn refresh(&self, region: &Region, range: Range<usize>) -> Result<(), Violation> {
        count(&self.ledger.refreshed, self.cache.refresh(region, range).map_err(wrong)?);
        Ok(())
    }

    /// Reads the changing data: bytes match the version, and versions never go back.
    fn read_version(&self, random: &mut Random, held: &mut Vec<HeldEntry>) -> Result<(), Violation> {
        let access = self.access(random);
        // ORDERING: SeqCst pairs with the `fetch_max` in `published`: a later read sees this version or a newer one.
        let published = self.ledger.version.load(Ordering::SeqCst);
        let (entry, version) = if random.below(2) == 0 {
            let snapshot = self.changing.read();
            let start = random.below(CHANGING_BYTES);
            let range = [start..CHANGING_BYTES, 0..CHANGING_BYTES][random.below(2)].clone();
            let entry = snapshot.access(&self.cache, range, access).map_err(wrong)?;
            (entry, Some(snapshot.version()))
        } else {
            let entry = self.changing.access(0..CHANGING_BYTES, access).map_err(wrong)?;
            let version = version_of(entry.as_slice());
            (entry, version)
        };
        let version = version.filter(|&version| version >= published).ok_or_else(|| {
            format!("version {version:?} was read after version {published} had been published")
        })?;
        let expected = Expected::Version(version);
        self.check(entry.as_slice(), entry.range(), &expected)?;
        held.push(HeldEntry { entry, expected });
        Ok(())
    }

    fn mutate(&self) -> Result<(), Violation> {
        let (version, before) = self.changing.mutate(|bytes| {
            let before = version_of(bytes)?;
            write_version(bytes, before + 1);
            Some(before)
        });
        self.published(version, before)
    }

    /// Writes back a draft. If another thread was faster or a copy fails, nothing is published and no change is lost.
    fn write_back(&self, random: &mut Random) -> Result<(), Violation> {
        let mut draft = match self.changing.draft(self.node(random)) {
            Ok(draft) => draft,
            Err(DraftError::Copy(_)) => {
                count(&self.ledger.draft_copies, 1);
                return Ok(());
            }
            Err(DraftError::NoRoom { .. }) => return Ok(()),
            Err(error) => return Err(wrong(error)),
        };
        count(&self.ledger.draft_copies, 1);
        let before = draft.version();
        self.check(&draft, 0..CHANGING_BYTES, &Expected::Version(before))?;
        write_version(&mut draft, before + 1);
        loop {
            let error = match draft.write_back() {
                Ok(version) => {
                    count(&self.ledger.draft_copies, 1);
                    return self.published(version, Some(before));
                }
                Err(error) => error,
            };
            match error {
                WriteBackError::Copy { .. } | WriteBackError::Lost(_) => count(&self.ledger.draft_copies, 1),
                // Outdated before or after its copy.
                WriteBackError::Outdated { .. } => count(&self.ledger.outdated, 1),
                error => return Err(wrong(error)),
            }
            let is_outdated = matches!(error, WriteBackError::Outdated { .. });
            let Some(back) = error.into_draft() else { return Ok(()) };
            self.check(&back, 0..CHANGING_BYTES, &Expected::Version(before + 1))?;
            if is_outdated {
                return Ok(());
            }
            draft = back;
        }
    }

    fn published(&self, version: u64, before: Option<u64>) -> Result<(), Violation> {
        count(&self.ledger.versions, 1);
        // ORDERING: SeqCst pairs with the load in `read_version`.
        self.ledger.version.fetch_max(version, Ordering::SeqCst);
        let follows = before.is_some_and(|before| version == before + 1);
        if follows { Ok(()) } else { Err(format!("version {version} was made of version {before:?}")) }
    }

    /// Panics with an entry and a view.
    fn panic(&self, random: &mut Random) -> Result<(), Violation> {
        let (region, _) = self.region(random);
        let (first, second) = (self.access(random), self.access(random));
        let entry = self.cache.access(&region, range(random), first).map_err(wrong)?;
        let view = self.cache.view(&region, range(random), second).map_err(wrong)?;
        let unwound = panics::contain(move || {
            let _held = (entry, view);
            // `panic!` would print a message each time.
            resume_unwind(Box::new("on purpose"));
        });
        count(&self.ledger.panics, 1);
        if unwound.is_some() { Err("a panic did not unwind".to_owned()) } else { Ok(()) }
    }

    /// Forgets an entry or a view.
    fn forget(&self, random: &mut Random) -> Result<(), Violation> {
        let claim = |count| (count < FORGOTTEN_MAX).then_some(count + 1);
        // ORDERING: Relaxed, no partner: a counter with a limit.
        if self.ledger.forgotten.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).is_err() {
            return Ok(());
        }
        let (region, _) = self.region(random);
        let start = random.below(REGION_BYTES);
        let access = self.access(random);
        if random.below(2) == 0 {
            mem::forget(self.cache.access(&region, start..start + 1, access).map_err(wrong)?);
        } else {
            mem::forget(self.cache.view(&region, start..start + 1, access).map_err(wrong)?);
        }
        Ok(())
    }

    fn region(&self, random: &mut Random) -> (Region, u64) {
        let place = &self.regions[random.below(REGIONS_COUNT)];
        place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Random options of an access, which is counted.
    fn access(&self, random: &mut Random) -> Access {
        count(&self.ledger.accesses, 1);
        let block_on_fault = random.below(3) == 0;
        let near = (random.below(3) == 0).then(|| self.node(random));
        let requester = (random.below(2) == 0).then(|| self.node(random));
        Access { block_on_fault, near, requester, ..Access::default() }
    }

    fn node(&self, random: &mut Random) -> NodeId {
        self.nodes[random.below(self.nodes.len())]
    }
}

fn wrong(error: impl std::fmt::Display) -> Violation {
    format!("an access was refused: {error}")
}

/// A random range: whole chunks, parts of chunks, and ranges across chunks.
fn range(random: &mut Random) -> Range<usize> {
    // The last chunk is short, and only ranges across chunks reach into it.
    let chunk = random.below(REGION_BYTES / CHUNK_BYTES) * CHUNK_BYTES;
    match random.below(8) {
        0..3 => chunk..(chunk + CHUNK_BYTES).min(REGION_BYTES),
        3..6 => {
            let start = chunk + random.below(CHUNK_BYTES);
            start..start + random.below(chunk + CHUNK_BYTES - start + 1)
        }
        6 => {
            let start = random.below(REGION_BYTES);
            start..start + random.below((REGION_BYTES - start).min(3 * PAGE_BYTES) + 1)
        }
        _ => chunk + PAGE_BYTES..chunk + PAGE_BYTES + [0, 1, 2, 63, PAGE_BYTES][random.below(5)],
    }
}

/// Polls a future on this thread, and again when it is woken.
fn block_on<F: Future>(future: F) -> Result<(), Violation> {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let end = Instant::now() + PATIENCE;
    while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        if Instant::now() > end {
            return Err("a future was not woken".to_owned());
        }
        thread::park_timeout(PATIENCE);
    }
    Ok(())
}
