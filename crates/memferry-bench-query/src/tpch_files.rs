//! The eight tables of TPC-H as Parquet files with the compression and the row groups of tpchgen-cli 4.0.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use memferry_query::load::Progress;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::TpchError;
use crate::tpch_tables::{TABLES, Table, check_scale};

/// Names of the tables, the largest first.
pub const TPCH_TABLES: [&str; 8] =
    ["lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region"];

/// Rows of a row group of each of [`TPCH_TABLES`]. Source: files of tpchgen-cli 4.0 at scale 3; its row groups have about
/// 7 MiB before compression.
const ROW_GROUP_ROWS: [usize; 8] = [114_628, 97_826, 51_063, 100_000, 40_909, 30_000, 25, 25];

/// Directory of the files at `scale` below `directory`.
pub fn tpch_directory(directory: &Path, scale: f64) -> PathBuf {
    directory.join(format!("sf{scale}"))
}

/// The file of a table in the directory that [`tpch_files`] returns.
pub fn tpch_file(files: &Path, table: &str) -> PathBuf {
    files.join(format!("{table}.parquet"))
}

/// Writes all tables at `scale` below `directory`, unless they are there, and returns the directory of the files.
///
/// The files get their directory when all are complete and on the disk. They depend on `scale` only.
///
/// # Errors
/// [`TpchError::Scale`] before anything is written; [`TpchError::Write`].
pub fn tpch_files(scale: f64, directory: &Path, progress: &dyn Progress) -> Result<PathBuf, TpchError> {
    check_scale(scale)?;
    let files = tpch_directory(directory, scale);
    if files.is_dir() {
        return Ok(files);
    }
    fs::create_dir_all(directory).map_err(write_error(directory))?;
    let unfinished =
        tempfile::Builder::new().prefix(".sf").tempdir_in(directory).map_err(write_error(directory))?;
    progress.total(TABLES.iter().map(|table| (table.rows)(scale)).sum());
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        let tables: Vec<_> = TABLES.iter().zip(ROW_GROUP_ROWS).collect();
        // ORDERING: Relaxed, no partner: only uniqueness matters.
        while let Some((table, group_rows)) = tables.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = write(table, *group_rows, scale, unfinished.path(), progress) {
                *failure.lock().unwrap_or_else(|lock| lock.into_inner()) = Some(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads_count = std::thread::available_parallelism().map_or(1, usize::from).min(TABLES.len());
        (0..threads_count).for_each(|_| drop(scope.spawn(work)));
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(|lock| lock.into_inner()) {
        return Err(error);
    }
    match fs::rename(unfinished.path(), &files) {
        // Another process was faster, with the same files.
        Err(_) if files.is_dir() => Ok(files),
        renamed => renamed.map(|()| files.clone()).map_err(write_error(&files)),
    }
}

fn write(
    table: &Table,
    group_rows: usize,
    scale: f64,
    directory: &Path,
    progress: &dyn Progress,
) -> Result<(), TpchError> {
    let path = tpch_file(directory, table.name);
    let reader = (table.open)(scale, 1, 1);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(group_rows))
        .build();
    let file = File::create_new(&path).map_err(write_error(&path))?;
    let mut writer =
        ArrowWriter::try_new(file, reader.schema(), Some(properties)).map_err(write_error(&path))?;
    for batch in reader {
        let batch = batch.map_err(write_error(&path))?;
        writer.write(&batch).map_err(write_error(&path))?;
        progress.advance(batch.num_rows() as u64);
    }
    // On the disk, so that a cold run finds no page that cannot be dropped.
    let file = writer.into_inner().map_err(write_error(&path))?;
    file.sync_all().map_err(write_error(&path))
}

fn write_error<E: Into<Box<dyn std::error::Error + Send + Sync>>>(path: &Path) -> impl Fn(E) -> TpchError {
    let path = path.to_owned();
    move |source| TpchError::Write { path: path.clone(), source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_once_and_hold_the_rows() {
        let directory = tempfile::tempdir().unwrap();
        let files = tpch_files(0.01, directory.path(), &()).unwrap();
        let rows = |table: &str| {
            let file = File::open(tpch_file(&files, table)).unwrap();
            let reader =
                parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            reader.metadata().file_metadata().num_rows()
        };
        assert_eq!(TPCH_TABLES.map(rows), [60_175, 15_000, 8000, 2000, 1500, 100, 25, 5]);
        let made = fs::metadata(tpch_file(&files, "lineitem")).unwrap().modified().unwrap();
        assert_eq!(tpch_files(0.01, directory.path(), &()).unwrap(), files);
        assert_eq!(fs::metadata(tpch_file(&files, "lineitem")).unwrap().modified().unwrap(), made);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = tpch_files(0.01, file.path(), &()).unwrap_err();
        assert!(error.to_string().contains(&file.path().display().to_string()), "{error}");
        assert!(matches!(tpch_files(0.0, file.path(), &()), Err(TpchError::Scale { .. })));
    }
}
