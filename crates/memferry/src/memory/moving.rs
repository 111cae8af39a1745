//! Moving pages that are there to other nodes.
//!
//! The kernel's call moves as far as it gets: it stops at a page that is busy, and at a node that is full. So
//! it is asked for each node by itself, and again as long as that helps, each time only for the pages that are
//! elsewhere.
//!
//! Source: move_pages(2); `do_pages_move` in Linux mm/migrate.c, which leaves at the first batch with a page
//! that could not be moved.

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

/// So often a call may bring nothing before the rest is given up. Each time it begins at another page.
const VAIN_CALLS_MAX: usize = 4;
/// Pages are busy for as long as copying them takes.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// What [`Mapping::rebind`](super::Mapping::rebind) did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Pages that are there, wherever.
    pub pages_count: usize,
    /// Those that lie on another node than before.
    pub pages_moved_count: usize,
    /// Those that lie on other nodes than the binding wants, for want of room.
    pub pages_elsewhere_count: usize,
}

/// A page, and the node that it shall be on.
pub(super) type Target = (*const u8, NodeId);

/// Moves pages to their nodes until all are there or no more go; those that are elsewhere still.
pub(super) fn bring(strays: Vec<Target>) -> io::Result<Vec<Target>> {
    let move_to = |group: &[Target]| syscall::move_to(group.iter().copied());
    bring_with(strays, move_to, |strays| syscall::nodes_of(strays.iter().map(|&(page, _)| page)))
}

fn bring_with(
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
        // What is nowhere may only be on its way within its node, and busy.
        let mut nodes = nodes_of(&strays)?.into_iter();
        strays.retain(|&(_, node)| nodes.next().and_then(node_of) != Some(node));
        vain_calls = if strays.len() < before_count { 0 } else { vain_calls + 1 };
        if vain_calls > 0 {
            thread::sleep(BUSY_PAUSE);
        }
    }
    // What is nowhere for good is not elsewhere.
    let mut nodes = nodes_of(&strays)?.into_iter();
    strays.retain(|&(_, node)| nodes.next().and_then(node_of).is_some_and(|at| at != node));
    Ok(strays)
}

impl Reservation {
    /// What [`Mapping::rebind`](super::Mapping::rebind) says.
    pub(super) fn rebind(&mut self, machine: &Machine, binding: Binding) -> Result<Moved, MemoryError> {
        self.check_machine(machine)?;
        binding.check(machine, allowed_now(machine).as_ref())?;
        if !machine.is_this_machine() {
            self.binding = binding;
            return Ok(Moved::default());
        }
        let reach = binding.reach();
        let mut wish = Wish::new(machine, &binding, &reach, self.pattern(machine, &binding)?)?;
        add_up(machine, &self.all(), &reach, |step| wish.need_of(&self.look(machine, step)?))?;
        self.apply(machine, &binding)?;
        let mut origins = Origins::default();
        let error = match self.move_all(machine, &mut wish, &mut origins) {
            Ok(moved) => {
                self.binding = binding;
                return Ok(moved);
            }
            Err(error) => error,
        };
        // What can be undone is undone; the first error is the one to tell.
        let _ = self.apply(machine, &self.binding);
        origins.bring_back();
        match error {
            MemoryError::Misplaced { node, pages_elsewhere_count, .. } => {
                let placement = self.placement(machine)?;
                let pages_count = placement.pages_count() - placement.absent();
                Err(MemoryError::NotMoved { node, pages_elsewhere_count, pages_count, placement })
            }
            error => Err(error),
        }
    }

    /// Moves what is not where it should be, and writes down where that was.
    fn move_all(
        &self,
        machine: &Machine,
        wish: &mut Wish<'_>,
        origins: &mut Origins,
    ) -> Result<Moved, MemoryError> {
        let mut moved = Moved::default();
        for step in steps(&self.all()) {
            let there = self.look(machine, &step)?;
            moved.pages_count += there.len();
            let mut targets = Vec::new();
            for page in &there {
                if wish.is_met(page) {
                    continue;
                }
                match wish.take_target(page) {
                    Some(node) => {
                        targets.push((page.address, node));
                        origins.push(page);
                    }
                    None => moved.pages_elsewhere_count += 1,
                }
            }
            moved.pages_moved_count += targets.len();
            let strays =
                bring(targets).map_err(|source| MemoryError::refused("move_pages", step.len(), source))?;
            moved.pages_moved_count -= strays.len();
            moved.pages_elsewhere_count += strays.len();
            match wish.binding.bound_node() {
                Some(node) if !strays.is_empty() => {
                    let Moved { pages_count, pages_elsewhere_count, .. } = moved;
                    return Err(MemoryError::Misplaced { node, pages_elsewhere_count, pages_count });
                }
                _ => wish.are_full(&strays),
            }
        }
        Ok(moved)
    }

    fn all(&self) -> Range<usize> {
        0..self.size_bytes()
    }
}

/// Where pages were: runs of neighbours on one node, by their first and how many they are.
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

    /// As far as there is room.
    fn bring_back(self) {
        for (first, pages_count, node) in self.0 {
            // In steps, as they came. What cannot be undone stays where it is.
            let mut pages = pages_of(first, pages_count * page_bytes()).map(|page| (page, node)).peekable();
            while pages.peek().is_some() {
                let _ = bring(pages.by_ref().take(STEP_BYTES / page_bytes()).collect());
            }
        }
    }
}

/// Where pages shall be.
struct Wish<'b> {
    binding: &'b Binding,
    pattern: Option<Pattern>,
    /// For preferences: the nodes, best first, and how many pages more they have room for.
    preferred: Vec<(NodeId, u64)>,
    /// The huge page that was last dealt with, and where it goes: its pages move together.
    last: Option<(usize, Option<NodeId>)>,
}

impl<'b> Wish<'b> {
    fn new(
        machine: &Machine,
        binding: &'b Binding,
        reach: &Reach,
        pattern: Option<Pattern>,
    ) -> Result<Wish<'b>, MemoryError> {
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
        Ok(Wish { binding, pattern, preferred: preferred?, last: None })
    }

    fn is_met(&self, page: &Page) -> bool {
        match (self.binding, self.promised_node(page)) {
            (_, Some(node)) => page.node == node,
            (Binding::Any, None) => true,
            // Also for what would be dealt out, if there were several nodes to deal it out to.
            (binding, None) => binding.nodes().contains(page.node),
        }
    }

    /// The one node for a page, if the binding promises one.
    fn promised_node(&self, page: &Page) -> Option<NodeId> {
        match &self.pattern {
            Some(pattern) => Some(pattern.node_at(page.address.addr(), page.is_huge)),
            None => self.binding.bound_node(),
        }
    }

    /// What has to have room beforehand.
    fn need_of(&self, there: &[Page]) -> Result<Need, MemoryError> {
        let mut need = Need::default();
        for page in there {
            if let Some(node) = self.promised_node(page).filter(|&node| node != page.node) {
                need.arrive(node, page_bytes());
            }
        }
        Ok(need)
    }

    /// The node for a page that is elsewhere, if there is one with room.
    fn take_target(&mut self, page: &Page) -> Option<NodeId> {
        if let Some(node) = self.promised_node(page) {
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

    /// What did not get to its node would not later.
    fn are_full(&mut self, strays: &[Target]) {
        for (node, pages_count) in &mut self.preferred {
            if strays.iter().any(|(_, target)| target == node) {
                *pages_count = 0;
            }
        }
    }
}

/// As the kernel goes through a set: what is nearest to the CPU of this thread first.
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

    /// Pages by number on nodes with little room; like the kernel it stops at the first page that does not fit.
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

        /// How many did not get to their nodes.
        fn bring(self, targets: &[(usize, u32)]) -> (usize, Nodes) {
            let nodes = RefCell::new(self);
            let targets =
                targets.iter().map(|&(page, node)| (std::ptr::without_provenance(page), NodeId(node)));
            let at = |(page, _): &Target| {
                nodes.borrow().at.get(&page.addr()).copied().unwrap_or(-libc::ENOENT as i16)
            };
            let strays = bring_with(
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

    /// The kernel stops at the first page for the full node, and with it stopped all pages after that one.
    #[test]
    fn a_full_node_does_not_keep_pages_from_others() {
        let dealt: Vec<_> = (0..1000).map(|page| (page, 1 + page as u32 % 2)).collect();
        let (strays_count, nodes) = on_node_0(1000, [0, 3, 1000]).bring(&dealt);
        assert_eq!(strays_count, 497);
        assert_eq!(nodes.at.values().filter(|&&at| at == 2).count(), 500);
        // Node 1 gets room when a page leaves it, one at a time.
        let mut nodes = on_node_0(10, [0, 0, 1]);
        nodes.at.extend((10..20).map(|page| (page, 1)));
        let swapped: Vec<_> = (0..20).map(|page| (page, if page < 10 { 1 } else { 0 })).collect();
        let (strays_count, _) = Nodes { room: [1, 0, 0], ..nodes }.bring(&swapped);
        assert_eq!(strays_count, 0);
    }

    #[test]
    fn neighbours_are_written_down_together() {
        let mut origins = Origins::default();
        for (page, node) in [(0, 1), (1, 1), (2, 1), (3, 0), (5, 0), (6, 0)] {
            let address = std::ptr::without_provenance(page * page_bytes());
            origins.push(&Page { address, node: NodeId(node), is_huge: false });
        }
        let runs: Vec<_> =
            origins.0.iter().map(|run| (run.0.addr() / page_bytes(), run.1, run.2.0)).collect();
        assert_eq!(runs, [(0, 3, 1), (3, 1, 0), (5, 2, 0)]);
    }

    /// Room for a part of a huge page took all of it along.
    #[test]
    fn huge_pages_go_whole() {
        let binding = Binding::PreferMany([NodeId(1), NodeId(2)].into());
        let preferred = vec![(NodeId(1), 600), (NodeId(2), 512)];
        let mut wish = Wish { binding: &binding, pattern: None, preferred, last: None };
        let mut count = |pages: Range<usize>, is_huge| {
            let mut counts = BTreeMap::new();
            for page in pages {
                let address = std::ptr::without_provenance(page * page_bytes());
                let target = wish.take_target(&Page { address, node: NodeId(0), is_huge });
                *counts.entry(target.map(|node| node.0)).or_insert(0) += 1;
            }
            counts.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(count(512..4 * 512, true), [(None, 512), (Some(1), 512), (Some(2), 512)]);
        assert_eq!(count(4 * 512..4 * 512 + 90, false), [(None, 2), (Some(1), 88)]);
    }

    #[test]
    fn a_busy_page_is_passed_over() {
        let to_node_1: Vec<_> = (0..100).map(|page| (page, 1)).collect();
        let nodes = Nodes { busy_page: Some(5), ..on_node_0(100, [0, 100, 0]) };
        let (strays_count, nodes) = nodes.bring(&to_node_1);
        assert_eq!(nodes.at.values().filter(|&&at| at == 1).count(), 100 - strays_count);
        assert!(strays_count <= 25, "{strays_count}");
    }

    #[test]
    fn pages_that_are_gone_are_not_elsewhere() {
        assert_eq!(on_node_0(1, [0, 1, 0]).bring(&[(0, 1), (7, 1)]).0, 0);
    }
}
