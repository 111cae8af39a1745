//! What devices, queues and clients have done, for who looks at them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;

use super::layout::{ClientState, DEVICES_MAX, Life};
use super::{QueueAt, State};
use crate::emulator::config::QUEUES_MAX;
use crate::emulator::counters::{Counters, DeviceCounters, QueueTotals, get};
use crate::emulator::ring::ClientId;

/// What a queue has done, and what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueReport {
    /// Entries in the queue.
    pub occupancy: u64,
    /// Descriptors that have left the queue and have not ended, or wait for their completion record.
    pub in_progress: u64,
    /// Descriptors that the queue took, ever.
    pub accepted: u64,
    /// Times that it answered Retry although it was enabled.
    pub retried: u64,
    /// Descriptors lost because it was dedicated and full.
    pub dropped: u64,
}

/// What a process has submitted to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submitted {
    /// Descriptors that the queue took; exact if nothing is in flight.
    pub accepted: u64,
    /// Times that it answered Retry although it was enabled.
    pub retried: u64,
    /// Descriptors lost because it was dedicated and full.
    pub dropped: u64,
}

/// A process that has used devices, or still does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientReport {
    /// Its number.
    pub process: u32,
    /// The program's name, as `/proc/PID/comm` has it.
    pub program: String,
    /// The queues that it has submitted to.
    pub queues: BTreeMap<QueueAt, Submitted>,
}

impl State {
    /// What a queue has done.
    pub fn queue_report(&self, at: QueueAt) -> QueueReport {
        let queue = &self.device(at.device).queues[at.queue];
        // What is settled first: a descriptor that moves on meanwhile is counted as being in progress still.
        let settled = self.clients().map(|client| get(&client.devices[at.device].queues[at.queue].settled));
        let settled = settled.sum::<u64>() + queue.counts.0.retired.load(Ordering::Acquire);
        let popped = queue.ring.popped();
        let accepted = queue.ring.pushed();
        QueueReport {
            occupancy: accepted.saturating_sub(popped),
            in_progress: popped.saturating_sub(settled),
            accepted,
            retried: get(&queue.counts.0.retried),
            dropped: get(&queue.counts.0.dropped),
        }
    }

    /// What a device has done since the file was made.
    pub fn counters(&self, device: usize) -> DeviceCounters {
        let state = self.device(device);
        let (sum, mut totals) = (Counters::default(), QueueTotals::default());
        sum.add(&state.retired);
        self.clients().for_each(|client| sum.add(&client.devices[device].counters));
        state.queues.iter().for_each(|queue| totals.add(queue));
        sum.snapshot(&totals)
    }

    /// The processes that have used devices, by their numbers. If there were more than
    /// [`CLIENTS_MAX`](super::CLIENTS_MAX), some of those that are gone are left out.
    pub fn client_reports(&self) -> Vec<ClientReport> {
        let mut reports: BTreeMap<(u32, String), BTreeMap<QueueAt, Submitted>> = BTreeMap::new();
        let known = (0..).zip(&self.file().clients).filter(|(_, client)| get(&client.process) != 0);
        for (id, client) in known {
            // A process that maps a queue and writes to one is two clients.
            let queues = reports.entry((get(&client.process) as u32, client.program())).or_default();
            for at in (0..DEVICES_MAX)
                .flat_map(|device| (0..QUEUES_MAX).map(move |queue| QueueAt { device, queue }))
            {
                let Submitted { accepted, retried, dropped } = self.submitted(id, client, at);
                if accepted + retried + dropped > 0 {
                    let sum = queues.entry(at).or_default();
                    sum.accepted += accepted;
                    sum.retried += retried;
                    sum.dropped += dropped;
                }
            }
        }
        let report = |((process, program), queues)| ClientReport { process, program, queues };
        reports.into_iter().map(report).collect()
    }

    fn submitted(&self, id: ClientId, client: &ClientState, at: QueueAt) -> Submitted {
        let queue = &client.devices[at.device].queues[at.queue];
        let is_live = self.file().places[usize::from(id)].process(Life::Live).is_some();
        let left = if is_live { self.device(at.device).queues[at.queue].ring.entries_of(id) } else { 0 };
        Submitted {
            accepted: get(&queue.accepted) + get(&queue.taken) + left as u64,
            retried: get(&queue.retried),
            dropped: get(&queue.dropped),
        }
    }

    /// The clients that have counters of their own.
    pub(super) fn clients(&self) -> impl Iterator<Item = &ClientState> {
        let file = self.file();
        let numbered = file.places.iter().zip(&file.clients);
        let live =
            numbered.filter(|(place, _)| place.process(Life::Live).or(place.process(Life::Dying)).is_some());
        live.map(|(_, client)| client)
    }
}

impl ClientState {
    /// The place is a process' from now on: what is told of the one before it is gone.
    pub(super) fn begin(&self, process: u32) {
        for queue in self.devices.iter().flat_map(|device| &device.queues) {
            for word in [&queue.retried, &queue.dropped, &queue.accepted] {
                word.store(0, Ordering::Relaxed);
            }
        }
        let name = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
        let mut bytes = [0; 16];
        name.iter()
            .take_while(|byte| **byte != b'\n')
            .zip(&mut bytes)
            .for_each(|(byte, place)| *place = *byte);
        for (word, bytes) in self.program.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.process.store(process.into(), Ordering::Relaxed);
    }

    fn program(&self) -> String {
        let bytes: Vec<u8> = self.program.iter().flat_map(|word| get(word).to_le_bytes()).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }
}
