//! Errors of loading tables.

use std::io;
use std::path::PathBuf;

use datafusion::error::DataFusionError;
use parquet::errors::ParquetError;

use crate::data::TableError;

/// A table that cannot be loaded. No part of it is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The rows cannot become a table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// DataFusion cannot read the rows of a plan.
    #[error(transparent)]
    Plan(#[from] DataFusionError),
    /// The operating system does not let the file be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Answer of the operating system.
        source: io::Error,
    },
    /// A directory where a file was expected.
    #[error("{} is a directory; name one Parquet file in it", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// The file does not start like Parquet.
    #[error("{} is not a Parquet file; convert it first, for example with pyarrow or DuckDB", path.display())]
    NotParquet {
        /// The file.
        path: PathBuf,
    },
    /// The file starts like Parquet, but its end is missing.
    #[error("{} is cut short: its end is missing; copy or write it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// The file is Parquet with a codec that this build lacks.
    #[error(
        "{} is compressed with {codec}, which is not supported; write it again with snappy, zstd, lz4, gzip or \
         without compression",
        path.display()
    )]
    Codec {
        /// The file.
        path: PathBuf,
        /// Name of the codec.
        codec: String,
    },
    /// The content of the file is damaged, encrypted, or newer than the reader.
    #[error("{} cannot be read as Parquet: {source}; write it again", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Error of the reader.
        source: ParquetError,
    },
}
