//! The command lines of `memferry worker` and `memferry sql --cluster`.

pub mod sql;
pub mod worker;
