//! The origin of a number that is shown or kept.

pub(crate) use memferry_bench::harness::Provenance as How;
