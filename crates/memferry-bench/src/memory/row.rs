//! Rows of the benchmark: the columns of all records, and what was measured where.

use std::fmt;

use memferry::memory::HugePages;
use memferry::topology::NodeId;
use serde::Serialize;

use crate::harness::{CsvRow, Row};

/// What the threads do with their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// Reads all bytes.
    Read,
    /// Writes all bytes, by memset.
    Write,
    /// Copies from one region to another.
    Copy,
    /// Reads two lines for each one that it writes.
    Mix,
}

impl Traffic {
    /// All of them.
    pub const ALL: [Traffic; 4] = [Traffic::Read, Traffic::Write, Traffic::Copy, Traffic::Mix];

    /// Bytes read plus bytes written over a region of `size_bytes`, as STREAM counts them.
    pub fn bytes(self, size_bytes: usize) -> usize {
        match self {
            Traffic::Read | Traffic::Write => size_bytes,
            Traffic::Copy => 2 * size_bytes,
            // All lines are read, every second one is written.
            Traffic::Mix => size_bytes + size_bytes / 2,
        }
    }

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Read => "read",
            Traffic::Write => "write",
            Traffic::Copy => "copy",
            Traffic::Mix => "mix",
        }
    }
}

/// The pages of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pages {
    /// Transparent huge pages of 2 MiB.
    Huge,
    /// Pages of 4 KiB.
    Small,
}

impl Pages {
    /// Both, huge ones first.
    pub const ALL: [Pages; 2] = [Pages::Huge, Pages::Small];

    pub(super) fn advice(self) -> HugePages {
        match self {
            Pages::Huge => HugePages::Advised,
            Pages::Small => HugePages::Never,
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Pages::Huge => "huge",
            Pages::Small => "small",
        })
    }
}

/// The quantity of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Beside a loop in C.
    Compared,
    /// Nanoseconds of a step of a chain while the memory is idle.
    Latency,
    /// Bandwidth of a traffic.
    Bandwidth,
    /// Nanoseconds of a step while other threads use the memory.
    LoadedLatency,
}

/// CPUs, memory and threads of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Node of the CPUs.
    pub cpus: NodeId,
    /// Node of the memory.
    pub memory: NodeId,
    /// Its pages.
    pub pages: Pages,
}

impl Place {
    /// The name of a row: `read_huge_0_to_0`.
    pub(super) fn name(self, what: &str) -> String {
        let Place { cpus, memory, pages } = self;
        format!("{what}_{pages}_{cpus}_to_{memory}")
    }
}

/// A row of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryRow {
    /// The columns of all records.
    #[serde(flatten)]
    pub row: Row,
    /// The quantity.
    pub figure: Figure,
    /// CPUs and memory.
    #[serde(flatten)]
    pub place: Place,
    /// What the threads do; of a latency under load those beside the reader of the chain. `None` for an idle memory.
    pub traffic: Option<Traffic>,
    /// Number of threads, the reader of the chain included.
    pub threads: usize,
    /// Turns of an empty loop after each KiB of the traffic.
    pub delay: Option<u32>,
    /// What the other threads read and wrote together while the latency was measured.
    pub load_mb_per_s: Option<f64>,
}

impl CsvRow for MemoryRow {
    fn columns() -> Vec<&'static str> {
        let own = ["figure", "cpus", "memory", "pages", "traffic", "threads", "delay", "load_mb_per_s"];
        Row::COLUMNS.into_iter().chain(own).collect()
    }
}

impl AsMut<Row> for MemoryRow {
    fn as_mut(&mut self) -> &mut Row {
        &mut self.row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Provenance;

    #[test]
    fn rows_have_their_place() {
        let place = Place { cpus: NodeId(0), memory: NodeId(8), pages: Pages::Small };
        let row = MemoryRow {
            row: Row::median(place.name("loaded_mix"), "ns", Provenance::Measured, &[90.0, 80.0, 100.0]),
            figure: Figure::LoadedLatency,
            place,
            traffic: Some(Traffic::Mix),
            threads: 2,
            delay: Some(50),
            load_mb_per_s: Some(1500.0),
        };
        let expected =
            "loaded_mix_small_0_to_8|90|ns|measured|3|80|100||||||loaded_latency|0|8|small|mix|2|50|1500";
        assert_eq!(row.fields().join("|"), expected);
        assert_eq!(row.fields().len(), MemoryRow::columns().len());
    }

    #[test]
    fn bytes_are_those_read_and_written() {
        assert_eq!(Traffic::ALL.map(|traffic| traffic.bytes(128)), [128, 128, 256, 192]);
    }
}
