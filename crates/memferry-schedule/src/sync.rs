//! The choice between std and loom. Model-checked code takes its atomics only from here.

#[cfg(memferry_loom)]
pub(crate) use loom::sync::{Arc, atomic};
#[cfg(not(memferry_loom))]
pub(crate) use std::sync::{Arc, atomic};
