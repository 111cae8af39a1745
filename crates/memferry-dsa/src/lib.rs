//! Intel's Data Streaming Accelerator in user space: requests, descriptors, completion records, and the queues of Linux.
//!
//! - [`Client`]: safe calls. It takes a [`Request`] or a [`Batch`], picks a queue, resumes after page faults, and
//!   lets the CPU do what no device does. The levels below are for those who need something else.
//! - [`driver`]: the same for engines that accept work now and complete it later.
//! - [`Descriptor`]: the 64 bytes that say what to do.
//! - [`Portal`]: hands them to a work queue; [`DevicePortal`] to one of Linux.
//! - [`CompletionRecord`]: the 32 bytes that say how it ended; [`wait`] for them to be there.
//! - [`system`]: which devices Linux has, how they are configured, and why one cannot be used.
//! - [`fork`]: what becomes of all that in a child process.
//! - [`software`]: the same operations by the CPU.
//!
//! A copy by the devices of this machine, or by the CPU if it has none:
//!
//! ```
//! use memferry_dsa::{Client, ClientOptions, Request};
//!
//! let client = Client::discover(ClientOptions::default())?.client;
//! let (source, mut target) = (vec![7u8; 4096], vec![0u8; 4096]);
//! client.run(Request::copy(&source, &mut target))?;
//! assert_eq!(source, target);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same without a client, through the emulated device of the crate `memferry-dsa-emulator`:
//!
//! ```
//! use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
//! use memferry_dsa::{CompletionRecord, Descriptor, Status, Submission};
//!
//! let portal = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none())?.portal(0);
//!
//! let source = [7u8; 4096];
//! let mut target = [0u8; 4096];
//! let record = CompletionRecord::new();
//! let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), 4096).with_completion(&record);
//!
//! // SAFETY: source, target and record outlive the loop below, and nobody else uses the target.
//! assert_eq!(unsafe { portal.submit(&copy)? }, Submission::Accepted);
//! let completion = loop {
//!     match record.poll() {
//!         Some(completion) => break completion,
//!         None => std::hint::spin_loop(),
//!     }
//! };
//!
//! assert_eq!(completion.status, Status::Success);
//! assert_eq!(source, target);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: Intel DSA Architecture Specification, revision 3.0 (document 341204-006US), of which this implements what
//! devices of version 1.0 have; Linux' `include/uapi/linux/idxd.h`.

#![deny(unsafe_code)]

#[cfg(not(target_endian = "little"))]
compile_error!("descriptors and completion records are little-endian in memory, and so must be the target");

mod address;
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod affinity;
#[cfg(not(memferry_loom))]
pub mod client;
mod completion;
mod descriptor;
mod dif;
#[cfg_attr(memferry_loom, allow(dead_code))] // where there is no client
pub mod driver;
mod flags;
pub mod fork;
pub mod instructions;
mod operation;
#[doc(hidden)]
pub mod panics;
pub mod portal;
#[cfg_attr(memferry_loom, allow(dead_code))] // where there is no client
pub mod request;
pub mod software;
mod sync;
pub mod system;
pub mod wait;

pub use address::{Address, PAGE_BYTES};
#[cfg(not(memferry_loom))]
pub use client::{Client, ClientError, ClientOptions, ClientStats};
pub use completion::{Completion, CompletionRecord, DeltaResult, Status};
pub use descriptor::Descriptor;
pub use dif::{
    DIF_BYTES, DifBlock, DifErrors, DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags,
};
pub use driver::OnCpu;
pub use flags::Flags;
pub use operation::{Opcode, OperationSet, UnknownOpcode};
pub use portal::{
    DevicePortal, OpenError, Portal, PortalCounters, PortalKind, QueueMode, Submission, SubmitError,
    WorkQueueInfo,
};
#[cfg(not(memferry_loom))]
pub use request::Batch;
pub use request::Request;
#[cfg(not(memferry_loom))]
pub use wait::Wait;
