//! The command lines of `memferry worker`, `memferry sql --cluster` and `memferry sql --connect`.

mod connected;
pub mod sql;
pub mod worker;
