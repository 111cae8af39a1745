//! A query on several machines: equal workers that hold shards, a network between them, and a coordinator.
//!
//! ```text
//!              memory of a worker ─▶ its cores ─┬─▶ shuffle: to all workers, by hash
//! time = max(  memory, cores, network  )        ├─▶ broadcast: everything to each worker
//!        + coordinator + latencies              └─▶ gather: to one machine beside the workers
//! ```
//!
//! Stages stream: reads, work and messages of a query overlap, and the slowest of them decides. Plans are made before, by one
//! core of the coordinator. The worker with the most shards decides for all.
//!
//! Source: DeWitt, Gray, "Parallel Database Systems" (1992): start-up, interference and skew limit the speed-up. Here these are
//! the coordinator, the network and the largest worker.

use serde::{Deserialize, Serialize};

use crate::topology::{Machine, Node};

use super::ModelError;
use super::hardware::Hardware;

/// The network interfaces of each machine. Switches between them do not limit.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Network {
    /// Bytes per second of payload that an interface sends, and that it receives at the same time.
    pub bytes_per_s: f64,
    /// Interfaces of a machine. Messages use all of them evenly.
    pub interfaces_count: usize,
    /// Seconds from a message to its receiver, without its bytes.
    pub latency_s: f64,
}

/// Payload bytes per byte on the wire. An Ethernet frame of 9000 bytes takes 38 more for preamble, header, checksum and gap (IEEE
/// 802.3), and 52 of the 9000 are headers of IP and TCP with time stamps.
const PAYLOAD_SHARE: f64 = 8948.0 / 9038.0;

impl Network {
    /// Ethernet of so many gigabits per second and direction, with jumbo frames.
    pub fn ethernet(gbits_per_s: f64, interfaces_count: usize, latency_s: f64) -> Network {
        Network { bytes_per_s: gbits_per_s * 1e9 / 8.0 * PAYLOAD_SHARE, interfaces_count, latency_s }
    }

    /// Bytes per second that a machine sends, and that it receives at the same time.
    fn rate(&self) -> f64 {
        self.bytes_per_s * self.interfaces_count as f64
    }
}

/// The receivers of rows.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeKind {
    /// Each row goes to one worker, by its hash.
    Shuffle,
    /// Each row goes to all workers.
    Broadcast,
    /// All rows go to one machine beside the workers.
    Gather,
}

/// Rows that go from one stage of a query to the next.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Their receivers.
    pub kind: ExchangeKind,
    /// Their bytes; each row counts once, whatever the number of its receivers.
    pub bytes: f64,
}

/// The work of a query, whatever the number of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterQuery {
    /// Bytes of columns that all workers together read from memory.
    pub scanned_bytes: f64,
    /// Its exchanges; each waits for one message of the previous.
    pub exchanges: Vec<Exchange>,
    /// Seconds of a core for the work that workers divide among them.
    pub divided_core_s: f64,
    /// Seconds of a core for the work that each worker has, such as decoding its plan.
    pub each_core_s: f64,
    /// Seconds of the coordinator with any number of workers.
    pub coordinator_s: f64,
    /// Seconds that each worker adds to that.
    pub coordinator_worker_s: f64,
}

/// Workers of one kind, and their shards.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Workers {
    /// Number of workers.
    pub count: usize,
    /// Shards of each table.
    pub shards_count: usize,
    /// By how much the largest shard exceeds the mean, in parts of the mean.
    pub shard_skew: f64,
    /// Whether columns are in near memory, as far as it has room. They were brought there by earlier queries.
    pub is_near: bool,
    /// The network between them.
    pub network: Network,
}

/// The resource that limits a query.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterLimit {
    /// Memory of the largest worker.
    Memory,
    /// Cores of the largest worker.
    Cores,
    /// Interfaces of a machine.
    Network,
    /// Planning, and messages that wait for each other.
    Coordinator,
}

impl ClusterLimit {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            ClusterLimit::Memory => "memory",
            ClusterLimit::Cores => "cores",
            ClusterLimit::Network => "network",
            ClusterLimit::Coordinator => "coordinator",
        }
    }
}

/// Bytes that the machines of a cluster send and receive.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct NetworkBytes {
    /// Sent by all workers.
    pub sent: f64,
    /// Received by all workers.
    pub received: f64,
    /// Received by the machine that gathers.
    pub gathered: f64,
    /// Most bytes that one machine sends, or that one receives.
    pub largest: f64,
}

/// Times of a query.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ClusterRun {
    /// The query as a whole.
    pub seconds: f64,
    /// Reads of the largest worker.
    pub memory_s: f64,
    /// Work of the cores of the largest worker.
    pub cores_s: f64,
    /// Messages of the interface with the most bytes.
    pub network_s: f64,
    /// Planning and latencies.
    pub coordinator_s: f64,
    /// The largest of the four.
    pub limit: ClusterLimit,
    /// Part of the largest worker's bytes that is near.
    pub near_share: f64,
    /// Bytes in the network.
    pub bytes: NetworkBytes,
}

impl Workers {
    /// Shards of the worker that has the most.
    fn shards_max(&self) -> usize {
        self.shards_count.div_ceil(self.count)
    }

    /// Share of the rows of the worker that has the most.
    pub fn largest_share(&self) -> f64 {
        if self.count == 1 {
            return 1.0;
        }
        let share = self.shards_max() as f64 / self.shards_count as f64;
        (share * (1.0 + self.shard_skew)).min(1.0)
    }

    /// Bytes that an exchange sends, where the largest worker has its share of the rows.
    pub fn network_bytes(&self, exchanges: &[Exchange]) -> NetworkBytes {
        let (count, share) = (self.count as f64, self.largest_share());
        let mut all = NetworkBytes::default();
        let (mut out, mut into) = (0.0, 0.0);
        for &Exchange { kind, bytes } in exchanges {
            match kind {
                // A worker keeps the rows whose hash is its own.
                ExchangeKind::Shuffle => {
                    let crossing = bytes * (count - 1.0) / count;
                    all.sent += crossing;
                    all.received += crossing;
                    out += share * crossing;
                    // Hashes spread evenly.
                    into += crossing / count;
                }
                ExchangeKind::Broadcast => {
                    let crossing = bytes * (count - 1.0);
                    all.sent += crossing;
                    all.received += crossing;
                    out += share * crossing;
                    // A worker with the smallest share lacks the most.
                    into += crossing / count;
                }
                ExchangeKind::Gather => {
                    all.sent += bytes;
                    all.gathered += bytes;
                    out += share * bytes;
                }
            }
        }
        all.largest = out.max(into).max(all.gathered);
        all
    }

    /// Computes a query on workers that are `machine` each.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] if the rate of a memory is not known, or, with near memory, its size;
    /// [`Scenario`](ModelError::Scenario) for workers, shards, rates or a query that cannot exist.
    pub fn run(&self, machine: &Machine, query: &ClusterQuery) -> Result<ClusterRun, ModelError> {
        self.check(query)?;
        let hardware = Hardware::of(machine)?;
        let own_bytes = self.largest_share() * query.scanned_bytes;
        let (memory_s, near_share) = reads(machine, &hardware, own_bytes, self.is_near)?;
        let cores_count: usize = hardware.memories.iter().map(|memory| memory.cpus_count).sum();
        // A core works on one shard at a time.
        let shards_of_core = self.shards_max().div_ceil(cores_count.max(1)) as f64;
        let cores_s = query.divided_core_s * shards_of_core / self.shards_count as f64
            * (1.0 + self.shard_skew)
            + query.each_core_s;
        let bytes = self.network_bytes(&query.exchanges);
        let network_s = bytes.largest / self.network.rate();
        // The plans go out once, and each exchange waits for a message.
        let messages = 1.0 + query.exchanges.len() as f64;
        let coordinator_s = query.coordinator_s
            + query.coordinator_worker_s * self.count as f64
            + messages * self.network.latency_s;
        let (limit, _) = [
            (ClusterLimit::Memory, memory_s),
            (ClusterLimit::Cores, cores_s),
            (ClusterLimit::Network, network_s),
            (ClusterLimit::Coordinator, coordinator_s),
        ]
        .into_iter()
        .max_by(|one, other| one.1.total_cmp(&other.1))
        .expect("there are four");
        let seconds = memory_s.max(cores_s).max(network_s) + coordinator_s;
        Ok(ClusterRun { seconds, memory_s, cores_s, network_s, coordinator_s, limit, near_share, bytes })
    }

    fn check(&self, query: &ClusterQuery) -> Result<(), ModelError> {
        let wrong = |what: &str| Err(ModelError::Scenario { what: what.into() });
        if self.count == 0 {
            return wrong("it has no workers");
        }
        if self.shards_count < self.count {
            return wrong("it has fewer shards than workers, so that some have no rows");
        }
        let rate = self.network.rate();
        if rate.is_nan() || rate <= 0.0 {
            return wrong("its network sends nothing; the rate must be above 0");
        }
        let amounts = [
            self.shard_skew,
            self.network.latency_s,
            query.scanned_bytes,
            query.divided_core_s,
            query.each_core_s,
            query.coordinator_s,
            query.coordinator_worker_s,
        ];
        let bytes = query.exchanges.iter().map(|exchange| exchange.bytes);
        if amounts.into_iter().chain(bytes).any(|amount| !amount.is_finite() || amount < 0.0) {
            return wrong("bytes and times must be finite and not below 0");
        }
        Ok(())
    }
}

/// Seconds in which the cores of a machine read so many bytes, evenly spread over its domains, and the share of near memory.
///
/// Near memory is the faster memory of each domain, as far as it has room. Threads read different columns at the same time, so
/// that the slowest of both memories and the cores decides.
fn reads(
    machine: &Machine,
    hardware: &Hardware,
    bytes: f64,
    is_near: bool,
) -> Result<(f64, f64), ModelError> {
    let homes: Vec<&Node> =
        machine.nodes().iter().filter(|node| !node.cpus.is_empty() && node.has_memory()).collect();
    if homes.is_empty() {
        return Err(ModelError::Scenario { what: format!("{} has no memory beside CPUs", machine.name()) });
    }
    let of_home = bytes / homes.len() as f64;
    let (mut slowest_s, mut near_bytes) = (0.0_f64, 0.0);
    for home in &homes {
        let cpus = hardware.position(home.id)?;
        let read_s = |memory: usize, bytes: f64| -> Result<f64, ModelError> {
            Ok(bytes / hardware.memory_rate(memory)?.min(hardware.ways[cpus][memory]))
        };
        let near = machine.nearest_faster(home.id).filter(|near| is_near && near.cpu_node == home.id);
        let (in_near, near_s) = match near {
            Some(near) => {
                let size = near.memory_bytes.ok_or_else(|| ModelError::Unknown {
                    what: format!("the size of the memory of node {}", near.id),
                })?;
                let in_near = of_home.min(size as f64);
                (in_near, read_s(hardware.position(near.id)?, in_near)?)
            }
            None => (0.0, 0.0),
        };
        near_bytes += in_near;
        let cores_s = of_home / (hardware.core_rate * home.cpus.len() as f64);
        slowest_s = slowest_s.max(read_s(cpus, of_home - in_near)?).max(near_s).max(cores_s);
    }
    Ok((slowest_s, if bytes > 0.0 { near_bytes / bytes } else { 0.0 }))
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Eight domains of 67.5 GB/s DRAM and 256 GB/s HBM each; their cores read 134 GB/s.
    fn xeon_max() -> Machine {
        Machine::from_profile("xeon-max-9468-2s-flat").unwrap()
    }

    fn network(gbits_per_s: f64) -> Network {
        Network::ethernet(gbits_per_s, 1, 0.0)
    }

    fn workers(count: usize, is_near: bool, network: Network) -> Workers {
        Workers { count, shards_count: 96 * count, shard_skew: 0.0, is_near, network }
    }

    /// A scan of so many bytes, whose rows are few.
    fn scan(scanned_bytes: f64) -> ClusterQuery {
        ClusterQuery {
            scanned_bytes,
            exchanges: Vec::new(),
            divided_core_s: 0.0,
            each_core_s: 0.0,
            coordinator_s: 0.0,
            coordinator_worker_s: 0.0,
        }
    }

    fn shuffle(bytes: f64) -> Exchange {
        Exchange { kind: ExchangeKind::Shuffle, bytes }
    }

    #[test]
    fn a_scan_is_as_much_faster_as_there_are_workers() {
        let query = ClusterQuery { exchanges: vec![shuffle(1e12)], ..scan(540e9) };
        let run = |count| workers(count, false, network(f64::INFINITY)).run(&xeon_max(), &query).unwrap();
        let alone = run(1);
        assert!((alone.seconds - 540e9 / (8.0 * 67.5212e9)).abs() < 1e-3, "{alone:?}");
        for count in [2, 16, 64] {
            let run = run(count);
            let speed_up = alone.seconds / run.seconds;
            assert!((speed_up / count as f64 - 1.0).abs() < 1e-9, "{count} workers: {speed_up}");
            assert_eq!(run.limit, ClusterLimit::Memory);
        }
    }

    #[test]
    fn without_a_network_two_workers_are_worse_than_one() {
        let query = ClusterQuery { exchanges: vec![shuffle(1e9)], ..scan(540e9) };
        let run = |count| workers(count, false, network(1e-3)).run(&xeon_max(), &query).unwrap();
        assert_eq!(run(1).limit, ClusterLimit::Memory, "one worker keeps all rows");
        let two = run(2);
        assert_eq!(two.limit, ClusterLimit::Network);
        assert!(two.seconds > 1000.0 * run(1).seconds, "{two:?}");
    }

    /// 100 GB/s in each direction: half of the rows of two workers cross, and each sends half of these.
    #[test]
    fn rates_are_those_of_one_direction() {
        let link = Network { bytes_per_s: 50e9, interfaces_count: 2, latency_s: 0.0 };
        let query = ClusterQuery { exchanges: vec![shuffle(400e9)], ..scan(0.0) };
        let run = workers(2, false, link).run(&xeon_max(), &query).unwrap();
        assert!((run.network_s - 1.0).abs() < 1e-9, "{run:?}");
        let late = Network { latency_s: 0.5, ..link };
        let run = workers(2, false, late).run(&xeon_max(), &query).unwrap();
        assert!(
            (run.seconds - 2.0).abs() < 1e-9,
            "a message for the plans, and one for the exchange: {run:?}"
        );
        // Of 100 Gbit/s, 99 % are payload of jumbo frames.
        assert!((network(100.0).bytes_per_s / 12.5e9 - 0.990).abs() < 1e-3);
    }

    #[test]
    fn near_memory_helps_as_far_as_it_has_room() {
        let room = 8.0 * (16u64 << 30) as f64;
        let run =
            |bytes, is_near| workers(1, is_near, network(100.0)).run(&xeon_max(), &scan(bytes)).unwrap();
        let gain = |bytes| run(bytes, false).seconds / run(bytes, true).seconds;
        // The cores limit before the HBM.
        assert!((gain(room) - 12.0 * 11.148_95 / 67.521_2).abs() < 1e-3, "{}", gain(room));
        assert_eq!(run(room, true).near_share, 1.0);
        let large = run(10.0 * room, true);
        assert!((large.near_share - 0.1).abs() < 1e-9, "{large:?}");
        assert!((gain(10.0 * room) - 1.0 / 0.9).abs() < 1e-3, "{}", gain(10.0 * room));
        // Twenty workers have room for all.
        let twenty = |is_near| {
            let run = workers(20, is_near, network(100.0)).run(&xeon_max(), &scan(10.0 * room));
            run.unwrap().seconds
        };
        assert!(twenty(false) / twenty(true) > 1.9);
    }

    #[test]
    fn few_shards_leave_cores_idle() {
        let query = ClusterQuery { divided_core_s: 960.0, each_core_s: 0.5, ..scan(0.0) };
        let time = |shards_count, shard_skew| {
            let workers = Workers { shards_count, shard_skew, ..workers(2, false, network(100.0)) };
            workers.run(&xeon_max(), &query).unwrap().cores_s
        };
        assert!((time(192, 0.0) - 5.5).abs() < 1e-9, "a shard for each of 192 cores");
        assert!((time(16, 0.0) - 60.5).abs() < 1e-9, "eight of 96 cores work");
        assert!((time(193, 0.0) - 2.0 * 960.0 / 193.0 - 0.5).abs() < 1e-9, "one core has two");
        assert!((time(192, 0.2) - 6.5).abs() < 1e-9, "the largest shard is last");
    }

    #[test]
    fn planning_for_many_workers_takes_longer() {
        let query = ClusterQuery { coordinator_s: 1.0, coordinator_worker_s: 0.25, ..scan(540e9) };
        let run = |count| workers(count, false, network(100.0)).run(&xeon_max(), &query).unwrap();
        assert!((run(1).coordinator_s - 1.25).abs() < 1e-9);
        assert_eq!(run(64).limit, ClusterLimit::Coordinator);
        assert!(run(64).seconds > run(1).seconds);
    }

    proptest! {
        /// All sent bytes are received, and no machine has more than all of them or less than the mean.
        #[test]
        fn bytes_are_conserved(
            count in 1_usize..65,
            more_shards in 0_usize..200,
            skew in 0.0..0.5_f64,
            amounts in proptest::collection::vec((0_usize..3, 0.0..1e12_f64), 0..6),
        ) {
            let kinds = [ExchangeKind::Shuffle, ExchangeKind::Broadcast, ExchangeKind::Gather];
            let exchanges: Vec<Exchange> =
                amounts.iter().map(|&(kind, bytes)| Exchange { kind: kinds[kind], bytes }).collect();
            let workers = Workers {
                shards_count: count + more_shards,
                shard_skew: skew,
                ..workers(count, false, network(100.0))
            };
            let bytes = workers.network_bytes(&exchanges);
            prop_assert!((bytes.sent - bytes.received - bytes.gathered).abs() <= 1e-9 * bytes.sent);
            prop_assert!(bytes.largest <= bytes.sent * (1.0 + 1e-9));
            prop_assert!(bytes.largest * count as f64 >= bytes.sent * (1.0 - 1e-9));
            let of_kind = |kind| {
                exchanges.iter().filter(|it| it.kind == kind).map(|it| it.bytes).sum::<f64>()
            };
            let all = of_kind(ExchangeKind::Shuffle) * (count as f64 - 1.0) / count as f64
                + of_kind(ExchangeKind::Broadcast) * (count as f64 - 1.0)
                + of_kind(ExchangeKind::Gather);
            prop_assert!((bytes.sent - all).abs() <= 1e-9 * all);
        }
    }

    #[test]
    fn impossible_workers_are_errors() {
        let good = workers(2, false, network(100.0));
        let error =
            |workers: Workers, query: &ClusterQuery| workers.run(&xeon_max(), query).unwrap_err().to_string();
        for (workers, part) in [
            (Workers { count: 0, ..good }, "no workers"),
            (Workers { shards_count: 1, ..good }, "fewer shards"),
            (Workers { network: network(0.0), ..good }, "above 0"),
            (Workers { shard_skew: f64::NAN, ..good }, "finite"),
        ] {
            let error = error(workers, &scan(1.0));
            assert!(error.contains(part), "{part}: {error}");
        }
        let text = error(good, &ClusterQuery { exchanges: vec![shuffle(-1.0)], ..scan(1.0) });
        assert!(text.contains("finite"), "{text}");
        // Memory of unknown rate.
        let unknown = Machine::two_tiers().unwrap();
        let error = Workers { is_near: true, ..good }.run(&unknown, &scan(1.0));
        assert!(matches!(error, Err(ModelError::Unknown { .. })), "{error:?}");
    }
}
