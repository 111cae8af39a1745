//! A scripted device: a fuzzer decides when it executes, faults, refuses and becomes silent.

use std::collections::{HashMap, VecDeque};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_dsa::software::crc32c;
use memferry_dsa::{
    Address, Completion, CompletionRecord, Descriptor, Flags, Opcode, Portal, PortalCounters, PortalKind,
    Refused, Status, Submission, SubmitError, WorkQueueInfo,
};

/// How a device answers submissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Accept,
    Retry,
    Refuse(Refused),
    Gone,
}

/// A device whose steps the fuzzer chooses.
pub(super) struct Device {
    pub(super) info: WorkQueueInfo,
    pub(super) state: Mutex<DeviceState>,
}

pub(super) struct DeviceState {
    pub(super) answer: Answer,
    pub(super) is_gone: bool,
    /// It accepts descriptors and never completes them.
    pub(super) is_deaf: bool,
    pub(super) accepted: VecDeque<Descriptor>,
    /// The number of writes to each byte, by its address.
    pub(super) written: Arc<Mutex<HashMap<u64, u32>>>,
}

impl Device {
    pub(super) fn state(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: a descriptor is executed when a step says so, and not after its record is written or the device is gone.
unsafe impl Portal for Device {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.info
    }
    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let mut state = self.state();
        let is_batch = descriptor.opcode() == Ok(Opcode::Batch);
        match state.answer {
            _ if state.is_gone => return Err(SubmitError::Gone),
            Answer::Accept if state.accepted.len() < self.info.size as usize => {}
            Answer::Accept | Answer::Retry => return Ok(Submission::Retry),
            Answer::Refuse(Refused::Batch) if !is_batch => {}
            Answer::Refuse(why) => return Err(SubmitError::Refused(why)),
            Answer::Gone => return Err(SubmitError::Gone),
        }
        state.accepted.push_back(*descriptor);
        Ok(Submission::Accepted)
    }
    fn completed(&self, _: u32) {}
    fn is_gone(&self) -> bool {
        self.state().is_gone
    }
    fn counters(&self) -> PortalCounters {
        PortalCounters::default()
    }
}

impl DeviceState {
    /// Executes the first descriptor and completes it as `choose` decides; returns whether there was one.
    pub(super) fn execute_one(&mut self, choose: &mut impl FnMut() -> u8) -> bool {
        let Some(descriptor) = self.accepted.pop_front() else { return false };
        let completion = match descriptor.opcode() {
            Ok(Opcode::Batch) => self.execute_batch(&descriptor, choose),
            _ => self.execute(&descriptor, choose),
        };
        publish(&descriptor, &completion);
        true
    }

    fn execute_batch(&self, batch: &Descriptor, choose: &mut impl FnMut() -> u8) -> Completion {
        let members = members(batch);
        let (status, executed_count) = match choose() {
            1 => (Status::BadOpcode, 0),
            2 => (Status::BatchListFault, choose() as usize % members.len()),
            3 => (Status::HardwareRead, choose() as usize % members.len()),
            4 => (Status::Success, 0),
            _ => (Status::Success, members.len()),
        };
        for member in &members[..executed_count] {
            publish(member, &self.execute(member, choose));
        }
        Completion { fault_address: batch.address_1(), ..Completion::new(status) }
    }

    fn execute(&self, descriptor: &Descriptor, choose: &mut impl FnMut() -> u8) -> Completion {
        let size = descriptor.size();
        match choose() {
            1 => return self.execute_bytes(descriptor, u32::from(choose()) * 16 % size.max(1), true),
            2 => return Completion::new(Status::BadOpcode),
            3 if descriptor.flags().contains(Flags::CACHE_CONTROL) => {
                let refused = Flags::CACHE_CONTROL.union(Flags::BLOCK_ON_FAULT);
                let operation = [refused.bits().into(), 0];
                return Completion { operation, ..Completion::new(Status::InvalidFlags) };
            }
            4 => return Completion::new(Status::HardwareWrite),
            5 => return self.execute_bytes(descriptor, 0, true),
            _ => {}
        }
        self.execute_bytes(descriptor, size, false)
    }

    /// Executes the first bytes.
    fn execute_bytes(&self, d: &Descriptor, bytes: u32, is_fault: bool) -> Completion {
        let status = if is_fault { Status::PageFault } else { Status::Success };
        let mut completion = Completion {
            bytes_completed: if is_fault { bytes } else { 0 },
            fault_address: d.address_2().offset(bytes.into()),
            write_fault: true,
            ..Completion::new(status)
        };
        let count = bytes as usize;
        match d.opcode() {
            Ok(Opcode::Memmove) => {
                self.note(d.address_2(), count);
                let source: *const u8 = with_exposed_provenance(d.address_1().0 as usize);
                let target: *mut u8 = with_exposed_provenance_mut(d.address_2().0 as usize);
                // SAFETY: the submitter keeps the memory until the completion; that is what is tested.
                unsafe { source.copy_to(target, count) };
            }
            Ok(Opcode::Fill) => {
                self.note(d.address_2(), count);
                let pattern = d.pattern().to_le_bytes();
                for index in 0..count {
                    let target: *mut u8 = with_exposed_provenance_mut(d.address_2().0 as usize + index);
                    // SAFETY: as above.
                    unsafe { target.write(pattern[index % 8]) };
                }
            }
            Ok(Opcode::CrcGeneration) => {
                completion.fault_address = d.address_1().offset(bytes.into());
                completion.write_fault = false;
                let source: *const u8 = with_exposed_provenance(d.address_1().0 as usize);
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(source, count) };
                completion.operation[0] = crc32c(d.crc_seed(), bytes, Default::default()).into();
            }
            _ => {}
        }
        completion
    }

    fn note(&self, start: Address, count: usize) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for address in start.0..start.0 + count as u64 {
            let times = written.entry(address).or_default();
            *times += 1;
            assert_eq!(*times, 1, "a byte was written twice");
        }
    }

    /// Whether a device has written this byte.
    pub(super) fn has_written(&self, address: Address) -> bool {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&address.0)
    }

    /// Whether a descriptor in the device names this byte as a target.
    pub(super) fn names(&self, address: Address) -> bool {
        let covers =
            |d: &Descriptor| (d.address_2().0..d.address_2().0 + u64::from(d.size())).contains(&address.0);
        let is_batch = |d: &Descriptor| d.opcode() == Ok(Opcode::Batch);
        self.accepted.iter().any(|d| if is_batch(d) { members(d).iter().any(covers) } else { covers(d) })
    }
}

fn members(batch: &Descriptor) -> Vec<Descriptor> {
    let list: *const [u64; 8] = with_exposed_provenance(batch.address_1().0 as usize);
    // SAFETY: the submitter keeps the list until the completion, and does not write it.
    (0..batch.size() as usize)
        .map(|index| Descriptor::from_words(unsafe { list.add(index).read() }))
        .collect()
}

fn publish(descriptor: &Descriptor, completion: &Completion) {
    let record: *const CompletionRecord = with_exposed_provenance(descriptor.completion_address().0 as usize);
    // SAFETY: the submitter keeps the record until it is written.
    unsafe { &*record }.publish(completion);
}
