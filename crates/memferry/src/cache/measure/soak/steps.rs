//! What a thread does, one thing at a time.

use std::mem;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Instant;

use super::super::super::{Access, Flags, Region};
use super::super::Random;
use super::source::register;
use super::{
    CHANGING_BYTES, CHUNK_BYTES, FORGOTTEN_MAX, Held, PAGE_BYTES, PATIENCE, REGION_BYTES, REGIONS_COUNT,
    World, Wrong,
};
use crate::topology::NodeId;

impl World {
    /// Something.
    pub(super) fn step(&self, random: &mut Random, held: &mut Vec<Held>) -> Result<(), Wrong> {
        match random.below(1000) {
            0..300 => {
                let (region, seed) = self.region(random);
                let entry = self.cache.access(&region, range(random), self.access(random)).map_err(wrong)?;
                self.check(entry.as_slice(), entry.range(), Some(seed))?;
                match random.below(4) {
                    0 => drop(entry.wait()),
                    1 => block_on(entry.ready())?,
                    _ => {}
                }
                self.check(entry.as_slice(), entry.range(), Some(seed))?;
                held.push(Held { entry, seed: Some(seed) });
            }
            300..700 => {
                let (region, seed) = self.region(random);
                let (first, second) = (self.access(random), self.access(random));
                let outer = self.cache.view(&region, range(random), first).map_err(wrong)?;
                let inner = self.cache.view(&region, range(random), second).map_err(wrong)?;
                if random.below(8) == 0 {
                    outer.wait();
                }
                drop(region);
                self.check(inner.as_slice(), inner.range(), Some(seed))?;
                self.check(outer.as_slice(), outer.range(), Some(seed))?;
                if random.below(2) == 0 {
                    held.push(Held { entry: inner.to_owned(), seed: Some(seed) });
                }
                drop(inner);
                self.check(outer.as_slice(), outer.range(), Some(seed))?;
            }
            700..740 => {
                let (region, seed) = self.region(random);
                let found =
                    self.cache.access_weak(&region, range(random), self.access(random)).map_err(wrong)?;
                held.extend(found.map(|entry| Held { entry, seed: Some(seed) }));
            }
            740..900 if !held.is_empty() => {
                let Held { entry, seed } = held.swap_remove(random.below(held.len()));
                self.check(entry.as_slice(), entry.range(), seed)?;
            }
            900..920 => {
                let (region, _) = self.region(random);
                self.cache.invalidate(&region, range(random)).map_err(wrong)?;
            }
            920..925 => {
                let (region, _) = self.region(random);
                // Counted as accesses by the cache; how many, only it knows.
                self.cache.refresh(&region, range(random)).map_err(wrong)?;
            }
            925..930 => {
                let new = register(&self.cache, self.nodes[0], &self.registered, &self.ended);
                let place = &self.regions[random.below(REGIONS_COUNT)];
                drop(mem::replace(&mut *place.lock().unwrap_or_else(PoisonError::into_inner), new));
            }
            930 => drop(self.cache.flush()),
            931 => drop(self.cache.clear()),
            932..940 => self.region(random).0.drain(),
            940..970 => {
                let access = self.access(random);
                let entry = self.changing.access(0..CHANGING_BYTES, access).map_err(wrong)?;
                self.check(entry.as_slice(), entry.range(), None)?;
                held.push(Held { entry, seed: None });
            }
            970..975 => {
                self.changing.mutate(|bytes| {
                    let next = bytes[0].wrapping_add(1);
                    bytes.fill(next);
                });
            }
            975..980 => {
                if let Ok(mut draft) = self.changing.draft(self.node(random)) {
                    self.check(&draft, 0..CHANGING_BYTES, None)?;
                    let next = draft[0].wrapping_add(1);
                    draft.fill(next);
                    // Somebody may have been faster, and the copy may fail: then it never was.
                    let _ = draft.write_back();
                }
            }
            980..990 => self.panic(random)?,
            990..995 => self.forget(random)?,
            _ => thread::yield_now(),
        }
        Ok(())
    }

    /// A reader panics with an entry and a view in hand.
    fn panic(&self, random: &mut Random) -> Result<(), Wrong> {
        let (region, _) = self.region(random);
        let (first, second) = (self.access(random), self.access(random));
        let entry = self.cache.access(&region, range(random), first).map_err(wrong)?;
        let view = self.cache.view(&region, range(random), second).map_err(wrong)?;
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _held = (entry, view);
            // Not `panic!`, which would print each time.
            resume_unwind(Box::new("on purpose"));
        }));
        self.panics.fetch_add(1, Ordering::Relaxed);
        if unwound.is_ok() { Err("a panic did not unwind".to_owned()) } else { Ok(()) }
    }

    /// Somebody never lets go.
    fn forget(&self, random: &mut Random) -> Result<(), Wrong> {
        let claim = |count| (count < FORGOTTEN_MAX).then_some(count + 1);
        if self.forgotten.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).is_err() {
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

    /// Options of an access that is about to be made.
    fn access(&self, random: &mut Random) -> Access {
        self.accesses.fetch_add(1, Ordering::Relaxed);
        let flags = [Flags::NONE, Flags::WEAK_WAIT, Flags::BLOCK_ON_FAULT][random.below(3)];
        let near = (random.below(3) == 0).then(|| self.node(random));
        let requester = (random.below(2) == 0).then(|| self.node(random));
        Access { flags, near, requester }
    }

    fn node(&self, random: &mut Random) -> NodeId {
        self.nodes[random.below(self.nodes.len())]
    }
}

fn wrong(error: impl std::fmt::Display) -> Wrong {
    format!("an access was refused: {error}")
}

/// Whole chunks, parts of them, and what is neither.
fn range(random: &mut Random) -> Range<usize> {
    // The last chunk is short, and only the odd ranges reach into it.
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
fn block_on<F: Future>(future: F) -> Result<(), Wrong> {
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
