//! The reads of a table at home: bytes by the node of the CPUs, column and node, in windows of time.
//!
//! A partition of a scan adds to sums of its own. They are merged when it ends, so no lock is on a scan's way. Reads of copies
//! count for nobody, and neither do copies that read the homes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use memferry::model::{HomeRead, PlacedColumn, ReadHistory, ReadWindow};
use memferry::topology::{Machine, NodeId};

use crate::data::TableData;

/// The length of a window: long beside a query of a second, and 60 of them cover the ten minutes in which a move has to pay.
const WINDOW: Duration = Duration::from_secs(10);

/// The reads of a table since its columns lie where they are. A move begins another one: scans that still read the old places
/// add to the old one.
#[derive(Debug)]
pub(crate) struct TableReads {
    state: Mutex<State>,
    /// Whether time that passes here is time of the machine, which is not only described.
    has_time: bool,
}

#[derive(Debug)]
struct State {
    history: ReadHistory,
    /// The window that is open.
    sums: Sums,
    /// Its begin: the first scan for the first window.
    since: Option<Instant>,
}

impl TableReads {
    /// None yet, of the columns where `data` has them.
    pub(crate) fn new(data: &TableData, machine: &Machine) -> TableReads {
        let columns = data
            .schema()
            .fields()
            .iter()
            .map(|field| PlacedColumn { name: field.name().clone(), ..PlacedColumn::default() });
        let mut history = ReadHistory { columns: columns.collect(), windows: Vec::new() };
        for group in data.partitions().iter().flatten() {
            for (index, column) in history.columns.iter_mut().enumerate() {
                *column.size_bytes.entry(group.node(index)).or_default() +=
                    group.column_size_bytes(index) as u64;
            }
        }
        TableReads::of(history, machine.is_this_machine())
    }

    fn of(history: ReadHistory, has_time: bool) -> TableReads {
        TableReads { state: Mutex::new(State { history, sums: Sums::default(), since: None }), has_time }
    }

    /// None yet, after a move of these columns to where `data` has them.
    pub(crate) fn moved(&self, columns: &[usize], data: &TableData, machine: &Machine) -> TableReads {
        let now = TableReads::new(data, machine);
        let mut history = self.history();
        let placed = now.history().columns;
        history.moved(columns.iter().map(|&column| (column, placed[column].size_bytes.clone())));
        TableReads::of(history, self.has_time)
    }

    /// A scan begins.
    pub(crate) fn begin(&self) {
        self.lock().since.get_or_insert_with(Instant::now);
    }

    /// Adds the sums of a partition that has ended.
    pub(crate) fn merge(&self, sums: &mut Sums) {
        let sums = std::mem::take(sums);
        if sums.0.is_empty() {
            return;
        }
        let mut state = self.lock();
        for read in sums.0 {
            state.sums.add(read);
        }
        let since = *state.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= WINDOW {
            let window = state.window(self.has_time);
            state.history.record(window);
            (state.sums, state.since) = (Sums::default(), Some(Instant::now()));
        }
    }

    /// All windows, the open one too.
    pub(crate) fn history(&self) -> ReadHistory {
        let state = self.lock();
        let mut history = state.history.clone();
        if !state.sums.0.is_empty() {
            history.record(state.window(self.has_time));
        }
        history
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn window(&self, has_time: bool) -> ReadWindow {
        let elapsed = self.since.filter(|_| has_time).map_or(0.0, |since| since.elapsed().as_secs_f64());
        ReadWindow { seconds: elapsed, reads: self.sums.0.clone() }
    }
}

/// Sums of reads. There are few: columns of a query, times nodes of the columns.
#[derive(Debug, Default)]
pub(crate) struct Sums(Vec<HomeRead>);

impl Sums {
    /// Adds bytes to the sum of the same CPUs, column and node.
    pub(crate) fn add(&mut self, read: HomeRead) {
        let is_same =
            |it: &&mut HomeRead| (it.cpus, it.column, it.node) == (read.cpus, read.column, read.node);
        match self.0.iter_mut().find(is_same) {
            Some(sum) => sum.size_bytes = sum.size_bytes.saturating_add(read.size_bytes),
            None if read.size_bytes > 0 => self.0.push(read),
            None => {}
        }
    }
}

/// The CPUs of a partition that reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader {
    /// Those of the partition's domain; of a machine that is only described, those beside the table.
    OfNode(NodeId),
    /// Those of the thread that reads; where these are unknown, those of the node.
    OfThread(NodeId),
}

impl Reader {
    pub(crate) fn node(self, machine: &Machine) -> NodeId {
        match self {
            Reader::OfNode(node) => node,
            Reader::OfThread(node) => machine.current_node().unwrap_or(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cpus: u32, column: usize, node: u32, size_bytes: u64) -> HomeRead {
        HomeRead { cpus: NodeId(cpus), column, node: NodeId(node), size_bytes }
    }

    #[test]
    fn equal_reads_are_one_sum() {
        let mut sums = Sums::default();
        for it in [read(0, 1, 2, 5), read(0, 1, 2, 7), read(1, 1, 2, 1), read(0, 1, 3, 0), read(0, 0, 2, 9)] {
            sums.add(it);
        }
        assert_eq!(sums.0, [read(0, 1, 2, 12), read(1, 1, 2, 1), read(0, 0, 2, 9)]);
    }

    #[test]
    fn partitions_are_merged_into_the_open_window() {
        let reads = TableReads::of(ReadHistory::default(), true);
        for _ in 0..2 {
            let mut sums = Sums(vec![read(0, 0, 0, 5)]);
            reads.begin();
            reads.merge(&mut sums);
            assert!(sums.0.is_empty(), "a partition that is dropped twice counts once");
        }
        let history = reads.history();
        assert_eq!(history.windows.len(), 1);
        assert_eq!(history.windows[0].reads, [read(0, 0, 0, 10)]);
        assert_eq!(reads.history().windows.len(), 1, "looking records nothing");
        let described = TableReads::of(ReadHistory::default(), false);
        described.merge(&mut Sums(vec![read(0, 0, 0, 5)]));
        assert_eq!(described.history().windows[0].seconds, 0.0, "time here is not time of that machine");
    }

    #[test]
    fn the_cpus_of_a_thread_are_those_of_this_machine() {
        let here = Machine::discover().unwrap();
        if let Some(node) = here.current_node() {
            assert!(here.node(node).is_ok_and(|node| !node.cpus.is_empty()));
        }
        let described = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        assert_eq!(Reader::OfThread(NodeId(3)).node(&described), NodeId(3));
        assert_eq!(Reader::OfNode(NodeId(4)).node(&here), NodeId(4));
    }
}
