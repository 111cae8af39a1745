//! The eight tables of TPC-H as Parquet files with the compression and the row groups of tpchgen-cli 4.0.

use std::fs::{self, File};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use datafusion::arrow::array::RecordBatchReader;
use memferry_query::load::Progress;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use crate::TpchError;
use crate::tpch_tables::{TABLES, Table, check_scale};

/// Names of the tables, the largest first.
pub fn tpch_table_names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|table| table.name)
}

/// The directory below `directory` that [`tpch_files`] fills and returns.
pub fn tpch_directory(scale: f64, directory: &Path) -> PathBuf {
    directory.join(directory_name(scale))
}

fn directory_name(scale: f64) -> String {
    format!("sf{scale}")
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
    written_once(directory, &directory_name(scale), |unfinished| {
        progress.total(TABLES.iter().map(|table| (table.rows)(scale)).sum());
        std::thread::scope(|scope| {
            let write = |table| scope.spawn(move || write(table, scale, unfinished, progress));
            let tasks: Vec<_> = TABLES.iter().map(write).collect();
            tasks.into_iter().try_for_each(|task| task.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    })
}

/// The directory `name` below `directory`. If it is missing, `write` fills one that gets this name when it is complete.
pub(crate) fn written_once(
    directory: &Path,
    name: &str,
    write: impl FnOnce(&Path) -> Result<(), TpchError>,
) -> Result<PathBuf, TpchError> {
    let files = directory.join(name);
    if files.is_dir() {
        return Ok(files);
    }
    fs::create_dir_all(directory).map_err(write_error(directory))?;
    let prefix = format!(".{name}-");
    let unfinished =
        tempfile::Builder::new().prefix(&prefix).tempdir_in(directory).map_err(write_error(directory))?;
    write(unfinished.path())?;
    match fs::rename(unfinished.path(), &files) {
        // Another process was faster, with the same files.
        Err(_) if files.is_dir() => Ok(files),
        renamed => renamed.map(|()| files.clone()).map_err(write_error(&files)),
    }
}

fn write(table: &Table, scale: f64, directory: &Path, progress: &dyn Progress) -> Result<(), TpchError> {
    let reader = (table.open)(scale, 1, 1);
    write_parquet(&tpch_file(directory, table.name), reader, table.group_rows, progress)
}

/// Writes a file batch by batch. It is on the disk when this returns.
pub(crate) fn write_parquet(
    path: &Path,
    reader: impl RecordBatchReader,
    group_rows: usize,
    progress: &dyn Progress,
) -> Result<(), TpchError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(group_rows))
        .build();
    let file = File::create_new(path).map_err(write_error(path))?;
    let mut writer =
        ArrowWriter::try_new(file, reader.schema(), Some(properties)).map_err(write_error(path))?;
    for batch in reader {
        let batch = batch.map_err(write_error(path))?;
        writer.write(&batch).map_err(write_error(path))?;
        progress.advance(batch.num_rows() as u64);
    }
    // On the disk, so that a cold run finds no page that cannot be dropped.
    let file = writer.into_inner().map_err(write_error(path))?;
    file.sync_all().map_err(write_error(path))
}

pub(crate) fn write_error<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    path: &Path,
) -> impl Fn(E) -> TpchError {
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
        assert_eq!(files, tpch_directory(0.01, directory.path()));
        let rows = |table: &str| {
            let file = File::open(tpch_file(&files, table)).unwrap();
            let reader =
                parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            reader.metadata().file_metadata().num_rows()
        };
        let rows: Vec<i64> = tpch_table_names().map(rows).collect();
        assert_eq!(rows, [60_175, 15_000, 8000, 2000, 1500, 100, 25, 5]);
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
