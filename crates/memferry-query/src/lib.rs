//! Query-driven prefetching for Apache DataFusion: the plan of a query says which columns come next, and they are
//! brought near while the scan before them runs.
//!
//! ```text
//! SQL ─▶ DataFusion ─▶ TieredScanExec ── filter columns ──▶ where they are
//!                          │  │
//!                          │  └─ late columns of rows that passed ──▶ near copy if it has arrived, home if not
//!                          └─ copies of the late columns start before the filter runs ──▶ cache ─▶ mover
//! ```
//!
//! [`Tiers`] is what brings columns near, [`TableData`] is rows at home, [`TieredTable`] is both as a table of DataFusion.
#![deny(unsafe_code)]

mod answers;
mod data;
pub mod load;
#[allow(unsafe_code)]
mod near;
mod options;
mod scan;
mod session;
mod table;
mod tiers;
pub mod tpch;

pub use answers::{Difference, answers_equal};
pub use data::{Layout, ROW_GROUP_ROWS, ROW_GROUP_ROWS_STEP, RowGroup, TableData, TableError, TableWriter};
pub use load::LoadError;
pub use options::{MemferryOptions, Prefetch};
pub use scan::{ScanReport, TieredScanExec};
pub use session::{SessionOptions, session};
pub use table::{BudgetTooSmall, TieredTable};
pub use tiers::{Dsa, PIN_SHARE_PERCENT, Tiers, TiersBuilder, TiersError};
