//! A load on an emulated device in virtual time: exact, without noise, and as fast as the emulation is.
//!
//! The submitters are part of the simulation. A submission keeps a submitter busy as long as the instruction would;
//! looking at a record costs nothing. Memory is not there: the device's accesses are answered, and moved nowhere.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use memferry_dsa::portal::QueueMode;
use memferry_dsa::software::ENTRY_BYTES;
use memferry_dsa::{Address, Completion, Descriptor, Flags, PAGE_BYTES, Status, Submission};
use memferry_dsa_emulator::{Access, Deterministic, DeviceConfig, FaultPlan, Memory, Stepped, Vanished};

use super::work::{BYTE, PROTECTED_BYTES, Regions, delta_entry, protected_block};
use super::{Failed, Load, Pages, Seen, Work};

/// What touching an absent page takes the submitting core: assumed, the order of a minor fault with its clearing of
/// 4 KiB. The device's timing has the cost of a page that the device asks for.
pub const TOUCH_NS: u64 = 700;

// The parts of the address space. Sources and targets of all submissions have room in theirs.
const RECORDS: u64 = 1 << 32;
const MEMBER_RECORDS: u64 = 1 << 33;
const LISTS: u64 = 1 << 34;
const SOURCES: u64 = 1 << 40;
/// Sources of blocks with data integrity fields.
const PROTECTED: u64 = 1 << 50;
const TARGETS: u64 = 1 << 60;
const EXTRAS: u64 = 1 << 61;

/// Bytes that a list of the longest batch takes.
const LIST_BYTES: u64 = 1024 * 64;

/// Runs loads on a device at the same time, each as a submitter of the queue with this number.
///
/// # Errors
/// [`Failed`]; a device without a timing has no time to tell.
pub fn emulated(config: &DeviceConfig, loads: &[(usize, Load)]) -> Result<Vec<Seen>, Failed> {
    let timing = config.timing.ok_or_else(|| Failed::Load("the device has no timing".to_owned()))?;
    let queues: Vec<_> = config.queues().collect();
    let mut submitters: Vec<Submitter> = Vec::with_capacity(loads.len());
    let mut lists = Vec::new();
    let mut owners = Vec::new();
    for &(queue, load) in loads {
        load.check()?;
        let Some(info) = queues.get(queue) else {
            return Err(Failed::Load(format!("the device has no queue {queue}")));
        };
        let is_shared = info.mode == QueueMode::Shared;
        if !is_shared
            && (load.depth > info.size as usize || loads.iter().filter(|it| it.0 == queue).count() > 1)
        {
            let what = "a dedicated queue has one submitter, and no more under way than entries";
            return Err(Failed::Load(what.to_owned()));
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
            begun: 0,
            complete: 0,
            todo: VecDeque::new(),
            free: (first_slot..first_slot + load.depth).rev().collect(),
            ended_ns: 0,
            submitting_ns: 0,
        });
    }
    let absent = loads.iter().any(|(_, load)| load.pages != Pages::Touched).then(HashSet::new);
    let memory = Nowhere { lists, ended: RefCell::default(), present: RefCell::new(absent) };
    let mut run = Deterministic::new(config, FaultPlan::none(), memory)?;
    let mut descriptors = vec![Descriptor::noop(); owners.len()];
    loop {
        let now_ns = run.device.now_ns();
        for (slot, completion) in run.memory.ended.take() {
            submitters[owners[slot]].settle(slot, completion, &mut descriptors, &run.memory, now_ns)?;
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
            && run.memory.ended.borrow().is_empty()
        {
            return Err(Failed::Silent);
        }
    }
    let seen = |it: &Submitter| Seen {
        elapsed_ns: it.ended_ns as f64,
        submitting_ns: Some(it.submitting_ns as f64),
        ..Seen::default()
    };
    Ok(submitters.iter().map(seen).collect())
}

/// The members of a batch, as the device reads them.
fn list(load: &Load) -> Vec<u8> {
    let at = regions(load.work, Address(TARGETS));
    let mut member = load.work.descriptor(at, load.size_bytes);
    if load.work.has_result() {
        member = member.with_completion_at(Address(MEMBER_RECORDS));
    }
    (0..load.batch).flat_map(|_| member.to_bytes()).collect()
}

fn regions(work: Work, target: Address) -> Regions {
    let source = Address(if work.reads_fields() { PROTECTED } else { SOURCES });
    Regions { source, target, extra: Address(EXTRAS) }
}

struct Submitter {
    load: Load,
    queue: usize,
    submit_ns: u64,
    /// When its core is free.
    ready_ns: u64,
    begun: usize,
    complete: usize,
    /// Slots whose descriptor is to be submitted once more, or for the rest.
    todo: VecDeque<usize>,
    free: Vec<usize>,
    ended_ns: u64,
    submitting_ns: u64,
}

impl Submitter {
    fn is_done(&self) -> bool {
        self.complete == self.load.repetitions
    }

    fn has_work(&self) -> bool {
        !self.todo.is_empty() || (self.begun < self.load.repetitions && !self.free.is_empty())
    }

    /// Submits the next descriptor, if there is one; false if not.
    fn submit(
        &mut self,
        run: &Deterministic<Nowhere>,
        descriptors: &mut [Descriptor],
    ) -> Result<bool, Failed> {
        if self.todo.is_empty()
            && self.begun < self.load.repetitions
            && let Some(slot) = self.free.pop()
        {
            descriptors[slot] = self.descriptor(slot);
            self.begun += 1;
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
        // A target of its own for each submission, where its pages are to be absent.
        let step = u64::from(size_bytes).next_multiple_of(PAGE_BYTES);
        let turn = if pages == Pages::Touched { 0 } else { self.begun as u64 };
        let descriptor = match batch {
            1 => {
                let target = Address(TARGETS).offset((turn * self.load.depth as u64 + slot as u64) * step);
                work.descriptor(regions(work, target), size_bytes)
            }
            _ => Descriptor::batch(Address(LISTS + slot as u64 * LIST_BYTES), batch),
        };
        let flags = if pages == Pages::AbsentBlock { Flags::BLOCK_ON_FAULT } else { Flags::NONE };
        descriptor.with_flags(flags).with_completion_at(Address(RECORDS + slot as u64 * 64))
    }

    /// A record was written.
    fn settle(
        &mut self,
        slot: usize,
        completion: Completion,
        descriptors: &mut [Descriptor],
        memory: &Nowhere,
        now_ns: u64,
    ) -> Result<(), Failed> {
        let seen_ns = now_ns.max(self.ready_ns);
        match completion.status {
            Status::Success => {
                self.complete += 1;
                self.ended_ns = self.ended_ns.max(seen_ns);
                self.free.push(slot);
                Ok(())
            }
            Status::PageFault if self.load.pages == Pages::AbsentResume => {
                memory.request_page(completion.fault_address, Access::Write);
                self.ready_ns = seen_ns + TOUCH_NS;
                let rest = descriptors[slot].resumed(&completion);
                descriptors[slot] = rest.ok_or(Failed::Status(completion.status))?;
                self.todo.push_back(slot);
                Ok(())
            }
            status => Err(Failed::Status(status)),
        }
    }
}

/// Memory that answers without being there.
struct Nowhere {
    /// Lists of batches, by slot.
    lists: Vec<Vec<u8>>,
    /// Records that were written, by slot.
    ended: RefCell<Vec<(usize, Completion)>>,
    /// Pages of targets that are present; `None`: all.
    present: RefCell<Option<HashSet<u64>>>,
}

impl Memory for Nowhere {
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
            self.ended.borrow_mut().push((((record.0 - RECORDS) / 64) as usize, *completion));
        }
        Ok(())
    }
}

/// What is at an offset in memory that is full of `block`.
fn repeat(block: &[u8; PROTECTED_BYTES], offset: u64, bytes: &mut [u8]) {
    let begin = (offset % PROTECTED_BYTES as u64) as usize;
    for (at, byte) in (begin..).zip(bytes) {
        *byte = block[at % PROTECTED_BYTES];
    }
}

#[cfg(test)]
mod tests {
    use memferry_dsa_emulator::{GroupConfig, Timing, dedicated_queue, shared_queue};

    use super::*;

    fn device(engines: u32, mode: QueueMode) -> DeviceConfig {
        let mut queue = match mode {
            QueueMode::Shared => shared_queue("wq0.0", 32),
            QueueMode::Dedicated => dedicated_queue("wq0.0", 32),
        };
        (queue.transfer_bytes_max, queue.batch_max, queue.block_on_fault) = (1 << 31, 1024, true);
        let groups = vec![GroupConfig { engines, queues: vec![queue] }];
        DeviceConfig::new(groups).with_timing(Timing::sapphire_rapids())
    }

    fn load(size_bytes: u32, batch: u32, depth: usize) -> Load {
        Load { work: Work::Copy, size_bytes, batch, depth, repetitions: 100, pages: Pages::Touched }
    }

    fn elapsed(config: &DeviceConfig, load: Load) -> f64 {
        emulated(config, &[(0, load)]).unwrap()[0].elapsed_ns
    }

    /// One at a time: submission, dispatch, engine, bytes, record.
    #[test]
    fn waiting_for_each_takes_the_sum_of_all() {
        let config = device(1, QueueMode::Shared);
        let timing = config.timing.unwrap();
        let one = 400 + 150 + 20 + timing.transfer_ns(4096) + 500;
        let seen = emulated(&config, &[(0, load(4096, 1, 1))]).unwrap()[0];
        assert!((seen.elapsed_ns / (100 * one) as f64 - 1.0).abs() < 1e-3, "{seen:?}");
        assert_eq!(seen.submitting_ns, Some(100.0 * 400.0));
    }

    /// What a queue that is never empty reaches is the device's rate; a shared queue's submitter is slower than that.
    #[test]
    fn what_sets_the_pace() {
        let bytes = 100.0 * 4096.0;
        let dedicated = bytes / elapsed(&device(1, QueueMode::Dedicated), load(4096, 1, 16));
        assert!((24.0..=30.0).contains(&dedicated), "{dedicated} GB/s");
        let shared = bytes / elapsed(&device(1, QueueMode::Shared), load(4096, 1, 16));
        assert!((9.0..=10.3).contains(&shared), "{shared} GB/s: 4096 bytes every 400 ns");
        let batched = 8.0 * bytes / elapsed(&device(1, QueueMode::Shared), load(4096, 8, 4));
        assert!(
            (21.0..=24.0).contains(&batched),
            "{batched} GB/s: an engine fetches a list before its members"
        );
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
            (with(Pages::Touched), with(Pages::AbsentBlock), with(Pages::AbsentResume));
        assert!((block - touched - 3.0 * 4.0 * 20_000.0).abs() < 10.0, "{block} and {touched}");
        assert!(resume > touched + 3.0 * 4.0 * TOUCH_NS as f64 && resume < block, "{resume}");
    }

    #[test]
    fn all_operations() {
        for work in Work::ALL.into_iter().chain([Work::Nothing]) {
            for batch in [1, 4] {
                let load = Load { work, repetitions: 5, ..load(65536, batch, 2) };
                assert!(elapsed(&device(2, QueueMode::Shared), load) > 1000.0, "{work}");
            }
        }
        for (work, size_bytes) in
            [(Work::DifStrip, 4000), (Work::ApplyDelta, 12), (Work::CreateDelta, 1 << 20)]
        {
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
