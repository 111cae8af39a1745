//! Tables from Arrow batches.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::LoadError;
use super::parallel::in_parallel;
use crate::data::{Layout, PartitionWriter, TableData};

/// A table with one partition per element of `partitions`; `layout.partitions` is ignored. Columns that are
/// [bit-packed](crate::BitPacked) become columns of their values, which are kept bit-packed.
///
/// # Errors
/// [`LoadError::Table`].
pub fn from_batches(
    schema: SchemaRef,
    partitions: &[Vec<RecordBatch>],
    layout: &Layout,
) -> Result<TableData, LoadError> {
    // Also checks the schema if there is no partition.
    let writer = PartitionWriter::of_packed(schema, layout)?;
    let jobs: Vec<_> = partitions.iter().enumerate().collect();
    let partitions = in_parallel(&jobs, |(partition, batches)| {
        let mut writer = writer.of_partition(*partition);
        batches.iter().try_for_each(|batch| writer.push(batch))?;
        writer.finish()
    })?;
    Ok(TableData::placed(writer.schema().clone(), partitions, layout)?)
}
