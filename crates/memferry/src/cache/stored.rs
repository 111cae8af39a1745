//! Files in a cache: registered files, and readings of their ranges.
//!
//! A file has no bytes in memory that an entry could fall back to. So an access to it does not return an [`Entry`] but a
//! [`Reading`], which yields an entry when the bytes are there. The slots behind it are those of all entries: they have
//! a budget, are evicted, and are invalidated.
//!
//! ```text
//! read ─▶ changed? ─▶ index: a slot with all of the range? ── found ──▶ Reading      ready, or in flight
//!                      │ miss
//!                      ▼
//!  pool: a block ───── full ─────────────────────────────────────────▶ Reading      NoRoom
//!                      │
//!                      ▼
//!  mover: read of the blocks around the range ───────────────────────▶ Reading      in flight
//! ```
//!
//! **Cancelling.** Each reading is counted in the [`Demand`](crate::mover::Demand) of its slot. A read without any is
//! cancelled when an engine is about to start it. A reader that comes afterwards starts a new read.
//!
//! **Changes.** A read of a changed file fails, and removes the entries of the file from the index. The file stays changed
//! ([`StoredFile`]), so all later readings fail; the new version is another file and another region.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::entry::Why;
use super::flight::Flight;
use super::index::Found;
use super::node::CacheNode;
use super::shared::{Destination, Shared};
use super::slot::{Outcome, Slot};
use super::{Access, AccessError, Entry, Region};
use crate::memory::Block;
use crate::mover::{CopyError, ReadError};
use crate::storage::{StorageError, StoredFile};
use crate::sync::{self, Place};
use crate::topology::NodeId;

/// A file that is registered with a cache. Clones share it.
///
/// Dropping the last clone removes the file's entries from the cache; held entries stay readable.
#[derive(Clone)]
pub struct StoredRegion {
    region: Region,
    file: Arc<StoredFile>,
}

impl StoredRegion {
    pub(super) fn new(region: Region, file: Arc<StoredFile>) -> StoredRegion {
        StoredRegion { region, file }
    }

    /// The file.
    pub fn file(&self) -> &Arc<StoredFile> {
        &self.file
    }

    /// The id, unique among all regions that this process ever registers.
    pub fn id(&self) -> u64 {
        self.region.id()
    }

    /// The size of the file in bytes.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the file is the one that was opened; otherwise removes its entries from the cache.
    ///
    /// A query calls it when it begins and when it ends: entries that are ready are read without a look at the file.
    ///
    /// # Errors
    /// Those of [`StoredFile::check_unchanged`].
    pub fn check_unchanged(&self) -> Result<(), StorageError> {
        let checked = self.file.check_unchanged();
        if matches!(checked, Err(StorageError::Changed { .. }))
            && let Some(cache) = self.region.cache()
        {
            cache.forget_version(self);
        }
        checked
    }
}

impl fmt::Debug for StoredRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredRegion").field("id", &self.id()).field("path", &self.file.path()).finish()
    }
}

/// A range of a file that is read to near memory; yields an [`Entry`] whose bytes are there.
///
/// Await it, or call [`wait`](Reading::wait). A clone waits for the same read.
/// Cancel: dropping the last reading of a range before its read has started cancels the read. Later the read goes on, and
/// its entry stays in the cache.
/// Fork: a read in flight goes on in the parent; in the child the reading fails.
#[must_use = "dropping the last reading cancels the read"]
pub struct Reading {
    file: Arc<StoredFile>,
    /// In the file; a part of the slot's range.
    range: Range<usize>,
    node: NodeId,
    /// The slot, or the error of a file that was found to be changed.
    slot: Result<sync::Arc<Slot<Block>>, ReadError>,
    started_read: bool,
    place: Place,
}

impl Reading {
    /// Blocks until the read is done.
    ///
    /// Never call it from a future or a waker; await the reading instead.
    ///
    /// # Errors
    /// [`ReadError::NoRoom`], [`Storage`](ReadError::Storage), [`Engine`](ReadError::Engine). A retry reads again, unless
    /// the file changed.
    pub fn wait(self) -> Result<Entry, ReadError> {
        if let Ok(slot) = &self.slot {
            slot.wait();
        }
        self.result()
    }

    /// Whether the read is done, with or without success. Never blocks.
    pub fn is_ready(&self) -> bool {
        self.slot.as_ref().map_or(true, |slot| slot.outcome().is_some())
    }

    /// Whether this access started the read, or would have if there had been room.
    pub fn started_read(&self) -> bool {
        self.started_read
    }

    /// The requested range.
    pub fn range(&self) -> Range<u64> {
        self.range.start as u64..self.range.end as u64
    }

    /// The result; the read is done, or belongs to the parent of this process.
    fn result(&self) -> Result<Entry, ReadError> {
        let slot = self.slot.as_ref().map_err(ReadError::clone)?;
        match slot.outcome() {
            Some(Outcome::Near(..) | Outcome::Source(Why::Empty)) => {
                Ok(Entry::new(slot.clone(), self.range.clone(), self.started_read))
            }
            Some(Outcome::Source(Why::Failed)) => {
                let error = slot.error().unwrap_or(CopyError::Abandoned);
                Err(ReadError::of(&self.file, &self.range(), error))
            }
            Some(Outcome::Source(_)) => Err(ReadError::NoRoom {
                path: self.file.path().to_owned(),
                node: self.node,
                size_bytes: slot.range.len(),
            }),
            None => Err(ReadError::of(&self.file, &self.range(), CopyError::Forked)),
        }
    }
}

impl Future for Reading {
    type Output = Result<Entry, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Reading { slot, place, .. } = &mut *self;
        let is_done = slot.as_ref().map_or(true, |slot| slot.poll(place, context.waker()));
        if is_done { Poll::Ready(self.result()) } else { Poll::Pending }
    }
}

impl Clone for Reading {
    fn clone(&self) -> Reading {
        if let Ok(slot) = &self.slot {
            let has_joined = slot.join();
            assert!(has_joined, "a read with a reader is not cancelled");
        }
        Reading {
            file: self.file.clone(),
            range: self.range.clone(),
            node: self.node,
            slot: self.slot.clone(),
            started_read: self.started_read,
            place: Place::default(),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Ok(slot) = &self.slot {
            slot.leave(&mut self.place);
            slot.leave_demand();
        }
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading")
            .field("path", &self.file.path())
            .field("range", &self.range())
            .field("is_ready", &self.is_ready())
            .finish()
    }
}

impl Shared {
    /// [`Cache::read`](super::Cache::read).
    pub(super) fn read(
        self: &Arc<Self>,
        stored: &StoredRegion,
        range: Range<u64>,
        access: &Access,
    ) -> Result<Reading, AccessError> {
        let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let asked = in_memory(range.start)..in_memory(range.end);
        let destination = self.destination(&stored.region, &asked, access)?;
        let position = match destination {
            Destination::Node(position) => position,
            Destination::Source(_) => 0,
        };
        let (source, file) = (stored.region.source(), stored.file.clone());
        let reading = |position: usize, slot, started_read| Reading {
            file: file.clone(),
            range: asked.clone(),
            node: self.node_ids[position],
            slot,
            started_read,
            place: Place::default(),
        };
        if let Some(changed) = file.known_change() {
            self.forget_version(stored);
            self.counters.unplaced.add(1);
            return Ok(reading(position, Err(changed.into()), false));
        }
        if asked.is_empty() {
            self.counters.unplaced.add(1);
            let slot = Slot::at_source(source, asked.clone(), Why::Empty);
            return Ok(reading(position, Ok(sync::Arc::new(slot)), false));
        }
        let aligned = file.aligned(&range);
        let aligned = in_memory(aligned.start)..in_memory(aligned.end);
        // The chosen node first; the copy of another one saves a read.
        let others = (0..self.nodes.len()).filter(|&other| other != position && access.near.is_none());
        let mut all = std::iter::once(position).chain(others);
        let found = all.find_map(|at| Some((at, self.nodes[at].index.join(source, &aligned)?)));
        if let Some((at, slot)) = found {
            self.count_hit(&slot);
            return Ok(reading(at, Ok(slot), false));
        }
        let near = &self.nodes[position];
        let make = || Slot::in_flight(source, aligned.clone());
        match near.index.join_or_insert(source, &aligned, make) {
            Found::Known(slot) => {
                self.count_hit(&slot);
                Ok(reading(position, Ok(slot), false))
            }
            Found::New(slot) => {
                // Counted before the submission: the read may be done when that returns.
                let reading = reading(position, Ok(slot.clone()), true);
                self.start_read(near, slot);
                Ok(reading)
            }
        }
    }

    /// Allocates a block for a new slot and starts its read.
    fn start_read(&self, near: &CacheNode, slot: sync::Arc<Slot<Block>>) {
        let size_bytes = slot.range.len();
        let flight = Flight::new(slot, near.index.clone(), self.counters.clone());
        match near.room_for(size_bytes, &self.counters) {
            None => flight.refuse(),
            Some(block) => self.mover.start(flight.read_into(block), None, Some(near.pool.node())),
        }
    }

    /// Removes the entries of a file that changed.
    fn forget_version(&self, stored: &StoredRegion) {
        let source = stored.region.source();
        let removed = self.drop_slots(|index| index.remove_source(source));
        self.counters.invalidated.add(removed);
    }
}
