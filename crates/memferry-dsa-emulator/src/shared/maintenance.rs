//! The server's regular maintenance: it reaps dead clients and repairs queues and engines that have stalled.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Server;
use super::layout::DEVICES_MAX;
use super::shared_device::{ACQUIRED, wake_next_owner};
use crate::config::QUEUES_MAX;
use crate::queue::ring::RingSnapshot;

/// The time for which a queue stands still before it is repaired: much longer than the few stores of a push, also for a
/// thread that is not scheduled.
const RING_PATIENCE: Duration = Duration::from_secs(1);
/// The time for which a client may hold an engine under a timing: longer than any descriptor needs.
const ENGINE_PATIENCE: Duration = Duration::from_secs(10);

/// The time between two calls of [`Server::maintain`] while devices are used.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);
/// The same while all queues are empty. A client that submits and executes another program at once, without closing the
/// file of its queue, keeps others waiting for that long. Each call takes 0.2 ms of a cold CPU for each client.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// The last states of rings and engines, and the times since which they are unchanged. Only the server has it, behind
/// the lock `ServerState::stalls`.
#[derive(Default)]
pub(super) struct StallWatch {
    rings: Vec<(RingSnapshot, Option<Instant>)>,
    engines: Vec<(u64, Option<Instant>)>,
}

impl Server {
    /// Reaps dead clients, and repairs queues and engines that have stalled at the time `now`. Returns the time until the
    /// next call. Call it then while there are clients, and when the process of a client ends;
    /// [`listen`](Self::listen) does so.
    pub fn maintain(&self, now: Instant) -> Duration {
        self.reap();
        if self.check_stalls(now) { BUSY_INTERVAL } else { IDLE_INTERVAL }
    }

    pub(super) fn lock_stalls(&self) -> MutexGuard<'_, StallWatch> {
        self.0.stalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks all queues and engines at the time `now`. Returns whether any has work.
    fn check_stalls(&self, now: Instant) -> bool {
        let mut have_work = false;
        let mut stalls = self.lock_stalls();
        stalls.rings.resize_with(DEVICES_MAX * QUEUES_MAX, Default::default);
        stalls.engines.resize_with(DEVICES_MAX * super::layout::ENGINES, Default::default);
        for device in (0..DEVICES_MAX).filter(|device| self.devices().was_configured(*device)) {
            for queue in 0..QUEUES_MAX {
                have_work |=
                    self.check_queue(device, queue, &mut stalls.rings[device * QUEUES_MAX + queue], now);
            }
            for (engine, word) in self.devices().device_order(device).times.0.engines.iter().enumerate() {
                let (before, since) = &mut stalls.engines[device * super::layout::ENGINES + engine];
                let value = word.load(Ordering::Relaxed);
                have_work |= value & ACQUIRED != 0;
                if value & ACQUIRED == 0 || value != *before {
                    (*before, *since) = (value, Some(now));
                } else if since.is_some_and(|since| now - since > ENGINE_PATIENCE) {
                    let free_ns = self.devices().now_ns();
                    // ORDERING: Release pairs with the Acquire in `acquire_engine`, as in `release_engine`. Acquire pairs
                    // with the AcqRel there.
                    let _ = word.compare_exchange(value, free_ns, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
        have_work
    }

    /// Checks a queue. Returns whether it has entries.
    fn check_queue(
        &self,
        device: usize,
        queue: usize,
        (before, since): &mut (RingSnapshot, Option<Instant>),
        now: Instant,
    ) -> bool {
        let order = &self.devices().device_order(device).queues[queue];
        let is_closed = self.devices().device(device).queues[queue].is_closed();
        match order.ring.is_closed() {
            false if is_closed => order.ring.close(),
            true if !is_closed => order.ring.open(),
            _ => {}
        }
        let snapshot = order.ring.snapshot();
        wake_next_owner(self.devices(), device, queue, 0);
        let since = match since {
            Some(since) if snapshot.is_as(before) => *since,
            _ => {
                (*before, *since) = (snapshot, Some(now));
                now
            }
        };
        if now - since > RING_PATIENCE {
            let clients = self.clients();
            let removed = order.ring.repair(&snapshot, |client, position| {
                let own = clients.live.get(&client).map(|client| &client.own.get().devices[device]);
                own.is_some_and(|own| own.entries[queue].has(position))
            });
            if removed {
                // ORDERING: Release pairs with the Acquire of `retired` in `queue_report`: the head has moved.
                order.counts.0.retired.fetch_add(1, Ordering::Release);
                wake_next_owner(self.devices(), device, queue, 0);
            }
        }
        !snapshot.is_empty()
    }
}
