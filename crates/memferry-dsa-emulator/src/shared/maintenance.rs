//! The server's regular look: what stands still although nobody lives who could go on with it, goes on.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Server;
use super::layout::DEVICES_MAX;
use super::shared_device::{TAKEN, pass_on};
use crate::config::QUEUES_MAX;
use crate::queue::ring::RingSnapshot;

/// How long a queue stands still before its order is looked into: much longer than the few stores that make an entry, also
/// for a thread that others keep from running.
const RING_PATIENCE: Duration = Duration::from_secs(1);
/// How long an engine is one client's under a timing: longer than any descriptor keeps it.
const ENGINE_PATIENCE: Duration = Duration::from_secs(10);

/// What stands where, and since when.
#[derive(Default)]
pub(super) struct StallWatch {
    rings: Vec<(RingSnapshot, Option<Instant>)>,
    engines: Vec<(u64, Option<Instant>)>,
}

impl Server {
    /// Removes what the dead have left, and makes sense of what somebody has tampered with. To be called every some ten
    /// milliseconds while there are clients; [`listen`](Self::listen) does.
    pub fn maintain(&self) {
        self.reap();
        self.check_stalls(Instant::now());
    }

    pub(super) fn lock_stalls(&self) -> MutexGuard<'_, StallWatch> {
        self.0.stalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The look at `now`.
    pub(crate) fn check_stalls(&self, now: Instant) {
        let mut stalls = self.lock_stalls();
        stalls.rings.resize_with(DEVICES_MAX * QUEUES_MAX, Default::default);
        stalls.engines.resize_with(DEVICES_MAX * super::layout::ENGINES, Default::default);
        for device in 0..DEVICES_MAX {
            if self.devices().device(device).generation.load(Ordering::Acquire) == 0 {
                continue; // never configured
            }
            for queue in 0..QUEUES_MAX {
                self.check_queue(device, queue, &mut stalls.rings[device * QUEUES_MAX + queue], now);
            }
            for (engine, word) in self.devices().device_order(device).times.0.engines.iter().enumerate() {
                let (before, since) = &mut stalls.engines[device * super::layout::ENGINES + engine];
                let value = word.load(Ordering::Relaxed);
                if value & TAKEN == 0 || value != *before {
                    (*before, *since) = (value, Some(now));
                } else if since.is_some_and(|since| now - since > ENGINE_PATIENCE) {
                    let free_ns = self.devices().now_ns();
                    let _ = word.compare_exchange(value, free_ns, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
    }

    fn check_queue(
        &self,
        device: usize,
        queue: usize,
        (before, since): &mut (RingSnapshot, Option<Instant>),
        now: Instant,
    ) {
        let order = &self.devices().device_order(device).queues[queue];
        let is_closed = self.devices().device(device).queues[queue].is_closed();
        match order.ring.is_closed() {
            false if is_closed => order.ring.close(),
            true if !is_closed => order.ring.open(),
            _ => {}
        }
        let snapshot = order.ring.snapshot();
        pass_on(self.devices(), device, queue, 0);
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
                order.counts.0.retired.fetch_add(1, Ordering::Release);
                pass_on(self.devices(), device, queue, 0);
            }
        }
    }
}
