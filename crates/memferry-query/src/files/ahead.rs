//! Reading ahead within one file, also before it is opened: what the decoder will request next, started while it decodes.
//!
//! The decoder works row group by row group, and requests each in *phases*: the columns of its first filter, those of the
//! next filter, in the end the late columns of the rows that passed. Without filters in the decoder there is one phase.
//! The row groups to come are known from the plan; the phases are predicted by the demand of the scan and corrected by what
//! the decoder requested of the row groups before:
//!
//! ```text
//! row group 0:  filter columns ─▶ late columns          learned: 2 phases, leaves of each
//! row group 1:  filter columns ─▶ (no row passed)       phase 2 happened in 1 of 2: no longer read ahead
//! row group 2:  filter columns ─▶ late columns
//! ```
//!
//! A phase is read ahead if it happened in at least nine of ten row groups, so at most a tenth of what is read ahead is in
//! vain. Until the first row group is done, the late columns of that one are read ahead.
//!
//! The distance starts at one row group and doubles with each, so that a query that ends early reads little in vain, up to
//! a window of bytes. Dropping a read cancels it if it has not started.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::chunks::{Chunk, Chunks};
use super::forecast::Volume;
use super::prune::RowGroup;
use super::source::{RangeSource, Read};

/// A phase is read ahead if it happened in this share of the row groups before: `cold_bytes_ratio` allows 1.1.
const LIKELY_TENTHS: u32 = 9;

/// Requests that cover less of their columns than this share are sparse: rows are selected by page, and the next row
/// group's pages are not known.
const WHOLE_TENTHS: u64 = 9;

/// Distance while a dynamic filter may still change: TopK and min/max often exclude most row groups after the first ones.
const NARROWING_GROUPS: usize = 1;

/// State of reading ahead in one file.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    chunks: Arc<Chunks>,
    /// In the order of reading.
    groups: Vec<RowGroup>,
    /// Position of the row group that the decoder reads, before its first request `None`.
    current: Option<usize>,
    /// Requests that the current row group has had.
    phase: usize,
    /// Row groups that the decoder has left.
    finished_count: u32,
    phases: Vec<Phase>,
    /// The next phase to plan: position of the row group, phase.
    next: (usize, usize),
    planned: VecDeque<Planned>,
    /// Reads that nothing has requested yet, by start.
    started: BTreeMap<u64, (usize, Read)>,
    started_bytes: u64,
    /// Bytes of reads that were dropped since the last report.
    dropped_bytes: u64,
    window_bytes: u64,
    distance_groups: usize,
}

/// Requests that the decoder makes of each row group.
#[derive(Debug, Default)]
struct Phase {
    leaves: Vec<usize>,
    /// Row groups that had it.
    requested_count: u32,
    is_sparse: bool,
}

/// A read to start when the window has room.
#[derive(Debug)]
struct Planned {
    group: usize,
    range: Range<u64>,
}

/// Reads for one request.
#[derive(Debug, Default)]
pub(crate) struct Requested {
    /// Reads that were started ahead.
    pub(crate) ahead: Vec<Read>,
    /// Reads that start now.
    pub(crate) now: Vec<Range<u64>>,
}

impl ReadAhead {
    /// `predicted`: the leaf columns of each phase. A window of 0 bytes turns reading ahead off.
    pub(crate) fn new(
        chunks: Arc<Chunks>,
        groups: Vec<RowGroup>,
        predicted: Vec<Vec<usize>>,
        window_bytes: u64,
    ) -> Self {
        let phases = predicted.into_iter().filter(|leaves| !leaves.is_empty());
        Self {
            chunks,
            groups,
            current: None,
            phase: 0,
            finished_count: 0,
            phases: phases.map(|leaves| Phase { leaves, ..Phase::default() }).collect(),
            next: (0, 0),
            planned: VecDeque::new(),
            started: BTreeMap::new(),
            started_bytes: 0,
            dropped_bytes: 0,
            window_bytes,
            distance_groups: 0,
        }
    }

    /// All that is predicted to be read.
    pub(crate) fn volume(&self, source: &dyn RangeSource) -> Volume {
        let mut volume = Volume { groups_count: self.groups.len() as u64, ..Volume::default() };
        for group in &self.groups {
            let leaves = self.phases.iter().flat_map(|phase| &phase.leaves);
            let ranges = leaves.flat_map(|&leaf| self.chunks.demanded(group, leaf)).collect();
            for read in source.merge(ranges) {
                volume.bytes += read.end - read.start;
                volume.reads_count += 1;
            }
        }
        volume
    }

    /// Whether the decoder moves to another row group with these ranges.
    pub(crate) fn enters_group(&self, ranges: &[Range<u64>]) -> bool {
        let group = ranges.first().and_then(|range| self.chunks.find(range)).map(|chunk| chunk.group);
        group.is_some() && group != self.current.map(|position| self.groups[position].index)
    }

    /// Keeps only those of the row groups to come that are in `groups`. Reads of the others are dropped.
    pub(crate) fn narrow(&mut self, groups: &[RowGroup]) {
        let keep = |index: usize| groups.iter().any(|group| group.index == index);
        let first = self.current.map_or(0, |position| position + 1);
        let mut position = 0;
        self.groups.retain(|group| {
            position += 1;
            position <= first || keep(group.index)
        });
        self.planned.clear();
        self.next = self.next.min((first, 0));
        self.drop_started(|group| !keep(group));
    }

    /// Takes what was read of `ranges`, and learns from the request.
    pub(crate) fn request(&mut self, ranges: &[Range<u64>], source: &dyn RangeSource) -> Requested {
        self.learn(ranges);
        let mut ahead: BTreeMap<u64, Read> = BTreeMap::new();
        let mut absent = vec![];
        for range in ranges {
            if covers(ahead.range(..=range.start).next_back().map(|(_, read)| &read.range), range) {
                continue;
            }
            let found = self.started.range(..=range.start).next_back();
            match found {
                Some((&start, (_, read))) if covers(Some(&read.range), range) => {
                    let (_, read) = self.started.remove(&start).expect("found above");
                    self.started_bytes -= read.len();
                    ahead.insert(start, read);
                }
                _ => absent.push(range.clone()),
            }
        }
        // Requested before the window had room.
        self.planned.retain(|planned| !absent.iter().any(|range| covers(Some(&planned.range), range)));
        Requested { ahead: ahead.into_values().collect(), now: source.merge(absent) }
    }

    fn learn(&mut self, ranges: &[Range<u64>]) {
        let chunks: Option<Vec<Chunk>> = ranges.iter().map(|range| self.chunks.find(range)).collect();
        let Some(mut chunks) = chunks.filter(|chunks| !chunks.is_empty()) else { return };
        let group = chunks[0].group;
        if self.current.is_none_or(|position| self.groups[position].index != group) && !self.enter(group) {
            return;
        }
        chunks.dedup();
        let leaves: Vec<usize> = chunks.iter().map(|chunk| chunk.leaf).collect();
        let position = self.current.expect("entered above");
        let whole = leaves.iter().flat_map(|&leaf| self.chunks.demanded(&self.groups[position], leaf));
        let whole_bytes: u64 = whole.map(|range| range.end - range.start).sum();
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if self.phases.len() == self.phase {
            self.phases.push(Phase::default());
        }
        let phase = &mut self.phases[self.phase];
        phase.requested_count += 1;
        phase.is_sparse = bytes * 10 < whole_bytes * WHOLE_TENTHS;
        if phase.leaves != leaves || phase.requested_count == 1 {
            phase.leaves = leaves;
            // What is planned has other columns, or lacks this phase.
            self.planned.clear();
            self.next = (position, self.phase + 1);
        }
        self.phase += 1;
        self.next = self.next.max((position, self.phase));
    }

    /// Moves to a row group. Reads of those before it are dropped. Returns false for a row group that the plan lacks.
    fn enter(&mut self, group: usize) -> bool {
        // The scan may read the file backwards, for ORDER BY ... DESC. The plan does not say so, the first request does.
        let last = self.groups.len().saturating_sub(1);
        if self.current.is_none() && last > 0 && self.groups[last].index == group {
            self.groups.reverse();
        }
        let Some(position) = self.groups.iter().position(|known| known.index == group) else { return false };
        if self.current.is_some() {
            self.finished_count += 1;
        }
        self.current = Some(position);
        self.phase = 0;
        // No more than there are: a file may have more row groups than a number has bits.
        self.distance_groups = (self.distance_groups * 2).clamp(1, self.groups.len());
        let before: Vec<usize> = self.groups[..position].iter().map(|group| group.index).collect();
        self.planned.retain(|planned| !before.contains(&planned.group));
        self.drop_started(|group| before.contains(&group));
        true
    }

    fn drop_started(&mut self, obsolete: impl Fn(usize) -> bool) {
        let mut dropped_bytes = 0;
        self.started.retain(|_, (group, read)| {
            let keep = !obsolete(*group);
            dropped_bytes += if keep { 0 } else { read.len() };
            keep
        });
        self.started_bytes -= dropped_bytes;
        self.dropped_bytes += dropped_bytes;
    }

    /// Changes the window. Reads beyond a smaller one go on.
    pub(crate) fn set_window(&mut self, window_bytes: u64) {
        self.window_bytes = window_bytes;
    }

    /// Bounds the distance to what is read in vain if a dynamic filter excludes the row groups to come.
    pub(crate) fn expect_narrowing(&mut self) {
        self.distance_groups = self.distance_groups.min(NARROWING_GROUPS);
    }

    /// Starts reads up to the window; a read larger than it when nothing else is started. Returns them.
    pub(crate) fn fill(&mut self, source: &dyn RangeSource) -> Vec<&Read> {
        let window_bytes = self.window_bytes;
        self.fill_while(source, |started_bytes, bytes| {
            started_bytes == 0 || started_bytes + bytes <= window_bytes
        })
    }

    /// Starts reads up to a smaller window, and none that is larger than it. Returns them.
    pub(crate) fn fill_within(&mut self, source: &dyn RangeSource, window_bytes: u64) -> Vec<&Read> {
        let window_bytes = window_bytes.min(self.window_bytes);
        self.fill_while(source, |started_bytes, bytes| started_bytes + bytes <= window_bytes)
    }

    /// Starts reads that `fits` admits, by the bytes that are started and its own, up to the first that it refuses.
    fn fill_while(&mut self, source: &dyn RangeSource, fits: impl Fn(u64, u64) -> bool) -> Vec<&Read> {
        let mut new = vec![];
        while let Some(planned) = self.next_planned(source) {
            let bytes = planned.range.end - planned.range.start;
            if !fits(self.started_bytes, bytes) {
                self.planned.push_front(planned);
                break;
            }
            let start = planned.range.start;
            self.started_bytes += bytes;
            self.started.insert(start, (planned.group, source.start(planned.range)));
            new.push(start);
        }
        new.iter().filter_map(|start| self.started.get(start)).map(|(_, read)| read).collect()
    }

    fn next_planned(&mut self, source: &dyn RangeSource) -> Option<Planned> {
        if self.window_bytes == 0 {
            return None;
        }
        loop {
            if let Some(planned) = self.planned.pop_front() {
                return Some(planned);
            }
            // The file may not be opened yet.
            let current = self.current.unwrap_or(0);
            let (position, phase) = self.next;
            if position >= self.groups.len() || position > current + self.distance_groups {
                return None;
            }
            if phase >= self.phases.len() {
                self.next = (position + 1, 0);
                continue;
            }
            self.next = (position, phase + 1);
            if !self.is_likely(position, phase) {
                continue;
            }
            let group = &self.groups[position];
            let leaves = self.phases[phase].leaves.iter();
            let ranges = leaves.flat_map(|&leaf| self.chunks.demanded(group, leaf)).collect();
            // A read that is started already serves the range as well.
            let ranges =
                source.merge(ranges).into_iter().filter(|range| !self.started.contains_key(&range.start));
            self.planned.extend(ranges.map(|range| Planned { group: group.index, range }));
        }
    }

    fn is_likely(&self, position: usize, phase: usize) -> bool {
        let Phase { requested_count, is_sparse, .. } = self.phases[phase];
        let chances = self.finished_count + u32::from(self.phase > phase);
        match chances {
            0 => self.current.unwrap_or(0) == position,
            _ => !is_sparse && requested_count * 10 >= chances * LIKELY_TENTHS,
        }
    }

    /// Whether all likely reads of the file are started.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.planned.is_empty() && self.next.0 >= self.groups.len()
    }

    /// Bytes of reads that were dropped without a request since the last call.
    pub(crate) fn take_dropped_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.dropped_bytes)
    }

    /// Bytes of reads that nothing has requested.
    pub(crate) fn unrequested_bytes(&self) -> u64 {
        self.started_bytes
    }
}

fn covers(read: Option<&Range<u64>>, range: &Range<u64>) -> bool {
    read.is_some_and(|read| read.start <= range.start && range.end <= read.end)
}

#[cfg(test)]
mod tests;
