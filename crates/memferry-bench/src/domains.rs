//! Domains: claims of items, and spawned tasks beside tokio alone.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::harness::{Comparison, Pairs};
use memferry::topology::Machine;
use memferry_dsa::internals::affinity;
use memferry_schedule::{Binding, Domains, DomainsError, Scheduler, Stealing, claims};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

/// The amount of work of the benchmark.
#[derive(Copy, Clone, Debug)]
pub struct Size {
    /// Items of each worker, in a round.
    pub items_count: usize,
    /// Tasks of a round.
    pub tasks_count: usize,
    /// Rounds.
    pub rounds_count: usize,
}

impl Size {
    /// For tests: every line runs.
    pub const QUICK: Size = Size { items_count: 1 << 12, tasks_count: 1 << 12, rounds_count: 3 };
    /// For records.
    pub const FULL: Size = Size { items_count: 1 << 22, tasks_count: 1_000_000, rounds_count: 21 };
}

/// The domains of the benchmark: one for each CPU that this process may use.
///
/// # Errors
/// Those of [`Domains`].
pub fn one_for_each_cpu(machine: &Machine) -> Result<Domains, DomainsError> {
    let domains = Domains::of(machine)?;
    let first = domains.on(&[domains[0].cpu_node])?;
    let cpus = first[0].cpus.len();
    first.split(cpus)
}

/// Claims per second of the slowest worker, in each round. There is a worker in each domain, on the domain's CPUs, and each
/// has its own items: `Stealing::Any` looks for others at the end only.
///
/// # Errors
/// A thread cannot be confined to a CPU.
pub fn own_claims(domains: &Domains, size: Size) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let workers: Vec<usize> = (0..domains.len()).collect();
    let homes: Vec<usize> = workers.iter().flat_map(|&domain| vec![domain; size.items_count]).collect();
    (0..size.rounds_count)
        .map(|_| {
            let claimers = claims(domains, Stealing::Any, &workers, &homes);
            let together = Barrier::new(claimers.len());
            let rates: Result<Vec<f64>, std::io::Error> = thread::scope(|scope| {
                let threads: Vec<_> = claimers
                    .into_iter()
                    .map(|claimer| {
                        let (together, cpus) = (&together, &domains[claimer.domain()].cpus);
                        scope.spawn(move || {
                            let confined = affinity::confine(cpus);
                            together.wait();
                            confined?;
                            let begin = Instant::now();
                            let claimed = claimer.take(size.items_count).count();
                            Ok(claimed as f64 / begin.elapsed().as_secs_f64())
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("the worker does not panic")).collect()
            });
            Ok(rates?.into_iter().fold(f64::INFINITY, f64::min))
        })
        .collect()
}

/// Steals per second of one worker, which has no items of its own: all are those of a neighbour that sleeps.
pub fn steals(domains: &Domains, size: Size) -> Vec<f64> {
    let last = domains.len() - 1;
    (0..size.rounds_count)
        .map(|_| {
            let homes = vec![0; size.items_count];
            let thief = claims(domains, Stealing::Any, &[0, last], &homes).swap_remove(1);
            let begin = Instant::now();
            let stolen = thief.count();
            stolen as f64 / begin.elapsed().as_secs_f64()
        })
        .collect()
}

/// Nanoseconds of an empty task with a preferred domain, spawned and awaited, beside the same on a tokio runtime with as
/// many workers, which are not bound.
///
/// # Errors
/// The scheduler or the runtime cannot be started.
pub fn spawned_tasks(machine: &Machine, size: Size) -> Result<Comparison, Box<dyn std::error::Error>> {
    let domains = Domains::of(machine)?;
    let workers = domains[0].cpus.len();
    let scheduler = Scheduler::start(domains, Binding::Opportunistic)?;
    let tokio = Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let peer = tokio.handle().clone();
    let pairs = Pairs::measure(
        size.rounds_count,
        || ns_per_task(size, |future| scheduler.block_on(future), || scheduler.spawn(Some(0), async {})),
        || ns_per_task(size, |future| tokio.block_on(future), || peer.spawn(async {})),
    );
    Ok(Comparison::new("spawn_overhead", "ns", "a tokio runtime with as many workers", pairs))
}

/// Tasks that are spawned before the first is awaited.
const BATCH_TASKS: usize = 1000;

fn ns_per_task(
    size: Size,
    block_on: impl FnOnce(std::pin::Pin<&mut dyn Future<Output = ()>>),
    spawn: impl Fn() -> JoinHandle<()>,
) -> f64 {
    let begin = Instant::now();
    let all = async {
        let mut tasks = Vec::with_capacity(BATCH_TASKS);
        for first in (0..size.tasks_count).step_by(BATCH_TASKS) {
            tasks.extend((first..size.tasks_count.min(first + BATCH_TASKS)).map(|_| spawn()));
            for task in tasks.drain(..) {
                task.await.expect("an empty task does not panic");
            }
        }
    };
    block_on(std::pin::pin!(all));
    begin.elapsed().as_nanos() as f64 / size.tasks_count as f64
}
