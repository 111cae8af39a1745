//! The tests of tables, scans and prefetching: linking one program takes less time than linking many.

mod domains;
#[path = "../dsa_support/mod.rs"]
mod dsa_support;
mod files;
mod keep_decoded;
mod packed;
mod placement;
mod plan_ahead;
mod plans;
mod prefetch;
mod rates_support;
mod standing_scan;
mod store_support;
mod tables;
