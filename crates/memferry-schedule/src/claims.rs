//! Claims of items: each item is claimed by one worker, which takes its own items first and then steals.
//!
//! ```text
//! items     flat, dealt to the workers: | worker 0 ......... | worker 1 ......... | worker 2 ....
//! queue     (begin, end) of a worker in one word
//! claim     own queue: begin + 1.   empty: a victim's end - n; the first is claimed, the others become the own queue
//! ```
//!
//! A word is the whole truth about a queue: the thread that changes it by compare and exchange owns the items that it loses.
//! It does not matter whether a word had another value in between. Only its owner makes an empty queue longer, and nobody
//! else writes an empty one.

use std::fmt;
use std::str::FromStr;

use super::domains::{Distance, Domains};
use super::sync::Arc;
use super::sync::atomic::{AtomicU64, Ordering};

/// Which items a worker may claim after those of its own domain.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stealing {
    /// None.
    Off,
    /// Those of other domains of its socket, one at a time.
    #[default]
    Neighbour,
    /// Those of any domain, the nearest first, one at a time.
    Any,
    /// As `Any`, up to so many at a time. Its domain's workers, and thieves, may claim what it has not begun. 0 counts as 1.
    Bulk(u32),
}

impl fmt::Display for Stealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Neighbour => f.write_str("neighbour"),
            Self::Any => f.write_str("any"),
            Self::Bulk(count) => write!(f, "bulk({count})"),
        }
    }
}

impl FromStr for Stealing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bulk = || text.strip_prefix("bulk(")?.strip_suffix(')')?.parse().ok().filter(|&count| count > 0);
        match text {
            "off" => Ok(Self::Off),
            "neighbour" => Ok(Self::Neighbour),
            "any" => Ok(Self::Any),
            other => bulk().map(Self::Bulk).ok_or_else(|| {
                format!(
                    "'{other}' is not a way of stealing; use off, neighbour, any or bulk(N), such as bulk(4)"
                )
            }),
        }
    }
}

/// A claimed item.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// Its index in `homes` of [`claims`].
    pub item: usize,
    /// How far its home is from the worker.
    pub distance: Distance,
}

/// Deals items to workers: `workers` has the domain of each worker, `homes` the domain of each item.
///
/// The workers of a domain get its items in runs of about equal length, each in ascending order. They claim from each
/// other, whatever `stealing` says. Items of a domain without workers are dealt to the workers of the nearest domain with
/// some. The result has a [`Claimer`] for each worker, in their order.
///
/// Panics if a domain is not below the length of `domains`, if there are items and no workers, or more than 2^32 items.
pub fn claims(domains: &Domains, stealing: Stealing, workers: &[usize], homes: &[usize]) -> Vec<Claimer> {
    assert!(!workers.is_empty() || homes.is_empty(), "items need a worker");
    assert!(u32::try_from(homes.len()).is_ok(), "{} items are too many: at most 2^32 - 1", homes.len());
    let mut by_domain = vec![Vec::new(); domains.len()];
    for (worker, &domain) in workers.iter().enumerate() {
        by_domain[domain].push(worker);
    }
    let mut dealt = vec![Vec::new(); workers.len()];
    for home in 0..domains.len() {
        let of_home: Vec<u32> =
            (0..homes.len()).filter(|&item| homes[item] == home).map(|item| item as u32).collect();
        let takers = domains.by_distance(home).into_iter().map(|domain| &by_domain[domain]);
        let takers = takers.into_iter().find(|takers| !takers.is_empty());
        let (Some(takers), false) = (takers, of_home.is_empty()) else { continue };
        let mut rest = &of_home[..];
        for (index, &worker) in takers.iter().enumerate() {
            let (run, others) = rest.split_at(rest.len().div_ceil(takers.len() - index));
            dealt[worker].extend(run);
            rest = others;
        }
    }
    assert_eq!(dealt.iter().map(Vec::len).sum::<usize>(), homes.len(), "an item's domain does not exist");

    let mut items = Vec::with_capacity(homes.len());
    let queues = dealt.iter().map(|run| {
        let begin = items.len() as u32;
        items.extend(run);
        Queue(AtomicU64::new(pack(begin, items.len() as u32)))
    });
    let queues = queues.collect();
    let shared = Arc::new(Shared {
        queues,
        items,
        homes: homes.to_vec(),
        domains: domains.clone(),
        by_domain,
        stealing,
    });
    let claimer = |(worker, &domain): (usize, &usize)| Claimer {
        shared: Arc::clone(&shared),
        worker,
        domain,
        counts: ClaimCounts::default(),
    };
    workers.iter().enumerate().map(claimer).collect()
}

/// Shared by all claimers of one call of [`claims`]. All is fixed but the queues.
#[derive(Debug)]
struct Shared {
    /// One for each worker.
    queues: Box<[Queue]>,
    /// Items, to which the ranges of the queues refer. No index is in two queues.
    items: Vec<u32>,
    homes: Vec<usize>,
    domains: Domains,
    /// The workers of each domain.
    by_domain: Vec<Vec<usize>>,
    stealing: Stealing,
}

/// The range of items that nobody has claimed: `begin` in the lower half. In a cache line of its own, with the neighbour
/// line that the CPU fetches with it.
///
/// Written by its owner (claim from the front; a stolen range into an empty queue) and by thieves (from the back).
#[derive(Debug)]
#[repr(align(128))]
struct Queue(AtomicU64);

fn pack(begin: u32, end: u32) -> u64 {
    u64::from(end) << 32 | u64::from(begin)
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Queue {
    // ORDERING: Relaxed throughout: the exchange alone decides who owns an item, and the items are written before the
    // claimers are shared.

    fn len(&self) -> u32 {
        let (begin, end) = unpack(self.0.load(Ordering::Relaxed));
        end - begin
    }

    /// Takes a range of the queue, which `split` divides into (rest, taken).
    fn take(&self, split: impl Fn(u32, u32) -> [(u32, u32); 2]) -> Option<(u32, u32)> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (begin, end) = unpack(word);
            if begin == end {
                return None;
            }
            let [rest, taken] = split(begin, end);
            let rest = pack(rest.0, rest.1);
            match self.0.compare_exchange_weak(word, rest, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => word = now,
            }
        }
    }

    fn take_first(&self) -> Option<u32> {
        self.take(|begin, end| [(begin + 1, end), (begin, begin + 1)]).map(|taken| taken.0)
    }

    fn take_last(&self, count: u32) -> Option<(u32, u32)> {
        self.take(|begin, end| {
            let middle = end - count.min(end - begin);
            [(begin, middle), (middle, end)]
        })
    }
}

/// One worker's end of [`claims`]: an iterator over the items that it claims, until it can reach none.
///
/// Items that it has not claimed stay for the other workers, if it is dropped too.
#[derive(Debug)]
pub struct Claimer {
    shared: Arc<Shared>,
    worker: usize,
    domain: usize,
    counts: ClaimCounts,
}

impl Claimer {
    /// The domain of the worker.
    pub fn domain(&self) -> usize {
        self.domain
    }

    /// Claims the next item of its own queue, and steals none: for items that the worker takes ahead of its work.
    pub fn next_own(&mut self) -> Option<Claim> {
        let index = self.shared.queues[self.worker].take_first()?;
        Some(self.claimed(index))
    }

    /// The numbers of items that it has claimed so far.
    pub fn counts(&self) -> ClaimCounts {
        self.counts
    }

    fn claimed(&mut self, index: u32) -> Claim {
        let item = self.shared.items[index as usize] as usize;
        let distance = self.shared.domains.distance(self.domain, self.shared.homes[item]);
        *match distance {
            Distance::Own => &mut self.counts.own,
            Distance::SameSocket => &mut self.counts.same_socket,
            Distance::OtherSocket => &mut self.counts.other_socket,
        } += 1;
        Claim { item, distance }
    }

    /// Takes items from a queue of another worker, the nearest domains first, in a domain from the longest queue.
    fn steal(&mut self) -> Option<u32> {
        let (reach, bulk) = match self.shared.stealing {
            Stealing::Off => (Distance::Own, 1),
            Stealing::Neighbour => (Distance::SameSocket, 1),
            Stealing::Any => (Distance::OtherSocket, 1),
            Stealing::Bulk(count) => (Distance::OtherSocket, count.max(1)),
        };
        let shared = &*self.shared;
        for domain in shared.domains.by_distance(self.domain) {
            let distance = shared.domains.distance(self.domain, domain);
            if distance > reach {
                break;
            }
            let count = if distance == Distance::Own { 1 } else { bulk };
            let longest =
                || shared.by_domain[domain].iter().max_by_key(|&&worker| shared.queues[worker].len());
            while let Some(victim) =
                longest().map(|&worker| &shared.queues[worker]).filter(|queue| queue.len() > 0)
            {
                let Some((first, end)) = victim.take_last(count) else { continue };
                if first + 1 < end {
                    // The own queue is empty, and only this claimer makes it longer.
                    shared.queues[self.worker].0.store(pack(first + 1, end), Ordering::Relaxed);
                }
                self.counts.steals += u64::from(distance != Distance::Own);
                return Some(first);
            }
        }
        None
    }
}

impl Iterator for Claimer {
    type Item = Claim;

    fn next(&mut self) -> Option<Claim> {
        self.next_own().or_else(|| {
            let index = self.steal()?;
            Some(self.claimed(index))
        })
    }
}

/// Items that a worker has claimed, by the distance of their homes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimCounts {
    /// Items of its own domain.
    pub own: u64,
    /// Items of other domains of its socket.
    pub same_socket: u64,
    /// Items of other sockets.
    pub other_socket: u64,
    /// How often it stole from a worker of another domain.
    pub steals: u64,
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::collections::BTreeSet;

    use memferry::topology::Machine;
    use proptest::prelude::*;

    use super::*;

    /// Two sockets, four domains each.
    fn xeon_max() -> Domains {
        Domains::of(&Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap()
    }

    fn items(claimer: &mut Claimer, count: usize) -> Vec<usize> {
        claimer.take(count).map(|claim| claim.item).collect()
    }

    #[test]
    fn modes_are_read_as_they_are_shown() {
        for mode in [Stealing::Off, Stealing::Neighbour, Stealing::Any, Stealing::Bulk(7)] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for wrong in ["bulk", "bulk(0)", "bulk(-1)", "bulk(1", "Any", ""] {
            assert!(wrong.parse::<Stealing>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn own_items_come_first_in_order_and_a_domain_shares_them() {
        let mut claimers = claims(&xeon_max(), Stealing::Off, &[2, 2, 0], &[2, 0, 2, 2, 2, 2]);
        assert_eq!(items(&mut claimers[2], 9), [1]);
        assert_eq!(items(&mut claimers[0], 1), [0]);
        assert_eq!([claimers[1].next_own(), claimers[1].next_own()].map(|it| it.unwrap().item), [4, 5]);
        assert!(claimers[1].next_own().is_none());
        assert_eq!(items(&mut claimers[1], 9), [3, 2]);
        assert!(claimers[0].next().is_none());
        assert_eq!(claimers[1].counts(), ClaimCounts { own: 4, ..ClaimCounts::default() });
    }

    #[test]
    fn each_mode_reaches_as_far_as_it_says() {
        let workers: Vec<usize> = (0..8).collect();
        let homes: Vec<usize> = (0..8).flat_map(|domain| [domain; 10]).collect();
        let counts = |stealing| {
            let mut first = claims(&xeon_max(), stealing, &workers, &homes).swap_remove(0);
            while first.next().is_some() {}
            first.counts()
        };
        let expected =
            |same_socket, other_socket, steals| ClaimCounts { own: 10, same_socket, other_socket, steals };
        assert_eq!(counts(Stealing::Off), expected(0, 0, 0));
        assert_eq!(counts(Stealing::Neighbour), expected(30, 0, 30));
        assert_eq!(counts(Stealing::Any), expected(30, 40, 70));
        assert_eq!(counts(Stealing::Bulk(4)), expected(30, 40, 7 * 3));
        assert_eq!(counts(Stealing::Bulk(0)), expected(30, 40, 70));
    }

    #[test]
    fn the_nearest_domain_is_robbed_first() {
        let mut claimers = claims(&xeon_max(), Stealing::Any, &[0, 1, 5], &[5, 1, 1]);
        let thief = &mut claimers[0];
        assert_eq!(thief.next().unwrap(), Claim { item: 2, distance: Distance::SameSocket });
        assert_eq!(thief.next().unwrap(), Claim { item: 1, distance: Distance::SameSocket });
        assert_eq!(thief.next().unwrap(), Claim { item: 0, distance: Distance::OtherSocket });
        assert_eq!(thief.next(), None);
    }

    #[test]
    fn stolen_items_that_have_not_begun_stay_for_others() {
        let mut claimers = claims(&xeon_max(), Stealing::Bulk(3), &[0, 0, 4], &[4; 8]);
        assert_eq!(items(&mut claimers[0], 1), [5]);
        claimers.remove(0);
        assert_eq!(items(&mut claimers[0], 2), [7, 6], "the thief's domain shares what it stole");
        assert_eq!(items(&mut claimers[1], 9), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn items_of_a_domain_without_workers_belong_to_the_nearest() {
        let mut claimers = claims(&xeon_max(), Stealing::Off, &[1, 6], &[0, 5, 7]);
        assert_eq!(items(&mut claimers[0], 9), [0]);
        assert_eq!(items(&mut claimers[1], 9), [1, 2]);
        assert_eq!(claimers[1].counts().same_socket, 2);
        assert_eq!(claims(&xeon_max(), Stealing::Off, &[], &[]).len(), 0);
    }

    proptest! {
        /// Workers take turns in any order, and some leave: no item is claimed twice, none is lost that somebody may claim.
        #[test]
        fn any_order_of_claims(
            workers in prop::collection::vec(0_usize..8, 1..6),
            homes in prop::collection::vec(0_usize..8, 0..60),
            stealing in prop_oneof![
                Just(Stealing::Off), Just(Stealing::Neighbour), Just(Stealing::Any), (1_u32..9).prop_map(Stealing::Bulk)
            ],
            turns in prop::collection::vec((0_usize..6, any::<bool>()), 0..80),
        ) {
            let mut claimers: Vec<Option<Claimer>> =
                claims(&xeon_max(), stealing, &workers, &homes).into_iter().map(Some).collect();
            let mut seen = BTreeSet::new();
            for (worker, leaves) in turns {
                let index = worker % claimers.len();
                if let Some(claim) = claimers[index].as_mut().and_then(Iterator::next) {
                    prop_assert!(seen.insert(claim.item));
                }
                if leaves && worker % 3 == 0 {
                    claimers[index] = None;
                }
            }
            for claim in claimers.iter_mut().flatten().flatten() {
                prop_assert!(seen.insert(claim.item));
            }
            let somebody_reaches_all = match stealing {
                Stealing::Any | Stealing::Bulk(_) => claimers.iter().any(Option::is_some),
                Stealing::Off | Stealing::Neighbour => claimers.iter().all(Option::is_some),
            };
            prop_assert!(!somebody_reaches_all || seen.len() == homes.len());
        }
    }

    #[test]
    fn threads_claim_each_item_once() {
        for stealing in [Stealing::Any, Stealing::Bulk(7)] {
            let workers: Vec<usize> = (0..8).map(|worker| worker / 2).collect();
            let homes = vec![0; 100_000];
            let claimers = claims(&xeon_max(), stealing, &workers, &homes);
            let threads: Vec<_> = claimers
                .into_iter()
                .map(|claimer| std::thread::spawn(|| claimer.map(|claim| claim.item).collect::<Vec<_>>()))
                .collect();
            let mut all: Vec<usize> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..homes.len()));
        }
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_claims {
    use loom::thread;
    use memferry::topology::Machine;

    use super::*;

    /// Two or three workers of different domains claim all; one of them leaves after `leaves_after` items.
    fn claimed_once(
        stealing: Stealing,
        workers: &'static [usize],
        homes: &'static [usize],
        leaves_after: usize,
    ) {
        let domains = Domains::of(&Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap();
        let mut model = loom::model::Builder::new();
        // Without a bound, three threads take more than five minutes.
        model.preemption_bound = Some(2);
        model.check(move || {
            let mut claimers = claims(&domains, stealing, workers, homes).into_iter();
            let leaver = claimers.next().unwrap();
            let leaver =
                thread::spawn(move || leaver.take(leaves_after).map(|claim| claim.item).collect::<Vec<_>>());
            let others: Vec<_> = claimers
                .map(|claimer| thread::spawn(|| claimer.map(|claim| claim.item).collect::<Vec<_>>()))
                .collect();
            let mut all = leaver.join().unwrap();
            all.extend(others.into_iter().flat_map(|thread| thread.join().unwrap()));
            all.sort_unstable();
            let before = all.len();
            all.dedup();
            assert_eq!(all.len(), before, "an item is claimed twice");
            if leaves_after > homes.len() {
                assert_eq!(all.len(), homes.len(), "an item is lost");
            }
        });
    }

    #[test]
    fn loom_claims_and_steals() {
        claimed_once(Stealing::Any, &[0, 1], &[0, 0, 1], 9);
    }

    #[test]
    fn loom_bulk_steals() {
        claimed_once(Stealing::Bulk(2), &[0, 1], &[0, 0, 0], 9);
    }

    #[test]
    fn loom_three_rob_each_other() {
        claimed_once(Stealing::Bulk(2), &[0, 1, 2], &[1, 1], 9);
    }

    #[test]
    fn loom_one_leaves() {
        claimed_once(Stealing::Bulk(2), &[0, 1], &[1, 1, 1], 1);
    }
}
