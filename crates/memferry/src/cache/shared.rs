//! The state that clones of a cache share, and the steps of an access from its options to a slot.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

use super::directory::Guard;
use super::flight::Flight;
use super::index::{Found, Index, Removed};
use super::nearness::Nearness;
use super::node::CacheNode;
use super::policy::Placement;
use super::readers;
use super::region::Source;
use super::slot::Slot;
use super::stats::Counters;
use super::view::Hold;
use super::{Access, AccessError, Entry, Region, Request, Why};
use crate::memory::Block;
use crate::mover::{CopyOptions, Mover};
use crate::sync;
use crate::topology::{Machine, NodeId};

/// Shared by the clones of a [`Cache`](super::Cache). Constant, except the inside of `nodes` (under the lock of the index,
/// of the pool) and of `counters` (relaxed).
pub(super) struct Shared {
    pub(super) mover: Mover,
    pub(super) machine: Arc<Machine>,
    /// The placement policy; without one, all copies go to the first node.
    pub(super) placement: Option<Placement>,
    /// Ascending by node, never empty.
    pub(super) nodes: Vec<CacheNode>,
    /// Ids of `nodes`, for policies.
    pub(super) node_ids: Vec<NodeId>,
    pub(super) nearness: Nearness,
    pub(super) counters: Arc<Counters>,
}

/// The decision for an access.
#[derive(Copy, Clone)]
pub(super) enum Destination {
    /// A copy on the cache's node at this position.
    Node(usize),
    /// No copy.
    Source(Why),
}

impl Shared {
    #[inline]
    pub(super) fn check(self: &Arc<Self>, region: &Region, range: &Range<usize>) -> Result<(), AccessError> {
        if !region.is_of(self) {
            return Err(AccessError::ForeignRegion { id: region.id() });
        }
        let len = region.len();
        if range.start > range.end || range.end > len {
            return Err(AccessError::OutOfRange { start: range.start, end: range.end, len });
        }
        Ok(())
    }

    /// Checks the access and decides its destination.
    #[inline]
    pub(super) fn destination(
        self: &Arc<Self>,
        region: &Region,
        range: &Range<usize>,
        access: &Access,
    ) -> Result<Destination, AccessError> {
        self.check(region, range)?;
        let position = match (access.near, &self.placement) {
            (Some(node), _) => self.position(node)?,
            (None, None) => 0,
            (None, Some(placement)) => {
                let request = Request {
                    source_node: region.home(),
                    requester: access.requester,
                    size_bytes: range.len(),
                    nodes: &self.node_ids,
                };
                match placement(&self.machine, &request) {
                    Some(node) => self.position(node)?,
                    None => return Ok(Destination::Source(Why::NotPlaced)),
                }
            }
        };
        Ok(if range.is_empty() { Destination::Source(Why::Empty) } else { Destination::Node(position) })
    }

    pub(super) fn position(&self, node: NodeId) -> Result<usize, AccessError> {
        let no_budget = |_| AccessError::NoBudget { node, nodes: self.node_ids.clone() };
        self.node_ids.binary_search(&node).map_err(no_budget)
    }

    /// The hit path without placement policy: small, and inlined into the caller. `None` means that the slower path
    /// decides, which also checks the access.
    #[inline(always)]
    pub(super) fn guard_fast(
        self: &Arc<Self>,
        region: &Region,
        range: &Range<usize>,
        access: &Access,
    ) -> Option<Guard<'_, Block>> {
        let position = match access.near {
            None if self.nodes.len() == 1 && self.placement.is_none() => 0,
            Some(node) => self.node_ids.iter().position(|&id| id == node)?,
            None => return None,
        };
        if !region.is_of(self) || range.start > range.end || range.end > region.len() {
            return None;
        }
        let record = readers::known()?;
        // Not dropped by a panic of the counter, which has none: so the guard stays in registers.
        let guard = ManuallyDrop::new(self.nodes[position].index.guard(region.source(), range, record)?);
        self.counters.hits_ready.add_one(Some(record.index()));
        Some(ManuallyDrop::into_inner(guard))
    }

    /// The slower path of [`Cache::view`](super::Cache::view).
    #[inline(never)]
    pub(super) fn hold<'a>(
        self: &'a Arc<Self>,
        region: &Region,
        range: &Range<usize>,
        access: &Access,
    ) -> Result<Hold<'a>, AccessError> {
        let destination = self.destination(region, range, access)?;
        Ok(match self.guard(region.source(), range, destination, access) {
            Some(guard) => Hold::Borrowed(guard),
            None => Hold::Counted(Box::new(self.enter(region.source(), range, destination, access))),
        })
    }

    /// The hit path: borrows a ready slot and counts the hit.
    pub(super) fn guard(
        &self,
        source: &Source<Block>,
        range: &Range<usize>,
        destination: Destination,
        access: &Access,
    ) -> Option<Guard<'_, Block>> {
        let record = readers::current()?;
        let on_node = |position: usize| self.nodes[position].index.guard(source, range, record);
        let better = self.rivals(source, destination, access);
        let better = better.and_then(|rivals| self.better_than(source, access, rivals).find_map(on_node));
        let guard = match (better, destination) {
            (Some(guard), _) => guard,
            (None, Destination::Node(position)) => on_node(position)?,
            (None, Destination::Source(_)) => return None,
        };
        self.counters.hits_ready.add_one(Some(record.index()));
        Some(guard)
    }

    /// The nodes that a ready copy on another node must be better than; `None` if no such copy is acceptable.
    fn rivals(
        &self,
        source: &Source<Block>,
        destination: Destination,
        access: &Access,
    ) -> Option<[Option<NodeId>; 2]> {
        match destination {
            Destination::Node(position) if access.near.is_none() && self.nodes.len() > 1 => {
                Some([source.home, Some(self.node_ids[position])])
            }
            Destination::Source(Why::NotPlaced) => Some([source.home, None]),
            _ => None,
        }
    }

    /// A ready slot on a node that the reader prefers to `rivals`; also of ranges that no directory has. Not counted.
    ///
    /// Skips a node whose index is locked at the moment: a reader waits only for the node that it requested.
    fn find_better(
        &self,
        source: &Source<Block>,
        range: &Range<usize>,
        access: &Access,
        rivals: [Option<NodeId>; 2],
    ) -> Option<sync::Arc<Slot<Block>>> {
        let mut better = self.better_than(source, access, rivals);
        better.find_map(|position| self.nodes[position].index.try_find_ready(source, range))
    }

    /// Positions of nodes that the reader prefers to `others`.
    fn better_than(
        &self,
        source: &Source<Block>,
        access: &Access,
        others: [Option<NodeId>; 2],
    ) -> impl Iterator<Item = usize> + '_ {
        let reader = access.requester.or_else(|| self.nearness.caller()).or(source.home);
        reader.into_iter().flat_map(move |reader| self.nearness.better_than(reader, others))
    }

    /// The path under the lock, for slots that are not ready or not published; starts a copy on a miss.
    #[cold]
    pub(super) fn enter(
        &self,
        source: &Arc<Source<Block>>,
        range: &Range<usize>,
        destination: Destination,
        access: &Access,
    ) -> Entry {
        if let Some(slot) = self.find_elsewhere(source, range, destination, access) {
            return Entry::new(slot, range.clone(), false);
        }
        let position = match destination {
            Destination::Node(position) => position,
            Destination::Source(why) => {
                self.counters.unplaced.add(1);
                let slot = sync::Arc::new(Slot::at_source(source, range.clone(), why));
                return Entry::new(slot, range.clone(), false);
            }
        };
        let near = &self.nodes[position];
        let make = || Slot::in_flight(source, range.clone());
        let (slot, started_copy) = match near.index.find_or_insert(source, range, make) {
            Found::Known(slot) => {
                self.count_hit(&slot);
                (slot, false)
            }
            Found::New(slot) => {
                let started_copy = self.start_copy(near, slot.clone(), access);
                (slot, started_copy)
            }
        };
        let interim = self.find_interim(source, range, Some(&slot), access);
        Entry::new(slot, range.clone(), started_copy).with_interim(interim)
    }

    /// A ready copy to be read until that on the chosen node is ready, if the reader prefers it to the source. Not
    /// counted.
    pub(super) fn find_interim(
        &self,
        source: &Source<Block>,
        range: &Range<usize>,
        chosen: Option<&Slot<Block>>,
        access: &Access,
    ) -> Option<sync::Arc<Slot<Block>>> {
        if access.near.is_some() || self.nodes.len() == 1 || chosen.is_some_and(|slot| slot.near().is_some())
        {
            return None;
        }
        self.find_better(source, range, access, [source.home, None])
    }

    /// A ready copy that the reader prefers to the destination; counted as a hit.
    pub(super) fn find_elsewhere(
        &self,
        source: &Source<Block>,
        range: &Range<usize>,
        destination: Destination,
        access: &Access,
    ) -> Option<sync::Arc<Slot<Block>>> {
        let slot = self.find_better(source, range, access, self.rivals(source, destination, access)?)?;
        self.count_hit(&slot);
        Some(slot)
    }

    pub(super) fn count_hit(&self, slot: &Slot<Block>) {
        match slot.near() {
            Some(_) => self.counters.hits_ready.add_one(readers::current().map(readers::Record::index)),
            None => self.counters.hits_in_flight.add(1),
        }
    }

    /// Allocates a block for a new slot and starts its copy. Returns whether there was room.
    fn start_copy(&self, near: &CacheNode, slot: sync::Arc<Slot<Block>>, access: &Access) -> bool {
        let (size_bytes, home) = (slot.range.len(), slot.source.home);
        let flight = Flight::new(slot, near.index.clone(), self.counters.clone());
        match near.room_for(size_bytes, &self.counters) {
            None => {
                flight.refuse();
                false
            }
            Some(block) => {
                let options = CopyOptions {
                    source_node: home,
                    target_node: Some(near.pool.node()),
                    consumer: access.consumer,
                    block_on_fault: access.block_on_fault,
                    route: access.route,
                    requester: access.requester,
                    waits: false,
                };
                let copy = self.mover.with_hints(flight.copy_into(block), options);
                self.mover.start(copy, options.source_node, options.target_node);
                true
            }
        }
    }

    /// Removes the slots that overlap `range`, for each node by position; counted.
    pub(super) fn invalidate(
        self: &Arc<Self>,
        region: &Region,
        range: &Range<usize>,
    ) -> Result<Vec<(usize, Removed<Block>)>, AccessError> {
        self.check(region, range)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        // First the generation: a slot that is made after the search of its index belongs to the new one.
        region.source().bump();
        let removed = self.nodes.iter().map(|near| near.index.remove_overlapping(region.source(), range));
        let removed: Vec<_> = removed.enumerate().collect();
        self.counters.invalidated.add(removed.iter().map(|(_, removed)| removed.ranges.len()).sum());
        Ok(removed)
    }

    /// Drops the slots that `remove` removes from each index, outside its lock. Returns their number.
    pub(super) fn drop_slots(&self, remove: impl Fn(&Index<Block>) -> Removed<Block>) -> usize {
        self.nodes.iter().map(|near| remove(&near.index).ranges.len()).sum()
    }

    /// Removes the entries of a source whose last [`Region`] was dropped.
    pub(super) fn forget_region(&self, source: &Source<Block>) {
        let dropped = self.drop_slots(|index| index.remove_source(source));
        self.counters.dropped.add(dropped);
    }
}

/// Removes all slots. Copies in flight hold the index of their node, so slots would otherwise live until the last
/// completion.
impl Drop for Shared {
    fn drop(&mut self) {
        let dropped = self.drop_slots(Index::remove_all);
        self.counters.dropped.add(dropped);
    }
}
