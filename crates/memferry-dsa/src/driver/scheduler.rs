//! Many requests at once: a backlog, slots in the queues, back-off, and the jobs that requests belong to.

mod feeding;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slab::Slab;

use super::in_flight::Loss;
use super::item::{BoxedItem, CpuWork, Faulted, Item};
use super::queues::{Queues, Written};
use super::slots::Slots;
use super::work_item::{Limits, Progress};
use super::{Event, Observer, OnCpu};
use crate::completion::Status;
use crate::portal::Portal;
use crate::request::{Ended, Task};
use crate::system::Version;
use crate::wait::AttendedTime;

/// The number of the next driver.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// The limits of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverOptions {
    /// Times in a row that all queues may refuse an item, with a pause after each that doubles from 2 us to 1 ms, before
    /// the CPU executes it.
    pub retries_max: u32,
    /// Page faults of an item after which it is submitted again.
    pub faults_max: u32,
    /// Members that a batch may have.
    pub batch_len_max: usize,
    /// Version of the devices, which decides about operations that are newer than 1.0.
    pub version: Version,
    /// How long a queue may make no progress before a descriptor counts as lost.
    pub completion_timeout: Duration,
}

/// Requests in progress on some queues: a state machine. Its owner provides a lock, a thread and the time.
///
/// `T` is a tag that the owner gets back with the result of a request. It may own the memory of the request: a driver that
/// is dropped leaks the tags if a device, a [`Faulted`] or a [`CpuWork`] has an item, and those of lost requests.
pub struct Driver<T> {
    /// No two drivers have the same.
    number: u64,
    queues: Arc<Queues>,
    options: DriverOptions,
    jobs: Slab<Job<T>>,
    /// Boxes for items, so that a request needs no allocation.
    boxes: Vec<BoxedItem>,
    /// Items that wait for a slot, first in, first out. The front may be most of a large copy: items are cut when there is
    /// a slot for them.
    backlog: VecDeque<BoxedItem>,
    /// By queue.
    slots: Vec<Slots>,
    /// The queue to try first: queues take turns.
    turn: usize,
    /// The most that every queue takes in one descriptor, so that an item can go to any of them.
    item_bytes_max: u32,
    /// The end of the pause after all queues refused an item.
    backoff_until: Option<Duration>,
    /// The age of descriptors is counted in this time.
    time: AttendedTime,
    for_cpu: Vec<CpuWork>,
    /// Items that the owner has, to touch a page or to execute them.
    handed_out_count: usize,
    finished: Vec<Finished<T>>,
    /// Empty; kept, so that a completion needs no allocation.
    completed: Vec<(BoxedItem, Progress)>,
}

/// A request with items in progress. It finishes with the last of them.
struct Job<T> {
    tag: T,
    items_count: usize,
    report: Report,
    end: Ended,
    failure: Option<Failure>,
}

/// The bytes of a request by executor.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Bytes that devices completed.
    pub device_bytes: u64,
    /// Bytes that the CPU executed.
    pub cpu_bytes: u64,
}

/// The failure of a request. The content of its target is unspecified.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Failure {
    /// A device failed. No device accesses the memory.
    Device(Status),
    /// A descriptor was lost. If it is [`Silent`](Loss::Silent), a device may access the memory at any later time.
    Lost(Loss),
}

/// A finished request.
#[derive(Debug)]
pub struct Finished<T> {
    /// The tag of [`Driver::enqueue`].
    pub tag: T,
    /// Its bytes by executor.
    pub report: Report,
    /// Its outcome.
    pub result: Result<Ended, Failure>,
}

impl<T> Driver<T> {
    /// A driver of these queues, in turns. A dedicated queue must have no other user.
    pub fn new(portals: impl IntoIterator<Item = Arc<dyn Portal>>, options: DriverOptions) -> Driver<T> {
        let queues = Arc::new(Queues::new(portals));
        let limits = queues.0.iter().map(|slotted| slotted.queue.portal().work_queue().transfer_bytes_max);
        let item_bytes_max = limits.min().map_or(1, |limit| limit.max(1));
        let slots = (0..queues.0.len()).map(|number| Slots::new(queues.clone(), number)).collect();
        // ORDERING: Relaxed: numbers only have to differ.
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Driver {
            number,
            queues,
            options,
            jobs: Slab::new(),
            boxes: Vec::new(),
            backlog: VecDeque::new(),
            slots,
            turn: 0,
            item_bytes_max,
            backoff_until: None,
            time: AttendedTime::default(),
            for_cpu: Vec::new(),
            handed_out_count: 0,
            finished: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// The queues, for the thread that polls them without a lock.
    pub fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    /// Whether no request is in progress.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.finished.is_empty()
    }

    /// Whether all queues are lost.
    pub fn all_lost(&self) -> bool {
        self.queues.0.iter().all(|slotted| slotted.queue.facts().is_lost())
    }

    /// The number of items that wait for a slot.
    pub fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// The time before which nothing is submitted, if all queues were full.
    pub fn backoff_until(&self) -> Option<Duration> {
        self.backoff_until
    }

    /// Accepts a request. `submitter` is a number of the thread: small requests of one thread meet in one queue.
    pub fn enqueue(&mut self, task: Task, submitter: usize, tag: T) {
        let job = Job { tag, items_count: 1, report: Report::default(), end: Ended::Done, failure: None };
        let job = u32::try_from(self.jobs.insert(job)).expect("fewer than 2^32 requests");
        let item = self.boxed(Item::new(task, job, submitter as u32));
        if item.is_empty_copy() {
            // A device completes a copy of no bytes with an error.
            return self.close(item);
        }
        self.backlog.push_back(item);
    }

    /// Completes a slot, if its record is written. Items that a page fault stopped go to `faulted`: touch them without the
    /// lock, then [`resume`](Self::resume).
    pub fn complete(&mut self, written: Written, faulted: &mut Vec<Faulted>, observer: &impl Observer) {
        let Some(slots) = self.slots.get_mut(written.queue) else { return };
        let mut completed = std::mem::take(&mut self.completed);
        let (limits, jobs) = (self.options.limits(), &mut self.jobs);
        slots.complete(written.slot, &limits, observer, |item, bytes, progress| {
            jobs[item.job as usize].report.device_bytes += bytes;
            completed.push((item, progress));
        });
        // From the back, so that what is submitted again keeps its order.
        while let Some((item, progress)) = completed.pop() {
            match progress {
                Progress::Ended(end) => {
                    self.jobs[item.job as usize].end = end;
                    self.close(item);
                }
                Progress::Submit => self.backlog.push_front(item),
                Progress::Fault(completion) => {
                    self.handed_out_count += 1;
                    faulted.push(Faulted { driver: self.number, item, completion });
                }
                Progress::Failed(completion) => {
                    self.jobs[item.job as usize].failure.get_or_insert(Failure::Device(completion.status));
                    self.close(item);
                }
            }
        }
        self.completed = completed;
    }

    /// Puts an item that a page fault stopped first in the backlog again.
    ///
    /// # Panics
    /// If it is of another driver.
    pub fn resume(&mut self, Faulted { driver, item, .. }: Faulted) {
        self.take_back(driver);
        match item.request.only_cpu() {
            Some(why) => self.for_cpu.push(CpuWork::new(self.number, item, why)),
            None => self.backlog.push_front(item),
        }
    }

    /// Gives up the descriptors that are lost, after `elapsed` since the last call. Completes those whose records are
    /// written by now, as [`complete`](Self::complete) does.
    ///
    /// [`Queues::ask`] before it finds devices that are gone.
    pub fn give_up(&mut self, elapsed: Duration, faulted: &mut Vec<Faulted>, observer: &impl Observer) {
        let time = self.time.advance(elapsed);
        let timeout = self.options.completion_timeout;
        for queue in 0..self.slots.len() {
            // First the fact, then the records, so that no completion from before the device was gone is missed.
            let was_gone = self.queues.0[queue].queue.facts().is_gone();
            let in_flight: Vec<usize> = self.slots[queue].in_flight().collect();
            for slot in in_flight {
                self.complete(Written { queue, slot }, faulted, observer);
                let mut lost = Vec::new();
                let note = |job, loss| lost.push((job, loss));
                self.slots[queue].give_up(slot, was_gone, (time, timeout), observer, note);
                for (job, loss) in lost {
                    self.jobs[job as usize].lose(loss);
                    self.end_item(job);
                }
            }
        }
    }

    /// Takes the items for the CPU. Execute them without the lock, then pass them to [`executed`](Self::executed).
    pub fn take_cpu_work(&mut self) -> Vec<CpuWork> {
        self.handed_out_count += self.for_cpu.len();
        std::mem::take(&mut self.for_cpu)
    }

    /// Takes back an item that the CPU has executed.
    ///
    /// # Panics
    /// If it is of another driver.
    pub fn executed(&mut self, mut work: CpuWork, observer: &impl Observer) {
        self.take_back(work.driver);
        let end = work.end();
        let CpuWork { item, why, size_bytes, .. } = work;
        observer.count(Event::OnCpu(why, size_bytes));
        let job = &mut self.jobs[item.job as usize];
        match end {
            Ok(end) => {
                job.report.cpu_bytes += size_bytes;
                job.end = end;
            }
            Err(completion) => {
                job.failure.get_or_insert(Failure::Device(completion.status));
            }
        }
        self.close(item);
    }

    /// Takes the requests that have finished since the last call.
    pub fn take_finished(&mut self) -> Vec<Finished<T>> {
        std::mem::take(&mut self.finished)
    }

    /// An item that was handed out comes back. One of another driver would end a request of this one too early.
    fn take_back(&mut self, driver: u64) {
        assert_eq!(driver, self.number, "an item comes back to its driver");
        self.handed_out_count -= 1;
    }

    fn boxed(&mut self, item: Item) -> BoxedItem {
        match self.boxes.pop() {
            Some(mut place) => {
                *place = item;
                place
            }
            None => Box::new(item),
        }
    }

    /// Frees an item that needs no more work.
    fn close(&mut self, item: BoxedItem) {
        let job = item.job;
        self.boxes.push(item);
        self.end_item(job);
    }

    fn end_item(&mut self, key: u32) {
        let job = &mut self.jobs[key as usize];
        job.items_count -= 1;
        if job.items_count > 0 {
            return;
        }
        let Job { tag, report, end, failure, .. } = self.jobs.remove(key as usize);
        self.finished.push(Finished { tag, report, result: failure.map_or(Ok(end), Err) });
    }
}

impl<T> Job<T> {
    /// An item is lost; a silent device hides every other failure.
    fn lose(&mut self, loss: Loss) {
        let before = match self.failure {
            Some(Failure::Lost(before)) => before,
            _ => loss,
        };
        self.failure = Some(Failure::Lost(loss.max(before)));
    }
}

impl DriverOptions {
    fn limits(&self) -> Limits {
        Limits { faults_max: self.faults_max, version: self.version }
    }
}

impl<T> Drop for Driver<T> {
    fn drop(&mut self) {
        let is_in_flight = self.slots.iter().filter(|slots| slots.leak()).count() > 0;
        let is_lost = |failure: Option<Failure>| matches!(failure, Some(Failure::Lost(_)));
        let has_lost = self.jobs.iter().any(|(_, job)| is_lost(job.failure));
        if is_in_flight || has_lost || self.handed_out_count > 0 {
            std::mem::forget(std::mem::take(&mut self.jobs));
        }
        let lost = self.finished.extract_if(.., |finished| is_lost(finished.result.err()));
        lost.for_each(std::mem::forget);
    }
}
