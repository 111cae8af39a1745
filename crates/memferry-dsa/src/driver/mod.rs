//! The driver: everything between a request and the completions of its descriptors, without a thread and without a
//! clock.
//!
//! ```text
//!              WorkItem  one request in progress              Queue  facts that all submitters share
//!              ┌──────────────────────────────┐              ┌────────────────────────────────────┐
//! request ───▶ │ admits   does the queue fit? │ ◀─────────── │ lost, refused hints and batches    │
//!              │ next     its next descriptor │ ── submit ─▶ │ full, refused, gone: remembered    │
//!              │ complete what is left        │ ◀─ InFlight  │ descriptors submitted, completed   │
//!              │ touch, finish on the CPU     │              └────────────────────────────────────┘
//!              └──────────────────────────────┘
//!   pumped by    Client    on the calling thread, one item, blocking
//!                Driver    many items under one lock: enqueue, feed, complete, give_up
//! ```
//!
//! Each rule has one place:
//!
//! | rule | place |
//! |---|---|
//! | which queue may get an item, and why none | `WorkItem::admits` |
//! | hints that a queue lacks are left out; refused hints are remembered | `WorkItem::next`, `Facts` |
//! | full: bounded retries; refused: this descriptor; gone: the queue | `Queue::submit` |
//! | after a completion: done, next part, fault, another queue, failed | `WorkItem::complete` |
//! | too many page faults: the CPU | `WorkItem::complete` |
//! | members of a batch that a device skipped, refused or failed | `batch::Completed` |
//! | when a descriptor is lost | `InFlight::loss` |
//!
//! `Client` uses items and queues directly: its calls share only the facts of the queues, which are
//! atomics, and so no lock. A [`Driver`] adds a backlog, slots with completion records, and back-off for engines that
//! accept work now and complete it later. Its owner provides the lock, the thread and the time:
//!
//! ```text
//! submitting thread     lock; enqueue; feed; unlock
//! completing thread     Queues::poll, without the lock
//!                       lock; complete each; give_up now and then; feed; take_cpu_work, take_finished; unlock
//!                       touch pages, do the CPU's work, report, without the lock
//! ```
//!
//! The owner waits, and decides about memory that a lost device may still write: a call that borrowed it ends the process,
//! an owner leaks it.

#[allow(unsafe_code)]
pub(crate) mod batch;
mod event;
pub(crate) mod facts;
mod guideline;
pub(crate) mod in_flight;
#[allow(unsafe_code)]
mod item;
mod list;
#[allow(unsafe_code)]
pub(crate) mod queue;
mod queues;
mod scheduler;
#[allow(unsafe_code)]
mod slots;
mod traffic;
#[allow(unsafe_code)]
pub(crate) mod work_item;

pub use event::{Event, Observer};
pub use guideline::{BATCH_LEN_MAX, BATCH_LEN_MIN, BATCHED_BYTES_MAX, batch_len, depth, least_loaded};
pub use in_flight::Loss;
pub use item::{CpuWork, Faulted};
pub use list::{List, RecordLine};
pub use queues::{Queues, Written};
pub use scheduler::{Driver, DriverOptions, Failure, Finished, Report};

pub(crate) use crate::request::OnCpu;
