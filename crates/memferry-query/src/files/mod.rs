//! Tables that are files: registered in milliseconds, read when a query needs them.
//!
//! ```text
//! register, CREATE EXTERNAL TABLE ─▶ ListingTable of DataFusion: schema and statistics of the footers, no rows
//!                                        │ plan
//!                                        ▼
//! optimizer rule, the last one ─▶ Demand: filter columns, late columns, predicate; turn in the order of the plan
//!                                        │ reader factory of the scan
//!                                        ▼
//! DataFusion's decoder ── ranges of a row group ──▶ FileReader ──▶ read ahead, near copy, or read now
//!                                                      └─ starts reads of the row groups, files and scans to come
//! ```
//!
//! Decoding, pruning and work stealing are DataFusion's; this module replaces where the bytes come from. Formats are
//! Parquet and Arrow IPC. Arrow files are read by DataFusion's own reader, through the store: a mapping of a file that
//! another process truncates raises SIGBUS, which no error can report.
//!
//! Files: `register` tables; `format` names those whose footers cannot be read; `planner` plans again if one was replaced; `rule`, `demand`, `prune` what a scan needs; `order` when; `pushdown`, `filter` where and how its
//! filter runs; `sections` the parts in which a table is loaded; `factory`, `reader`, `ahead`, `next`, `plan_ahead` requests
//! of the decoder, and those before them; `chunks`, `ranges` which bytes; `source`, `store`, `stored` where they are;
//! `decoded`, `rates` which decoded columns are kept; `keeping`, `keeping_scan`, `morsels` scans of them; `metrics`, `explain`, `error`, `place`, `contain`.

mod ahead;
mod chunks;
mod contain;
mod decoded;
mod demand;
mod error;
mod explain;
mod factory;
mod filter;
mod forecast;
mod format;
mod keeping;
mod keeping_scan;
mod metrics;
mod morsels;
mod next;
mod order;
mod place;
mod plan_ahead;
mod planner;
mod prune;
mod pushdown;
mod ranges;
mod rates;
mod reader;
mod register;
mod rule;
mod sections;
mod source;
mod store;
mod stored;

pub use demand::Demand;
pub use error::FileError;
pub use metrics::FileReport;
pub use prune::{RowGroup, RowGroups};
pub use register::{RegisterError, register};

pub(crate) use format::NamedFormatFactory;
pub(crate) use metrics::parquet_scan;
pub(crate) use planner::PlanAgain;
pub(crate) use rule::ReadFiles;
pub(crate) use sections::{Remainder, Section, SectionScan};
pub(crate) use stored::StoredFiles;
