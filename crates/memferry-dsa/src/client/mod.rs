//! Calls: a client executes a request on the first queue that accepts it, or on the CPU, and returns its outcome.
//!
//! ```text
//! check the request                                Invalid
//! for each queue, from another one in each call:
//!   check its operations and limits                the request does not fit: next queue
//!   submit, with pauses while it is full           still full: next queue
//!   wait                                           completed, gone, silent
//!   page fault: touch the page, submit the rest    too many: CPU
//! no queue left                                    CPU, or an error if it may not be used
//! ```
//!
//! [`ClientStats`] counts all of this, and requests on the CPU by reason ([`OnCpu`](crate::OnCpu)).
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.8, 3.10 and 5.8.

#[allow(unsafe_code)]
mod batch;
#[allow(unsafe_code)]
mod call;
mod discover;
mod error;
#[allow(unsafe_code)]
mod owned;
mod stats;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use error::ClientError;
pub use owned::OwnedError;
pub use stats::ClientStats;
use waiting::Memory;

use crate::driver::queue::Queue;
use crate::driver::work_item::WorkItem;
use crate::operation::Opcode;
use crate::portal::{Backoff, Portal};
use crate::request::{Batch, Ended, Outcome, Outcomes, Request, Work};
use crate::system::Version;
use crate::wait::Wait;

/// The attended time at a submission: each wait counts its own.
const SUBMITTED: Duration = Duration::ZERO;

/// Executes requests, and returns when they are complete.
///
/// Any number of threads may call at once. Queues take turns.
///
/// ```
/// use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
/// use memferry_dsa::{Client, ClientOptions, Request};
///
/// let portal = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none())?.portal(0);
/// let client = Client::new(vec![portal], ClientOptions::default());
///
/// let (source, mut target) = ([7u8; 5000], [0u8; 5000]);
/// client.run(Request::copy(&source, &mut target))?;
/// assert_eq!(source, target);
/// assert_eq!(client.run(Request::crc(0, b"123456789"))?, 0xe306_9283);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Client {
    queues: Vec<Queue>,
    options: ClientOptions,
    next: AtomicUsize,
    stats: stats::Cells,
}

/// The options of a client.
///
/// ```
/// use memferry_dsa::{Client, ClientOptions, Wait};
///
/// let options = ClientOptions { wait: Wait::Block, faults_max: 4, ..ClientOptions::default() };
/// let (client, _) = Client::discover(options)?;
/// assert_eq!(client.options().faults_max, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The kind of waiting.
    pub wait: Wait,
    /// Pauses while a queue is full, before the next queue gets the request.
    pub backoff: Backoff,
    /// Page faults of a request after which its rest is submitted again; at the next one the CPU executes the rest.
    pub faults_max: u32,
    /// Whether the CPU executes requests that no device executes; otherwise they fail with [`ClientError::NoDevice`].
    pub may_use_cpu: bool,
    /// The time without progress after which the device of a queue counts as silent. Progress is a completion of one of this
    /// client's descriptors before the awaited one. A transfer of 2 GiB takes 0.1 s. Other processes may have as many
    /// descriptors in the device as the queue has entries, so the wait is longer by their largest transfers at 1 GB/s.
    /// Time during which this process was stopped does not count.
    ///
    /// If the memory is borrowed, a silent device ends the process ([`Client::run`]).
    pub timeout: Duration,
    /// The version of the devices, which limits the operations.
    pub version: Version,
}

impl Default for ClientOptions {
    /// UMWAIT; 14 pauses; 32 faults; the CPU may be used; 30 s; version 1.0.
    fn default() -> ClientOptions {
        ClientOptions {
            wait: Wait::Umwait(crate::instructions::SleepState::Light),
            backoff: Backoff::default(),
            faults_max: 32,
            may_use_cpu: true,
            timeout: Duration::from_secs(30),
            version: Version::V1_0,
        }
    }
}

impl Client {
    /// A client of these queues; without any, the CPU executes all requests.
    pub fn new(portals: Vec<Arc<dyn Portal>>, options: ClientOptions) -> Client {
        Client {
            queues: portals.into_iter().map(Queue::new).collect(),
            options,
            next: AtomicUsize::new(0),
            stats: stats::Cells::default(),
        }
    }

    /// Executes a request.
    ///
    /// Cost: one descriptor for each piece within the limit of the queue, and the wait for it.
    ///
    /// The request borrows its memory, so this neither returns nor unwinds while a device may access it. If a device is
    /// silent for [`ClientOptions::timeout`], and it is not known to be gone, this ends the process;
    /// [`run_owned`](Self::run_owned) leaks the memory instead.
    ///
    /// # Errors
    /// [`ClientError`]: the cause, and the state of the target.
    pub fn run<O: Outcome>(&self, request: Request<'_, O>) -> Result<O, ClientError> {
        self.counted(|| self.run_in(request, Memory::Borrowed))
    }

    /// Executes the members of a batch, as a batch of a device if a queue accepts it.
    ///
    /// Members that stopped at a page fault, and members that the device skipped, are submitted again in the order of the
    /// fences. Members may fail one by one, which [`Outcomes::get`] reports.
    ///
    /// # Errors
    /// As [`run`](Self::run). Some members may have completed.
    pub fn run_batch(&self, batch: Batch<'_>) -> Result<Outcomes, ClientError> {
        self.counted(|| self.run_batch_in(batch, Memory::Borrowed))
    }

    fn run_batch_in(&self, batch: Batch<'_>, memory: Memory) -> Result<Outcomes, ClientError> {
        batch.check().map_err(|(member, invalid)| ClientError::InvalidMember { member, invalid })?;
        let (id, members) = batch.into_members();
        let mut members: Vec<_> = members.map(batch::Member::new).collect();
        self.drive_batch(&mut members, memory)?;
        Ok(Outcomes::new(id, members.into_iter().map(batch::Member::into_end).collect()))
    }

    fn run_in<O: Outcome>(&self, request: Request<'_, O>, memory: Memory) -> Result<O, ClientError> {
        request.check()?;
        if request.descriptor.opcode() == Ok(Opcode::Drain) {
            for queue in 0..self.queues.len() {
                self.drain(queue, &request, memory)?;
            }
            return Ok(Ended::Done.outcome().expect("a drain yields nothing"));
        }
        let end = self.drive(&mut WorkItem::new(Work::new(&request)), memory)?;
        Ok(end.outcome().expect("an operation ends as its request's type says"))
    }

    fn counted<T>(&self, call: impl FnOnce() -> Result<T, ClientError>) -> Result<T, ClientError> {
        self.stats.calls.add(1);
        let result = call();
        self.stats.errors.add(result.is_err().into());
        result
    }

    /// The counters.
    pub fn stats(&self) -> ClientStats {
        self.stats.snapshot()
    }

    /// The portals, in the order of their queues.
    pub fn portals(&self) -> impl ExactSizeIterator<Item = &Arc<dyn Portal>> {
        self.queues.iter().map(Queue::shared_portal)
    }

    /// The options.
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// The numbers of the queues, from another one in each call.
    fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.queues.len();
        // ORDERING: Relaxed: threads with the same number only share a queue.
        let first = if count > 1 { self.next.fetch_add(1, Ordering::Relaxed) % count } else { 0 };
        (0..count).map(move |turn| (first + turn) % count)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.queues.iter().map(Queue::name).collect();
        f.debug_struct("Client").field("queues", &names).field("stats", &self.stats()).finish_non_exhaustive()
    }
}
