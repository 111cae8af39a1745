//! Moving of existing pages to other nodes.
//!
//! move_pages(2) stops at a busy page, and at a full node. So it is called for each node separately, and again while that
//! helps, each time only for the pages that are elsewhere.
//!
//! Source: move_pages(2); `do_pages_move` in Linux mm/migrate.c, which returns at the first batch with a page that could
//! not be moved.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::binding::{Pattern, Reach, allowed_now};
use super::placement::node_of;
use super::populating::{Need, add_up, steps};
use super::reservation::{Page, Reservation, STEP_BYTES, pages_of};
use super::syscall::{self, HUGE_PAGE_BYTES, page_bytes};
use super::{Binding, MemoryError, room};
use crate::topology::{Machine, NodeId, NodeSet};

/// Calls without progress before the rest is given up. Each starts at another page.
const VAIN_CALLS_MAX: usize = 4;
/// Pause for busy pages: they are busy for as long as their copy takes.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// The result of [`Mapping::rebind`](super::Mapping::rebind).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Existing pages.
    pub pages_count: usize,
    /// Pages that are on another node than before.
    pub pages_moved_count: usize,
    /// Pages that are not on a node of the binding, for lack of room.
    pub pages_elsewhere_count: usize,
}

/// A page and its target node.
pub(super) type Target = (*const u8, NodeId);

/// Moves pages to their nodes until all are there or calls make no progress. Returns those that are still elsewhere.
pub(super) fn move_pages(strays: Vec<Target>) -> io::Result<Vec<Target>> {
    let move_to = |group: &[Target]| syscall::move_to(group.iter().copied());
    move_with(strays, move_to, |strays| syscall::nodes_of(strays.iter().map(|&(page, _)| page)))
}

fn move_with(
    mut strays: Vec<Target>,
    mut move_to: impl FnMut(&[Target]) -> io::Result<()>,
    nodes_of: impl Fn(&[Target]) -> io::Result<Vec<i16>>,
) -> io::Result<Vec<Target>> {
    strays.sort_by_key(|&(_, node)| node);
    let mut vain_calls = 0;
    while !strays.is_empty() && vain_calls < VAIN_CALLS_MAX {
        let before_count = strays.len();
        for group in strays.chunk_by_mut(|(_, node), (_, next)| node == next) {
            if vain_calls > 0 {
                group.rotate_left(group.len() / VAIN_CALLS_MAX);
            }
            move_to(group)?;
        }
        // A page without node may be in migration within its node, and busy.
        let mut nodes = nodes_of(&strays)?.into_iter();
        strays.retain(|&(_, node)| nodes.next().and_then(node_of) != Some(node));
        vain_calls = if strays.len() < before_count { 0 } else { vain_calls + 1 };
        if vain_calls > 0 {
            thread::sleep(BUSY_PAUSE);
        }
    }
    // Pages that are not in memory are not elsewhere.
    let mut nodes = nodes_of(&strays)?.into_iter();
    strays.retain(|&(_, node)| nodes.next().and_then(node_of).is_some_and(|at| at != node));
    Ok(strays)
}

impl Reservation {
    /// See [`Mapping::rebind`](super::Mapping::rebind).
    pub(super) fn rebind(&mut self, machine: &Machine, binding: Binding) -> Result<Moved, MemoryError> {
        self.check_machine(machine)?;
        binding.check(machine, allowed_now(machine).as_ref())?;
        if !machine.is_this_machine() {
            self.binding = binding;
            return Ok(Moved::default());
        }
        let reach = binding.reach();
        let mut targets_of = PageTargets::new(machine, &binding, &reach, self.pattern(machine, &binding)?)?;
        add_up(machine, &self.all(), &reach, |step| targets_of.need_of(&self.look(machine, step)?))?;
        self.apply(machine, &binding)?;
        let mut origins = Origins::default();
        let error = match self.move_all(machine, &mut targets_of, &mut origins) {
            Ok(moved) => {
                self.binding = binding;
                return Ok(moved);
            }
            Err(error) => error,
        };
        // Undone as far as possible; the first error is returned.
        let _ = self.apply(machine, &self.binding);
        origins.restore();
        match error {
            MemoryError::Misplaced { node, pages_elsewhere_count, .. } => {
                let placement = self.placement(machine)?;
                let pages_count = placement.pages_count() - placement.absent();
                Err(MemoryError::NotMoved { node, pages_elsewhere_count, pages_count, placement })
            }
            error => Err(error),
        }
    }

    /// Moves the pages that are not on their nodes, and records where they were.
    fn move_all(
        &self,
        machine: &Machine,
        targets_of: &mut PageTargets<'_>,
        origins: &mut Origins,
    ) -> Result<Moved, MemoryError> {
        let mut moved = Moved::default();
        for step in steps(&self.all()) {
            let there = self.look(machine, &step)?;
            moved.pages_count += there.len();
            let mut targets = Vec::new();
            for page in &there {
                if targets_of.is_met(page) {
                    continue;
                }
                match targets_of.take_target(page) {
                    Some(node) => {
                        targets.push((page.address, node));
                        origins.push(page);
                    }
                    None => moved.pages_elsewhere_count += 1,
                }
            }
            moved.pages_moved_count += targets.len();
            let strays = move_pages(targets)
                .map_err(|source| MemoryError::refused("move_pages", step.len(), source))?;
            moved.pages_moved_count -= strays.len();
            moved.pages_elsewhere_count += strays.len();
            match targets_of.binding.bound_node() {
                Some(node) if !strays.is_empty() => {
                    let Moved { pages_count, pages_elsewhere_count, .. } = moved;
                    return Err(MemoryError::Misplaced { node, pages_elsewhere_count, pages_count });
                }
                _ => targets_of.mark_full(&strays),
            }
        }
        Ok(moved)
    }

    fn all(&self) -> Range<usize> {
        0..self.size_bytes()
    }
}

/// The former nodes of pages: runs of neighbours on one node, with first page and length.
#[derive(Default)]
struct Origins(Vec<(*const u8, usize, NodeId)>);

impl Origins {
    fn push(&mut self, page: &Page) {
        match self.0.last_mut() {
            Some((first, pages_count, node))
                if *node == page.node && first.wrapping_add(*pages_count * page_bytes()) == page.address =>
            {
                *pages_count += 1
            }
            _ => self.0.push((page.address, 1, page.node)),
        }
    }

    /// Moves the pages back as far as there is room.
    fn restore(self) {
        for (first, pages_count, node) in self.0 {
            // In the same steps. Pages that do not fit stay where they are.
            let mut pages = pages_of(first, pages_count * page_bytes()).map(|page| (page, node)).peekable();
            while pages.peek().is_some() {
                let _ = move_pages(pages.by_ref().take(STEP_BYTES / page_bytes()).collect());
            }
        }
    }
}

/// The target nodes of a binding.
struct PageTargets<'b> {
    binding: &'b Binding,
    pattern: Option<Pattern>,
    /// For preferences: the nodes, best first, with the number of pages that they have room for.
    preferred: Vec<(NodeId, u64)>,
    /// The last huge page and its target: its pages move together.
    last: Option<(usize, Option<NodeId>)>,
}

impl<'b> PageTargets<'b> {
    fn new(
        machine: &Machine,
        binding: &'b Binding,
        reach: &Reach,
        pattern: Option<Pattern>,
    ) -> Result<PageTargets<'b>, MemoryError> {
        let preferred = match binding {
            Binding::Prefer(node) => vec![*node],
            Binding::PreferMany(nodes) => nearest_first(machine, nodes),
            _ => Vec::new(),
        };
        let room = |node| {
            let place = room::on_node(Path::new("/"), machine, reach, node)?;
            Ok((node, place.map_or(u64::MAX, |place| place.room()) / page_bytes() as u64))
        };
        let preferred: Result<_, MemoryError> = preferred.into_iter().map(room).collect();
        Ok(PageTargets { binding, pattern, preferred: preferred?, last: None })
    }

    fn is_met(&self, page: &Page) -> bool {
        match (self.binding, self.guaranteed_node(page)) {
            (_, Some(node)) => page.node == node,
            (Binding::Any, None) => true,
            // Also for interleaving over a single node.
            (binding, None) => binding.nodes().contains(page.node),
        }
    }

    /// The node that the binding guarantees for a page, if any.
    fn guaranteed_node(&self, page: &Page) -> Option<NodeId> {
        match &self.pattern {
            Some(pattern) => Some(pattern.node_at(page.address.addr(), page.is_huge)),
            None => self.binding.bound_node(),
        }
    }

    /// The memory that must be free in advance.
    fn need_of(&self, there: &[Page]) -> Result<Need, MemoryError> {
        let mut need = Need::default();
        for page in there {
            if let Some(node) = self.guaranteed_node(page).filter(|&node| node != page.node) {
                need.arrive(node, page_bytes());
            }
        }
        Ok(need)
    }

    /// A node with room for a page that is elsewhere.
    fn take_target(&mut self, page: &Page) -> Option<NodeId> {
        if let Some(node) = self.guaranteed_node(page) {
            return Some(node);
        }
        let huge_page = page.is_huge.then(|| page.address.addr() / HUGE_PAGE_BYTES);
        if let Some((last, node)) = self.last
            && huge_page == Some(last)
        {
            return node;
        }
        let pages_count = if page.is_huge { HUGE_PAGE_BYTES / page_bytes() } else { 1 } as u64;
        let with_room = self.preferred.iter_mut().find(|(_, room)| *room >= pages_count);
        let node = with_room.map(|(node, room)| {
            *room -= pages_count;
            *node
        });
        self.last = huge_page.map(|huge_page| (huge_page, node));
        node
    }

    /// Records that the nodes of these pages are full.
    fn mark_full(&mut self, strays: &[Target]) {
        for (node, pages_count) in &mut self.preferred {
            if strays.iter().any(|(_, target)| target == node) {
                *pages_count = 0;
            }
        }
    }
}

/// The order in which the kernel tries a set: nearest to the CPU of this thread first.
fn nearest_first(machine: &Machine, nodes: &NodeSet) -> Vec<NodeId> {
    let cpu = syscall::current_cpu();
    let here = machine.nodes().iter().find(|node| cpu.is_some_and(|cpu| node.cpus.contains(&cpu)));
    let distance = |node| here.and_then(|here| machine.link(here.id, node).distance).unwrap_or(u32::MAX);
    let mut nodes: Vec<_> = nodes.iter().collect();
    nodes.sort_by_key(|&node| (distance(node), node));
    nodes
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// Pages by number on nodes with little room. Like the kernel, it stops at the first page that does not fit.
    struct Nodes {
        at: BTreeMap<usize, i16>,
        room: [usize; 3],
        busy_page: Option<usize>,
    }

    impl Nodes {
        fn move_to(&mut self, targets: &[Target]) {
            for (page, NodeId(node)) in targets {
                let room = &mut self.room[*node as usize];
                if *room == 0 || self.busy_page == Some(page.addr()) {
                    return;
                }
                *room -= 1;
                let from = self.at.insert(page.addr(), *node as i16).unwrap();
                self.room[from as usize] += 1;
            }
        }

        /// Returns the number of pages that did not reach their nodes.
        fn move_all(self, targets: &[(usize, u32)]) -> (usize, Nodes) {
            let nodes = RefCell::new(self);
            let targets =
                targets.iter().map(|&(page, node)| (std::ptr::without_provenance(page), NodeId(node)));
            let at = |(page, _): &Target| {
                nodes.borrow().at.get(&page.addr()).copied().unwrap_or(-libc::ENOENT as i16)
            };
            let strays = move_with(
                targets.collect(),
                |group| {
                    nodes.borrow_mut().move_to(group);
                    Ok(())
                },
                |targets| Ok(targets.iter().map(at).collect()),
            );
            (strays.unwrap().len(), nodes.into_inner())
        }
    }

    fn on_node_0(pages_count: usize, room: [usize; 3]) -> Nodes {
        Nodes { at: (0..pages_count).map(|page| (page, 0)).collect(), room, busy_page: None }
    }

    /// Regression: the kernel stops at the first page for a full node; all pages after that one were not moved.
    #[test]
    fn a_full_node_does_not_keep_pages_from_others() {
        let dealt: Vec<_> = (0..1000).map(|page| (page, 1 + page as u32 % 2)).collect();
        let (strays_count, nodes) = on_node_0(1000, [0, 3, 1000]).move_all(&dealt);
        assert_eq!(strays_count, 497);
        assert_eq!(nodes.at.values().filter(|&&at| at == 2).count(), 500);
        // Node 1 gets room for one page when a page leaves it.
        let mut nodes = on_node_0(10, [0, 0, 1]);
        nodes.at.extend((10..20).map(|page| (page, 1)));
        let swapped: Vec<_> = (0..20).map(|page| (page, if page < 10 { 1 } else { 0 })).collect();
        let (strays_count, _) = Nodes { room: [1, 0, 0], ..nodes }.move_all(&swapped);
        assert_eq!(strays_count, 0);
    }

    #[test]
    fn neighbours_are_recorded_together() {
        let mut origins = Origins::default();
        for (page, node) in [(0, 1), (1, 1), (2, 1), (3, 0), (5, 0), (6, 0)] {
            let address = std::ptr::without_provenance(page * page_bytes());
            origins.push(&Page { address, node: NodeId(node), is_huge: false });
        }
        let runs: Vec<_> =
            origins.0.iter().map(|run| (run.0.addr() / page_bytes(), run.1, run.2.0)).collect();
        assert_eq!(runs, [(0, 3, 1), (3, 1, 0), (5, 2, 0)]);
    }

    /// Regression: with room for a part of a huge page, all of it was moved.
    #[test]
    fn huge_pages_move_whole() {
        let binding = Binding::PreferMany([NodeId(1), NodeId(2)].into());
        let preferred = vec![(NodeId(1), 600), (NodeId(2), 512)];
        let mut targets_of = PageTargets { binding: &binding, pattern: None, preferred, last: None };
        let mut count = |pages: Range<usize>, is_huge| {
            let mut counts = BTreeMap::new();
            for page in pages {
                let address = std::ptr::without_provenance(page * page_bytes());
                let target = targets_of.take_target(&Page { address, node: NodeId(0), is_huge });
                *counts.entry(target.map(|node| node.0)).or_insert(0) += 1;
            }
            counts.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(count(512..4 * 512, true), [(None, 512), (Some(1), 512), (Some(2), 512)]);
        assert_eq!(count(4 * 512..4 * 512 + 90, false), [(None, 2), (Some(1), 88)]);
    }

    #[test]
    fn a_busy_page_is_skipped() {
        let to_node_1: Vec<_> = (0..100).map(|page| (page, 1)).collect();
        let nodes = Nodes { busy_page: Some(5), ..on_node_0(100, [0, 100, 0]) };
        let (strays_count, nodes) = nodes.move_all(&to_node_1);
        assert_eq!(nodes.at.values().filter(|&&at| at == 1).count(), 100 - strays_count);
        assert!(strays_count <= 25, "{strays_count}");
    }

    #[test]
    fn pages_that_are_gone_are_not_elsewhere() {
        assert_eq!(on_node_0(1, [0, 1, 0]).move_all(&[(0, 1), (7, 1)]).0, 0);
    }
}
