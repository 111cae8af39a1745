//! Moving pages that are there to other nodes.
//!
//! The kernel's call moves as far as it gets: it stops at a page that is busy, and at a node that is full. So
//! it is asked again as long as that helps, each time only for the pages that are elsewhere.
//!
//! Source: move_pages(2); `do_pages_move` in Linux mm/migrate.c, which leaves at the first batch with a page
//! that could not be moved.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::binding::{Pattern, allowed_now};
use super::placement::node_of;
use super::reservation::Reservation;
use super::syscall::{self, page_bytes};
use super::{Binding, MemoryError, room};
use crate::topology::{Machine, NodeId, NodeSet};

/// So often a call may bring nothing before the rest is given up. Each time it begins at another page.
const VAIN_CALLS_MAX: usize = 4;

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

/// Moves pages to their nodes until all are there or no more go; how many are not there.
pub(super) fn bring(targets: impl Iterator<Item = (*const u8, NodeId)> + Clone) -> io::Result<usize> {
    let mut strays = Vec::new();
    let nodes = syscall::nodes_of(targets.clone().map(|(page, _)| page))?;
    strays.extend(
        targets.zip(nodes).filter(|&((_, node), at)| node_of(at) != Some(node)).map(|(target, _)| target),
    );
    let mut vain_calls = 0;
    while !strays.is_empty() && vain_calls < VAIN_CALLS_MAX {
        syscall::move_to(strays.iter().copied())?;
        let before_count = strays.len();
        let mut nodes = syscall::nodes_of(strays.iter().map(|&(page, _)| page))?.into_iter();
        strays.retain(|&(_, node)| nodes.next().and_then(node_of) != Some(node));
        if strays.len() < before_count {
            vain_calls = 0;
        } else {
            vain_calls += 1;
            strays.rotate_left(before_count / VAIN_CALLS_MAX);
        }
    }
    Ok(strays.len())
}

impl Reservation {
    /// What [`Mapping::rebind`](super::Mapping::rebind) says.
    pub(super) fn rebind(&mut self, machine: &Machine, binding: Binding) -> Result<Moved, MemoryError> {
        binding.check(machine, allowed_now(machine).as_ref())?;
        if !machine.is_this_machine() {
            (self.binding, self.is_bound) = (binding, false);
            return Ok(Moved::default());
        }
        let all = 0..self.size_bytes();
        let before = self.look(machine, &all)?;
        let wish = Wish { pattern: self.pattern(machine, &binding)?, binding };
        let strays = self.strays(&before, &wish);
        let targets = wish.targets(machine, &strays)?;

        self.apply(machine, &wish.binding)?;
        let outcome = match bring(targets.iter().copied()) {
            Err(source) => Err(MemoryError::refused("move_pages", self.size_bytes(), source)),
            Ok(_) => self.look(machine, &all).and_then(|after| self.judge(&before, &after, &wish)),
        };
        match outcome {
            Ok(moved) => {
                self.binding = wish.binding;
                self.is_bound = true;
                Ok(moved)
            }
            Err(error) => {
                // What can be undone is undone; the first error is the one to tell.
                let _ = self.apply(machine, self.in_effect());
                let back = self.pages().zip(&before).filter_map(|(page, &at)| Some((page, node_of(at)?)));
                let _ = bring(back);
                Err(match error {
                    MemoryError::NotMoved { node, pages_elsewhere_count, pages_count, .. } => {
                        let placement = self.look(machine, &all)?.into_iter().map(node_of).collect();
                        MemoryError::NotMoved { node, pages_elsewhere_count, pages_count, placement }
                    }
                    error => error,
                })
            }
        }
    }

    /// The pages that are not where they should be. What is not there yet is right.
    fn strays(&self, nodes: &[i16], wish: &Wish) -> Vec<*const u8> {
        let there = self.pages().zip(nodes).filter_map(|(page, &at)| Some((page, node_of(at)?)));
        there.filter(|&(page, at)| !wish.is_met(page, at)).map(|(page, _)| page).collect()
    }

    fn judge(&self, before: &[i16], after: &[i16], wish: &Wish) -> Result<Moved, MemoryError> {
        let moved = Moved {
            pages_count: after.iter().filter(|&&at| at >= 0).count(),
            pages_moved_count: before.iter().zip(after).filter(|&(&from, &to)| to >= 0 && from != to).count(),
            pages_elsewhere_count: self.strays(after, wish).len(),
        };
        match wish.binding {
            Binding::Bind(node) if moved.pages_elsewhere_count > 0 => Err(MemoryError::NotMoved {
                node,
                pages_elsewhere_count: moved.pages_elsewhere_count,
                pages_count: moved.pages_count,
                placement: after.iter().copied().map(node_of).collect(),
            }),
            _ => Ok(moved),
        }
    }
}

/// Where pages shall be.
struct Wish {
    binding: Binding,
    pattern: Option<Pattern>,
}

impl Wish {
    fn is_met(&self, page: *const u8, at: NodeId) -> bool {
        match (&self.binding, &self.pattern) {
            (_, Some(pattern)) => pattern.node_at(page.addr()) == at,
            (Binding::Any, None) => true,
            // Without a pattern there is one node, and nothing to deal out.
            (binding, None) => binding.nodes().contains(at),
        }
    }

    /// Where strays shall go. Checked for room where the binding promises something, cut down to it where
    /// not.
    fn targets(
        &self,
        machine: &Machine,
        strays: &[*const u8],
    ) -> Result<Vec<(*const u8, NodeId)>, MemoryError> {
        let root = Path::new("/");
        let preferred = match &self.binding {
            Binding::Prefer(node) => vec![*node],
            Binding::PreferMany(nodes) => nearest_first(machine, nodes),
            _ => {
                let node_of = |page: *const u8| match (&self.binding, &self.pattern) {
                    (_, Some(pattern)) => Some(pattern.node_at(page.addr())),
                    (binding, None) => binding.node(),
                };
                let targets: Vec<_> =
                    strays.iter().filter_map(|&page| Some((page, node_of(page)?))).collect();
                let mut arriving = BTreeMap::new();
                targets.iter().for_each(|&(_, node)| *arriving.entry(node).or_default() += page_bytes());
                let arriving: Vec<_> = arriving.into_iter().collect();
                room::check_nodes(root, machine, &arriving)?;
                return Ok(targets);
            }
        };
        let mut strays = strays.iter().copied();
        let mut targets = Vec::new();
        for node in preferred {
            let room = room::on_node(root, machine, node, u64::MAX)?.map_or(u64::MAX, |place| place.room());
            let pages_count = usize::try_from(room / page_bytes() as u64).unwrap_or(usize::MAX);
            targets.extend(strays.by_ref().take(pages_count).map(|page| (page, node)));
        }
        Ok(targets)
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
