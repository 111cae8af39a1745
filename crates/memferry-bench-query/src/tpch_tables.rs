//! The eight tables of TPC-H, generated in process.
//!
//! Source: TPC Benchmark H specification, revision 3, section 4.2; `tpchgen`, a rewrite of its `dbgen`.

use std::fs;
use std::path::PathBuf;

use memferry::internals::Origin;
use memferry_query::load::{BATCH_ROWS, PartitionReader, PartitionedSource, Progress, from_readers};
use memferry_query::{Layout, LoadError, TableData};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

/// Below this scale some tables have so few rows that the generator cannot draw their keys.
pub const TPCH_SCALE_MIN: f64 = 0.001;

/// Memory that the tables take for each unit of scale, measured at scale 1 (1.78 GB).
pub const TPCH_BYTES_PER_SCALE: u64 = 1_800_000_000;

/// Memory of generation beside the tables: the generator's pool of text, and unfinished groups.
const OVERHEAD_BYTES: u64 = 600_000_000;

pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Number of rows at a scale, roughly.
    pub(crate) rows: fn(f64) -> u64,
    /// Rows of a row group in a file. Source: files of tpchgen-cli 4.0 at scale 3; its row groups have about 7 MiB before
    /// compression.
    pub(crate) group_rows: usize,
    /// Part `p` of `n`, counted from 1.
    pub(crate) open: fn(f64, i32, i32) -> PartitionReader,
}

macro_rules! table {
    ($name:literal, $generator:ident, $arrow:ident, $group_rows:literal, $rows:expr) => {
        Table {
            name: $name,
            rows: $rows,
            group_rows: $group_rows,
            open: |scale, part, parts| {
                Box::new($arrow::new($generator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
            },
        }
    };
}

/// The largest first, so that no worker gets a long last job.
pub(crate) static TABLES: [Table; 8] = [
    // An order has 1 to 7 items, evenly distributed.
    table!("lineitem", LineItemGenerator, LineItemArrow, 114_628, |scale| 4 * (1_500_000.0 * scale) as u64),
    table!("orders", OrderGenerator, OrderArrow, 97_826, |scale| (1_500_000.0 * scale) as u64),
    table!("partsupp", PartSuppGenerator, PartSuppArrow, 51_063, |scale| 4 * (200_000.0 * scale) as u64),
    table!("part", PartGenerator, PartArrow, 100_000, |scale| (200_000.0 * scale) as u64),
    table!("customer", CustomerGenerator, CustomerArrow, 40_909, |scale| (150_000.0 * scale) as u64),
    table!("supplier", SupplierGenerator, SupplierArrow, 30_000, |scale| (10_000.0 * scale) as u64),
    table!("nation", NationGenerator, NationArrow, 25, |_| 25),
    table!("region", RegionGenerator, RegionArrow, 25, |_| 5),
];

/// A TPC-H data set that cannot be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TpchError {
    /// TPC-H data of this scale does not exist.
    #[error("{scale} is no scale for TPC-H; use a number of at least {TPCH_SCALE_MIN}, for example 1")]
    Scale {
        /// The requested scale.
        scale: f64,
    },
    /// The data does not fit into memory.
    #[error(
        "TPC-H at scale {scale} needs about {:.1} GiB and {:.1} GiB of memory are available; {}",
        gib(*needed_bytes), gib(*available_bytes), smaller(*scale_max)
    )]
    NoRoom {
        /// The requested scale.
        scale: f64,
        /// The largest scale that fits.
        scale_max: f64,
        /// Memory that the scale needs, roughly.
        needed_bytes: u64,
        /// Available memory.
        available_bytes: u64,
    },
    /// A table cannot be kept in memory.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A file of a table cannot be written.
    #[error("cannot write {}; make room there, or choose another directory", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// Advice if no more than this scale fits.
fn smaller(scale_max: f64) -> String {
    // Rounded down, so that the advice holds.
    let scale = (scale_max / TPCH_SCALE_MIN).floor() * TPCH_SCALE_MIN;
    if scale < TPCH_SCALE_MIN {
        "free some memory".to_owned()
    } else {
        format!("use a scale up to {scale:.3}")
    }
}

/// All tables at `scale` with their names, the largest first.
///
/// Partition `p` of `n` is the generator's part `p` of `n`: the rows of a table and their order depend on `scale` only.
///
/// # Errors
/// [`TpchError::Scale`] and [`TpchError::NoRoom`] before anything is generated; [`TpchError::Load`].
pub fn tpch_tables(
    scale: f64,
    layout: &Layout,
    progress: &dyn Progress,
) -> Result<Vec<(String, TableData)>, TpchError> {
    // The tables must fit on their node. With the generator's memory they must fit into the machine.
    let node_bytes = match layout.machine.origin() {
        Origin::Discovered => layout.machine.node(layout.home).ok().and_then(|node| node.memory_bytes),
        _ => None,
    };
    check(scale, available_memory(), OVERHEAD_BYTES)?;
    check(scale, node_bytes, 0)?;
    let source = |table: &'static Table| PartitionedSource {
        rows: (table.rows)(scale),
        open: Box::new(move |part, parts| (table.open)(scale, part as i32 + 1, parts as i32)),
    };
    let sources: Vec<PartitionedSource<'_>> = TABLES.iter().map(source).collect();
    let tables = from_readers(&sources, layout, progress)?;
    Ok(TABLES.iter().map(|table| table.name.to_owned()).zip(tables).collect())
}

/// Checks that data of this scale exists.
pub(crate) fn check_scale(scale: f64) -> Result<(), TpchError> {
    // Also refuses NaN.
    if !(TPCH_SCALE_MIN..).contains(&scale) || scale.is_infinite() {
        return Err(TpchError::Scale { scale });
    }
    Ok(())
}

/// Checks that the tables and `overhead_bytes` fit into the available memory, if that is known.
fn check(scale: f64, available_bytes: Option<u64>, overhead_bytes: u64) -> Result<(), TpchError> {
    check_scale(scale)?;
    // Saturates for scales beyond all memories.
    let needed_bytes = ((scale * TPCH_BYTES_PER_SCALE as f64) as u64).saturating_add(overhead_bytes);
    match available_bytes {
        Some(available_bytes) if needed_bytes > available_bytes => {
            let room_bytes = available_bytes.saturating_sub(overhead_bytes);
            let scale_max = room_bytes as f64 / TPCH_BYTES_PER_SCALE as f64;
            Err(TpchError::NoRoom { scale, scale_max, needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// Memory that is available without swapping; `None` if the kernel does not report it.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
