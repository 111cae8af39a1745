//! Queries on domains: their partitions run on the CPUs beside the rows, and claim row groups.
//!
//! ```text
//! binding         plan                                                where
//! none            as DataFusion made it                               the caller's runtime
//! preferred       ... ─▶ DomainExec ─▶ scan                           scans on domains, the rest on the caller's runtime
//! opportunistic   exchange ─▶ DomainExec ─▶ operators ─▶ scan         all from a scan to the next exchange on one domain
//! always          as opportunistic, and DomainExec over the plan      the same, each worker on one CPU
//! ```
//!
//! An *exchange* is a `RepartitionExec`, `CoalescePartitionsExec` or `SortPreservingMergeExec`; a `UnionExec` counts as one.
//! Filters and partial aggregates run below it, so rows are often few there, but a partitioned join exchanges its inputs
//! whole. With `opportunistic` a plan without an exchange above a scan has a `DomainExec` at its root. Parts of one partition
//! that read exchanges alone, such as the end of an aggregation, take the domains in turns.
//!
//! A `RepartitionExec` starts its tasks, which hash the rows, at the first poll of any of its outputs, on the runtime of that
//! poll. Scans of tables in memory claim row groups (`scan::claims`).

mod exec;
mod rule;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use memferry_schedule::{Binding, Domains, Scheduler, StartError};

pub use self::exec::DomainExec;
pub(crate) use self::rule::PlaceOnDomains;

/// The domains of a session, and their workers. Sessions may share them.
///
/// Workers start with the first query of a binding, and end with the last plan and the last reference to this.
#[derive(Debug)]
pub struct QueryDomains {
    domains: Domains,
    started: Mutex<Vec<Scheduler>>,
    /// Parts of plans that took a domain in turn.
    turns: AtomicUsize,
}

impl QueryDomains {
    /// Starts nothing yet.
    pub fn new(domains: Domains) -> Arc<Self> {
        Arc::new(Self { domains, started: Mutex::default(), turns: AtomicUsize::new(0) })
    }

    /// The domains.
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// The workers with `binding`, started by the first call.
    ///
    /// # Errors
    /// Those of [`Scheduler::start`].
    pub fn scheduler(&self, binding: Binding) -> Result<Scheduler, StartError> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scheduler) = started.iter().find(|scheduler| scheduler.binding() == binding) {
            return Ok(scheduler.clone());
        }
        let scheduler = Scheduler::start(self.domains.clone(), binding)?;
        started.push(scheduler.clone());
        Ok(scheduler)
    }
}
