//! Streams of bytes between memories, CPUs and devices, in virtual time.
//!
//! Resources are memories, links with known rates, and devices. Rates are max-min fair on two levels: a memory is shared
//! between *requesters* - the CPUs of each node, and all devices together - and the share of a requester between its
//! streams. The CPUs of a node are shared by time: a thread that waits for a slow memory still occupies its core. So a
//! group of threads gets at most its share of the node's cores, and a thread at most one core. Threads that read another
//! memory do not use this one, and their part of the requester's weight is unused.

use super::fluid::{Demand, Scratch, max_min};
use super::hardware::Hardware;

/// The rule by which a memory is shared. The model uses [`Requesters`](Fairness::Requesters); the benchmark `validate`
/// compares it with the others.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// Between the CPUs of each node and all devices together; within these, between threads, wherever they read,
    /// and between devices.
    #[default]
    Requesters,
    /// The same, but each memory counts only the threads that read from it: a single one there weighs as much as all.
    RequestersByMemory,
    /// Between threads and devices, each counting one.
    Streams,
    /// In proportion to the rate of each alone, like memory that serves requests in the order of arrival.
    Windows,
}

/// The mover of a stream's bytes.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Mover {
    /// Threads on the CPUs of a node, with their speed relative to the others there. With a core for each, they process at
    /// most `rate_max` together.
    Cpus { node: usize, threads_count: f64, speed: f64, rate_max: f64 },
    /// A device.
    Device(usize),
}

struct Stream<T> {
    bytes_left: f64,
    demand: Demand,
    mover: Mover,
    memory: usize,
    tag: T,
}

/// Streams and timers, and the time.
pub(super) struct Traffic<T> {
    capacities: Vec<f64>,
    /// Resource of a way; `None` if it limits nothing.
    ways: Vec<Vec<Option<usize>>>,
    write_ways: Vec<Vec<Option<usize>>>,
    devices_begin: usize,
    cpus_counts: Vec<usize>,
    core_rate: f64,
    device_share: f64,
    fairness: Fairness,
    streams: Vec<Stream<T>>,
    timers: Vec<(f64, T)>,
    rates: Vec<f64>,
    /// Of each node's CPUs: weight of its threads.
    cpus_weights: Vec<f64>,
    /// `[memory * (nodes + 1) + requester]`: weight of a requester's streams there; devices come last.
    requesters: Vec<f64>,
    scratch: Scratch,
    is_stale: bool,
    now_s: f64,
}

/// A stream with fewer bytes left has ended: rounding, not data.
const BYTES_LEFT_MIN: f64 = 0.5;

impl<T: Copy> Traffic<T> {
    pub(super) fn new(hardware: &Hardware, fairness: Fairness) -> Traffic<T> {
        let rate = |rate: Option<f64>| rate.unwrap_or(f64::INFINITY);
        let mut capacities: Vec<f64> = hardware.memories.iter().map(|memory| rate(memory.rate)).collect();
        let devices_begin = capacities.len();
        capacities.extend(hardware.device_rates.iter().map(|&device| rate(device)));
        let mut ways = |rates: &[Vec<f64>]| -> Vec<Vec<Option<usize>>> {
            let mut limit = |(memory, &way): (usize, &f64)| {
                (way < capacities[memory]).then(|| {
                    capacities.push(way);
                    capacities.len() - 1
                })
            };
            rates.iter().map(|row| row.iter().enumerate().map(&mut limit).collect()).collect()
        };
        let (ways, write_ways) = (ways(&hardware.ways), ways(&hardware.write_ways));
        Traffic {
            capacities,
            ways,
            write_ways,
            devices_begin,
            cpus_counts: hardware.memories.iter().map(|memory| memory.cpus_count).collect(),
            core_rate: hardware.core_rate,
            device_share: hardware.device_share,
            fairness,
            streams: Vec::new(),
            timers: Vec::new(),
            rates: Vec::new(),
            cpus_weights: Vec::new(),
            requesters: Vec::new(),
            scratch: Scratch::default(),
            is_stale: true,
            now_s: 0.0,
        }
    }

    pub(super) fn now_s(&self) -> f64 {
        self.now_s
    }

    /// CPUs read from a memory.
    pub(super) fn read(&mut self, mover: Mover, memory: usize, bytes: f64, tag: T) {
        let mut demand = Demand::new().uses(memory, 1.0);
        if let Mover::Cpus { node, .. } = mover
            && let Some(way) = self.ways[node][memory]
        {
            demand = demand.uses(way, 1.0);
        }
        self.push(mover, memory, demand, bytes, tag);
    }

    /// CPUs read from a memory, and use the memory of their own node for results, so many bytes per byte that they read.
    pub(super) fn scan(&mut self, mover: Mover, memory: usize, results_per_byte: f64, bytes: f64, tag: T) {
        let mut demand = Demand::new().uses(memory, 1.0);
        if let Mover::Cpus { node, .. } = mover {
            demand = self.ways[node][memory].into_iter().fold(demand, |demand, way| demand.uses(way, 1.0));
            if results_per_byte > 0.0 {
                let own = [Some(node), self.ways[node][node]].into_iter().flatten();
                demand = own.fold(demand, |demand, resource| demand.uses(resource, results_per_byte));
            }
        }
        self.push(mover, memory, demand, bytes, tag);
    }

    /// Cores or a device copy from one memory to another.
    pub(super) fn copy(&mut self, mover: Mover, source: usize, target: usize, bytes: f64, tag: T) {
        let mut demand = Demand::new().uses(source, 1.0).uses(target, 1.0);
        match mover {
            Mover::Device(device) => demand = demand.uses(self.devices_begin + device, 1.0),
            Mover::Cpus { node, .. } => {
                let ways = [self.ways[node][source], self.write_ways[node][target]];
                for way in ways.into_iter().flatten() {
                    demand = demand.uses(way, 1.0);
                }
            }
        }
        self.push(mover, source, demand, bytes, tag);
    }

    fn push(&mut self, mover: Mover, memory: usize, demand: Demand, bytes: f64, tag: T) {
        self.streams.push(Stream { bytes_left: bytes, demand, mover, memory, tag });
        self.is_stale = true;
    }

    pub(super) fn after(&mut self, delay_s: f64, tag: T) {
        self.timers.push((self.now_s + delay_s, tag));
    }

    /// The rates of all streams now, in the order in which they began if none has ended.
    pub(super) fn rates(&mut self) -> &[f64] {
        if self.is_stale {
            self.share();
            self.is_stale = false;
        }
        &self.rates
    }

    /// Lets time pass until a stream ends or a timer goes off; `None` if there is neither.
    pub(super) fn next(&mut self) -> Option<T> {
        self.rates();
        let left_s =
            |(stream, rate): (&Stream<T>, &f64)| (stream.bytes_left - BYTES_LEFT_MIN).max(0.0) / rate;
        let stream = (self.streams.iter().zip(&self.rates).map(left_s).enumerate())
            .min_by(|one, other| one.1.total_cmp(&other.1));
        let timer = (self.timers.iter().map(|timer| (timer.0 - self.now_s).max(0.0)).enumerate())
            .min_by(|one, other| one.1.total_cmp(&other.1));
        let is_timer = match (stream, timer) {
            (None, None) => return None,
            (Some((_, stream)), Some((_, timer))) => timer <= stream,
            (stream, _) => stream.is_none(),
        };
        let (index, step_s) = if is_timer { timer? } else { stream? };
        self.now_s += step_s;
        for (stream, rate) in self.streams.iter_mut().zip(&self.rates) {
            // Infinitely fast streams end in no time; 0 x infinity is not a number.
            stream.bytes_left -= if step_s > 0.0 { rate * step_s } else { 0.0 };
        }
        if is_timer {
            return Some(self.timers.swap_remove(index).1);
        }
        self.is_stale = true;
        Some(self.streams.swap_remove(index).tag)
    }

    /// Recomputes weights and rates.
    fn share(&mut self) {
        let nodes = self.cpus_counts.len();
        let (cpus_weights, requesters) = (&mut self.cpus_weights, &mut self.requesters);
        cpus_weights.clear();
        cpus_weights.resize(nodes, 0.0);
        requesters.clear();
        requesters.resize(nodes * (nodes + 1), 0.0);
        for stream in &self.streams {
            match stream.mover {
                Mover::Cpus { node, threads_count, speed, .. } => {
                    cpus_weights[node] += threads_count * speed;
                    requesters[stream.memory * (nodes + 1) + node] += threads_count * speed;
                }
                Mover::Device(_) => requesters[stream.memory * (nodes + 1) + nodes] += 1.0,
            }
        }
        for stream in &mut self.streams {
            let requesters = &requesters[stream.memory * (nodes + 1)..][..=nodes];
            match stream.mover {
                Mover::Cpus { node, threads_count, speed, rate_max } => {
                    let weight = threads_count * speed;
                    let cpus_count = self.cpus_counts[node] as f64;
                    let cores = (cpus_count * weight / cpus_weights[node]).min(threads_count);
                    let own = cores * self.core_rate;
                    stream.demand.rate_max = own.min(rate_max * (cores / threads_count));
                    stream.demand.weight = match self.fairness {
                        Fairness::Requesters => weight / cpus_weights[node],
                        Fairness::RequestersByMemory => weight / requesters[node],
                        Fairness::Streams => weight,
                        Fairness::Windows if own.is_finite() => own,
                        Fairness::Windows => weight,
                    };
                }
                Mover::Device(device) => {
                    let rate = self.capacities[self.devices_begin + device];
                    stream.demand.weight = self.device_share
                        * match self.fairness {
                            Fairness::Requesters | Fairness::RequestersByMemory => 1.0 / requesters[nodes],
                            Fairness::Windows if rate.is_finite() => rate,
                            Fairness::Streams | Fairness::Windows => 1.0,
                        };
                }
            }
        }
        let demands = self.streams.iter().map(|stream| &stream.demand);
        max_min(&self.capacities, demands, &mut self.rates, &mut self.scratch);
    }
}
