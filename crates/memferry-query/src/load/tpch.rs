//! The eight tables of TPC-H, generated in process.
//!
//! Source: TPC Benchmark H specification, revision 3, section 4.2; `tpchgen`, a rewrite of its `dbgen`.

use std::fs;

use arrow::array::RecordBatchReader;
use memferry::topology::Origin;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use super::parallel::in_parallel;
use super::{BATCH_ROWS, LoadError, Progress};
use crate::data::{Layout, PartitionWriter, RowGroup, TableData, TableError};

/// Below this scale some tables have so few rows that the generator cannot draw their keys.
pub const TPCH_SCALE_MIN: f64 = 0.001;

/// Memory that the tables take for each unit of scale, measured at scale 1 (1.78 GB).
pub const TPCH_BYTES_PER_SCALE: u64 = 1_800_000_000;

/// What generating takes beside the tables: the generator's pool of text, and unfinished groups.
const OVERHEAD_BYTES: u64 = 600_000_000;

type Reader = Box<dyn RecordBatchReader + Send>;

struct Table {
    name: &'static str,
    /// About how many rows there are at a scale.
    rows: fn(f64) -> u64,
    /// Part `p` of `n`, counted from 1.
    open: fn(f64, i32, i32) -> Reader,
}

macro_rules! table {
    ($name:literal, $generator:ident, $arrow:ident, $rows:expr) => {
        Table {
            name: $name,
            rows: $rows,
            open: |scale, part, parts| {
                Box::new($arrow::new($generator::new(scale, part, parts)).with_batch_size(BATCH_ROWS))
            },
        }
    };
}

/// The largest first, so that no worker is left with a long last job.
static TABLES: [Table; 8] = [
    // An order has 1 to 7 items, evenly distributed.
    table!("lineitem", LineItemGenerator, LineItemArrow, |scale| 4 * (1_500_000.0 * scale) as u64),
    table!("orders", OrderGenerator, OrderArrow, |scale| (1_500_000.0 * scale) as u64),
    table!("partsupp", PartSuppGenerator, PartSuppArrow, |scale| 4 * (200_000.0 * scale) as u64),
    table!("part", PartGenerator, PartArrow, |scale| (200_000.0 * scale) as u64),
    table!("customer", CustomerGenerator, CustomerArrow, |scale| (150_000.0 * scale) as u64),
    table!("supplier", SupplierGenerator, SupplierArrow, |scale| (10_000.0 * scale) as u64),
    table!("nation", NationGenerator, NationArrow, |_| 25),
    table!("region", RegionGenerator, RegionArrow, |_| 5),
];

/// All tables at `scale` with their names, the largest first.
///
/// Partition `p` of `n` is the generator's part `p` of `n`: the rows of a table and their order depend on `scale` only.
///
/// # Errors
/// [`LoadError::Scale`] and [`LoadError::NoRoom`] before anything is generated; [`LoadError::Table`].
pub fn tpch(
    scale: f64,
    layout: &Layout,
    progress: &dyn Progress,
) -> Result<Vec<(String, TableData)>, LoadError> {
    // The tables must fit on their node, and with what the generator takes into the machine.
    let node_bytes = match layout.machine.origin() {
        Origin::Discovered => layout.machine.node(layout.home).ok().and_then(|node| node.memory_bytes),
        _ => None,
    };
    check(scale, available_memory(), OVERHEAD_BYTES)?;
    check(scale, node_bytes, 0)?;
    progress.total(TABLES.iter().map(|table| (table.rows)(scale)).sum());

    let parts_of = |table: &Table| layout.partitions_of((table.rows)(scale));
    let jobs: Vec<(&Table, usize)> =
        TABLES.iter().flat_map(|table| (0..parts_of(table)).map(move |part| (table, part))).collect();
    let generate = |&(table, part): &(&Table, usize)| {
        generate((table.open)(scale, part as i32 + 1, parts_of(table) as i32), layout, progress)
    };
    let mut partitions = in_parallel(&jobs, generate)?.into_iter();
    let table = |table: &Table| {
        let schema = (table.open)(scale, 1, 1).schema();
        let partitions = partitions.by_ref().take(parts_of(table)).collect();
        (table.name.to_owned(), TableData::new(schema, partitions, layout.home))
    };
    Ok(TABLES.iter().map(table).collect())
}

fn generate(reader: Reader, layout: &Layout, progress: &dyn Progress) -> Result<Vec<RowGroup>, LoadError> {
    let mut writer = PartitionWriter::new(reader.schema(), layout)?;
    for batch in reader {
        let batch = batch.map_err(TableError::from)?;
        writer.push(&batch)?;
        progress.advance(batch.num_rows() as u64);
    }
    Ok(writer.finish()?)
}

/// Whether the tables and `overhead_bytes` fit into what is available, if that is known.
fn check(scale: f64, available_bytes: Option<u64>, overhead_bytes: u64) -> Result<(), LoadError> {
    // Also refuses what is not a number.
    if !(TPCH_SCALE_MIN..).contains(&scale) || scale.is_infinite() {
        return Err(LoadError::Scale { scale });
    }
    // Saturates for scales beyond all memories.
    let needed_bytes = ((scale * TPCH_BYTES_PER_SCALE as f64) as u64).saturating_add(overhead_bytes);
    match available_bytes {
        Some(available_bytes) if needed_bytes > available_bytes => {
            let room_bytes = available_bytes.saturating_sub(overhead_bytes);
            let scale_max = room_bytes as f64 / TPCH_BYTES_PER_SCALE as f64;
            Err(LoadError::NoRoom { scale, scale_max, needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// What the kernel says can be had without swapping; `None` where it does not say.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
