//! What the clones of a cache share: the way of an access from its options to a slot.

use std::ops::Range;
use std::sync::Arc;

use super::directory::Guard;
use super::flight::Flight;
use super::index::{Found, Index, Taken};
use super::nearness::Nearness;
use super::node::Near;
use super::readers;
use super::region::Source;
use super::slot::Slot;
use super::stats::Counters;
use super::view::Hold;
use super::{Access, AccessError, Entry, Flags, Placement, Region, Request, Why};
use crate::memory::Block;
use crate::mover::{CopyOptions, Mover};
use crate::sync;
use crate::topology::{Machine, NodeId};

/// What the clones of a [`Cache`](super::Cache) share. Nothing here changes but the inside of `nodes` and `counters`.
pub(super) struct Shared {
    pub(super) mover: Mover,
    pub(super) machine: Arc<Machine>,
    /// Without one, everything goes to the first node.
    pub(super) placement: Option<Box<dyn Placement>>,
    pub(super) flags: Flags,
    /// Ascending by node, never empty.
    pub(super) nodes: Vec<Near>,
    /// Their ids, for policies.
    pub(super) node_ids: Vec<NodeId>,
    pub(super) nearness: Nearness,
    pub(super) counters: Arc<Counters>,
}

/// What an access is going to be.
#[derive(Copy, Clone)]
pub(super) enum Wish {
    /// A copy on the cache's node at this position.
    Near(usize),
    Stay(Why),
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

    /// Checks the access and finds the node for it.
    #[inline]
    pub(super) fn wish(
        self: &Arc<Self>,
        region: &Region,
        range: &Range<usize>,
        access: &Access,
    ) -> Result<Wish, AccessError> {
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
                match placement.place(&self.machine, &request) {
                    Some(node) => self.position(node)?,
                    None => return Ok(Wish::Stay(Why::NotPlaced)),
                }
            }
        };
        Ok(if range.is_empty() { Wish::Stay(Why::Empty) } else { Wish::Near(position) })
    }

    pub(super) fn position(&self, node: NodeId) -> Result<usize, AccessError> {
        let no_budget = |_| AccessError::NoBudget { node, nodes: self.node_ids.clone() };
        self.node_ids.binary_search(&node).map_err(no_budget)
    }

    /// The hit path where nobody has to be asked which node: small, and laid into the caller's code. `None` says
    /// nothing, not even that the access is a right one.
    #[inline(always)]
    pub(super) fn guard_unasked(
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
        let guard = self.nodes[position].index.guard(region.source(), range, record)?;
        self.counters.hits_ready.add_one(Some(record.index()));
        Some(guard)
    }

    /// What all other views hold.
    #[inline(never)]
    pub(super) fn hold<'a>(
        self: &'a Arc<Self>,
        region: &Region,
        range: &Range<usize>,
        access: &Access,
    ) -> Result<Hold<'a>, AccessError> {
        let wish = self.wish(region, range, access)?;
        Ok(match self.guard(region.source(), range, wish, access) {
            Some(guard) => Hold::Borrowed(guard),
            None => Hold::Counted(Box::new(self.enter(region.source(), range, wish, access))),
        })
    }

    /// The hit path: what is ready, borrowed; counted as a hit.
    pub(super) fn guard(
        &self,
        source: &Source<Block>,
        range: &Range<usize>,
        wish: Wish,
        access: &Access,
    ) -> Option<Guard<'_, Block>> {
        let record = readers::current()?;
        let on_node = |position: usize| self.nodes[position].index.guard(source, range, record);
        let better = self.rivals(source, wish, access);
        let better = better.and_then(|rivals| self.better_than(source, access, rivals).find_map(on_node));
        let guard = match (better, wish) {
            (Some(guard), _) => guard,
            (None, Wish::Near(position)) => on_node(position)?,
            (None, Wish::Stay(_)) => return None,
        };
        self.counters.hits_ready.add_one(Some(record.index()));
        Some(guard)
    }

    /// What a ready copy that the access does not ask for has to be better than; `None` if no such copy is wanted.
    fn rivals(&self, source: &Source<Block>, wish: Wish, access: &Access) -> Option<[Option<NodeId>; 2]> {
        match wish {
            Wish::Near(position) if access.near.is_none() && self.nodes.len() > 1 => {
                Some([source.home, Some(self.node_ids[position])])
            }
            Wish::Stay(Why::NotPlaced) => Some([source.home, None]),
            _ => None,
        }
    }

    /// What is ready on a node that the reader prefers to these; of an odd range as well, which no directory has.
    ///
    /// Not counted. A node whose index another thread has at the moment is passed over: nobody waits for a node that
    /// they did not ask for.
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

    /// Positions of nodes that the reader prefers to these.
    fn better_than(
        &self,
        source: &Source<Block>,
        access: &Access,
        others: [Option<NodeId>; 2],
    ) -> impl Iterator<Item = usize> + '_ {
        let reader = access.requester.or_else(|| self.nearness.caller()).or(source.home);
        reader.into_iter().flat_map(move |reader| self.nearness.better_than(reader, others))
    }

    /// What is not ready, or an odd range: under the lock, and with a new copy if there is none.
    #[cold]
    pub(super) fn enter(
        &self,
        source: &Arc<Source<Block>>,
        range: &Range<usize>,
        wish: Wish,
        access: &Access,
    ) -> Entry {
        let flags = self.flags | access.flags;
        if let Some(slot) = self.find_elsewhere(source, range, wish, access) {
            return Entry::new(slot, range.clone(), flags, false);
        }
        let position = match wish {
            Wish::Near(position) => position,
            Wish::Stay(why) => {
                self.counters.unplaced.add(1);
                let slot = sync::Arc::new(Slot::at_source(source, range.clone(), why));
                return Entry::new(slot, range.clone(), flags, false);
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
                let started_copy = self.launch(near, slot.clone(), access);
                (slot, started_copy)
            }
        };
        let meanwhile = self.find_meanwhile(source, range, Some(&slot), access);
        Entry::new(slot, range.clone(), flags, started_copy).with_meanwhile(meanwhile)
    }

    /// What is to be read as long as there is no copy on the node that the access asks for: a ready one on another, if it
    /// is better than the source. Not counted.
    pub(super) fn find_meanwhile(
        &self,
        source: &Source<Block>,
        range: &Range<usize>,
        asked_for: Option<&Slot<Block>>,
        access: &Access,
    ) -> Option<sync::Arc<Slot<Block>>> {
        if access.near.is_some()
            || self.nodes.len() == 1
            || asked_for.is_some_and(|slot| slot.near().is_some())
        {
            return None;
        }
        self.find_better(source, range, access, [source.home, None])
    }

    /// A ready copy that is better than the one that the access asks for; counted as a hit.
    pub(super) fn find_elsewhere(
        &self,
        source: &Source<Block>,
        range: &Range<usize>,
        wish: Wish,
        access: &Access,
    ) -> Option<sync::Arc<Slot<Block>>> {
        let slot = self.find_better(source, range, access, self.rivals(source, wish, access)?)?;
        self.count_hit(&slot);
        Some(slot)
    }

    pub(super) fn count_hit(&self, slot: &Slot<Block>) {
        match slot.near() {
            Some(_) => self.counters.hits_ready.add_one(readers::current().map(readers::Record::index)),
            None => self.counters.hits_in_flight.add(1),
        }
    }

    /// Finds room for a new slot and gives its copy to the mover; whether there was room.
    fn launch(&self, near: &Near, slot: sync::Arc<Slot<Block>>, access: &Access) -> bool {
        let (size_bytes, home) = (slot.range.len(), slot.source.home);
        let flight = Flight::new(slot, near.index.clone(), self.counters.clone());
        match near.room_for(size_bytes, &self.counters) {
            None => {
                flight.turn_back();
                false
            }
            Some(block) => {
                let options = CopyOptions {
                    source_node: home,
                    target_node: Some(near.pool.node()),
                    consumer: access.consumer,
                    block_on_fault: (self.flags | access.flags).contains(Flags::BLOCK_ON_FAULT),
                    route: access.route,
                };
                let copy = self.mover.with_hints(flight.copy_into(block), options);
                self.mover.start(copy, options.source_node, options.target_node);
                true
            }
        }
    }

    /// Takes out what shares a byte with `range`, for each node by position; counted.
    pub(super) fn invalidate(
        self: &Arc<Self>,
        region: &Region,
        range: &Range<usize>,
    ) -> Result<Vec<(usize, Taken<Block>)>, AccessError> {
        self.check(region, range)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        // The generation first: a slot that is made after its index was searched belongs to the new one.
        region.source().bump();
        let taken = self.nodes.iter().map(|near| near.index.take_overlapping(region.source(), range));
        let taken: Vec<_> = taken.enumerate().collect();
        self.counters.invalidated.add(taken.iter().map(|(_, taken)| taken.ranges.len()).sum());
        Ok(taken)
    }

    /// Lets go of what `take` takes out of each index, after the index is unlocked; how much that was.
    pub(super) fn drop_slots(&self, take: impl Fn(&Index<Block>) -> Taken<Block>) -> usize {
        self.nodes.iter().map(|near| take(&near.index).ranges.len()).sum()
    }

    /// The last [`Region`] of this source is gone: nobody can ask for its entries any more.
    pub(super) fn forget_region(&self, source: &Source<Block>) {
        let dropped = self.drop_slots(|index| index.take_overlapping(source, &(0..usize::MAX)));
        self.counters.dropped.add(dropped);
    }
}

/// Copies in flight hold the index of their node, so that what is near has to be taken out of it: otherwise it would
/// stay as long as any copy flies.
impl Drop for Shared {
    fn drop(&mut self) {
        let dropped = self.drop_slots(Index::take_everything);
        self.counters.dropped.add(dropped);
    }
}
