//! The column chunks of a file: where each is, and which one a byte range belongs to.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::prune::RowGroup;

/// Columns that an error names.
const NAMES_MAX: usize = 4;

/// A column chunk: a leaf column of a row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chunk {
    pub(crate) group: usize,
    pub(crate) leaf: usize,
}

/// The column chunks of a file, by offset.
#[derive(Debug)]
pub(crate) struct Chunks {
    metadata: Arc<ParquetMetaData>,
    /// Sorted by start. Damaged metadata may make them overlap.
    by_start: Vec<(Range<u64>, Chunk)>,
}

impl Chunks {
    /// The chunks of a file of `size_bytes`.
    ///
    /// # Errors
    /// A chunk outside the file: the metadata are damaged. Parquet's decoder would panic or read other bytes.
    pub(crate) fn new(metadata: Arc<ParquetMetaData>, size_bytes: u64) -> Result<Self, ParquetError> {
        let mut by_start = vec![];
        for (group, row_group) in metadata.row_groups().iter().enumerate() {
            for (leaf, column) in row_group.columns().iter().enumerate() {
                let range = byte_range(column).filter(|range| range.end <= size_bytes).ok_or_else(|| {
                    ParquetError::General(format!(
                        "column {} of row group {group} lies outside the file of {size_bytes} bytes; the file is \
                         damaged, write it again",
                        column.column_path()
                    ))
                })?;
                by_start.push((range, Chunk { group, leaf }));
            }
        }
        by_start.sort_unstable_by_key(|(range, _)| range.start);
        Ok(Self { metadata, by_start })
    }

    pub(crate) fn metadata(&self) -> &Arc<ParquetMetaData> {
        &self.metadata
    }

    /// The chunk in which a range lies.
    pub(crate) fn find(&self, range: &Range<u64>) -> Option<Chunk> {
        let after = self.by_start.partition_point(|(chunk, _)| chunk.start <= range.start);
        let (chunk, id) = self.by_start[..after].last()?;
        (range.end <= chunk.end).then_some(*id)
    }

    /// The row groups and columns of ranges, for errors.
    pub(crate) fn describe(&self, ranges: &[Range<u64>]) -> Option<String> {
        let overlaps = |chunk: &Range<u64>| {
            ranges.iter().any(|range| range.start < chunk.end && chunk.start < range.end)
        };
        let chunks = self.by_start.iter().filter(|(chunk, _)| overlaps(chunk)).map(|(_, id)| *id);
        let mut chunks: Vec<Chunk> = chunks.collect();
        chunks.sort_unstable();
        let (first, last) = (chunks.first()?.group, chunks.last()?.group);
        let groups = match first == last {
            true => format!("row group {first}"),
            false => format!("row groups {first} to {last}"),
        };
        let leaves: BTreeSet<usize> = chunks.iter().map(|chunk| chunk.leaf).collect();
        let descriptor = self.metadata.file_metadata().schema_descr();
        let names: Vec<String> =
            leaves.iter().take(NAMES_MAX).map(|&leaf| descriptor.column(leaf).path().string()).collect();
        let names = names.join(", ");
        Some(match leaves.len() {
            1 => format!("{groups}, column {names}"),
            count if count <= NAMES_MAX => format!("{groups}, columns {names}"),
            count => format!("{groups}, columns {names} and {} more", count - NAMES_MAX),
        })
    }

    /// The leaf columns of `columns` of the table's schema. Columns with leaves of several names are left out: which of
    /// their leaves a scan reads is known from its first request.
    pub(crate) fn leaves(&self, columns: &[usize], schema: &Schema) -> Vec<usize> {
        let descriptor = self.metadata.file_metadata().schema_descr();
        let is_wanted = |leaf: usize| {
            let column = descriptor.column(leaf);
            let parts = column.path().parts();
            parts.len() == 1 && columns.iter().any(|&wanted| *schema.field(wanted).name() == parts[0])
        };
        (0..descriptor.num_columns()).filter(|&leaf| is_wanted(leaf)).collect()
    }

    /// All bytes of a chunk.
    pub(crate) fn range(&self, chunk: Chunk) -> Range<u64> {
        let column = self.metadata.row_group(chunk.group).column(chunk.leaf);
        byte_range(column).expect("checked when the chunks were listed")
    }

    /// Bytes that the decoder requests of `leaf` for the rows that a scan reads.
    pub(crate) fn demanded(&self, group: &RowGroup, leaf: usize) -> Vec<Range<u64>> {
        let whole = self.range(Chunk { group: group.index, leaf });
        let pages = self.metadata.offset_index().and_then(|index| index.get(group.index)?.get(leaf));
        let (Some(rows), Some(pages)) = (&group.rows, pages) else {
            return vec![whole];
        };
        let locations = pages.page_locations();
        let mut pages = rows.scan_ranges(locations);
        // The dictionary lies before the first page.
        if let Some(first) = locations.first().map(|page| page.offset as u64)
            && first > whole.start
            && !pages.is_empty()
        {
            pages.insert(0, whole.start..first);
        }
        pages.retain(|page| whole.start <= page.start && page.start <= page.end && page.end <= whole.end);
        // The decoder requests pages one by one, or the chunk as a whole if all rows are selected: a run of pages is
        // one read, which serves both.
        let mut runs: Vec<Range<u64>> = vec![];
        for page in pages {
            match runs.last_mut() {
                Some(run) if run.end == page.start => run.end = page.end,
                _ => runs.push(page),
            }
        }
        runs
    }
}

/// Bytes of a column chunk, as `ColumnChunkMetaData::byte_range`, which panics for negative numbers.
fn byte_range(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    let start = u64::try_from(start).ok()?;
    Some(start..start.checked_add(u64::try_from(column.compressed_size()).ok()?)?)
}
