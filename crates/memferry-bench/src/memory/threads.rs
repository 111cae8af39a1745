//! Work on several CPUs at the same time, alone or in turns with that of a peer.

use std::sync::Barrier;
use std::time::Instant;
use std::{io, thread};

use memferry_dsa::internals::affinity::confine;

use crate::harness::Pairs;

/// The time of work on an idle machine: the minimum of the samples, since other programs make work only slower. Infinite
/// without samples.
///
/// Source: J. Chen, J. Revels, "Robust benchmarking in noisy environments" (2016), section 4.
pub fn undisturbed(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Runs `work` on each of `cpus` with one of `works`, `rounds` times; the threads start each round together. Returns the
/// seconds of each round from the first start to the last end.
///
/// # Errors
/// A thread that cannot be confined to its CPU. Panics if one cannot be started.
pub(crate) fn together<W: Send>(
    cpus: &[u32],
    works: &mut [W],
    rounds: usize,
    work: impl Fn(&mut W) + Sync,
) -> io::Result<Vec<f64>> {
    let barrier = Barrier::new(cpus.len().min(works.len()));
    let (barrier, work) = (&barrier, &work);
    let run = move |cpu: u32, mine: &mut W| {
        let pinned = confine(&[cpu]);
        let round = |_| {
            // Also for a thread that could not be pinned: the others wait at the barrier.
            barrier.wait();
            let begin = Instant::now();
            work(mine);
            (begin, Instant::now())
        };
        let rounds: Vec<(Instant, Instant)> = (0..rounds).map(round).collect();
        pinned.map(|()| rounds)
    };
    let of_threads: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let threads: Vec<_> =
            cpus.iter().zip(works).map(|(&cpu, mine)| scope.spawn(move || run(cpu, mine))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the work does not panic"))
            .collect::<io::Result<_>>()
    })?;
    let round = |index: usize| {
        let begin = of_threads.iter().map(|rounds| rounds[index].0).min();
        let end = of_threads.iter().map(|rounds| rounds[index].1).max();
        begin.zip(end).map(|(begin, end)| (end - begin).as_secs_f64())
    };
    Ok((0..rounds).filter_map(round).collect())
}

/// Runs `ours` and `peer` on each of `cpus` as [`together`] does, `rounds` times each; even pairs of rounds begin with ours, odd
/// pairs with the peer. The same threads run both, with the same works.
///
/// # Errors
/// As [`together`].
pub(crate) fn in_turns<W: Send>(
    cpus: &[u32],
    works: &mut [W],
    rounds: usize,
    ours: impl Fn(&mut W) + Sync,
    peer: impl Fn(&mut W) + Sync,
) -> io::Result<Pairs> {
    let mut turns: Vec<(usize, &mut W)> = works.iter_mut().map(|work| (0, work)).collect();
    let times = together(cpus, &mut turns, 2 * rounds, |(round, work)| {
        if is_ours(*round) {
            ours(work)
        } else {
            peer(work)
        }
        *round += 1;
    })?;
    let mut pairs = Pairs::default();
    for (round, time_s) in times.into_iter().enumerate() {
        if is_ours(round) { pairs.ours.push(time_s) } else { pairs.peer.push(time_s) }
    }
    Ok(pairs)
}

/// Whether a round is ours: A B B A ...
fn is_ours(round: usize) -> bool {
    (round / 2).is_multiple_of(2) == round.is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_take_is_left_out() {
        assert_eq!(undisturbed(&[3.0]), 3.0);
        assert_eq!(undisturbed(&[90.0, 3.0, 5.0]), 3.0);
    }

    #[test]
    fn ours_and_the_peer_take_turns() {
        let cpus = memferry::topology::Machine::discover().unwrap().nodes()[0].allowed_cpus.clone();
        let mut orders = vec![String::new(); cpus.len()];
        let slow = |order: &mut String| {
            order.push('B');
            thread::sleep(std::time::Duration::from_millis(5));
        };
        let pairs = in_turns(&cpus, &mut orders, 3, |order| order.push('A'), slow).unwrap();
        assert!(orders.iter().all(|order| order == "ABBAAB"), "{orders:?}");
        assert_eq!((pairs.ours.len(), pairs.peer.len()), (3, 3));
        assert!(pairs.peer.iter().all(|&time_s| time_s >= 0.005), "{pairs:?}");
    }

    #[test]
    fn everybody_works_in_every_round() {
        let cpus = memferry::topology::Machine::discover().unwrap().nodes()[0].allowed_cpus.clone();
        let mut counts = vec![0; cpus.len()];
        let times = together(&cpus, &mut counts, 3, |count| *count += 1).unwrap();
        assert_eq!(times.len(), 3);
        assert!(counts.iter().all(|&count| count == 3), "{counts:?}");
        let error = together(&[u32::MAX], &mut [()], 1, |()| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
