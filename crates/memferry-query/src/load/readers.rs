//! Tables from readers that open partition by partition.

use arrow::array::RecordBatchReader;

use super::parallel::in_parallel;
use super::{LoadError, Progress};
use crate::data::{Layout, PartitionWriter, RowGroup, TableData, TableError};

/// A reader of one partition.
pub type PartitionReader = Box<dyn RecordBatchReader + Send>;

/// A table that several threads read or generate, each one partition at a time.
pub struct PartitionedSource<'a> {
    /// Number of rows, or an estimate: it decides the number of partitions.
    pub rows: u64,
    /// Opens partition `p` of `n`: called with `(p, n)`.
    pub open: Box<dyn Fn(usize, usize) -> PartitionReader + Sync + 'a>,
}

/// One table per source. Partitions of all sources are loaded in their order, by a thread per CPU.
///
/// # Errors
/// [`LoadError::Table`].
pub fn from_readers(
    sources: &[PartitionedSource<'_>],
    layout: &Layout,
    progress: &dyn Progress,
) -> Result<Vec<TableData>, LoadError> {
    progress.total(sources.iter().map(|source| source.rows).sum());
    let partitions_of = |source: &PartitionedSource<'_>| layout.partitions_of(source.rows);
    let jobs: Vec<(&PartitionedSource<'_>, usize)> = sources
        .iter()
        .flat_map(|source| (0..partitions_of(source)).map(move |part| (source, part)))
        .collect();
    let load = |&(source, part): &(&PartitionedSource<'_>, usize)| {
        partition((source.open)(part, partitions_of(source)), part, layout, progress)
    };
    let mut partitions = in_parallel(&jobs, load)?.into_iter();
    let table = |source: &PartitionedSource<'_>| {
        let schema = (source.open)(0, 1).schema();
        let partitions = partitions.by_ref().take(partitions_of(source)).collect();
        TableData::placed(schema, partitions, layout).map_err(LoadError::from)
    };
    sources.iter().map(table).collect()
}

fn partition(
    reader: PartitionReader,
    number: usize,
    layout: &Layout,
    progress: &dyn Progress,
) -> Result<Vec<RowGroup>, LoadError> {
    let mut writer = PartitionWriter::new(reader.schema(), layout)?.of_partition(number);
    for batch in reader {
        let batch = batch.map_err(TableError::from)?;
        writer.push(&batch)?;
        progress.advance(batch.num_rows() as u64);
    }
    Ok(writer.finish()?)
}
