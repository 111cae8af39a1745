//! A load on an emulated device in virtual time: exact and without noise.
//!
//! The submitters are part of the simulation. A submission occupies its submitter as long as the instruction would;
//! polling a record costs nothing. There is no memory: the device's reads are answered, its writes are dropped.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::internals::software::ENTRY_BYTES;
use memferry_dsa::{Address, Completion, Descriptor, Flags, QueueMode, Status, Submission};
use memferry_dsa_emulator::{Access, Deterministic, DeviceConfig, FaultPlan, Memory, Stepped, Vanished};

use super::work::{BYTE, PROTECTED_BYTES, Regions, delta_entry, protected_block};
use super::{Load, LoadError, LoadOperation, PageState, SubmitterTimes};

/// Time of the submitting core to touch an absent page. Assumed: the order of a minor fault that clears 4 KiB. The
/// device's timing has the cost of a page that the device requests.
pub const TOUCH_NS: u64 = 700;

// The parts of the address space, each large enough for all submissions.
const RECORDS: u64 = 1 << 32;
const MEMBER_RECORDS: u64 = 1 << 33;
const LISTS: u64 = 1 << 34;
const SOURCES: u64 = 1 << 40;
/// Sources of blocks with data integrity fields.
const PROTECTED: u64 = 1 << 50;
const TARGETS: u64 = 1 << 60;
const EXTRAS: u64 = 1 << 61;

/// Size of the longest batch list.
const LIST_BYTES: u64 = 1024 * 64;

/// Runs loads on a device at the same time, each as a submitter of the queue with this number.
///
/// # Errors
/// [`LoadError`], also for a device without a timing.
pub fn emulated(config: &DeviceConfig, loads: &[(usize, Load)]) -> Result<Vec<SubmitterTimes>, LoadError> {
    let timing = config.timing.ok_or_else(|| LoadError::Load("the device has no timing".to_owned()))?;
    let queues: Vec<_> = config.queues().collect();
    let mut submitters: Vec<Submitter> = Vec::with_capacity(loads.len());
    let mut lists = Vec::new();
    let mut owners = Vec::new();
    for &(queue, load) in loads {
        load.check()?;
        let Some(info) = queues.get(queue) else {
            return Err(LoadError::Load(format!("the device has no queue {queue}")));
        };
        let is_shared = info.mode == QueueMode::Shared;
        if !is_shared
            && (load.depth > info.size as usize || loads.iter().filter(|it| it.0 == queue).count() > 1)
        {
            let what =
                "a dedicated queue has one submitter, with at most as many submissions in flight as entries";
            return Err(LoadError::Load(what.to_owned()));
        }
        let submit_ns = if is_shared { timing.submit_shared_ns } else { timing.submit_dedicated_ns };
        let first_slot = owners.len();
        owners.extend((0..load.depth).map(|_| submitters.len()));
        lists.extend((0..load.depth).map(|_| list(&load)));
        submitters.push(Submitter {
            load,
            queue,
            submit_ns,
            ready_ns: 0,
            submitted_count: 0,
            completed_count: 0,
            todo: VecDeque::new(),
            free: (first_slot..first_slot + load.depth).rev().collect(),
            last_completion_ns: 0,
            submitting_ns: 0,
        });
    }
    let absent = loads.iter().any(|(_, load)| load.pages != PageState::Touched).then(HashSet::new);
    let memory = NoMemory { lists, completions: RefCell::default(), present: RefCell::new(absent) };
    let mut run = Deterministic::new(config, FaultPlan::none(), memory)?;
    let mut descriptors = vec![Descriptor::noop(); owners.len()];
    loop {
        let now_ns = run.device.now_ns();
        for (slot, completion) in run.memory.completions.take() {
            submitters[owners[slot]].complete(slot, completion, &mut descriptors, &run.memory, now_ns)?;
        }
        for submitter in &mut submitters {
            while submitter.ready_ns <= now_ns && submitter.submit(&run, &mut descriptors)? {}
        }
        if submitters.iter().all(Submitter::is_done) {
            break;
        }
        let next_ns = submitters.iter().filter(|it| it.has_work()).map(|it| it.ready_ns.max(now_ns)).min();
        let stepped = match next_ns {
            Some(ns) => run.device.step_until(ns, &run.memory),
            None => run.step(),
        };
        if stepped == Stepped::Idle
            && next_ns.is_none_or(|ns| ns <= now_ns)
            && run.memory.completions.borrow().is_empty()
        {
            return Err(LoadError::Silent);
        }
    }
    let seen = |it: &Submitter| SubmitterTimes {
        elapsed_ns: it.last_completion_ns as f64,
        submitting_ns: Some(it.submitting_ns as f64),
        ..SubmitterTimes::default()
    };
    Ok(submitters.iter().map(seen).collect())
}

/// The members of a batch as bytes.
fn list(load: &Load) -> Vec<u8> {
    let at = regions(load.work, Address(TARGETS));
    let mut member = load.work.descriptor(at, load.size_bytes);
    if load.work.has_result() {
        member = member.with_completion_at(Address(MEMBER_RECORDS));
    }
    (0..load.batch).flat_map(|_| member.to_bytes()).collect()
}

fn regions(work: LoadOperation, target: Address) -> Regions {
    let source = Address(if work.reads_fields() { PROTECTED } else { SOURCES });
    Regions { source, target, extra: Address(EXTRAS) }
}

struct Submitter {
    load: Load,
    queue: usize,
    submit_ns: u64,
    /// Its core is free from this time on.
    ready_ns: u64,
    submitted_count: usize,
    completed_count: usize,
    /// Slots whose descriptor is still to be submitted: rejected ones, and the rest after a page fault.
    todo: VecDeque<usize>,
    free: Vec<usize>,
    last_completion_ns: u64,
    submitting_ns: u64,
}

impl Submitter {
    fn is_done(&self) -> bool {
        self.completed_count == self.load.repetitions
    }

    fn has_work(&self) -> bool {
        !self.todo.is_empty() || (self.submitted_count < self.load.repetitions && !self.free.is_empty())
    }

    /// Submits the next descriptor; false if there is none.
    fn submit(
        &mut self,
        run: &Deterministic<NoMemory>,
        descriptors: &mut [Descriptor],
    ) -> Result<bool, LoadError> {
        if self.todo.is_empty()
            && self.submitted_count < self.load.repetitions
            && let Some(slot) = self.free.pop()
        {
            descriptors[slot] = self.descriptor(slot);
            self.submitted_count += 1;
            self.todo.push_back(slot);
        }
        let Some(&slot) = self.todo.front() else { return Ok(false) };
        if run.device.submit(self.queue, &descriptors[slot], 1)? == Submission::Accepted {
            self.todo.pop_front();
        }
        self.ready_ns = run.device.now_ns() + self.submit_ns;
        self.submitting_ns += self.submit_ns;
        Ok(true)
    }

    fn descriptor(&self, slot: usize) -> Descriptor {
        let Load { work, size_bytes, batch, pages, .. } = self.load;
        // With absent pages each submission has a separate target.
        let step = u64::from(size_bytes).next_multiple_of(PAGE_BYTES);
        let turn = if pages == PageState::Touched { 0 } else { self.submitted_count as u64 };
        let descriptor = match batch {
            1 => {
                let target = Address(TARGETS).offset((turn * self.load.depth as u64 + slot as u64) * step);
                work.descriptor(regions(work, target), size_bytes)
            }
            _ => Descriptor::batch(Address(LISTS + slot as u64 * LIST_BYTES), batch),
        };
        let flags = if pages == PageState::AbsentBlock { Flags::BLOCK_ON_FAULT } else { Flags::NONE };
        descriptor.with_flags(flags).with_completion_at(Address(RECORDS + slot as u64 * 64))
    }

    /// Handles a completion.
    fn complete(
        &mut self,
        slot: usize,
        completion: Completion,
        descriptors: &mut [Descriptor],
        memory: &NoMemory,
        now_ns: u64,
    ) -> Result<(), LoadError> {
        let seen_ns = now_ns.max(self.ready_ns);
        match completion.status {
            Status::Success => {
                self.completed_count += 1;
                self.last_completion_ns = self.last_completion_ns.max(seen_ns);
                self.free.push(slot);
                Ok(())
            }
            Status::PageFault if self.load.pages == PageState::AbsentResume => {
                memory.request_page(completion.fault_address, Access::Write);
                self.ready_ns = seen_ns + TOUCH_NS;
                let rest = descriptors[slot].resumed(&completion);
                descriptors[slot] = rest.ok_or(LoadError::Status(completion.status))?;
                self.todo.push_back(slot);
                Ok(())
            }
            status => Err(LoadError::Status(status)),
        }
    }
}

/// Memory without content.
struct NoMemory {
    /// Lists of batches, by slot.
    lists: Vec<Vec<u8>>,
    /// New completions, by slot.
    completions: RefCell<Vec<(usize, Completion)>>,
    /// Pages of targets that are present; `None`: all.
    present: RefCell<Option<HashSet<u64>>>,
}

impl Memory for NoMemory {
    fn is_present(&self, page: Address, access: Access) -> bool {
        let is_target = access == Access::Write && (TARGETS..EXTRAS).contains(&page.0);
        !is_target || self.present.borrow().as_ref().is_none_or(|present| present.contains(&page.0))
    }

    fn request_page(&self, page: Address, _access: Access) -> bool {
        if let Some(present) = &mut *self.present.borrow_mut() {
            present.insert(page.0);
        }
        true
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        match address.0.checked_sub(LISTS) {
            Some(offset) if address.0 < SOURCES => {
                let (slot, begin) = ((offset / LIST_BYTES) as usize, (offset % LIST_BYTES) as usize);
                bytes.copy_from_slice(&self.lists[slot][begin..begin + bytes.len()]);
            }
            _ if (PROTECTED..TARGETS).contains(&address.0) => {
                repeat(&protected_block(), address.0 - PROTECTED, bytes);
            }
            _ if address.0 >= EXTRAS => {
                for (at, byte) in (address.0 - EXTRAS..).zip(bytes) {
                    *byte = delta_entry(at as usize / ENTRY_BYTES)[at as usize % ENTRY_BYTES];
                }
            }
            _ => bytes.fill(BYTE),
        }
        Ok(())
    }

    fn write(&self, _address: Address, _bytes: &[u8]) -> Result<(), Vanished> {
        Ok(())
    }

    fn copy(&self, _source: Address, _target: Address, _size_bytes: usize) -> Result<(), Vanished> {
        Ok(())
    }

    fn publish(&self, record: Address, completion: &Completion) -> Result<(), Vanished> {
        if record.0 < MEMBER_RECORDS {
            self.completions.borrow_mut().push((((record.0 - RECORDS) / 64) as usize, *completion));
        }
        Ok(())
    }
}

/// Reads at an offset of memory that repeats `block`.
fn repeat(block: &[u8; PROTECTED_BYTES], offset: u64, bytes: &mut [u8]) {
    let begin = (offset % PROTECTED_BYTES as u64) as usize;
    for (at, byte) in (begin..).zip(bytes) {
        *byte = block[at % PROTECTED_BYTES];
    }
}

#[cfg(test)]
mod tests {
    use memferry_dsa::internals::device_time::{AbsentPages, DeviceLoad, QueueLoad, SubmitterLoad, run};
    use memferry_dsa_emulator::{DeviceCosts, GroupConfig, dedicated_queue, shared_queue};

    use super::*;

    fn device(engines: u32, mode: QueueMode) -> DeviceConfig {
        let mut queue = match mode {
            QueueMode::Shared => shared_queue("wq0.0", 32),
            QueueMode::Dedicated => dedicated_queue("wq0.0", 32),
        };
        (queue.transfer_bytes_max, queue.batch_max, queue.block_on_fault) = (1 << 31, 1024, true);
        let groups = vec![GroupConfig { engines, queues: vec![queue] }];
        DeviceConfig::new(groups).with_timing(DeviceCosts::sapphire_rapids())
    }

    fn load(size_bytes: u32, batch: u32, depth: usize) -> Load {
        Load {
            work: LoadOperation::Copy,
            size_bytes,
            batch,
            depth,
            repetitions: 100,
            pages: PageState::Touched,
        }
    }

    fn elapsed(config: &DeviceConfig, load: Load) -> f64 {
        emulated(config, &[(0, load)]).unwrap()[0].elapsed_ns
    }

    /// One at a time: submission, dispatch, engine, bytes, record.
    #[test]
    fn waiting_for_each_takes_the_sum_of_all() {
        let config = device(1, QueueMode::Shared);
        let timing = config.timing.unwrap();
        let engine_ns =
            timing.dispatch_ns + timing.occupancy_ns + timing.transfer_ns(4096) + timing.latency_ns;
        let one = timing.submit_shared_ns + engine_ns;
        let seen = emulated(&config, &[(0, load(4096, 1, 1))]).unwrap()[0];
        assert!((seen.elapsed_ns / (100 * one) as f64 - 1.0).abs() < 1e-3, "{seen:?}");
        assert_eq!(seen.submitting_ns, Some(100.0 * 400.0));
    }

    /// The emulated device and the model of it have the same rules.
    #[test]
    fn the_model_counts_what_the_device_executes() {
        let points = [
            (256, 1, 1),
            (256, 8, 4),
            (1024, 1, 32),
            (4096, 1, 8),
            (4096, 4, 32),
            (65536, 1, 2),
            (65536, 50, 1),
        ];
        for mode in [QueueMode::Shared, QueueMode::Dedicated] {
            for (engines, (size, batch, depth)) in
                [1, 4].into_iter().flat_map(|it| points.map(|point| (it, point)))
            {
                let (config, load) = (device(engines, mode), load(size, batch, depth));
                let costs = config.timing.unwrap();
                let submit_ns = match mode {
                    QueueMode::Shared => costs.submit_shared_ns,
                    QueueMode::Dedicated => costs.submit_dedicated_ns,
                };
                let submitter = SubmitterLoad {
                    queue: 0,
                    bytes: size.into(),
                    batch,
                    depth,
                    repetitions: load.repetitions,
                    absent: AbsentPages::None,
                };
                let modelled = run(&DeviceLoad {
                    costs,
                    groups: &[engines as usize],
                    read_buffers: &[],
                    queues: &[QueueLoad { group: 0, entries: 32, priority: 10, submit_ns }],
                    submitters: &[submitter],
                })[0];
                let difference = elapsed(&config, load) / modelled.elapsed_ns as f64 - 1.0;
                // Equal, unless several engines move pieces of large descriptors, whose order is not the same.
                let most = if engines > 1 && size > 4096 { 0.01 } else { 0.0 };
                assert!(difference.abs() <= most, "{difference}: {engines} engines, {mode:?}, {load:?}");
            }
        }
    }

    /// What a queue that is never empty reaches is the device's rate; a shared queue's submitter is slower than that.
    #[test]
    fn what_sets_the_pace() {
        let bytes = 100.0 * 4096.0;
        let costs = DeviceCosts::sapphire_rapids();
        // The bandwidth is busy from the first descriptor's bytes to the last one's: all but this is at 30 GB/s.
        let ends_ns = (costs.dispatch_ns + costs.occupancy_ns + costs.latency_ns) as f64;
        let first_ns = ends_ns + costs.submit_dedicated_ns as f64;
        let dedicated = bytes / (elapsed(&device(1, QueueMode::Dedicated), load(4096, 1, 16)) - first_ns);
        assert!((29.9..=30.0).contains(&dedicated), "{dedicated} GB/s");
        let shared = bytes / elapsed(&device(1, QueueMode::Shared), load(4096, 1, 16));
        assert!((9.0..=10.3).contains(&shared), "{shared} GB/s: 4096 bytes every 400 ns");
        let list_ns = (costs.occupancy_ns + costs.batch_fetch_ns + 8 * costs.batch_member_ns) as f64;
        let first_ns = ends_ns + costs.submit_shared_ns as f64 + list_ns;
        let batched = 8.0 * bytes / (elapsed(&device(1, QueueMode::Shared), load(4096, 8, 4)) - first_ns);
        assert!((29.9..=30.0).contains(&batched), "{batched} GB/s: lists are fetched ahead");
    }

    #[test]
    fn submitters_share_a_queue() {
        let config = device(1, QueueMode::Shared);
        let seen = emulated(&config, &[(0, load(4096, 1, 1)), (0, load(4096, 1, 1))]).unwrap();
        let alone = elapsed(&config, load(4096, 1, 1));
        assert!(seen.iter().all(|seen| seen.elapsed_ns < 1.2 * alone), "{seen:?}, alone {alone}");
        let error = emulated(&device(1, QueueMode::Dedicated), &[(0, load(1, 1, 1)), (0, load(1, 1, 1))]);
        assert!(error.unwrap_err().to_string().contains("one submitter"));
    }

    #[test]
    fn absent_pages_cost() {
        let config = device(1, QueueMode::Shared);
        let with = |pages| elapsed(&config, Load { pages, repetitions: 3, ..load(16384, 1, 1) });
        let (touched, block, resume) =
            (with(PageState::Touched), with(PageState::AbsentBlock), with(PageState::AbsentResume));
        assert!((block - touched - 3.0 * 4.0 * 20_000.0).abs() < 10.0, "{block} and {touched}");
        assert!(resume > touched + 3.0 * 4.0 * TOUCH_NS as f64 && resume < block, "{resume}");
    }

    #[test]
    fn all_operations() {
        for work in LoadOperation::ALL.into_iter().chain([LoadOperation::Nothing]) {
            for batch in [1, 4] {
                let load = Load { work, repetitions: 5, ..load(65536, batch, 2) };
                assert!(elapsed(&device(2, QueueMode::Shared), load) > 1000.0, "{work}");
            }
        }
        for (work, size_bytes) in [
            (LoadOperation::DifStrip, 4000),
            (LoadOperation::ApplyDelta, 12),
            (LoadOperation::CreateDelta, 1 << 20),
        ] {
            let error =
                emulated(&device(1, QueueMode::Shared), &[(0, Load { work, ..load(size_bytes, 1, 1) })]);
            assert!(error.unwrap_err().to_string().contains("multiples"), "{work}");
        }
        let error = emulated(&device(1, QueueMode::Shared), &[(0, Load { depth: 0, ..load(1, 1, 1) })]);
        assert!(error.unwrap_err().to_string().contains("begin at 1"));
        let error = emulated(&device(1, QueueMode::Shared), &[(0, load(1, 1, usize::MAX))]);
        assert!(error.unwrap_err().to_string().contains("at most"));
    }
}
