//! Sessions of memferry's commands: the options that make tables and near memory, and errors as sentences.
//!
//! ```text
//! command line ─▶ SessionOptions ─▶ near memory, domains ─┐
//!                 --table --tpch ─▶ stores, tables ───────┴▶ Opened: a session of DataFusion
//!                 --load --place ─▶ load (memferry sql has its own, with bars and in the background)
//! ```
//!
//! `memferry sql`, `memferry serve` and `memferry worker` are different programs with the same options. Errors are
//! [`anyhow::Error`]s, as in the programs: one sentence for the user, which [`error::usage`] marks as one about the command
//! line or the statement.
#![deny(unsafe_code)]

mod arguments;
pub mod error;
mod load;
mod machine;
mod open;
pub mod options;
pub mod query;
pub mod statement;
pub mod stores;
mod yielding;

pub use arguments::{NamedLocation, NamedPlacement, SessionArguments};
pub use load::{explain_load, explain_placement, load_tables};
pub use machine::{open as open_machine, open_calibrated};
pub use open::{Opened, open, tpch};
pub use yielding::{with_yielding_joins, yielding_joins};
