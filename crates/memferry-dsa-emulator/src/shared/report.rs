//! What devices, queues and clients have done, for who looks at them.

use std::collections::BTreeMap;

use super::clients::LiveClient;
use super::layout::DEVICES_MAX;
use super::{QueueAt, Server};
use crate::config::QUEUES_MAX;
use crate::device::counters::{Counters, DeviceCounters, QueueTotals, capped};
use crate::queue::ring::ClientId;

/// What a queue has done, and what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueReport {
    /// Entries in the queue.
    pub occupancy: u64,
    /// Descriptors that have left the queue and have not executed, or wait for their completion record.
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

impl Server {
    /// What a queue has done.
    pub fn queue_report(&self, at: QueueAt) -> QueueReport {
        let queue = &self.devices().device_order(at.device).queues[at.queue];
        // What is completed first: a descriptor that moves on meanwhile is counted as being in progress still.
        let completed = self.completed(at) + capped(&queue.counts.0.retired);
        QueueReport {
            in_progress: queue.ring.popped().saturating_sub(completed),
            occupancy: queue.ring.occupancy(),
            accepted: queue.ring.pushed(),
            retried: capped(&queue.counts.0.retried),
            dropped: capped(&queue.counts.0.dropped),
        }
    }

    /// Descriptors of a queue that are completed, of those who are there.
    pub(super) fn completed(&self, at: QueueAt) -> u64 {
        self.clients().live.values().map(|client| capped(&client.queue(at).completed)).sum()
    }

    /// What a device has done since it was made.
    pub fn counters(&self, device: usize) -> DeviceCounters {
        let (sum, mut totals) = (Counters::default(), QueueTotals::default());
        let clients = self.clients();
        sum.add(&clients.retired[device]);
        clients.live.values().for_each(|client| sum.add(&client.own.get().devices[device].counters));
        let order = self.devices().device_order(device);
        order.queues.iter().for_each(|queue| totals.add(queue));
        sum.snapshot(&totals)
    }

    /// The processes that have used devices, by their numbers. If there were more than
    /// [`CLIENTS_MAX`](super::CLIENTS_MAX), the first of those that are gone are left out.
    pub fn client_reports(&self) -> Vec<ClientReport> {
        let clients = self.clients();
        let live = clients.live.iter().map(|(id, client)| self.client_report(*id, client));
        let mut reports: BTreeMap<(u32, String), BTreeMap<QueueAt, Submitted>> = BTreeMap::new();
        // A process that maps a queue and writes to one is two clients.
        for report in clients.gone.iter().cloned().chain(live) {
            let sums = reports.entry((report.process, report.program)).or_default();
            for (at, Submitted { accepted, retried, dropped }) in report.queues {
                let sum = sums.entry(at).or_default();
                sum.accepted += accepted;
                sum.retried += retried;
                sum.dropped += dropped;
            }
        }
        let report = |((process, program), queues)| ClientReport { process, program, queues };
        reports.into_iter().map(report).collect()
    }

    pub(super) fn client_report(&self, id: ClientId, client: &LiveClient) -> ClientReport {
        let all =
            (0..DEVICES_MAX).flat_map(|device| (0..QUEUES_MAX).map(move |queue| QueueAt { device, queue }));
        let queues = all.filter_map(|at| {
            let left = self.devices().device_order(at.device).queues[at.queue].ring.entries_of(id);
            let queue = client.queue(at);
            let accepted = capped(&queue.dispatched) + left as u64;
            let (retried, dropped) = (capped(&queue.retried), capped(&queue.dropped));
            (accepted + retried + dropped > 0).then_some((at, Submitted { accepted, retried, dropped }))
        });
        ClientReport { process: client.process, program: client.program.clone(), queues: queues.collect() }
    }
}
