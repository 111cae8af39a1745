//! The cache with less room than is asked for, against a naive model of two nodes.
//!
//! The model does not know which entry is evicted when room is needed, only that it is near, not held, and of that node. It
//! learns which at the next access, and counts until then. After each step it checks, by the numbers of ARCHITECTURE.md's
//! promises: an absent range costs one submission, for any number of callers (2); bytes are right (4); sums add up (5);
//! memory of a copy in flight is not used again, whatever is dropped (6); budgets are kept, and used up before an access is
//! refused (7).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use memferry::cache::{Access, Cache, CacheStats, Entry, Location, Region, View, Why};
use memferry::mover::{CopyError, Mover, Route};
use memferry::topology::NodeId;
use proptest::prelude::*;

use crate::cache_support;
use crate::cache_support::{HOME, Held as Engine, Mortal, NEAR, PAGE, assert_adds_up, machine, pattern};

const PIECE: usize = 8;
const PIECES: usize = 5;
const NODES: [NodeId; 2] = [HOME, NEAR];
/// Of blocks, each of which takes a page.
const BUDGETS: [usize; 2] = [3, 2];

#[derive(Clone, Debug)]
enum Step {
    Access {
        node: usize,
        region: usize,
        pieces: Range<usize>,
        how: How,
    },
    Drop {
        held: usize,
    },
    Finish {
        flight: usize,
        error: Option<CopyError>,
    },
    Invalidate {
        region: usize,
        pieces: Range<usize>,
    },
    /// The region ends, another takes its place.
    Replace {
        region: usize,
    },
    Flush,
    Clear,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum How {
    Held,
    LetGo,
    Viewed,
    Weak,
}

fn step() -> impl Strategy<Value = Step> {
    let region = 0..2_usize;
    let pieces = || (0..PIECES, 1..=2_usize).prop_map(|(at, count)| at..(at + count).min(PIECES));
    let how = prop_oneof![Just(How::Held), Just(How::LetGo), Just(How::Viewed), Just(How::Weak)];
    let error = prop_oneof![
        8 => Just(None),
        2 => Just(Some(CopyError::Injected)),
        1 => Just(Some(CopyError::DeviceLost)),
    ];
    prop_oneof![
        12 => (0..2_usize, region.clone(), pieces(), how)
            .prop_map(|(node, region, pieces, how)| Step::Access { node, region, pieces, how }),
        5 => any::<usize>().prop_map(|held| Step::Drop { held }),
        8 => (any::<usize>(), error).prop_map(|(flight, error)| Step::Finish { flight, error }),
        2 => (region.clone(), pieces()).prop_map(|(region, pieces)| Step::Invalidate { region, pieces }),
        1 => region.prop_map(|region| Step::Replace { region }),
        1 => Just(Step::Flush),
        1 => Just(Step::Clear),
    ]
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum State {
    Flying,
    Near,
    Failed,
    NoRoom,
}

/// One copy that was ever asked for.
struct Copy {
    node: usize,
    /// Its region's seed.
    seed: u64,
    pieces: Range<usize>,
    state: State,
    listed: bool,
    held: usize,
}

impl Copy {
    /// Whether it may leave for another, unless it has.
    fn may_leave(&self) -> bool {
        self.listed && self.state == State::Near && self.held == 0
    }

    /// Whether it takes a block and keeps it.
    fn stays(&self) -> bool {
        self.state == State::Flying || self.state == State::Near && self.held > 0
    }
}

#[derive(Default)]
struct Model {
    copies: Vec<Copy>,
    /// Indices into `copies`, oldest first.
    flights: Vec<usize>,
    /// Of each node: how many of those that may leave have left.
    left: [usize; 2],
    /// Of each node: blocks that are never used again.
    leaked: [usize; 2],
    /// Seeds of regions whose source is leaked.
    leaked_sources: BTreeSet<u64>,
    submissions: u64,
    evictions: u64,
    no_room: u64,
}

impl Model {
    fn count(&self, node: usize, which: impl Fn(&Copy) -> bool) -> usize {
        self.copies.iter().filter(|copy| copy.node == node && which(copy)).count()
    }

    fn entries(&self, node: usize) -> usize {
        self.count(node, |copy| copy.listed) - self.left[node]
    }

    fn evictable(&self, node: usize) -> usize {
        self.count(node, Copy::may_leave) - self.left[node]
    }

    fn blocks(&self, node: usize) -> usize {
        self.count(node, Copy::stays) + self.evictable(node) + self.leaked[node]
    }

    fn find(&self, node: usize, seed: u64, pieces: &Range<usize>) -> Option<usize> {
        let is_it =
            |copy: &Copy| copy.listed && (copy.node, copy.seed) == (node, seed) && copy.pieces == *pieces;
        self.copies.iter().position(is_it)
    }

    /// An access that found `is_there`; which copy it got.
    fn access(
        &mut self,
        node: usize,
        seed: u64,
        pieces: &Range<usize>,
        is_there: bool,
    ) -> Result<usize, String> {
        if let Some(index) = self.find(node, seed, pieces) {
            if is_there {
                return Ok(index);
            }
            self.has_left(index)?;
        }
        if is_there {
            return Err(format!("{pieces:?} was there, and never asked for"));
        }
        let state = if self.blocks(node) < BUDGETS[node] {
            State::Flying
        } else if self.evictable(node) > 0 {
            self.left[node] += 1;
            self.evictions += 1;
            State::Flying
        } else {
            State::NoRoom
        };
        let listed = state == State::Flying;
        self.copies.push(Copy { node, seed, pieces: pieces.clone(), state, listed, held: 0 });
        let index = self.copies.len() - 1;
        if listed {
            self.submissions += 1;
            self.flights.push(index);
        } else {
            self.no_room += 1;
        }
        Ok(index)
    }

    /// It turns out to be one of those that left.
    fn has_left(&mut self, index: usize) -> Result<(), String> {
        let copy = &mut self.copies[index];
        if !copy.may_leave() || self.left[copy.node] == 0 {
            return Err(format!("{:?} left node {}, and had to stay", copy.pieces, copy.node));
        }
        self.left[copy.node] -= 1;
        copy.listed = false;
        Ok(())
    }

    fn finish(&mut self, flight: usize, error: Option<CopyError>) {
        let index = self.flights.remove(flight);
        let copy = &mut self.copies[index];
        copy.state = if error.is_none() { State::Near } else { State::Failed };
        copy.listed &= error.is_none();
        if error.is_some_and(|error| error.buffers_are_lost()) {
            self.leaked[copy.node] += 1;
            self.leaked_sources.insert(copy.seed);
        }
    }

    /// Unlists these on each node, of which so many were still there.
    fn unlist(&mut self, gone: [usize; 2], which: impl Fn(&Copy) -> bool) -> Result<(), String> {
        for (node, gone) in gone.into_iter().enumerate() {
            let may_leave = self.count(node, |copy| which(copy) && copy.may_leave());
            let listed = self.count(node, |copy| copy.listed && which(copy));
            let had_left = listed.checked_sub(gone).filter(|&count| count <= self.left[node].min(may_leave));
            self.left[node] -= had_left.ok_or(format!("{gone} of {listed} were taken out of node {node}"))?;
            for copy in self.copies.iter_mut().filter(|copy| copy.node == node && which(copy)) {
                copy.listed = false;
            }
        }
        Ok(())
    }
}

/// What keeps a copy.
enum Held<'a> {
    Entry(Entry),
    View(View<'a>),
}

impl Held<'_> {
    fn seen(&self) -> (Location, &[u8]) {
        match self {
            Held::Entry(entry) => (entry.location(), entry.as_slice()),
            Held::View(view) => (view.location(), view.as_slice()),
        }
    }
}

/// What was taken out of each node, by what is listed, and of all by what was returned.
fn taken(cache: &Cache, take: impl FnOnce() -> usize) -> Result<[usize; 2], String> {
    let entries = |stats: CacheStats| [0, 1].map(|node| stats.nodes[node].entries_count);
    let before = entries(cache.stats());
    let returned = take();
    let after = entries(cache.stats());
    let gone = [0, 1].map(|node| before[node] - after[node]);
    if gone.iter().sum::<usize>() == returned { Ok(gone) } else { Err(format!("{returned} for {gone:?}")) }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let fail = |what: String| TestCaseError::fail(what);
    let engine = Arc::new(Engine::default());
    let mover = Mover::builder(machine()).engine(engine.clone()).route(Route::Single).build().unwrap();
    let builder = NODES.iter().zip(BUDGETS);
    let builder =
        builder.fold(Cache::builder(mover), |builder, (&node, blocks)| builder.budget(node, blocks * PAGE));
    let cache = builder.build().unwrap();
    let (ended, mut registered) = (Arc::default(), 0);
    let mut register = || {
        registered += 1;
        let owner = Mortal::new(PIECES * PIECE, registered, &ended);
        (cache.register_chunked(owner, None, PIECE), registered)
    };
    let mut regions: [(Region, u64); 2] = [register(), register()];
    let mut model = Model::default();
    let mut held: Vec<(Held, usize)> = Vec::new();

    for step in steps {
        match step {
            Step::Access { node, region, pieces, how } => {
                let (region, seed) = &regions[region];
                let range = pieces.start * PIECE..pieces.end * PIECE;
                let access = Access::near(NODES[node]);
                let before = cache.stats();
                let holder = match how {
                    How::Viewed => Some(Held::View(cache.view(region, range, access).unwrap())),
                    How::Weak => cache.access_weak(region, range, access).unwrap().map(Held::Entry),
                    How::Held | How::LetGo => Some(Held::Entry(cache.access(region, range, access).unwrap())),
                };
                let after = cache.stats();
                let is_there = after.misses == before.misses;
                if let (How::Weak, None) = (how, &holder) {
                    prop_assert_eq!(after.absent, before.absent + 1);
                    if let Some(index) = model.find(node, *seed, &pieces) {
                        model.has_left(index).map_err(fail)?;
                    }
                    continue;
                }
                let index = model.access(node, *seed, &pieces, is_there).map_err(fail)?;
                if let Some(holder) = holder.filter(|_| how != How::LetGo) {
                    model.copies[index].held += 1;
                    held.push((holder, index));
                }
            }
            Step::Drop { held: which } if !held.is_empty() => {
                let (holder, index) = held.swap_remove(which % held.len());
                drop(holder);
                model.copies[index].held -= 1;
            }
            Step::Finish { flight, error } if !model.flights.is_empty() => {
                let flight = flight % model.flights.len();
                match error {
                    None => engine.finish(flight),
                    Some(error) => engine.fail(flight, error),
                }
                model.finish(flight, error);
            }
            Step::Drop { .. } | Step::Finish { .. } => {}
            Step::Invalidate { region, pieces } => {
                let (region, seed) = &regions[region];
                let range = pieces.start * PIECE..pieces.end * PIECE;
                let gone = taken(&cache, || cache.invalidate(region, range).unwrap()).map_err(fail)?;
                model
                    .unlist(gone, |copy| copy.seed == *seed && overlap(&copy.pieces, &pieces))
                    .map_err(fail)?;
            }
            Step::Replace { region } => {
                let before = cache.stats().dropped;
                let seed = regions[region].1;
                let gone = taken(&cache, || {
                    regions[region] = register();
                    (cache.stats().dropped - before) as usize
                });
                model.unlist(gone.map_err(fail)?, |copy| copy.seed == seed).map_err(fail)?;
            }
            Step::Flush => {
                let expected = [0, 1].map(|node| model.evictable(node));
                prop_assert_eq!(taken(&cache, || cache.flush()).map_err(fail)?, expected);
                model.unlist(expected, Copy::may_leave).map_err(fail)?;
            }
            Step::Clear => {
                let expected = [0, 1].map(|node| model.entries(node));
                prop_assert_eq!(taken(&cache, || cache.clear()).map_err(fail)?, expected);
                model.unlist(expected, |_| true).map_err(fail)?;
            }
        }
        check(&model, &cache, &engine, &held)?;
    }

    engine.finish_all();
    assert_adds_up(&cache.stats());
    drop((held, regions));
    drop(cache);
    prop_assert_eq!(ended.load(SeqCst), registered - model.leaked_sources.len() as u64);
    Ok(())
}

fn check(model: &Model, cache: &Cache, engine: &Engine, held: &[(Held, usize)]) -> Result<(), TestCaseError> {
    let mut in_use = engine.targets();
    prop_assert_eq!((engine.accepted(), in_use.len()), (model.submissions, model.flights.len()));
    let mut seen = BTreeSet::new();
    for (holder, index) in held {
        let copy = &model.copies[*index];
        let expected = match copy.state {
            State::Flying => Location::Source(Why::InFlight),
            State::Near => Location::Near(NODES[copy.node]),
            State::Failed => Location::Source(Why::Failed),
            State::NoRoom => Location::Source(Why::NoRoom),
        };
        let source = pattern(copy.seed, PIECES * PIECE);
        let (location, bytes) = holder.seen();
        prop_assert_eq!(
            (location, bytes),
            (expected, &source[copy.pieces.start * PIECE..copy.pieces.end * PIECE])
        );
        if copy.state == State::Near && seen.insert(*index) {
            in_use.push(bytes.as_ptr().addr()..bytes.as_ptr().addr() + bytes.len());
        }
    }
    in_use.sort_by_key(|range| range.start);
    prop_assert!(
        in_use.windows(2).all(|pair| pair[0].end <= pair[1].start),
        "memory is shared: {:?}",
        in_use
    );
    let stats = cache.stats();
    prop_assert_eq!((stats.evictions, stats.no_room), (model.evictions, model.no_room));
    for (node, usage) in stats.nodes.iter().enumerate() {
        prop_assert!(usage.peak_bytes <= BUDGETS[node] * PAGE, "{:?}", usage);
        prop_assert_eq!(usage.entries_count, model.entries(node), "node {}", node);
        prop_assert_eq!(usage.used_bytes, model.blocks(node) * PAGE, "node {}", node);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn makes_room_as_the_naive_model_does(steps in proptest::collection::vec(step(), 1..150)) {
        run(steps)?;
    }

    /// Threads that ask for the same ranges, while no copy ends: none waits for another, and each absent range is submitted
    /// once (2, 3).
    #[test]
    fn threads_submit_each_range_once(
        asked in proptest::collection::vec(proptest::collection::vec(0..PIECES, 1..8), 2..4),
    ) {
        let (cache, engine) = cache_support::held(PIECES);
        let ended = Arc::new(AtomicU64::new(0));
        let region = cache.register_chunked(Mortal::new(PIECES * PIECE, 1, &ended), None, PIECE);
        let access = |piece: &usize| {
            cache.access(&region, piece * PIECE..(piece + 1) * PIECE, Access::default()).unwrap()
        };
        let entries: Vec<Entry> = std::thread::scope(|scope| {
            let ask = |pieces: &Vec<usize>| pieces.iter().map(access).collect::<Vec<Entry>>();
            let threads: Vec<_> = asked.iter().map(|pieces| scope.spawn(move || ask(pieces))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let distinct: BTreeSet<usize> = asked.iter().flatten().copied().collect();
        prop_assert_eq!(engine.accepted(), distinct.len() as u64);
        let submitters = entries.iter().filter(|entry| entry.started_copy()).count();
        prop_assert_eq!(submitters, distinct.len());
        engine.finish_all();
        for entry in &entries {
            prop_assert_eq!(entry.location(), Location::Near(NEAR));
            prop_assert_eq!(entry.as_slice(), &pattern(1, PIECES * PIECE)[entry.range()]);
        }
        drop((entries, region));
        prop_assert_eq!((ended.load(SeqCst), cache.stats().nodes[0].used_bytes), (1, 0));
    }
}
