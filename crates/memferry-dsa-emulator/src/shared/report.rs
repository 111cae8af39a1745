//! Reports about devices, queues and clients.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use memferry_dsa::QueueMode;

use super::clients::LiveClient;
use super::layout::DEVICES_MAX;
use super::{QueueAt, Server};
use crate::config::QUEUES_MAX;
use crate::device::counters::{COUNT_MAX, Counters, DeviceCounters, QueueTotals, capped};
use crate::queue::ring::ClientId;

/// The counts of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueReport {
    /// The mode; `None` if the queue is not enabled.
    pub mode: Option<QueueMode>,
    /// Entries in the queue.
    pub occupancy: u64,
    /// Descriptors that have left the queue and are not complete.
    pub in_progress: u64,
    /// Descriptors that the queue has accepted since it was created.
    pub accepted: u64,
    /// Retry answers while the queue was enabled. A dedicated queue answers Retry to each ENQCMD.
    pub retried: u64,
    /// Descriptors lost because the queue was dedicated and full.
    pub dropped: u64,
}

/// A process' submissions to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submitted {
    /// Descriptors that the queue accepted; exact if none is in flight.
    pub accepted: u64,
    /// Retry answers while the queue was enabled.
    pub retried: u64,
    /// Descriptors lost because the queue was dedicated and full.
    pub dropped: u64,
}

/// A process that uses or has used devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientReport {
    /// The process id.
    pub process: u32,
    /// The program's name in `/proc/PID/comm`.
    pub program: String,
    /// Its submissions, by queue.
    pub queues: BTreeMap<QueueAt, Submitted>,
}

impl Server {
    /// The counts of a queue.
    pub fn queue_report(&self, at: QueueAt) -> QueueReport {
        let queue = &self.devices().device_order(at.device).queues[at.queue];
        // Completed descriptors first: one that completes meanwhile is still counted as in progress.
        // ORDERING: Acquire pairs with the Releases of `retired` in `wake_next_owner`, `check_queue` and `reap_client`: the
        // moves of `head` for the retired entries are visible below.
        let retired = queue.counts.0.retired.load(Ordering::Acquire).min(COUNT_MAX);
        let completed = self.completed(at) + retired;
        QueueReport {
            mode: self.devices().device(at.device).queues[at.queue].mode(),
            in_progress: queue.ring.popped().saturating_sub(completed),
            occupancy: queue.ring.occupancy(),
            accepted: queue.ring.pushed(),
            retried: capped(&queue.counts.0.retried),
            dropped: capped(&queue.counts.0.dropped),
        }
    }

    /// Completed descriptors of a queue, of all live clients.
    pub(super) fn completed(&self, at: QueueAt) -> u64 {
        self.clients().live.values().map(|client| capped(&client.queue(at).completed)).sum()
    }

    /// The counters of a device since it was created.
    pub fn counters(&self, device: usize) -> DeviceCounters {
        let (sum, mut totals) = (Counters::default(), QueueTotals::default());
        let clients = self.clients();
        sum.add(&clients.retired[device]);
        clients.live.values().for_each(|client| sum.add(&client.own.get().devices[device].counters));
        let order = self.devices().device_order(device);
        order.queues.iter().for_each(|queue| totals.add(queue));
        sum.snapshot(&totals)
    }

    /// The processes that use or have used devices, by process id. Of those that have ended, the list has the latest 512
    /// at most.
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
