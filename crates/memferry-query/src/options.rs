//! Settings of a session: when to prefetch, how far ahead, where filters run, and the techniques of the scan.
//!
//! They are a DataFusion configuration extension with the prefix `memferry`, so that SQL can change them:
//! `SET memferry.prefetch = 'always'`.

use std::fmt;
use std::str::FromStr;

use datafusion::common::config::{ConfigExtension, ConfigField, ConfigOptions, Visit};
use datafusion::common::{DataFusionError, extensions_options};
use memferry_schedule::{Binding, Stealing};

/// When late columns are copied near.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefetch {
    /// Never: the cache is not touched.
    Off,
    /// Whenever there is a near node, whether it pays or not.
    Always,
    /// Only to a node that is faster than the table's home and has room, and as far as it pays according to the model. A
    /// copy that is not known to pay is not made: most machines must be calibrated first.
    #[default]
    Auto,
}

impl fmt::Display for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Always => "always",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for Prefetch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "always" => Ok(Self::Always),
            "auto" => Ok(Self::Auto),
            other => Err(format!("'{other}' is not a prefetch mode; use off, always or auto")),
        }
    }
}

impl ConfigField for Prefetch {
    fn visit<V: Visit>(&self, visitor: &mut V, key: &str, description: &'static str) {
        visitor.some(key, self, description);
    }

    fn set(&mut self, _key: &str, value: &str) -> Result<(), DataFusionError> {
        *self = value.parse().map_err(DataFusionError::Configuration)?;
        Ok(())
    }
}

/// Whether the decoder of a file evaluates the filter of a scan, and decodes late columns only where rows passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pushdown {
    /// Never: the filter runs above the scan, as in DataFusion.
    Off,
    /// Always.
    On,
    /// If statistics say that few rows pass, and the late columns are much wider than those of the filter.
    #[default]
    Auto,
}

impl fmt::Display for Pushdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for Pushdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "auto" => Ok(Self::Auto),
            other => Err(format!("'{other}' is not a pushdown mode; use off, on or auto")),
        }
    }
}

impl ConfigField for Pushdown {
    fn visit<V: Visit>(&self, visitor: &mut V, key: &str, description: &'static str) {
        visitor.some(key, self, description);
    }

    fn set(&mut self, _key: &str, value: &str) -> Result<(), DataFusionError> {
        *self = value.parse().map_err(DataFusionError::Configuration)?;
        Ok(())
    }
}

/// A type of another crate as a setting, by its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Setting<T>(pub T);

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Display + FromStr<Err = String>> ConfigField for Setting<T> {
    fn visit<V: Visit>(&self, visitor: &mut V, key: &str, description: &'static str) {
        visitor.some(key, self, description);
    }

    fn set(&mut self, _key: &str, value: &str) -> Result<(), DataFusionError> {
        self.0 = value.parse().map_err(DataFusionError::Configuration)?;
        Ok(())
    }
}

extensions_options! {
    /// The settings with the prefix `memferry`.
    pub struct MemferryOptions {
        /// When late columns are copied near: off, always, or auto (only if a faster node has room, and it is known to pay).
        pub prefetch: Prefetch, default = Prefetch::Auto

        /// Row groups of a partition whose late columns are requested before their filter runs. At least 1.
        pub window_groups: usize, default = 2

        /// How many more queries are expected to read the same columns: with them, `auto` may take a loss now.
        pub reads_to_come: usize, default = 0

        /// How long a scan waits for a late column in flight before it reads the home copy, in microseconds.
        pub wait_us_max: u64, default = 0

        /// Rows that a filter looks at before late columns are read; rounded up to whole batches.
        pub chunk_rows: usize, default = 32768

        /// Evaluate the conjuncts of a filter one by one, each over a whole chunk, instead of as one expression.
        pub split_filters: bool, default = true

        /// Order the conjuncts of a filter by measured cost and selectivity.
        pub reorder_filters: bool, default = true

        /// Let expensive conjuncts look only at rows that passed the ones before.
        pub sparse_filters: bool, default = true

        /// Compare columns with constants in the form in which they are kept, all comparisons of a column at once.
        pub compare_kept: bool, default = true

        /// Materialise what passed of several batches at once.
        pub merge_batches: bool, default = true

        /// Use the filters that joins and TopK find while the query runs.
        pub dynamic_filters: bool, default = true

        /// Read Parquet files by memferry's reader instead of DataFusion's.
        pub read_files: bool, default = true

        /// Read ahead of the decoder what the plan needs next of a file.
        pub read_ahead: bool, default = true

        /// Bytes that a partition of a scan reads ahead of its decoder.
        pub read_ahead_bytes: usize, default = 32 << 20

        /// Keep decoded columns of local files in the memory of the node, within the budget of near memory.
        pub keep_decoded: bool, default = false

        /// Read the first row groups of the scan that the plan needs next, before it is opened.
        pub plan_ahead: bool, default = false

        /// Evaluate filters in the decoder of Parquet files: off, on, or auto (only where statistics say that it pays).
        pub pushdown: Pushdown, default = Pushdown::Auto

        /// How long a request to an object store may take, in milliseconds.
        pub store_timeout_ms: u64, default = 30_000

        /// Where queries run on a machine with several domains: none (anywhere), preferred (scans on the domain of their
        /// rows), opportunistic (the operators above them too), or always (each worker on one CPU).
        pub binding: Setting<Binding>, default = Setting(Binding::None)

        /// Which row groups a scan claims after those of its own domain, unless the binding is none: off, neighbour (the
        /// same socket), any, or bulk(N) (N at a time).
        pub stealing: Setting<Stealing>, default = Setting(Stealing::Neighbour)

        /// The domains to which queries are confined, by their numbers, such as '0,2'. Empty: all.
        pub domains: String, default = String::new()
    }
}

impl ConfigExtension for MemferryOptions {
    const PREFIX: &'static str = "memferry";
}

impl MemferryOptions {
    /// The settings of a session; the defaults where the extension was not installed.
    pub(crate) fn of(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }
}
