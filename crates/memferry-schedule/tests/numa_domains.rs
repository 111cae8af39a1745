//! Workers and thieves on a machine with several domains, as its kernel reports them thread by thread.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Barrier};

use memferry::topology::{Machine, NodeId};
use memferry_dsa::internals::affinity;
use memferry_schedule::{Binding, Claim, Distance, Domains, Scheduler, Stealing, claims};
use memferry_testing::{Needs, skip};
use numa_support::several_nodes;

/// Items at home in each domain.
const EACH: usize = 5;

/// The machine and its domains; `None`, said aloud, if there are fewer than two.
fn several_domains() -> Option<(Arc<Machine>, Domains)> {
    let (machine, _) = several_nodes()?;
    let domains = Domains::of(&machine).unwrap();
    if domains.len() < 2 {
        skip(Needs::Nodes, "fewer than two nodes have CPUs for this process; `cargo xtask numa` has more");
        return None;
    }
    Some((machine, domains))
}

/// The CPUs of each thread of this process, by name: from `/proc/self/task`, as the kernel's scheduler has them.
fn threads() -> BTreeMap<String, Vec<BTreeSet<u32>>> {
    let mut threads: BTreeMap<String, Vec<BTreeSet<u32>>> = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread of another test may have ended.
        let read = |file| fs::read_to_string(task.join(file)).unwrap_or_default();
        let (name, status) = (read("comm").trim().to_owned(), read("status"));
        let list =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        let range = |range: &str| -> Vec<u32> {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse().unwrap()..=last.parse().unwrap()).collect()
        };
        let cpus = list.trim().split(',').filter(|range| !range.is_empty()).flat_map(range).collect();
        threads.entry(name).or_default().push(cpus);
    }
    threads
}

#[test]
fn workers_are_on_the_cpus_of_their_domain_thread_by_thread() {
    let Some((machine, domains)) = several_domains() else { return };
    for binding in [Binding::Preferred, Binding::Opportunistic, Binding::Always] {
        let scheduler = Scheduler::start(domains.clone(), binding).unwrap();
        // A task on each worker: it keeps its thread until all threads of the domain have begun.
        let mut tasks = Vec::new();
        for (index, domain) in domains.iter().enumerate() {
            let all = Arc::new(Barrier::new(domain.cpus.len()));
            for _ in 0..domain.cpus.len() {
                let (all, machine, node) = (Arc::clone(&all), Arc::clone(&machine), domain.cpu_node);
                tasks.push(scheduler.spawn(Some(index), async move {
                    all.wait();
                    assert_eq!(machine.current_node(), Some(node), "{binding}");
                }));
            }
        }
        scheduler.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        let threads = threads();
        for (index, domain) in domains.iter().enumerate() {
            let cpus: BTreeSet<u32> = domain.cpus.iter().copied().collect();
            let mut workers = threads[&format!("domain-{index}")].clone();
            workers.sort();
            let expected: Vec<BTreeSet<u32>> = match binding {
                Binding::Always => cpus.iter().map(|&cpu| BTreeSet::from([cpu])).collect(),
                _ => vec![cpus.clone(); cpus.len()],
            };
            assert_eq!(workers, expected, "{binding}: the threads of domain {index}");
        }
        let free = threads.get("free").cloned().unwrap_or_default();
        let own: BTreeSet<u32> = affinity::allowed().unwrap().into_iter().collect();
        assert!(free.iter().all(|cpus| *cpus == own), "{binding}: {free:?}");
        assert_eq!(free.is_empty(), binding == Binding::Always);
    }
}

/// Tasks that yield and spawn while all CPUs are busy: the kernel never runs one elsewhere.
#[test]
fn bound_tasks_and_their_children_never_run_elsewhere() {
    let Some((machine, domains)) = several_domains() else { return };
    for binding in [Binding::Opportunistic, Binding::Always] {
        let scheduler = Scheduler::start(domains.clone(), binding).unwrap();
        let task = |index: usize| {
            let (scheduler, machine, node) =
                (scheduler.clone(), Arc::clone(&machine), domains[index].cpu_node);
            async move {
                let mut elsewhere = 0;
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                    let here = Arc::clone(&machine);
                    let child = scheduler.spawn_child(async move { here.current_node() });
                    let of_child = child.await.unwrap();
                    elsewhere +=
                        [machine.current_node(), of_child].iter().filter(|it| **it != Some(node)).count();
                }
                elsewhere
            }
        };
        let tasks: Vec<_> = (0..domains.len() * 8)
            .map(|it| it % domains.len())
            .map(|index| scheduler.spawn(Some(index), task(index)))
            .collect();
        scheduler.block_on(async {
            for task in tasks {
                assert_eq!(task.await.unwrap(), 0, "{binding}: a task ran beside its domain");
            }
        });
    }
}

/// One worker after the other is alone and takes what it may: its own items, then those of domains that are ever further away.
#[test]
fn what_is_stolen_comes_from_the_nearest_domain_first() {
    let Some((machine, domains)) = several_domains() else { return };
    let homes: Vec<usize> = (0..domains.len() * EACH).map(|item| item % domains.len()).collect();
    let workers: Vec<usize> = (0..domains.len()).collect();
    let node = |domain: usize| domains[domain].cpu_node;
    let acpi = |from: NodeId, to: NodeId| machine.link(from, to).distance.unwrap();
    let socket = |domain: usize| machine.node(node(domain)).unwrap().socket;
    for thief in 0..domains.len() {
        let neighbours = (0..domains.len()).filter(|&it| it != thief && socket(it) == socket(thief)).count();
        for (stealing, reach) in [
            (Stealing::Off, 1),
            (Stealing::Neighbour, 1 + neighbours),
            (Stealing::Any, domains.len()),
            (Stealing::Bulk(3), domains.len()),
        ] {
            let mut claimers = claims(&domains, stealing, &workers, &homes);
            let claimer = claimers.swap_remove(thief);
            let taken: Vec<Claim> = claimer.collect();
            assert_eq!(taken.len(), reach * EACH, "{stealing}, domain {thief}");
            let far: Vec<(Distance, u32)> =
                taken.iter().map(|it| (it.distance, acpi(node(thief), node(homes[it.item])))).collect();
            assert!(far.is_sorted(), "{stealing}, domain {thief}: {far:?}");
            for it in &taken {
                let home = homes[it.item];
                let expected = match home {
                    home if home == thief => Distance::Own,
                    home if socket(home) == socket(thief) => Distance::SameSocket,
                    _ => Distance::OtherSocket,
                };
                assert_eq!(it.distance, expected, "{stealing}: an item of domain {home} for domain {thief}");
            }
        }
    }
}
