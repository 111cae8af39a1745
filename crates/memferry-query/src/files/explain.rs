//! A scan of files in the words of EXPLAIN: its turn, its columns in the order of need with their bytes, and whether it is read
//! ahead.
//!
//! It also says how many of its row groups are kept decoded. Bytes and row groups are those of the footers that the session has
//! read; without them the columns are named only. Where the storage is calibrated, it has the times of the model. These
//! assume that the operators above work as those of scans before.

use std::fmt;
use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::metadata::CachedParquetMetaData;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use memferry::model::FileScanAdvice;
use parquet::file::metadata::ParquetMetaData;

use super::factory::Readers;
use super::forecast::Volume;
use super::next::is_one_file;

/// Columns that are named.
const NAMES_MAX: usize = 4;

pub(super) struct Explained<'a> {
    pub(super) readers: &'a Readers,
    pub(super) config: &'a FileScanConfig,
    /// Whether the scan keeps decoded columns.
    pub(super) keeps_decoded: bool,
}

/// Row groups and bytes of a scan.
#[derive(Default)]
struct Extent {
    groups_count: usize,
    /// Those of them whose columns are kept decoded.
    decoded_count: usize,
    /// Of the columns that are needed first, and of the late ones. Columns that are read in part count as whole.
    bytes: [u64; 2],
}

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(in_plan) = self.readers.in_plan.get() {
            write!(f, "{}; ", in_plan.turn)?;
        }
        let (demand, extent) = (&self.readers.demand, self.extent());
        let bytes = |phase: usize| extent.as_ref().map(|extent| extent.bytes[phase]);
        if demand.first().is_empty() && demand.late().is_empty() {
            f.write_str("no columns")?;
        }
        if !demand.first().is_empty() {
            self.columns(f, demand.first(), bytes(0))?;
        }
        if !demand.late().is_empty() {
            f.write_str(if demand.first().is_empty() { "" } else { ", then " })?;
            self.columns(f, demand.late(), bytes(1))?;
        }
        match &extent {
            Some(Extent { groups_count: 1, .. }) => write!(f, " in 1 row group")?,
            Some(Extent { groups_count, .. }) => write!(f, " in {groups_count} row groups")?,
            None => {}
        }
        self.ahead(f)?;
        if let Some(extent) = &extent {
            self.predicted(f, extent)?;
        }
        match &extent {
            _ if !self.keeps_decoded => Ok(()),
            None | Some(Extent { decoded_count: 0, .. }) => f.write_str("; decoded columns may be kept"),
            Some(Extent { decoded_count, groups_count, .. }) => {
                write!(f, "; {decoded_count} of {groups_count} row groups are kept decoded")
            }
        }
    }
}

impl Explained<'_> {
    fn columns(&self, f: &mut fmt::Formatter<'_>, columns: &[usize], bytes: Option<u64>) -> fmt::Result {
        let schema = self.readers.demand.file_schema();
        let names = columns.iter().take(NAMES_MAX).map(|&column| schema.field(column).name().as_str());
        f.write_str(&names.collect::<Vec<_>>().join(", "))?;
        match columns.len().saturating_sub(NAMES_MAX) {
            0 => {}
            more => write!(f, " and {more} more")?,
        }
        match bytes {
            None => Ok(()),
            Some(bytes) if bytes < 1 << 20 => write!(f, ": {} KiB", bytes.div_ceil(1 << 10)),
            Some(bytes) => write!(f, ": {:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        }
    }

    fn ahead(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.readers.window_bytes == 0 {
            return Ok(());
        }
        f.write_str("; read ahead from file")?;
        let Some(in_plan) = self.readers.in_plan.get().filter(|in_plan| in_plan.turn.stage > 0) else {
            return Ok(());
        };
        f.write_str(match () {
            () if in_plan.turn.ends_early => " once open: a limit may end the query before",
            () if !in_plan.may_begin() => " once open",
            () if self.may_exclude_later() => " once open: a filter found by then may exclude row groups",
            () => " before it is open",
        })
    }

    /// The times of a scan that has not run, with the rates of its storage and the work of scans before.
    fn predicted(&self, f: &mut fmt::Formatter<'_>, extent: &Extent) -> fmt::Result {
        let readers = self.readers;
        let partitions_count = u64::from(readers.forecast.partitions_count());
        let columns_count = (readers.demand.first().len() + readers.demand.late().len()) as u64;
        let groups_count = (extent.groups_count as u64).div_ceil(partitions_count);
        let bytes = extent.bytes.iter().sum::<u64>() / partitions_count;
        // The footers of a directory do not say which reads are merged: each column is taken for one.
        let volume = Volume { groups_count, bytes, reads_count: groups_count * columns_count };
        let first = self.config.file_groups.iter().flat_map(FileGroup::files).next();
        let first = first.filter(|_| bytes > 0 && !readers.forecast.has_run());
        let Some(forecast) = first.and_then(|file| readers.predict(&file.object_meta, || volume)) else {
            return Ok(());
        };
        let FileScanAdvice { predicted_s, storage_s, work_s, on_demand_s, window_bytes, .. } =
            forecast.advice();
        let ms = |time_s: &f64| time_s * 1e3;
        write!(f, "; predicted {:.1} ms a partition (storage {:.1}", ms(predicted_s), ms(storage_s))?;
        write!(f, ", work {:.1}), {:.1} on demand", ms(work_s), ms(on_demand_s))?;
        match window_bytes {
            0 => Ok(()),
            _ => write!(f, ", reading {} KiB ahead", window_bytes >> 10),
        }
    }

    /// Row groups and bytes of the scan; `None` if the session lacks the metadata of one of its files.
    fn extent(&self) -> Option<Extent> {
        let demand = &self.readers.demand;
        let phases = [demand.first(), demand.late()];
        let mut extent = Extent::default();
        for file in self.config.file_groups.iter().flat_map(FileGroup::files) {
            let metadata = self.metadata(file)?;
            let descriptor = metadata.file_metadata().schema_descr();
            let groups = demand.row_groups(file, &metadata).ok()?;
            extent.groups_count += groups.as_slice().len();
            if let Some(local) = self.readers.known(&file.object_meta).filter(|_| self.keeps_decoded) {
                let fields = demand.fields();
                let groups = groups.as_slice().iter();
                extent.decoded_count +=
                    groups.filter(|group| local.decoded().has_all(group.index, &fields)).count();
            }
            for group in groups.as_slice() {
                for (leaf, chunk) in metadata.row_group(group.index).columns().iter().enumerate() {
                    let path = descriptor.column(leaf);
                    let name = path.path().parts().first();
                    let is_of = |&column: &usize| Some(demand.file_schema().field(column).name()) == name;
                    for (bytes, columns) in extent.bytes.iter_mut().zip(phases) {
                        if columns.iter().any(is_of) {
                            *bytes += u64::try_from(chunk.compressed_size()).unwrap_or(0);
                        }
                    }
                }
            }
        }
        Some(extent)
    }

    fn may_exclude_later(&self) -> bool {
        let file = self.config.file_groups.iter().flat_map(FileGroup::files).next();
        let metadata = file.and_then(|file| self.metadata(file));
        metadata.is_some_and(|metadata| {
            self.readers.demand.may_exclude_later(is_one_file(self.config), &metadata).unwrap_or(true)
        })
    }

    fn metadata(&self, file: &PartitionedFile) -> Option<Arc<ParquetMetaData>> {
        let known = self.readers.cache.get(&file.object_meta.location)?;
        if !known.is_valid_for(&file.object_meta) {
            return None;
        }
        let metadata = known.file_metadata.as_any().downcast_ref::<CachedParquetMetaData>()?;
        Some(Arc::clone(metadata.parquet_metadata()))
    }
}
