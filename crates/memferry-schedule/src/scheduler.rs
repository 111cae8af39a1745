//! Tasks on domains: one tokio runtime for each domain, with its workers bound to the domain's CPUs.
//!
//! tokio balances tasks inside a runtime, so inside a domain; between domains no task moves. What a task spawns with
//! `tokio::spawn` stays on its runtime, as the tasks do that DataFusion's operators spawn.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memferry_dsa::internals::affinity;
use thiserror::Error;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use super::domains::Domains;

/// Where tasks run. From SAP HANA's policies, see the terms of the [crate](crate).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Binding {
    /// All tasks on workers that the kernel moves freely. Preferences are ignored.
    #[default]
    None,
    /// A task with a preferred domain runs on that domain's CPUs. Other tasks, children too, run on free workers.
    Preferred,
    /// As `Preferred`, and children run on the domain of the task that spawns them.
    Opportunistic,
    /// As `Opportunistic`, each worker stays on one CPU, and there are no free workers: tasks without a preference go to
    /// the domains in turns.
    Always,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Preferred => "preferred",
            Self::Opportunistic => "opportunistic",
            Self::Always => "always",
        })
    }
}

impl FromStr for Binding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "preferred" => Ok(Self::Preferred),
            "opportunistic" => Ok(Self::Opportunistic),
            "always" => Ok(Self::Always),
            other => Err(format!("'{other}' is not a binding; use none, preferred, opportunistic or always")),
        }
    }
}

/// Runs tasks on domains. Its clones share the workers.
///
/// When the last clone is dropped, tasks are cancelled at their next `await`. Dropping does not wait for them.
#[derive(Clone, Debug)]
pub struct Scheduler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    domains: Domains,
    binding: Binding,
    /// Of free workers; `None` with [`Binding::Always`].
    free: Option<Pool>,
    /// For each domain its bound workers; none with [`Binding::None`].
    bound: Vec<Pool>,
    /// The next domain of a task without a preference. Relaxed: any order of turns will do.
    turn: AtomicUsize,
}

/// A runtime and the reports of its threads.
#[derive(Debug)]
struct Pool {
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    reports: Arc<Reports>,
}

/// Figures that the threads of a runtime keep for the scheduler.
#[derive(Debug, Default)]
struct Reports {
    /// The index of the domain; `None` for free workers.
    domain: Option<usize>,
    /// Of each thread, the tasks that have run. Each is written by its thread alone, Relaxed: they are counts.
    tasks_run: Mutex<Vec<Arc<AtomicU64>>>,
    /// Threads that could not be bound. Relaxed: a count.
    threads_unbound: AtomicU64,
}

thread_local! {
    /// The runtime of this thread, and its count of tasks.
    static WORKER: RefCell<Option<(Arc<Reports>, Arc<AtomicU64>)>> = const { RefCell::new(None) };
}

impl Scheduler {
    /// Starts a worker for each CPU of `domains`, and as many free workers unless `binding` has none, or bound ones.
    ///
    /// # Errors
    /// [`StartError`], if a domain's CPUs are not for this process, or threads cannot be started.
    pub fn start(domains: Domains, binding: Binding) -> Result<Scheduler, StartError> {
        for domain in domains.iter().filter(|_| binding != Binding::None) {
            check_confining(&domain.cpus).map_err(|error| StartError::Cpus {
                node: domain.cpu_node,
                cpus: domain.cpus.clone(),
                error,
            })?;
        }
        let all: Vec<u32> = domains.iter().flat_map(|domain| domain.cpus.clone()).collect();
        let free = match binding {
            Binding::Always => None,
            _ => Some(Pool::start(None, all, false)?),
        };
        let bound: Result<_, _> = match binding {
            Binding::None => Ok(Vec::new()),
            _ => (domains.iter().enumerate())
                .map(|(index, domain)| {
                    Pool::start(Some(index), domain.cpus.clone(), binding == Binding::Always)
                })
                .collect(),
        };
        Ok(Scheduler(Arc::new(Inner { domains, binding, free, bound: bound?, turn: AtomicUsize::new(0) })))
    }

    /// The domains of the workers.
    pub fn domains(&self) -> &Domains {
        &self.0.domains
    }

    /// Where tasks run.
    pub fn binding(&self) -> Binding {
        self.0.binding
    }

    /// Runs `future` as a task, on the domain `preferred` if there is one and the binding allows it.
    ///
    /// Dropping the handle does not cancel the task; its `abort` does. Panics if the domain is not below the length of
    /// [`domains`](Self::domains).
    pub fn spawn<F>(&self, preferred: Option<usize>, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.pool(preferred).runtime().spawn(async {
            let output = future.await;
            WORKER.with_borrow(|worker| {
                if let Some((_, tasks_run)) = worker {
                    // ORDERING: Relaxed, and no read-modify-write: a count that this thread alone writes.
                    tasks_run.store(tasks_run.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                }
            });
            output
        })
    }

    /// As [`spawn`](Self::spawn), as a child of the task that calls: on its domain with [`Binding::Opportunistic`] and
    /// [`Binding::Always`], otherwise without a preference.
    pub fn spawn_child<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let inherits = matches!(self.0.binding, Binding::Opportunistic | Binding::Always);
        self.spawn(self.current_domain().filter(|_| inherits), future)
    }

    /// The handle of the runtime on which [`spawn`](Self::spawn) would run the next task, for code that takes a handle.
    pub fn handle(&self, preferred: Option<usize>) -> &Handle {
        self.pool(preferred).runtime().handle()
    }

    /// The domain on whose worker the caller runs; `None` on a free worker and on any other thread.
    pub fn current_domain(&self) -> Option<usize> {
        WORKER.with_borrow(|worker| {
            let (reports, _) = worker.as_ref()?;
            let is_own = |pool: &&Pool| Arc::ptr_eq(&pool.reports, reports);
            self.0.bound.iter().find(is_own)?.reports.domain
        })
    }

    /// Waits on the calling thread, which is no worker, until `future` has run.
    ///
    /// Panics on a worker, as tokio's `block_on` does.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let pool = self.0.free.as_ref().unwrap_or_else(|| &self.0.bound[0]);
        pool.runtime().block_on(future)
    }

    /// Figures of each domain, in their order; none with [`Binding::None`].
    pub fn metrics(&self) -> Vec<DomainMetrics> {
        self.0.bound.iter().map(Pool::metrics).collect()
    }

    /// Figures of the free workers; `None` with [`Binding::Always`].
    pub fn free_metrics(&self) -> Option<DomainMetrics> {
        self.0.free.as_ref().map(Pool::metrics)
    }

    fn pool(&self, preferred: Option<usize>) -> &Pool {
        let Inner { domains, free, bound, turn, .. } = &*self.0;
        if let Some(domain) = preferred {
            assert!(domain < domains.len(), "domain {domain} does not exist; there are {}", domains.len());
        }
        match (preferred.and_then(|domain| bound.get(domain)), free) {
            (Some(pool), _) | (None, Some(pool)) => pool,
            (None, None) => &bound[turn.fetch_add(1, Ordering::Relaxed) % bound.len()],
        }
    }
}

impl Pool {
    /// Workers for `cpus`: free ones, ones that stay on these CPUs, or each on one of them.
    fn start(domain: Option<usize>, cpus: Vec<u32>, one_cpu_each: bool) -> Result<Pool, StartError> {
        let reports = Arc::new(Reports { domain, ..Reports::default() });
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cpus.len()).enable_all();
        builder.thread_name(domain.map_or("free".into(), |index| format!("domain-{index}")));
        let (threads, of_threads) = (AtomicUsize::new(0), Arc::clone(&reports));
        builder.on_thread_start(move || {
            let number = threads.fetch_add(1, Ordering::Relaxed);
            let own_cpu = number % cpus.len();
            let own_cpus = if one_cpu_each { &cpus[own_cpu..=own_cpu] } else { &cpus[..] };
            if of_threads.domain.is_some() && affinity::confine(own_cpus).is_err() {
                of_threads.threads_unbound.fetch_add(1, Ordering::Relaxed);
            }
            let tasks_run = Arc::new(AtomicU64::new(0));
            of_threads.tasks_run.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&tasks_run));
            WORKER.set(Some((Arc::clone(&of_threads), tasks_run)));
        });
        let runtime = builder.build().map_err(StartError::Threads)?;
        Ok(Pool { runtime: Some(runtime), reports })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("taken by drop alone")
    }

    fn metrics(&self) -> DomainMetrics {
        let runtime = self.runtime().metrics();
        let tasks_run = self.reports.tasks_run.lock().unwrap_or_else(PoisonError::into_inner);
        DomainMetrics {
            workers: runtime.num_workers(),
            threads_unbound: self.reports.threads_unbound.load(Ordering::Relaxed),
            tasks_run: tasks_run.iter().map(|count| count.load(Ordering::Relaxed)).sum(),
            tasks_alive: runtime.num_alive_tasks(),
            tasks_queued: runtime.global_queue_depth(),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A runtime that is dropped waits, which a task of another runtime must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether a thread of this process may be confined to `cpus`.
fn check_confining(cpus: &[u32]) -> io::Result<()> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| affinity::confine(cpus))
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Figures of the workers of one domain, or of the free ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainMetrics {
    /// Worker threads.
    pub workers: usize,
    /// Threads that the kernel did not let be bound, for example because the cpuset has changed.
    pub threads_unbound: u64,
    /// Tasks of [`Scheduler::spawn`] that have run to their end.
    pub tasks_run: u64,
    /// Tasks that have been spawned, by anybody, and have not ended.
    pub tasks_alive: usize,
    /// Tasks that wait for a worker in the domain's common queue. Those in the queues of single workers are not counted.
    pub tasks_queued: usize,
}

/// Workers that could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The CPUs of a domain are not, or no longer, for this process.
    #[error(
        "a thread cannot be confined to the CPUs {cpus:?} of node {node} ({error}); discover the machine again, or widen the cpuset or affinity"
    )]
    Cpus {
        /// The node.
        node: memferry::topology::NodeId,
        /// The CPUs.
        cpus: Vec<u32>,
        /// The kernel's error.
        error: io::Error,
    },
    /// The threads of a runtime.
    #[error(
        "the threads of a domain cannot be started ({0}); raise the limit of threads (`ulimit -u`, pids.max)"
    )]
    Threads(io::Error),
}
