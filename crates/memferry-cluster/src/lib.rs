//! Queries on several machines, and a server for any client of Arrow Flight SQL.
#![deny(unsafe_code)]

pub mod load;
pub mod serve;
