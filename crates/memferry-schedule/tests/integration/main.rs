//! The scheduler on this machine: its domains, or one domain for each CPU.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use memferry::topology::{Machine, NodeId};
use memferry_dsa::internals::affinity;
use memferry_schedule::{Binding, Domains, Scheduler, StartError, Stealing, claims};
use tokio::sync::oneshot;

/// One domain for each CPU of the first node, at most four.
fn one_cpu_each() -> Domains {
    let domains = Domains::of(&Machine::discover().unwrap()).unwrap();
    let first = domains.on(&[domains[0].cpu_node]).unwrap();
    let cpus = first[0].cpus.len();
    let parts = first.split(cpus).unwrap();
    assert_eq!(parts.len(), cpus);
    parts
}

/// The CPUs that the kernel may run the task's thread on.
async fn allowed() -> Vec<u32> {
    affinity::allowed().unwrap()
}

#[test]
fn tasks_run_on_the_cpus_of_their_domain() {
    let domains = one_cpu_each();
    for binding in [Binding::Preferred, Binding::Opportunistic, Binding::Always] {
        let scheduler = Scheduler::start(domains.clone(), binding).unwrap();
        for _ in 0..20 {
            for (index, domain) in domains.iter().enumerate() {
                let here = scheduler.clone();
                let task =
                    scheduler.spawn(Some(index), async move { (allowed().await, here.current_domain()) });
                assert_eq!(
                    scheduler.block_on(task).unwrap(),
                    (domain.cpus.clone(), Some(index)),
                    "{binding:?}"
                );
            }
        }
        for metrics in scheduler.metrics() {
            assert_eq!((metrics.tasks_run, metrics.threads_unbound, metrics.workers), (20, 0, 1));
        }
    }
}

#[test]
fn a_worker_that_is_always_bound_has_one_cpu() {
    let domains = Domains::of(&Machine::discover().unwrap()).unwrap();
    let first = domains.on(&[domains[0].cpu_node]).unwrap();
    let cpus = first[0].cpus.clone();
    let one_each: Vec<Vec<u32>> = cpus.iter().map(|&cpu| vec![cpu]).collect();
    for (binding, wanted) in
        [(Binding::Opportunistic, vec![cpus.clone(); cpus.len()]), (Binding::Always, one_each)]
    {
        let scheduler = Scheduler::start(first.clone(), binding).unwrap();
        // Each task keeps its thread until all threads of the domain have begun.
        let all = Arc::new(Barrier::new(cpus.len()));
        let task = |all: Arc<Barrier>| async move {
            all.wait();
            allowed().await
        };
        let tasks: Vec<_> = cpus.iter().map(|_| scheduler.spawn(Some(0), task(Arc::clone(&all)))).collect();
        let mut found: Vec<_> = tasks.into_iter().map(|task| scheduler.block_on(task).unwrap()).collect();
        found.sort();
        assert_eq!(found, wanted, "{binding}");
    }
}

#[test]
fn tasks_that_wait_are_counted() {
    let scheduler = Scheduler::start(one_cpu_each(), Binding::Opportunistic).unwrap();
    let (started, has_started) = oneshot::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let busy = scheduler.spawn(Some(0), async move {
        started.send(()).unwrap();
        // Until the sender is dropped.
        let _ = held.recv();
    });
    scheduler.block_on(has_started).unwrap();
    let mut tasks: Vec<_> = (0..5).map(|_| scheduler.spawn(Some(0), async {})).collect();
    let counts = || {
        let of_first = &scheduler.metrics()[0];
        (of_first.tasks_run, of_first.tasks_alive, of_first.tasks_queued)
    };
    assert_eq!(counts(), (0, 6, 5));
    drop(release);
    tasks.push(busy);
    tasks.into_iter().for_each(|task| scheduler.block_on(task).unwrap());
    let (run, _, queued) = counts();
    assert_eq!((run, queued), (6, 0));
}

#[test]
fn without_binding_no_preference_counts() {
    let domains = one_cpu_each();
    let own = affinity::allowed().unwrap();
    let scheduler = Scheduler::start(domains.clone(), Binding::None).unwrap();
    for index in 0..domains.len() {
        assert_eq!(scheduler.block_on(scheduler.spawn(Some(index), allowed())).unwrap(), own);
    }
    assert!(scheduler.metrics().is_empty());
    assert_eq!(scheduler.free_metrics().unwrap().tasks_run, domains.len() as u64);
}

#[test]
fn children_inherit_by_binding() {
    let domains = one_cpu_each();
    let last = domains.len() - 1;
    for (binding, inherited) in
        [(Binding::Preferred, None), (Binding::Opportunistic, Some(last)), (Binding::Always, Some(last))]
    {
        let scheduler = Scheduler::start(domains.clone(), binding).unwrap();
        let here = scheduler.clone();
        let parent = async move {
            let child = {
                let here = here.clone();
                here.clone().spawn_child(async move { here.current_domain() })
            };
            let of_tokio = tokio::spawn(async move { here.current_domain() });
            (child.await.unwrap(), of_tokio.await.unwrap())
        };
        let domains_of_children = scheduler.block_on(scheduler.spawn(Some(last), parent)).unwrap();
        assert_eq!(domains_of_children, (inherited, Some(last)), "{binding:?}");
    }
}

#[test]
fn tasks_without_preference_take_turns_if_always_bound() {
    let domains = one_cpu_each();
    let scheduler = Scheduler::start(domains.clone(), Binding::Always).unwrap();
    let used: BTreeSet<_> = (0..domains.len())
        .map(|_| {
            let here = scheduler.clone();
            scheduler.block_on(scheduler.spawn(None, async move { here.current_domain() })).unwrap()
        })
        .collect();
    assert_eq!(used.len(), domains.len());
    assert!(scheduler.free_metrics().is_none());
}

/// A domain with one worker, whose task waits for tasks that it has spawned, three levels deep.
#[test]
fn tasks_that_wait_for_their_tasks_do_not_stop_a_domain_with_one_worker() {
    fn tree(scheduler: Scheduler, depth: u32) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>> {
        Box::pin(async move {
            if depth == 0 {
                return 1;
            }
            let children: Vec<_> =
                (0..8).map(|_| scheduler.spawn_child(tree(scheduler.clone(), depth - 1))).collect();
            let mut sum = 0;
            for child in children {
                sum += child.await.unwrap();
            }
            sum
        })
    }
    for binding in [Binding::None, Binding::Preferred, Binding::Opportunistic, Binding::Always] {
        let scheduler = Scheduler::start(one_cpu_each(), binding).unwrap();
        let root = scheduler.spawn(Some(0), tree(scheduler.clone(), 3));
        assert_eq!(scheduler.block_on(root).unwrap(), 512, "{binding:?}");
    }
}

#[test]
fn a_dropped_scheduler_cancels_its_tasks() {
    for inside_a_task in [false, true] {
        let scheduler = Scheduler::start(one_cpu_each(), Binding::Opportunistic).unwrap();
        let marker = Arc::new(());
        let held = Arc::clone(&marker);
        let (started, has_started) = oneshot::channel();
        let task = scheduler.spawn(Some(0), async move {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(held);
        });
        scheduler.block_on(has_started).unwrap();
        if inside_a_task {
            let other = Scheduler::start(one_cpu_each(), Binding::None).unwrap();
            other.block_on(other.spawn(None, async move { drop(scheduler) })).unwrap();
        } else {
            drop(scheduler);
        }
        let begin = Instant::now();
        while Arc::strong_count(&marker) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(30), "the task lives on");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(task);
    }
}

#[test]
fn a_panic_ends_its_task_alone() {
    let scheduler = Scheduler::start(one_cpu_each(), Binding::Always).unwrap();
    let task = scheduler.spawn(Some(0), async { panic!("on purpose") });
    assert!(scheduler.block_on(task).unwrap_err().is_panic());
    assert_eq!(scheduler.block_on(scheduler.spawn(Some(0), async { 7 })).unwrap(), 7);
}

#[test]
fn workers_claim_all_items_whatever_they_take() {
    let domains = one_cpu_each();
    let scheduler = Scheduler::start(domains.clone(), Binding::Opportunistic).unwrap();
    let workers: Vec<usize> = (0..domains.len()).collect();
    let claimers = claims(&domains, Stealing::Neighbour, &workers, &[0; 1000]);
    let tasks: Vec<_> = claimers
        .into_iter()
        .map(|mut claimer| {
            scheduler.spawn(Some(claimer.domain()), async move {
                let mut items = Vec::new();
                for claim in claimer.by_ref() {
                    items.push(claim.item);
                    tokio::task::yield_now().await;
                }
                (items, claimer.counts())
            })
        })
        .collect();
    let mut all = Vec::new();
    for (index, task) in tasks.into_iter().enumerate() {
        let (items, counts) = scheduler.block_on(task).unwrap();
        let (own, stolen) = if index == 0 { (items.len(), 0) } else { (0, items.len()) };
        assert_eq!((counts.own, counts.same_socket, counts.other_socket), (own as u64, stolen as u64, 0));
        all.extend(items);
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..1000));
}

#[test]
fn cpus_that_the_process_may_not_use_are_named() {
    // No machine of these tests has these CPUs.
    let profile = r#"{
        "name": "far", "references": {"made up": "for this test"},
        "cpu": {"value": "made up", "source": "made up"},
        "nodes": {
            "value": [{"id": 7, "socket": 0, "cpus": "1021-1022", "tier": "dram", "memory_mib": 1024, "cpu_node": 7}],
            "source": "made up"
        },
        "distances": {"value": [[10]], "source": "made up"},
        "read_mb_per_s": null, "write_mb_per_s": null, "read_latency_ns": null, "write_latency_ns": null,
        "accelerators": null, "facts": []
    }"#;
    let far = Domains::of(&Machine::from_profile_text("far", profile).unwrap()).unwrap();
    let Err(StartError::Cpus { node, .. }) = Scheduler::start(far.clone(), Binding::Always) else {
        panic!("an error")
    };
    assert_eq!(node, NodeId(7));
    // Free workers need no such CPUs.
    assert!(Scheduler::start(far, Binding::None).is_ok());
}
