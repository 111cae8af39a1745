//! A closed-loop load on a device, counted in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Bandwidth, EngineTime, Turns, rate_of_buffers};
use crate::DeviceCosts;
use crate::address::PAGE_BYTES;

/// A device: groups of queues and engines.
#[derive(Clone, Debug)]
pub struct DeviceLoad<'a> {
    /// Rates and costs.
    pub costs: DeviceCosts,
    /// Engines of each group.
    pub groups: &'a [usize],
    /// Read buffers that each group may use; empty: all groups may use all.
    pub read_buffers: &'a [u32],
    /// The queues.
    pub queues: &'a [QueueLoad],
    /// The submitters, which run at the same time.
    pub submitters: &'a [SubmitterLoad],
}

/// A work queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLoad {
    /// Position of its group, whose engines serve it.
    pub group: usize,
    /// Entries that submitters may fill; further submissions to a shared queue are repeated.
    pub entries: usize,
    /// Priority in the group, 1 to 15.
    pub priority: u8,
    /// What a submission takes of its core: ENQCMD, MOVDIR64B or a system call.
    pub submit_ns: u64,
}

/// A submitter that keeps a number of submissions in flight.
#[derive(Clone, Copy, Debug)]
pub struct SubmitterLoad {
    /// Position of its queue.
    pub queue: usize,
    /// Bytes of a descriptor that pass the device.
    pub bytes: u64,
    /// Descriptors of a submission; 1 is not a batch.
    pub batch: u32,
    /// Submissions in flight; 1 waits for each.
    pub depth: usize,
    /// Submissions in all.
    pub repetitions: usize,
    /// Absent pages of each target; only for single descriptors.
    pub absent: AbsentPages,
}

/// What happens at the pages of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbsentPages {
    /// All are present.
    None,
    /// The engine waits for each (block on fault).
    Block,
    /// The device stops at each; software touches the page in this time and submits the rest.
    Resume {
        /// Time of a core for a page.
        touch_ns: u64,
    },
}

/// Times of a submitter.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SubmitterTime {
    /// Until it has seen its last completion.
    pub elapsed_ns: u64,
    /// The part in which it submitted.
    pub submitting_ns: u64,
}

/// A descriptor or a batch in a queue.
#[derive(Clone, Copy)]
struct Entry {
    arrival_ns: u64, // at an engine, at the earliest
    submitter: usize,
    resumed: u64, // pages that software touched
}

struct Submitter {
    load: SubmitterLoad,
    ready_ns: u64,
    left: usize, // submissions to begin
    in_flight: usize,
    completed: usize,
    again: VecDeque<u64>, // stopped descriptors, by the number of touched pages
    time: SubmitterTime,
}

/// Work of an engine.
struct Work {
    entry: Entry,
    bytes_left: u64,   // of the descriptor or member
    requests: u64,     // pages to wait for
    members_left: u32, // to begin
    list_ns: u64,
    turn: u64,
}

#[derive(Default)]
struct Engine {
    group: usize,
    time: EngineTime,
    work: Option<Work>,
}

/// A completion record that is to be written: when, its place among those of that time, its submitter, and the number of
/// pages that software has to have touched if the device stopped.
type Record = (u64, u64, usize, Option<u64>);

/// With several engines, descriptors move in this many pieces in turns, so that none waits for another to complete.
const PIECES: u64 = 16;

/// Runs a load; one time for each submitter, in their order.
///
/// # Panics
/// If a submitter names no queue, a queue names no group, or if a count is 0.
pub fn run(load: &DeviceLoad<'_>) -> Vec<SubmitterTime> {
    let mut device = Device::new(load);
    while !device.is_done() {
        device.step();
    }
    device.submitters.into_iter().map(|it| it.time).collect()
}

struct Device<'a> {
    load: &'a DeviceLoad<'a>,
    priorities: Vec<u8>,
    now_ns: u64,
    bandwidth: Bandwidth,
    buffers: Vec<(Bandwidth, u64)>, // of each group with its own limit, and its rate
    turns: Vec<Turns>,              // of each group
    served: u64,
    queues: Vec<VecDeque<Entry>>,
    engines: Vec<Engine>,
    records: BinaryHeap<Reverse<Record>>,
    submitters: Vec<Submitter>,
}

impl<'a> Device<'a> {
    fn new(load: &'a DeviceLoad<'a>) -> Device<'a> {
        let submitter = |load: &SubmitterLoad| {
            assert!(load.depth > 0 && load.batch > 0, "counts begin at 1");
            Submitter {
                load: *load,
                ready_ns: 0,
                left: load.repetitions,
                in_flight: 0,
                completed: 0,
                again: VecDeque::new(),
                time: SubmitterTime::default(),
            }
        };
        assert!(load.groups.iter().all(|engines| *engines > 0), "counts begin at 1");
        assert!(load.queues.iter().all(|queue| queue.entries > 0 && queue.group < load.groups.len()));
        let engines =
            |(group, count): (usize, &usize)| (0..*count).map(move |_| Engine { group, ..Engine::default() });
        Device {
            load,
            priorities: load.queues.iter().map(|queue| queue.priority).collect(),
            now_ns: 0,
            bandwidth: Bandwidth::default(),
            buffers: (load.read_buffers.iter())
                .map(|buffers| (Bandwidth::default(), rate_of_buffers(&load.costs, *buffers)))
                .collect(),
            turns: vec![Turns::default(); load.groups.len()],
            served: 0,
            queues: load.queues.iter().map(|_| VecDeque::new()).collect(),
            engines: load.groups.iter().enumerate().flat_map(engines).collect(),
            records: BinaryHeap::new(),
            submitters: load.submitters.iter().map(submitter).collect(),
        }
    }

    fn is_done(&self) -> bool {
        self.submitters.iter().all(|it| it.completed == it.load.repetitions)
    }

    /// All that is possible now, then the time of what comes next.
    fn step(&mut self) {
        while let Some(&Reverse((due_ns, _, submitter, stopped))) = self.records.peek()
            && due_ns <= self.now_ns
        {
            self.records.pop();
            self.submitters[submitter].complete(self.now_ns, stopped);
        }
        for number in 0..self.submitters.len() {
            while self.submitters[number].ready_ns <= self.now_ns && self.submit(number) {}
        }
        self.dispatch();
        while self.advance() {
            self.dispatch();
        }
        let records = self.records.peek().map(|Reverse((due_ns, ..))| *due_ns);
        let submitters = self.submitters.iter().filter(|it| it.has_work()).map(|it| it.ready_ns);
        let busy = self.engines.iter().filter(|engine| engine.work.is_some());
        let engines = busy.map(|engine| engine.time.free_ns());
        let is_idle = |queue: &QueueLoad| {
            self.engines.iter().any(|engine| engine.group == queue.group && engine.work.is_none())
        };
        let heads = self.queues.iter().zip(self.load.queues).filter(|(_, queue)| is_idle(queue));
        let heads = heads.filter_map(|(queue, _)| queue.front());
        let all = records.into_iter().chain(submitters).chain(engines).chain(heads.map(|it| it.arrival_ns));
        match all.filter(|ns| *ns > self.now_ns).min() {
            Some(ns) => self.now_ns = ns,
            None => assert!(self.is_done(), "nothing happens any more, although submissions are left"),
        }
    }

    /// Submits the next descriptor of a submitter; false if it has none.
    fn submit(&mut self, number: usize) -> bool {
        let submitter = &mut self.submitters[number];
        if !submitter.has_work() {
            return false;
        }
        let QueueLoad { entries, submit_ns, .. } = self.load.queues[submitter.load.queue];
        let queue = &mut self.queues[submitter.load.queue];
        submitter.ready_ns = self.now_ns + submit_ns;
        submitter.time.submitting_ns += submit_ns;
        if queue.len() < entries {
            let resumed = submitter.again.pop_front().unwrap_or_else(|| {
                submitter.left -= 1;
                submitter.in_flight += 1;
                0
            });
            let arrival_ns = submitter.ready_ns + self.load.costs.dispatch_ns;
            queue.push_back(Entry { arrival_ns, submitter: number, resumed });
        }
        submit_ns > 0 || queue.len() < entries
    }

    /// Gives idle engines entries, first the one that is free first.
    fn dispatch(&mut self) {
        for group in 0..self.load.groups.len() {
            self.dispatch_in(group);
        }
    }

    fn dispatch_in(&mut self, group: usize) {
        loop {
            let idle = self.engines.iter_mut().filter(|it| it.group == group && it.work.is_none());
            let Some(engine) = idle.min_by_key(|engine| engine.time.free_ns()) else { return };
            let head = |queue: usize| {
                let is_ready = |head: &&Entry| head.arrival_ns <= self.now_ns;
                (self.load.queues[queue].group == group)
                    .then(|| self.queues[queue].front().filter(is_ready))?
                    .map(|_| ())
            };
            let Some((queue, (), turns)) = self.turns[group].choose(&self.priorities, head) else { return };
            self.turns[group] = turns;
            let Some(entry) = self.queues[queue].pop_front() else { return };
            let load = self.submitters[entry.submitter].load;
            self.served += 1;
            let mut work =
                Work { entry, bytes_left: 0, requests: 0, members_left: 0, list_ns: 0, turn: self.served };
            if load.batch > 1 {
                work.members_left = load.batch;
                work.list_ns = engine.time.fetch(entry.arrival_ns, load.batch.into(), &self.load.costs);
            } else {
                engine.time.begin(entry.arrival_ns, &self.load.costs);
                let pages = load.bytes.div_ceil(PAGE_BYTES);
                (work.bytes_left, work.requests) = match load.absent {
                    AbsentPages::None => (load.bytes, 0),
                    AbsentPages::Block => (load.bytes, pages),
                    AbsentPages::Resume { .. } => {
                        let before = entry.resumed.saturating_sub(1) * PAGE_BYTES;
                        ((load.bytes - before).min(if entry.resumed > 0 { PAGE_BYTES } else { 0 }), 0)
                    }
                };
            }
            engine.work = Some(work);
        }
    }

    /// Executes one piece of the engine that has waited longest; false if none can go on.
    fn advance(&mut self) -> bool {
        let is_alone = self.engines.len() == 1;
        let turn = |engine: &&mut Engine| engine.work.as_ref().map_or(u64::MAX, |work| work.turn);
        let can_go_on = |engine: &&mut Engine| engine.work.is_some() && engine.time.free_ns() <= self.now_ns;
        let Some(engine) = self.engines.iter_mut().filter(can_go_on).min_by_key(turn) else { return false };
        let Engine { time, work: Some(work), group } = engine else { return false };
        let (load, costs) = (self.submitters[work.entry.submitter].load, &self.load.costs);
        self.served += 1;
        work.turn = self.served;
        if work.bytes_left == 0 && work.members_left > 0 {
            work.members_left -= 1;
            work.bytes_left = load.bytes;
            time.begin(work.list_ns, costs);
        }
        let piece = if is_alone { load.bytes } else { load.bytes.div_ceil(PIECES).max(PAGE_BYTES) };
        let piece = piece.min(work.bytes_left);
        let from_ns =
            time.free_ns().max(self.now_ns) + std::mem::take(&mut work.requests) * costs.page_request_ns;
        work.bytes_left -= piece;
        if piece > 0 {
            time.work_until(self.bandwidth.pass(from_ns, piece, costs.bytes_per_second));
            if let Some((own, rate)) = self.buffers.get_mut(*group) {
                time.work_until(own.pass(from_ns, piece, *rate));
            }
        }
        if work.bytes_left > 0 || work.members_left > 0 {
            return true;
        }
        let due_ns = time.free_ns() + costs.latency_ns;
        let is_resuming = matches!(load.absent, AbsentPages::Resume { .. });
        let stops = is_resuming && work.entry.resumed < load.bytes.div_ceil(PAGE_BYTES);
        let record = (due_ns, self.served, work.entry.submitter, stops.then_some(work.entry.resumed + 1));
        self.records.push(Reverse(record));
        engine.work = None;
        true
    }
}

impl Submitter {
    fn has_work(&self) -> bool {
        !self.again.is_empty() || self.left > 0 && self.in_flight < self.load.depth
    }

    /// Handles a completion, which the submitter sees when its core is free.
    fn complete(&mut self, now_ns: u64, stopped: Option<u64>) {
        let seen_ns = now_ns.max(self.ready_ns);
        match (stopped, self.load.absent) {
            (Some(pages), AbsentPages::Resume { touch_ns }) => {
                self.ready_ns = seen_ns + touch_ns;
                self.again.push_back(pages);
            }
            _ => {
                self.in_flight -= 1;
                self.completed += 1;
                self.time.elapsed_ns = self.time.elapsed_ns.max(seen_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: DeviceCosts = DeviceCosts::sapphire_rapids();
    const DEDICATED: QueueLoad =
        QueueLoad { group: 0, entries: 32, priority: 10, submit_ns: COSTS.submit_dedicated_ns };
    const COPY: SubmitterLoad = SubmitterLoad {
        queue: 0,
        bytes: 4096,
        batch: 1,
        depth: 1,
        repetitions: 1000,
        absent: AbsentPages::None,
    };

    fn elapsed(engines: usize, queues: &[QueueLoad], submitters: &[SubmitterLoad]) -> u64 {
        let times =
            run(&DeviceLoad { costs: COSTS, groups: &[engines], read_buffers: &[], queues, submitters });
        times.iter().map(|it| it.elapsed_ns).max().expect("submitters")
    }

    #[test]
    fn waiting_for_each_takes_the_sum_of_all() {
        let one = COSTS.submit_dedicated_ns
            + COSTS.dispatch_ns
            + COSTS.occupancy_ns
            + COSTS.transfer_ns(4096)
            + COSTS.latency_ns;
        assert_eq!(elapsed(1, &[DEDICATED], &[COPY]), 1000 * one);
        assert_eq!(
            run(&DeviceLoad {
                costs: COSTS,
                groups: &[1],
                read_buffers: &[],
                queues: &[DEDICATED],
                submitters: &[COPY]
            }),
            [SubmitterTime { elapsed_ns: 1000 * one, submitting_ns: 1000 * COSTS.submit_dedicated_ns }]
        );
    }

    #[test]
    fn what_sets_the_pace() {
        let rate = |elapsed: u64, bytes: u64| bytes as f64 * 1000.0 / elapsed as f64;
        let busy = SubmitterLoad { depth: 32, ..COPY };
        let large = rate(elapsed(1, &[DEDICATED], &[busy]), 4096);
        assert!((29.0..=30.0).contains(&large), "the bandwidth: {large} GB/s");
        let small =
            |engines| rate(elapsed(engines, &[DEDICATED], &[SubmitterLoad { bytes: 256, ..busy }]), 256);
        assert!((small(1) - 256.0 / COSTS.occupancy_ns as f64).abs() < 0.1, "an engine: {} GB/s", small(1));
        let most = 256.0 / COSTS.submit_dedicated_ns as f64;
        assert!((small(4) / most - 1.0).abs() < 0.05, "the submitter: {} GB/s", small(4));
        let batches = rate(elapsed(1, &[DEDICATED], &[SubmitterLoad { batch: 4, ..busy }]), 4 * 4096);
        assert!((29.0..=30.0).contains(&batches), "lists are fetched ahead: {batches} GB/s");
    }

    #[test]
    fn a_full_queue_costs_submissions() {
        let shared = QueueLoad { submit_ns: COSTS.submit_shared_ns, entries: 1, ..DEDICATED };
        let large = SubmitterLoad { bytes: 1 << 20, repetitions: 10, ..COPY };
        let times = run(&DeviceLoad {
            costs: COSTS,
            groups: &[1],
            read_buffers: &[],
            queues: &[shared],
            submitters: &[large; 4],
        });
        assert!(times.iter().all(|it| it.submitting_ns > 20 * COSTS.submit_shared_ns), "{times:?}");
    }

    #[test]
    fn absent_pages_cost() {
        let with = |absent| {
            elapsed(1, &[DEDICATED], &[SubmitterLoad { bytes: 16384, repetitions: 3, absent, ..COPY }])
        };
        let present = with(AbsentPages::None);
        assert_eq!(with(AbsentPages::Block), present + 3 * 4 * COSTS.page_request_ns);
        let resumed = with(AbsentPages::Resume { touch_ns: 700 });
        assert!(resumed > present + 3 * 4 * 700 && resumed < with(AbsentPages::Block), "{resumed}");
    }

    #[test]
    fn a_group_with_few_read_buffers_is_slow() {
        let large = SubmitterLoad { bytes: 1 << 20, depth: 8, repetitions: 64, ..COPY };
        let queues = [DEDICATED, QueueLoad { group: 1, ..DEDICATED }];
        let rates = |read_buffers: &[u32]| {
            let submitters = [large, SubmitterLoad { queue: 1, ..large }];
            let load = DeviceLoad {
                costs: COSTS,
                groups: &[1, 1],
                read_buffers,
                queues: &queues,
                submitters: &submitters,
            };
            let rate = |ns: u64| 64.0 * f64::from(1 << 20) / ns as f64;
            run(&load).iter().map(|time| rate(time.elapsed_ns)).collect::<Vec<f64>>()
        };
        let (all, few) = (rates(&[]), rates(&[96, 16]));
        assert!((all[0] / all[1] - 1.0).abs() < 0.05 && (all[0] / 15.0 - 1.0).abs() < 0.05, "{all:?}");
        assert!((few[1] / 5.0 - 1.0).abs() < 0.05, "16 of 96 buffers: {few:?}");
        assert!((few[0] / 25.0 - 1.0).abs() < 0.05, "the other group has the rest: {few:?}");
        assert_eq!(rates(&[96, 96]), all);
    }

    /// Small copies beside large ones: in a group of their own they do not wait behind these.
    #[test]
    fn groups_have_engines_of_their_own() {
        let large = SubmitterLoad { bytes: 1 << 20, depth: 8, repetitions: 64, ..COPY };
        let small = SubmitterLoad { queue: 1, bytes: 1024, repetitions: 64, ..COPY };
        let waited = |groups: &[usize], group| {
            let queues = [DEDICATED, QueueLoad { group, ..DEDICATED }];
            let submitters = [large, small];
            run(&DeviceLoad {
                costs: COSTS,
                groups,
                read_buffers: &[],
                queues: &queues,
                submitters: &submitters,
            })[1]
                .elapsed_ns
        };
        let (together, apart) = (waited(&[1], 0), waited(&[1, 1], 1));
        assert!(apart < together / 5, "{apart} apart, {together} together");
    }

    #[test]
    fn engines_share_the_bandwidth() {
        let large = SubmitterLoad { bytes: 1 << 20, depth: 8, repetitions: 64, ..COPY };
        let (one, four) = (elapsed(1, &[DEDICATED], &[large]), elapsed(4, &[DEDICATED], &[large]));
        assert!(one.abs_diff(four) < one / 100, "{one} and {four}");
    }
}
