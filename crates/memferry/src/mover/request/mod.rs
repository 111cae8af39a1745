//! Requests: what callers, the scheduler and engines share.
//!
//! ```text
//!   Transfer, Operation ──▶ Owned ──▶ Shared { buffers, result } ◀── Completion ◀── Callback ◀── RawRequest
//!   handles of the caller                                                            └──▶ Epoch, for drains
//! ```

mod completion;
mod epoch;
mod join;
#[cfg(all(test, memferry_loom))]
mod loom_transfer;
#[allow(unsafe_code)]
mod operation;
#[allow(unsafe_code)]
mod owned;
#[allow(unsafe_code)]
pub(in crate::mover) mod raw;
mod read;
#[allow(unsafe_code)]
mod transfer;

pub use completion::CopyReport;
pub use operation::Operation;
pub use owned::OperationError;
pub use raw::RawRequest;
pub use transfer::{CopyOptions, Transfer};

pub(in crate::mover) use completion::{Callback, CopyResult};
pub(crate) use epoch::{Epoch, Epochs};
pub(in crate::mover) use join::join;
pub(in crate::mover) use owned::{Completion, Owned};
pub(crate) use read::{Demand, FileSource};
