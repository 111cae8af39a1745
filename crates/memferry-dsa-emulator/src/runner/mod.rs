//! Two ways to step a device: in the calling thread, or in a thread of its own.

mod deterministic;
mod portal;
mod threaded;

pub use deterministic::Deterministic;
pub use threaded::{Emulator, StartError};
