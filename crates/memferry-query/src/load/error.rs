//! Why a table could not be loaded.

use std::io;
use std::path::PathBuf;

use parquet::errors::ParquetError;

use super::TPCH_SCALE_MIN;
use crate::data::TableError;

/// Why a table could not be loaded. Nothing of it is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The rows were read and cannot become a table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The operating system does not let the file be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
    /// A directory where a file was expected.
    #[error("{} is a directory; name one Parquet file in it", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// The file does not begin like Parquet.
    #[error("{} is not a Parquet file; convert it first, for example with pyarrow or DuckDB", path.display())]
    NotParquet {
        /// The file.
        path: PathBuf,
    },
    /// The file begins like Parquet and does not end so.
    #[error("{} is cut short: its end is missing; copy or write it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// The file is Parquet, compressed in a way that this build cannot undo.
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
    /// The inside of the file is damaged, encrypted, or newer than the reader.
    #[error("{} cannot be read as Parquet: {source}; write it again", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the reader says.
        source: ParquetError,
    },
    /// No TPC-H data has such a scale.
    #[error("{scale} is no scale for TPC-H; use a number of at least {TPCH_SCALE_MIN}, for example 1")]
    Scale {
        /// What was asked for.
        scale: f64,
    },
    /// The data would not fit into memory.
    #[error(
        "TPC-H at scale {scale} needs about {:.1} GiB and {:.1} GiB of memory are available; {}",
        gib(*needed_bytes), gib(*available_bytes), smaller(*scale_max)
    )]
    NoRoom {
        /// What was asked for.
        scale: f64,
        /// What there is room for.
        scale_max: f64,
        /// What it takes, roughly.
        needed_bytes: u64,
        /// What there is.
        available_bytes: u64,
    },
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// What to do where there is room for no more than this scale.
fn smaller(scale_max: f64) -> String {
    // Rounded down, so that the advice holds.
    let scale = (scale_max / TPCH_SCALE_MIN).floor() * TPCH_SCALE_MIN;
    if scale < TPCH_SCALE_MIN {
        "free some memory".to_owned()
    } else {
        format!("use a scale up to {scale:.3}")
    }
}
