//! Tables from Parquet files.
//!
//! Rows are split evenly between the partitions, also within a row group of the file: many writers make one large
//! row group. Strings are read as views, which is what DataFusion does with Parquet.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use memferry_dsa::internals::panics;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression;
use parquet::errors::ParquetError;

use super::parallel::in_parallel;
use super::{BATCH_ROWS, LoadError, Progress};
use crate::data::{Layout, PartitionWriter, TableData};

/// The first and last bytes of a Parquet file. Source: Apache Parquet format, "File format".
const MAGIC: &[u8; 4] = b"PAR1";
/// Those of a file with encrypted metadata.
const MAGIC_ENCRYPTED: &[u8; 4] = b"PARE";

/// The table in the Parquet file at `path`.
///
/// # Errors
/// [`LoadError::Read`], [`Directory`](LoadError::Directory), [`NotParquet`](LoadError::NotParquet),
/// [`Truncated`](LoadError::Truncated), [`Codec`](LoadError::Codec), [`Parquet`](LoadError::Parquet): the file is at
/// fault. [`LoadError::Table`]: its rows cannot be held.
pub fn from_parquet(path: &Path, layout: &Layout, progress: &dyn Progress) -> Result<TableData, LoadError> {
    let faulty = |source| LoadError::Parquet { path: path.to_owned(), source };
    let file = open(path)?;
    let metadata = guarded(|| read_metadata(&file)).map_err(faulty)?;
    check_codecs(path, &metadata)?;
    let writer = PartitionWriter::new(metadata.schema().clone(), layout)?;
    let rows = metadata.metadata().file_metadata().num_rows().max(0) as u64;
    progress.total(rows);

    let jobs: Vec<_> = layout.split(rows).into_iter().enumerate().collect();
    let partitions = in_parallel(&jobs, |(partition, rows)| {
        let mut writer = writer.of_partition(*partition);
        let mut missing = rows.end - rows.start;
        // Each thread opens the file: threads that share a file would move each other's position.
        let file = open(path)?;
        let mut reader = guarded(|| reader(file, &metadata, rows.clone())).map_err(faulty)?;
        while let Some(batch) = guarded(|| Ok(reader.next().transpose()?)).map_err(faulty)? {
            writer.push(&batch)?;
            missing -= batch.num_rows() as u64;
            progress.advance(batch.num_rows() as u64);
        }
        if missing > 0 {
            return Err(faulty(ParquetError::EOF(format!("{missing} rows are missing"))));
        }
        writer.finish().map_err(LoadError::from)
    })?;
    Ok(TableData::placed(metadata.schema().clone(), partitions, layout)?)
}

/// Opens a file and checks its first and last bytes.
fn open(path: &Path) -> Result<File, LoadError> {
    let mut file = File::open(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    let magic = |file: &mut File| -> io::Result<_> {
        if file.metadata()?.is_dir() {
            return Ok(Err(LoadError::Directory { path: path.to_owned() }));
        }
        let (mut first, mut last) = ([0; 4], [0; 4]);
        let length = file.metadata()?.len();
        if length < 4 {
            return Ok(Err(LoadError::NotParquet { path: path.to_owned() }));
        }
        file.read_exact(&mut first)?;
        file.seek(SeekFrom::End(-4))?;
        file.read_exact(&mut last)?;
        let known = |magic: &[u8; 4]| [MAGIC, MAGIC_ENCRYPTED].contains(&magic);
        Ok(match (known(&first), known(&last)) {
            (false, _) => Err(LoadError::NotParquet { path: path.to_owned() }),
            (true, false) => Err(LoadError::Truncated { path: path.to_owned() }),
            (true, true) => Ok(()),
        })
    };
    magic(&mut file).map_err(|source| LoadError::Read { path: path.to_owned(), source })??;
    Ok(file)
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread would become an error of a load or scan: a program's panic hook need not print it.
pub fn panics_become_errors() -> bool {
    GUARDED.get()
}

/// Runs the reader; a panic becomes an error, since damaged files can make it panic.
pub(crate) fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    GUARDED.set(true);
    // After a panic the state of `read` is not used again: every caller returns on an error.
    let result = panics::contain(read);
    GUARDED.set(false);
    result.unwrap_or_else(|| Err(ParquetError::General("its content is damaged".to_owned())))
}

fn read_metadata(file: &File) -> Result<ArrowReaderMetadata, ParquetError> {
    let metadata = ArrowReaderMetadata::load(file, ArrowReaderOptions::new())?;
    let fields = metadata.schema().fields().iter().map(|field| with_views(field));
    let schema = Schema::new_with_metadata(fields.collect::<Vec<_>>(), metadata.schema().metadata().clone());
    ArrowReaderMetadata::try_new(
        metadata.metadata().clone(),
        ArrowReaderOptions::new().with_schema(Arc::new(schema)),
    )
}

fn with_views(field: &Field) -> Field {
    let data_type = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        other => other.clone(),
    };
    field.clone().with_data_type(data_type)
}

fn check_codecs(path: &Path, metadata: &ArrowReaderMetadata) -> Result<(), LoadError> {
    let row_groups = metadata.metadata().row_groups().iter();
    for codec in row_groups.flat_map(|group| group.columns()).map(|column| column.compression()) {
        match codec {
            Compression::UNCOMPRESSED
            | Compression::SNAPPY
            | Compression::GZIP(_)
            | Compression::ZSTD(_)
            | Compression::LZ4
            | Compression::LZ4_RAW => {}
            Compression::BROTLI(_) | Compression::LZO => {
                let codec = if codec == Compression::LZO { "LZO" } else { "brotli" };
                return Err(LoadError::Codec { path: path.to_owned(), codec: codec.to_owned() });
            }
        }
    }
    Ok(())
}

/// A reader of `rows`: it reads their row groups and skips the rows before and after.
fn reader(
    file: File,
    metadata: &ArrowReaderMetadata,
    rows: Range<u64>,
) -> Result<ParquetRecordBatchReader, ParquetError> {
    let (mut groups, mut skipped) = (Vec::new(), 0);
    let mut start = 0;
    for (index, group) in metadata.metadata().row_groups().iter().enumerate() {
        let end = start + group.num_rows().max(0) as u64;
        if end > rows.start && start < rows.end {
            if groups.is_empty() {
                skipped = rows.start - start;
            }
            groups.push(index);
        }
        start = end;
    }
    ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata.clone())
        .with_row_groups(groups)
        .with_offset(skipped as usize)
        .with_limit((rows.end - rows.start) as usize)
        .with_batch_size(BATCH_ROWS)
        .build()
}
