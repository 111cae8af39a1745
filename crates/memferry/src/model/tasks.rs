//! Closed-loop clients of a database: their queries become tasks in queues of domains, and workers take them.
//!
//! A query scans columns of several tables at the same time. Each column is cut into tasks, which are queued on the node of
//! their table. Workers take from the queue of their own node first. Where that is empty, they take from others: from queues of
//! nodes without workers always, from the rest if stealing is on. A client sends its next query when all tasks are done.
//!
//! Source: Greinsmark, "Effective Task Scheduling of In-Memory Databases on a Sub-NUMA Processor Topology" (2020), 2.6 and 5.1.

use std::collections::{BTreeMap, VecDeque};
use std::iter::repeat_n;

use crate::topology::NodeId;

use super::ModelError;
use super::hardware::Hardware;
use super::traffic::{Fairness, Mover, Traffic};

/// Columns of a table that each query scans.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct TableScan {
    /// The node of the table, and of the queue of its tasks.
    pub node: NodeId,
    /// Number of columns.
    pub columns_count: usize,
    /// Bytes of a column that a scan reads.
    pub column_bytes: f64,
    /// Bytes of results, read and written, that all columns together cause in the memory of the scanning workers.
    pub result_bytes: f64,
}

impl TableScan {
    fn results_per_byte(&self) -> f64 {
        self.result_bytes / (self.columns_count as f64 * self.column_bytes)
    }
}

/// Queries of closed-loop clients.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskScans {
    /// Clients, each with one query under way.
    pub clients_count: usize,
    /// Queries that are counted, for each client on average; as many before these are not.
    pub queries_per_client: usize,
    /// Nodes whose CPUs have workers, and how many.
    pub workers: Vec<(NodeId, usize)>,
    /// Whether workers take tasks of other nodes that have workers, too.
    pub is_stealing: bool,
    /// Tasks of each column.
    pub tasks_per_column: usize,
    /// Sizes of tasks are evenly spread from 1 - x to 1 + x of their mean; from 0 to below 1. Tasks of one size that begin together
    /// would end together.
    pub task_spread: f64,
    /// The scans of a query.
    pub scans: Vec<TableScan>,
}

/// Results of [`TaskScans::run`].
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRun {
    /// Queries per second.
    pub queries_per_s: f64,
    /// Standard deviation of the queries of a second; of a tenth of the run, if this has fewer than ten seconds. In queries
    /// per second.
    pub deviation: f64,
    /// Jain's index over the queries of the clients: 1 if all have the same number.
    pub fairness: f64,
    /// Bytes per second from CPUs of a node to the memory of a node, reads and writes.
    pub traffic: Vec<(NodeId, NodeId, f64)>,
    /// Part of the tasks that workers of another node than their table's did.
    pub away: f64,
}

impl TaskRun {
    /// Bytes per second of all memories.
    pub fn bytes_per_s(&self) -> f64 {
        self.traffic.iter().map(|(_, _, rate)| rate).sum()
    }

    /// Bytes per second between CPUs and memories of different nodes.
    pub fn bytes_per_s_away(&self) -> f64 {
        self.traffic.iter().filter(|(cpus, memory, _)| cpus != memory).map(|(_, _, rate)| rate).sum()
    }
}

/// Most tasks of a run: it takes longer with each.
const TASKS_MAX: usize = 1 << 20;

/// Most workers and clients.
const COUNT_MAX: usize = 4096;

/// Shortest time over which a deviation is taken.
const INTERVAL_S: f64 = 1.0;

impl TaskScans {
    /// Computes the run.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] if a memory's rate is not known, [`Node`](ModelError::Node), [`Scenario`](ModelError::Scenario)
    /// without anything to do or anybody to do it, or for more tasks than it can compute.
    pub fn run(&self, hardware: &Hardware) -> Result<TaskRun, ModelError> {
        let mut run = Queues::new(self, hardware)?;
        (0..self.clients_count).for_each(|client| run.send(client));
        let counted = self.clients_count * self.queries_per_client;
        run.until(counted);
        let (begin_s, before) = (run.now_s, run.bytes.clone());
        let (own_before, away_before) = (run.tasks_done, run.tasks_away);
        run.done.clear();
        run.until(counted);
        let seconds = run.now_s - begin_s;
        let mut of_clients = vec![0_usize; self.clients_count];
        run.done.iter().for_each(|&(_, client)| of_clients[client] += 1);
        let times: Vec<f64> = run.done.iter().map(|(at_s, _)| at_s - begin_s).collect();
        let mut traffic = Vec::new();
        for (group, &(cpus, _)) in self.workers.iter().enumerate() {
            for (memory, rates) in hardware.memories.iter().enumerate() {
                let at = group * hardware.memories.len() + memory;
                let bytes = run.bytes[at] - before[at];
                if bytes > 0.0 {
                    traffic.push((cpus, rates.node, bytes / seconds));
                }
            }
        }
        let tasks = (run.tasks_done - own_before) as f64;
        Ok(TaskRun {
            queries_per_s: counted as f64 / seconds,
            deviation: deviation(&times, seconds),
            fairness: jain(&of_clients),
            traffic,
            away: (run.tasks_away - away_before) as f64 / tasks,
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let wrong = |what: String| Err(ModelError::Scenario { what });
        let scanned = || self.scans.iter().filter(|scan| scan.columns_count > 0);
        let columns: usize = scanned().map(|scan| scan.columns_count).sum();
        if columns == 0 || scanned().any(|scan| scan.column_bytes.is_nan() || scan.column_bytes <= 0.0) {
            return wrong("its clients read nothing".into());
        }
        if scanned().any(|scan| scan.result_bytes.is_nan() || scan.result_bytes < 0.0) {
            return wrong("its results have fewer bytes than none".into());
        }
        if self.clients_count == 0 || self.queries_per_client == 0 || self.tasks_per_column == 0 {
            return wrong("clients, queries and tasks begin at 1".into());
        }
        if !(0.0..1.0).contains(&self.task_spread) {
            return wrong(format!(
                "the sizes of its tasks spread by {}; it is from 0 to below 1",
                self.task_spread
            ));
        }
        let workers: usize = self.workers.iter().map(|(_, count)| count).sum();
        if workers == 0 {
            return wrong("it has no workers".into());
        }
        if workers > COUNT_MAX || self.clients_count > COUNT_MAX {
            let clients = self.clients_count;
            return wrong(format!("it has {workers} workers and {clients} clients; use at most {COUNT_MAX}"));
        }
        let queries = self.clients_count.saturating_mul(self.queries_per_client).saturating_mul(2);
        let tasks = queries.saturating_mul(columns).saturating_mul(self.tasks_per_column);
        if tasks > TASKS_MAX {
            return wrong(format!("it has {tasks} tasks; use at most {TASKS_MAX}"));
        }
        Ok(())
    }
}

/// The state of a run. Tasks of one scan by workers of one group are alike, so that their rates are equal.
struct Queues<'a> {
    scans: &'a TaskScans,
    hardware: &'a Hardware,
    now_s: f64,
    /// Positions of the nodes of workers.
    groups: Vec<usize>,
    idle: Vec<usize>,
    /// Positions of the nodes of tables.
    homes: Vec<usize>,
    /// Of each node: client and scan of waiting tasks.
    queues: Vec<VecDeque<(usize, usize)>>,
    /// `[group * scans + scan]`
    under_way: Vec<UnderWay>,
    /// Bytes per second of each task, by how many of each kind are under way.
    rates: BTreeMap<Vec<usize>, Vec<f64>>,
    /// Of each client.
    tasks_left: Vec<usize>,
    /// Time and client of finished queries.
    done: Vec<(f64, usize)>,
    /// `[group * nodes + memory]`
    bytes: Vec<f64>,
    tasks_begun: usize,
    tasks_done: usize,
    tasks_away: usize,
}

/// Tasks of one scan by workers of one group.
#[derive(Clone, Default)]
struct UnderWay {
    /// Bytes that a task has read that began at the beginning and has not ended.
    read: f64,
    /// The tasks by their end.
    tasks: VecDeque<Task>,
}

/// A task under way.
#[derive(Copy, Clone)]
struct Task {
    client: usize,
    bytes: f64,
    /// `read` of its kind at its end.
    end: f64,
}

/// Multiples of it, without their whole parts, are evenly spread: the golden ratio.
const EVEN: f64 = 0.618_033_988_749_894_9;

impl<'a> Queues<'a> {
    fn new(scans: &'a TaskScans, hardware: &'a Hardware) -> Result<Queues<'a>, ModelError> {
        scans.check()?;
        let mut groups = Vec::new();
        for &(node, count) in &scans.workers {
            let position = hardware.position(node)?;
            if hardware.memories[position].cpus_count == 0 && count > 0 {
                return Err(ModelError::Scenario { what: format!("node {node} has no CPUs") });
            }
            // Its results are there.
            hardware.memory_rate(position)?;
            groups.push(position);
        }
        let mut homes = Vec::new();
        for scan in &scans.scans {
            let position = hardware.position(scan.node)?;
            hardware.memory_rate(position)?;
            homes.push(position);
        }
        let nodes = hardware.memories.len();
        Ok(Queues {
            scans,
            hardware,
            now_s: 0.0,
            bytes: vec![0.0; groups.len() * nodes],
            under_way: vec![UnderWay::default(); groups.len() * homes.len()],
            groups,
            idle: scans.workers.iter().map(|&(_, count)| count).collect(),
            homes,
            queues: vec![VecDeque::new(); nodes],
            rates: BTreeMap::new(),
            tasks_left: vec![0; scans.clients_count],
            done: Vec::new(),
            tasks_begun: 0,
            tasks_done: 0,
            tasks_away: 0,
        })
    }

    /// Queues the tasks of the next query of a client.
    fn send(&mut self, client: usize) {
        for (index, scan) in self.scans.scans.iter().enumerate() {
            let count = scan.columns_count * self.scans.tasks_per_column;
            self.tasks_left[client] += count;
            self.queues[self.homes[index]].extend(repeat_n((client, index), count));
        }
        (0..self.groups.len()).for_each(|group| self.take(group));
    }

    /// Idle workers of a group take tasks.
    fn take(&mut self, group: usize) {
        while self.idle[group] > 0
            && let Some((client, scan)) = self.next_for(group)
        {
            self.idle[group] -= 1;
            self.tasks_begun += 1;
            let place = (self.tasks_begun as f64 * EVEN).fract();
            let size = 1.0 + self.scans.task_spread * (2.0 * place - 1.0);
            let bytes = size * self.scans.scans[scan].column_bytes / self.scans.tasks_per_column as f64;
            let under_way = &mut self.under_way[group * self.homes.len() + scan];
            let end = under_way.read + bytes;
            let before = under_way.tasks.partition_point(|task| task.end <= end);
            under_way.tasks.insert(before, Task { client, bytes, end });
        }
    }

    /// The next task for a worker: of its own node, or else of the longest queue that it may take from.
    fn next_for(&mut self, group: usize) -> Option<(usize, usize)> {
        if let Some(task) = self.queues[self.groups[group]].pop_front() {
            return Some(task);
        }
        let has_workers = |node: usize| {
            let mut workers = self.groups.iter().zip(&self.scans.workers);
            workers.any(|(&position, &(_, count))| position == node && count > 0)
        };
        let may_take = |node: &usize| self.scans.is_stealing || !has_workers(*node);
        let longest = (0..self.queues.len()).filter(may_take).max_by_key(|&node| self.queues[node].len())?;
        self.queues[longest].pop_front()
    }

    /// Lets time pass until so many more queries are done.
    fn until(&mut self, queries: usize) {
        let wanted = self.done.len() + queries;
        // Mostly a task of the same kind follows, and the rates stay.
        let (mut counts, mut rates) = (Vec::new(), Vec::new());
        while self.done.len() < wanted {
            let now = || self.under_way.iter().map(|it| it.tasks.len());
            if !now().eq(counts.iter().copied()) {
                counts = now().collect();
                if let Some(known) = self.rates.get(&counts) {
                    rates.clone_from(known);
                } else {
                    rates = self.rates_of(&counts);
                    self.rates.insert(counts.clone(), rates.clone());
                }
            }
            let left_s = |(index, (it, rate)): (usize, (&UnderWay, &f64))| {
                Some((index, (it.tasks.front()?.end - it.read).max(0.0) / rate))
            };
            let next = self.under_way.iter().zip(&rates).enumerate().filter_map(left_s);
            let Some((index, step_s)) = next.min_by(|one, other| one.1.total_cmp(&other.1)) else { return };
            for (it, rate) in self.under_way.iter_mut().zip(&rates).filter(|(it, _)| !it.tasks.is_empty()) {
                it.read += rate * step_s;
            }
            self.now_s += step_s;
            self.end(index / self.homes.len(), index % self.homes.len());
        }
    }

    /// The first task of a scan by a group ends.
    fn end(&mut self, group: usize, scan: usize) {
        let it = &mut self.under_way[group * self.homes.len() + scan];
        let Some(Task { client, bytes, end }) = it.tasks.pop_front() else { return };
        it.read = end;
        if it.tasks.is_empty() {
            it.read = 0.0;
        }
        let (nodes, own) = (self.queues.len(), self.groups[group]);
        self.bytes[group * nodes + self.homes[scan]] += bytes;
        self.bytes[group * nodes + own] += bytes * self.scans.scans[scan].results_per_byte();
        self.tasks_done += 1;
        self.tasks_away += usize::from(self.homes[scan] != own);
        self.idle[group] += 1;
        self.tasks_left[client] -= 1;
        if self.tasks_left[client] == 0 {
            self.done.push((self.now_s, client));
            self.send(client);
        } else {
            self.take(group);
        }
    }

    /// The rate of a task of each kind with so many of each under way.
    fn rates_of(&self, counts: &[usize]) -> Vec<f64> {
        let mut traffic = Traffic::new(self.hardware, Fairness::default());
        for (index, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (group, scan) = (index / self.homes.len(), index % self.homes.len());
            let results_per_byte = self.scans.scans[scan].results_per_byte();
            let (node, threads_count) = (self.groups[group], count as f64);
            let workers = Mover::Cpus { node, threads_count, speed: 1.0, rate_max: f64::INFINITY };
            traffic.scan(workers, self.homes[scan], results_per_byte, f64::INFINITY, ());
        }
        let mut rates = traffic.rates().iter();
        let each = |&count: &usize| match count {
            0 => 0.0,
            count => rates.next().map_or(0.0, |rate| rate / count as f64),
        };
        counts.iter().map(each).collect()
    }
}

/// Jain's index of shares.
fn jain(shares: &[usize]) -> f64 {
    let sum: usize = shares.iter().sum();
    let squares: usize = shares.iter().map(|share| share * share).sum();
    (sum * sum) as f64 / (squares * shares.len()) as f64
}

/// Standard deviation of the rate of events between equal intervals of that time.
fn deviation(times: &[f64], seconds: f64) -> f64 {
    let interval_s = (seconds / 10.0).min(INTERVAL_S);
    let count = (seconds / interval_s).round().max(1.0) as usize;
    let mut counts = vec![0.0_f64; count];
    for &at_s in times {
        let index = (at_s / interval_s) as usize;
        if let Some(events) = counts.get_mut(index) {
            *events += 1.0;
        }
    }
    let mean = counts.iter().sum::<f64>() / count as f64;
    let square = counts.iter().map(|events| (events - mean).powi(2)).sum::<f64>() / count as f64;
    square.sqrt() / interval_s
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;
    use crate::topology::Machine;

    const COLUMN: f64 = 156.25e6;

    fn skylake(mode: &str) -> Hardware {
        Hardware::of(&Machine::from_profile(&format!("skylake-8180-snc-{mode}")).unwrap()).unwrap()
    }

    /// 56 clients with so many columns on nodes 0 and 1, and results of this part of the scanned bytes.
    fn scans(workers: &[(u32, usize)], columns: [usize; 2], results: f64) -> TaskScans {
        let scan = |(node, columns_count): (u32, usize)| TableScan {
            node: NodeId(node),
            columns_count,
            column_bytes: COLUMN,
            result_bytes: columns_count as f64 * COLUMN * results,
        };
        TaskScans {
            clients_count: 56,
            queries_per_client: 4,
            workers: workers.iter().map(|&(node, count)| (NodeId(node), count)).collect(),
            is_stealing: false,
            tasks_per_column: 28,
            task_spread: 0.5,
            scans: (0..).zip(columns).filter(|&(_, columns)| columns > 0).map(scan).collect(),
        }
    }

    const BOTH: [(u32, usize); 2] = [(0, 28), (1, 28)];

    #[track_caller]
    fn is_about(one: f64, other: f64, tolerance: f64) {
        assert!((one / other - 1.0).abs() < tolerance, "{one} and {other}");
    }

    #[test]
    fn the_memory_with_more_columns_is_what_limits() {
        let on = skylake("on");
        let rate = |columns, results| scans(&BOTH, columns, results).run(&on).unwrap().queries_per_s;
        is_about(rate([6, 0], 0.0), 58_087.1e6 / (6.0 * COLUMN), 1e-3);
        is_about(rate([0, 6], 0.0), 58_012.9e6 / (6.0 * COLUMN), 1e-3);
        is_about(rate([3, 3], 0.0), 2.0 * 58_012.9e6 / (6.0 * COLUMN), 0.02);
        is_about(rate([2, 4], 0.0), 58_012.9e6 / (4.0 * COLUMN), 0.02);
        // Results of the workers' own share the memory with the scan.
        is_about(rate([6, 0], 0.5), 58_087.1e6 / (6.0 * COLUMN) / 1.5, 1e-3);
    }

    #[test]
    fn workers_that_scan_the_neighbour_write_into_their_own_memory() {
        let on = skylake("on");
        let run = |columns| scans(&[(0, 28)], columns, 0.4).run(&on).unwrap();
        let (own, neighbour) = (run([6, 0]), run([0, 6]));
        is_about(neighbour.queries_per_s / own.queries_per_s, 1.4 * 58_122.9 / 58_087.1, 1e-3);
        assert_eq!((own.away, neighbour.away), (0.0, 1.0));
        assert_eq!(own.bytes_per_s_away(), 0.0);
        is_about(neighbour.bytes_per_s() / neighbour.bytes_per_s_away(), 1.4, 1e-6);
        is_about(own.bytes_per_s(), 1.4 * 6.0 * COLUMN * own.queries_per_s, 0.02);
    }

    /// The workers of one domain take the tasks of their own queue first, so that they read one memory most of the time. Only
    /// while the last tasks of a part run, others read the other memory.
    #[test]
    fn workers_of_one_domain_read_one_memory_after_the_other() {
        let on = skylake("on");
        let rate = |tasks_per_column| {
            let scans = TaskScans { tasks_per_column, ..scans(&[(0, 28)], [3, 3], 0.0) };
            scans.run(&on).unwrap().queries_per_s
        };
        let (one_memory, both) = (58_087.1e6 / (6.0 * COLUMN), 116_100e6 / (6.0 * COLUMN));
        let rates = [7, 14, 28, 112].map(rate);
        assert!(rates.is_sorted_by(|one, other| one > other), "{rates:?}");
        assert!(rates[3] > one_memory && rates[3] < 1.1 * one_memory, "{rates:?} of {one_memory}");
        assert!(rates[0] < 1.01 * both, "{rates:?} of {both}");
    }

    #[test]
    fn stealing_moves_results_and_not_the_scan() {
        let on = skylake("on");
        let rate = |results, is_stealing| {
            let scans = TaskScans { is_stealing, ..scans(&BOTH, [2, 4], results) };
            scans.run(&on).unwrap()
        };
        let (alone, stolen) = (rate(0.0, false), rate(0.0, true));
        assert!(alone.away == 0.0 && stolen.away > 0.05, "{alone:?} {stolen:?}");
        is_about(stolen.queries_per_s, alone.queries_per_s, 0.03);
        let gain = rate(0.47, true).queries_per_s / rate(0.47, false).queries_per_s;
        assert!(gain > 1.1, "{gain}");
    }

    #[test]
    fn clients_are_served_alike() {
        let off = skylake("off");
        let run = scans(&[(0, 56)], [6, 0], 0.0).run(&off).unwrap();
        assert!(run.fairness > 0.95 && run.fairness <= 1.0, "{run:?}");
        assert!(run.deviation < 0.2 * run.queries_per_s, "{run:?}");
        assert_eq!([jain(&[3, 3]), jain(&[4, 0])], [1.0, 0.5]);
        is_about(jain(&[1, 2, 3]), 36.0 / 42.0, 1e-12);
    }

    /// Tasks of one size begin and end together, so that workers of one domain change memories together.
    #[test]
    fn tasks_of_equal_sizes_read_one_memory_longer() {
        let on = skylake("on");
        let rate = |task_spread| {
            let scans = TaskScans { task_spread, ..scans(&[(0, 28)], [3, 3], 0.0) };
            scans.run(&on).unwrap().queries_per_s
        };
        assert!(rate(0.0) < 0.9 * rate(0.5), "{} and {}", rate(0.0), rate(0.5));
    }

    /// The published loss of two sub-domains that share queries evenly has another reason than few queries at a time.
    #[test]
    fn few_clients_lose_little_on_balanced_memories() {
        let (on, off) = (skylake("on"), skylake("off"));
        for clients_count in [1, 2, 4, 16] {
            let rate = |scans: TaskScans, hardware| {
                let queries_per_client = 64 / clients_count;
                let scans = TaskScans { clients_count, queries_per_client, ..scans };
                scans.run(hardware).unwrap().queries_per_s
            };
            let both = rate(scans(&BOTH, [3, 3], 0.0), &on);
            let one = TaskScans { tasks_per_column: 56, ..scans(&[(0, 56)], [6, 0], 0.0) };
            let gain = both / rate(one, &off);
            assert!((1.0..1.05).contains(&gain), "{clients_count} clients: {gain}");
        }
    }

    #[test]
    fn deviations_are_between_intervals() {
        // Ten seconds with one event, ten with three.
        let times: Vec<f64> = (0..20)
            .flat_map(|second| vec![f64::from(second) + 0.5; if second < 10 { 1 } else { 3 }])
            .collect();
        is_about(deviation(&times, 20.0), 1.0, 1e-9);
        assert_eq!(deviation(&[0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95], 1.0), 0.0);
    }

    #[test]
    fn nonsense_is_refused() {
        let on = skylake("on");
        let good = scans(&BOTH, [3, 3], 0.0);
        let refuses = |scans: TaskScans, word: &str| {
            let error = scans.run(&on).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refuses(TaskScans { scans: Vec::new(), ..good.clone() }, "read nothing");
        refuses(TaskScans { workers: Vec::new(), ..good.clone() }, "no workers");
        refuses(TaskScans { workers: vec![(NodeId(9), 1)], ..good.clone() }, "no node 9");
        refuses(TaskScans { clients_count: 0, ..good.clone() }, "begin at 1");
        refuses(TaskScans { clients_count: 5000, ..good.clone() }, "at most 4096");
        refuses(TaskScans { tasks_per_column: usize::MAX, ..good.clone() }, "at most 1048576");
        refuses(TaskScans { task_spread: 1.0, ..good.clone() }, "below 1");
        refuses(TaskScans { task_spread: f64::NAN, ..good.clone() }, "below 1");
        let mut negative = good;
        negative.scans[0].result_bytes = -1.0;
        refuses(negative, "results");
    }
}
