//! Query-driven prefetching for Apache DataFusion: the plan of a query names the columns that it reads next. They are
//! copied to near memory while the scan before them runs.
//!
//! ```text
//! SQL ─▶ DataFusion ─▶ TieredScanExec ── filter columns ──▶ home memory
//!                          │  │
//!                          │  └─ late columns of rows that passed ──▶ near copy if it is ready, home if not
//!                          └─ copies of the late columns start before the filter runs ──▶ cache ─▶ mover
//! ```
//!
//! [`TableData`] holds rows at home, [`Tiers`] copies columns near, [`TieredTable`] is both as a table of DataFusion:
//!
//! ```
//! # use std::sync::Arc;
//! # use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! # use memferry::topology::Machine;
//! # use memferry_query::{Layout, SessionOptions, TieredTable, Tiers, load, session};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
//! let batch = RecordBatch::try_from_iter([("a", column)])?;
//! let tiers = Tiers::builder(Arc::new(Machine::discover()?)).build()?;
//! let layout = Layout::new(Arc::clone(tiers.machine()), tiers.home());
//! let data = load::from_batches(batch.schema(), &[vec![batch]], &layout)?;
//! let context = session(&SessionOptions::default());
//! context.register_table("t", Arc::new(TieredTable::try_new(Arc::new(data), tiers)?))?;
//! # Ok(()) }
//! ```
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod buffers;
mod data;
mod domains;
pub mod files;
mod limits;
pub mod load;
#[allow(unsafe_code)]
mod near;
mod options;
mod packed;
mod placement;
mod replica;
mod scan;
mod session;
mod table;
mod tiers;

pub use data::{
    Layout, PackedColumns, ROW_GROUP_ROWS, ROW_GROUP_ROWS_STEP, RowGroup, TableData, TableError, TableWriter,
};
pub use domains::{DomainExec, QueryDomains};
pub use load::LoadError;
#[doc(inline)]
pub use memferry_schedule as schedule;
pub use options::{MemferryOptions, Prefetch, Pushdown, Setting};
pub use packed::{BitPacked, PackedColumn};
pub use placement::{ColumnPlace, PlacementClause, PlacementError, TablePlacement};
pub use replica::{TableReplicaError, from_replica};
pub use scan::{ScanReport, TieredScanExec};
pub use session::{SessionOptions, session};
pub use table::{BudgetTooSmall, TieredTable};
pub use tiers::{PIN_SHARE_PERCENT, Tiers, TiersBuilder, TiersError};
