//! Completion of executed descriptors: counters, completion records, error register, trace.

use memferry_dsa::system::SoftwareError;
use memferry_dsa::{Completion, Flags, Status};

use super::Device;
use super::check::RECORD_ALIGNMENT;
use super::counters::count;
use super::error_register::error_of;
use super::job::Origin;
use super::translation::Fault;
use crate::memory::Memory;
use crate::shared::RecordFate;

/// A completion record that waits to be written.
pub(super) struct DueRecord {
    pub(super) due_at: u64,
    pub(super) due_ns: u64,
    pub(super) origin: Origin,
    pub(super) completion: Completion,
}

impl Device {
    pub(super) fn write_due_record(&mut self, memory: &impl Memory) -> bool {
        let is_due = |record: &DueRecord| record.due_at <= self.steps && self.clock.is_due(record.due_ns);
        let Some(index) = self.records.iter().position(is_due) else { return false };
        let record = self.records.swap_remove(index);
        self.write_record(&record.origin, &record.completion, memory);
        self.trace_forget(&record.origin);
        match record.origin.member {
            None => self.interface.count_completed(record.origin.queue),
            Some(member) => {
                if let Some(batch) = &mut self.engines[member.engine].batch {
                    batch.record_done();
                }
            }
        }
        true
    }

    fn write_record(&mut self, origin: &Origin, completion: &Completion, memory: &impl Memory) {
        let address = origin.descriptor.completion_address();
        let page = self.chance.record_page(memory, address.page(), &self.interface.counters);
        let written = page.and_then(|()| {
            // First, since the program may end as soon as it sees the record.
            self.trace_completion(origin, completion, RecordFate::Written);
            memory.publish(address, completion).map_err(|vanished| {
                count(&self.interface.counters.page_faults, 1);
                Fault::vanished(vanished, true)
            })
        });
        let counters = &self.interface.counters;
        match written {
            Ok(()) => count(&counters.records_written, 1),
            Err(fault) => {
                count(&counters.records_lost, 1);
                self.report(origin, &fault.completion_as(Status::CompletionFault, 0));
                self.trace_completion(origin, completion, RecordFate::Lost);
            }
        }
    }

    /// Traces the completion of a descriptor.
    fn trace_completion(&mut self, origin: &Origin, completion: &Completion, record: RecordFate) {
        if let Some(trace) = &mut self.trace {
            trace.completion(origin, &self.interface.queues[origin.queue].info.name, completion, record);
        }
    }

    /// Removes a descriptor from the trace's table.
    fn trace_forget(&mut self, origin: &Origin) {
        if let Some(trace) = &mut self.trace {
            trace.forget(origin);
        }
    }

    /// Accounts for an executed descriptor, and writes its completion record now or later.
    pub(super) fn end(
        &mut self,
        engine: usize,
        origin: Origin,
        completion: Completion,
        memory: &impl Memory,
    ) {
        let status = completion.status;
        count(&self.interface.counters.completed.0[usize::from(status.code())], 1);
        if origin.member.is_none() {
            self.interface.count_executed(origin.queue);
        }
        let flags = origin.descriptor.flags();
        let has_record = flags.contains(Flags::COMPLETION_ADDRESS_VALID)
            && origin.descriptor.completion_address().is_aligned_to(RECORD_ALIGNMENT)
            && status != Status::NotPrivileged;
        let wants_record = has_record && (!status.is_quiet() || flags.contains(Flags::REQUEST_COMPLETION));
        if !has_record && !status.is_quiet() {
            self.report(&origin, &completion);
        }
        let delay = if wants_record { self.chance.delay_steps() } else { 0 };
        let due_ns =
            self.clock.timing().map_or(0, |timing| self.engines[engine].time.free_ns() + timing.latency_ns);
        let is_late = wants_record && (delay > 0 || !self.clock.is_due(due_ns));
        if let Some(member) = origin.member
            && let Some(batch) = &mut self.engines[member.engine].batch
        {
            batch.member_executed(status, is_late, due_ns);
        }
        if is_late {
            self.records.push(DueRecord { due_at: self.steps + delay, due_ns, origin, completion });
            return;
        }
        if wants_record {
            self.write_record(&origin, &completion, memory);
        } else {
            self.trace_completion(&origin, &completion, RecordFate::NotWanted);
        }
        self.trace_forget(&origin);
        if origin.member.is_none() {
            self.interface.count_completed(origin.queue);
        }
    }

    /// Writes the error register.
    fn report(&self, origin: &Origin, completion: &Completion) {
        let shared = self.interface.shared_device.as_ref();
        let queue = shared.map_or(origin.queue, |shared| shared.queue_number(origin.queue));
        let is_invalid_flags = completion.status == Status::InvalidFlags;
        self.interface.report(&SoftwareError {
            batch_member: origin.member.map(|member| member.index),
            write: completion.write_fault,
            invalid_flags: is_invalid_flags.then(|| completion.invalid_flags().bits()),
            fault_address: completion.fault_address.0,
            ..error_of(completion.status, queue, &origin.descriptor)
        });
    }
}
