//! The cache against a model so naive that it is obviously right: a list of copies, each flying, near or failed, listed
//! or not, held or not. Budgets are ample here; `cache_model_room` has short ones.

use std::ops::Range;

use memferry::cache::{Access, Entry, Location, Region, View, Why};
use memferry::mover::CopyError;
use proptest::prelude::*;

use crate::cache_support::{Changing, NEAR, PAGE, assert_adds_up, held};

const LEN: usize = 48;
/// Of the two regions: some chunks, with a short one at the end; and one.
const CHUNK_BYTES: [usize; 2] = [20, LEN];

#[derive(Clone, Debug)]
enum Step {
    Access {
        region: usize,
        range: Range<usize>,
        hold: bool,
    },
    View {
        region: usize,
        range: Range<usize>,
    },
    AccessWeak {
        region: usize,
        range: Range<usize>,
        hold: bool,
    },
    /// Lets go of one handle.
    Drop {
        held: usize,
    },
    /// Completes one copy in flight, in any order.
    Finish {
        flight: usize,
        ok: bool,
    },
    Invalidate {
        region: usize,
        range: Range<usize>,
    },
    /// Changes a byte as the contract wants it: drained, then invalidated.
    Write {
        region: usize,
        index: usize,
        value: u8,
    },
    Flush,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    // Few different ranges, so that they meet; all lengths from none to the whole.
    let range =
        || (0..6_usize, 0..6_usize).prop_map(|(a, b)| a.min(b) * 8..a.max(b) * 8 + usize::from(a > b));
    let region = 0..2_usize;
    prop_oneof![
        8 => (region.clone(), range(), any::<bool>())
            .prop_map(|(region, range, hold)| Step::Access { region, range, hold }),
        4 => (region.clone(), range()).prop_map(|(region, range)| Step::View { region, range }),
        2 => (region.clone(), range(), any::<bool>())
            .prop_map(|(region, range, hold)| Step::AccessWeak { region, range, hold }),
        4 => any::<usize>().prop_map(|held| Step::Drop { held }),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(flight, ok)| Step::Finish { flight, ok }),
        2 => (region.clone(), range()).prop_map(|(region, range)| Step::Invalidate { region, range }),
        1 => (region, 0..LEN, any::<u8>()).prop_map(|(region, index, value)| Step::Write { region, index, value }),
        1 => Just(Step::Flush),
        1 => Just(Step::Clear),
    ]
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Flying,
    Near(Vec<u8>),
    Failed,
    Empty,
}

/// One copy that was ever asked for.
struct Copy {
    region: usize,
    range: Range<usize>,
    generation: u64,
    state: State,
    listed: bool,
    held: usize,
}

/// What keeps a copy.
enum Held<'a> {
    Entry(Entry),
    View(View<'a>),
}

#[derive(Default)]
struct Model {
    bytes: [Vec<u8>; 2],
    generations: [u64; 2],
    copies: Vec<Copy>,
    /// Indices into `copies`, oldest first.
    flights: Vec<usize>,
    counts: Counts,
}

#[derive(Debug, Default, PartialEq)]
struct Counts {
    accesses: u64,
    hits_ready: u64,
    hits_in_flight: u64,
    submissions: u64,
    absent: u64,
    unplaced: u64,
    failed: u64,
    invalidated: u64,
    dropped: u64,
}

impl Model {
    fn push(&mut self, region: usize, range: Range<usize>, state: State, listed: bool) -> usize {
        let generation = self.generations[region];
        self.copies.push(Copy { region, range, generation, state, listed, held: 0 });
        self.copies.len() - 1
    }

    fn access(&mut self, region: usize, range: Range<usize>, weak: bool) -> Option<usize> {
        self.counts.accesses += 1;
        if range.is_empty() {
            self.counts.unplaced += 1;
            return (!weak).then(|| self.push(region, range, State::Empty, false));
        }
        let listed = |range: &Range<usize>| {
            let is_it = |copy: &Copy| copy.listed && copy.region == region && copy.range == *range;
            self.copies.iter().position(is_it)
        };
        // Exactly it, or the chunk around it.
        let size = CHUNK_BYTES[region];
        let chunk = range.start / size * size;
        let around = (range.end <= chunk + size).then(|| chunk..(chunk + size).min(LEN));
        if let Some(index) = listed(&range).or_else(|| listed(&around?)) {
            match self.copies[index].state {
                State::Flying => self.counts.hits_in_flight += 1,
                _ => self.counts.hits_ready += 1,
            }
            return Some(index);
        }
        if weak {
            self.counts.absent += 1;
            return None;
        }
        self.counts.submissions += 1;
        let index = self.push(region, range, State::Flying, true);
        self.flights.push(index);
        Some(index)
    }

    fn finish(&mut self, flight: usize, ok: bool) {
        let index = self.flights.remove(flight);
        let copy = &mut self.copies[index];
        if ok {
            copy.state = State::Near(self.bytes[copy.region][copy.range.clone()].to_vec());
        } else {
            copy.state = State::Failed;
            copy.listed = false;
            self.counts.failed += 1;
        }
    }

    fn unlist(&mut self, which: impl Fn(&Copy) -> bool) -> usize {
        let listed = self.copies.iter_mut().filter(|copy| copy.listed && which(copy));
        listed.map(|copy| copy.listed = false).count()
    }

    fn invalidate(&mut self, region: usize, range: Range<usize>) -> usize {
        if range.is_empty() {
            return 0;
        }
        self.generations[region] += 1;
        let overlaps = |copy: &Copy| copy.range.start < range.end && range.start < copy.range.end;
        let count = self.unlist(|copy| copy.region == region && overlaps(copy));
        self.counts.invalidated += count as u64;
        count
    }

    /// Blocks that must be in use.
    fn blocks(&self) -> usize {
        let in_use = |copy: &&Copy| match copy.state {
            State::Flying => true,
            State::Near(_) => copy.listed || copy.held > 0,
            State::Failed | State::Empty => false,
        };
        self.copies.iter().filter(in_use).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn does_what_the_naive_model_does(steps in proptest::collection::vec(step(), 1..120)) {
        let (cache, engine) = held(256);
        let owners = [Changing::new(&[1; LEN]), Changing::new(&[2; LEN])];
        let register = |(owner, size): (&Changing, usize)| cache.register_chunked(owner.clone(), None, size);
        let regions: Vec<Region> = owners.iter().zip(CHUNK_BYTES).map(register).collect();
        let mut model = Model { bytes: [vec![1; LEN], vec![2; LEN]], ..Model::default() };
        let mut held: Vec<(Held, usize, Range<usize>)> = Vec::new();

        for step in steps {
            match step {
                Step::Access { region, range, hold } => {
                    let entry = cache.access(&regions[region], range.clone(), Access::default()).unwrap();
                    let index = model.access(region, range.clone(), false).unwrap();
                    if hold {
                        model.copies[index].held += 1;
                        held.push((Held::Entry(entry), index, range));
                    }
                }
                Step::View { region, range } => {
                    let view = cache.view(&regions[region], range.clone(), Access::default()).unwrap();
                    let index = model.access(region, range.clone(), false).unwrap();
                    model.copies[index].held += 1;
                    held.push((Held::View(view), index, range));
                }
                Step::AccessWeak { region, range, hold } => {
                    let entry = cache.access_weak(&regions[region], range.clone(), Access::default()).unwrap();
                    let index = model.access(region, range.clone(), true);
                    prop_assert_eq!(entry.is_some(), index.is_some());
                    if let (Some(entry), Some(index), true) = (entry, index, hold) {
                        model.copies[index].held += 1;
                        held.push((Held::Entry(entry), index, range));
                    }
                }
                Step::Drop { held: which } => {
                    if !held.is_empty() {
                        let (_, index, _) = held.swap_remove(which % held.len());
                        model.copies[index].held -= 1;
                    }
                }
                Step::Finish { flight, ok } => {
                    prop_assert_eq!(engine.waiting(), model.flights.len());
                    if !model.flights.is_empty() {
                        let flight = flight % model.flights.len();
                        if ok { engine.finish(flight) } else { engine.fail(flight, CopyError::Injected) }
                        model.finish(flight, ok);
                    }
                }
                Step::Invalidate { region, range } => {
                    let dropped = cache.invalidate(&regions[region], range.clone());
                    prop_assert_eq!(dropped, Ok(model.invalidate(region, range)));
                }
                Step::Write { region, index, value } => {
                    while !model.flights.is_empty() {
                        engine.finish(0);
                        model.finish(0, true);
                    }
                    regions[region].drain();
                    // SAFETY: no copy is in flight, and no slice is borrowed between steps.
                    unsafe { owners[region].set(index, value) };
                    model.bytes[region][index] = value;
                    let dropped = cache.invalidate(&regions[region], index..index + 1);
                    prop_assert_eq!(dropped, Ok(model.invalidate(region, index..index + 1)));
                }
                Step::Flush => {
                    let unlisted = model.unlist(|copy| copy.held == 0 && copy.state != State::Flying);
                    model.counts.dropped += unlisted as u64;
                    prop_assert_eq!(cache.flush(), unlisted);
                }
                Step::Clear => {
                    let unlisted = model.unlist(|_| true);
                    model.counts.dropped += unlisted as u64;
                    prop_assert_eq!(cache.clear(), unlisted);
                }
            }

            for (holder, index, range) in &held {
                let copy = &model.copies[*index];
                let source = &model.bytes[copy.region][range.clone()];
                let (location, bytes) = match &copy.state {
                    State::Flying => (Location::Source(Why::InFlight), source),
                    State::Near(bytes) => {
                        (Location::Near(NEAR), &bytes[range.start - copy.range.start..][..range.len()])
                    }
                    State::Failed => (Location::Source(Why::Failed), source),
                    State::Empty => (Location::Source(Why::Empty), source),
                };
                let seen = match holder {
                    Held::Entry(entry) => (entry.location(), entry.as_slice(), entry.generation(), entry.range()),
                    Held::View(view) => (view.location(), view.as_slice(), view.generation(), view.range()),
                };
                prop_assert_eq!(seen, (location, bytes, copy.generation, range.clone()));
            }
            let stats = cache.stats();
            prop_assert_eq!(&model.counts, &Counts {
                accesses: stats.accesses,
                hits_ready: stats.hits_ready,
                hits_in_flight: stats.hits_in_flight,
                submissions: stats.submissions,
                absent: stats.absent,
                unplaced: stats.unplaced,
                failed: stats.failed,
                invalidated: stats.invalidated,
                dropped: stats.dropped,
            });
            prop_assert_eq!(stats.nodes[0].entries_count, model.copies.iter().filter(|copy| copy.listed).count());
            prop_assert_eq!(stats.nodes[0].used_bytes, model.blocks() * PAGE);
        }
        engine.finish_all();
        assert_adds_up(&cache.stats());
    }
}
