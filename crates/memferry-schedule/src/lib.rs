//! Work on NUMA domains: tasks that run on the CPUs beside their data, and items that workers claim and steal.
//!
//! A *domain* is a set of CPUs with their nearest memory: a NUMA node with CPUs, or a part of one. [`Domains`] lists those
//! of a machine. A [`Scheduler`] runs tasks on them, by a [`Binding`]. [`claims`] deals items, for example row groups, to
//! workers, which steal from each other by a [`Stealing`].
//!
//! ```
//! use memferry::topology::Machine;
//! use memferry_schedule::{Binding, Domains, Scheduler, Stealing, claims};
//!
//! let domains = Domains::of(&Machine::discover()?)?;
//! let scheduler = Scheduler::start(domains.clone(), Binding::Opportunistic)?;
//!
//! // One worker for each domain, and 100 items, each at home in a domain.
//! let workers: Vec<usize> = (0..domains.len()).collect();
//! let homes: Vec<usize> = (0..100).map(|item| item % domains.len()).collect();
//! let claimers = claims(&domains, Stealing::Any, &workers, &homes);
//!
//! let tasks: Vec<_> = claimers
//!     .into_iter()
//!     .map(|claimer| scheduler.spawn(Some(claimer.domain()), async move { claimer.map(|claim| claim.item).sum::<usize>() }))
//!     .collect();
//! let sum = scheduler.block_on(async {
//!     let mut sum = 0;
//!     for task in tasks {
//!         sum += task.await.expect("the task does not panic");
//!     }
//!     sum
//! });
//! assert_eq!(sum, 4950);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Terms of SAP HANA's scheduler
//!
//! The thesis of H. Greinsmark (2020, section 2.6) describes that scheduler. Its terms, and ours:
//!
//! | there | here |
//! |---|---|
//! | NUMA domain, sub-domain | a domain: an index into [`Domains`] |
//! | task queue of a domain | the queues of a domain's tokio runtime, which balances inside the domain |
//! | worker thread | a worker of that runtime |
//! | preferred domain of a task | `preferred` of [`Scheduler::spawn`] |
//! | child of a task | [`Scheduler::spawn_child`]; what a task spawns with `tokio::spawn` is a child too |
//! | no, preferred, opportunistic binding, bind always | [`Binding`]. Opportunistic: all descendants, not the direct children alone |
//! | stealing off, between neighbours, across any domain, bulk stealing | [`Stealing`], of claimed items. A task that has begun stays |
//! | close neighbour | [`Distance::SameSocket`] |
//!
//! There the stolen unit is a task. Here it is an item that no worker has claimed: a task on a domain claims the next
//! item when it is ready for it, so nothing that has begun moves, and the state of a worker stays where it is.
#![deny(unsafe_code)]

mod claims;
mod domains;
mod scheduler;
mod sync;

pub use claims::{Claim, ClaimCounts, Claimer, Stealing, claims};
pub use domains::{Distance, Domains, DomainsError};
pub use memferry::internals::Domain;
pub use scheduler::{Binding, DomainMetrics, Scheduler, StartError};
