//! Intel's Data Streaming Accelerator (DSA) in user space: copies, fills, comparisons, CRCs and more by a device of Linux.
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
//! The levels, from the top; each is usable without those above:
//!
//! | level | content |
//! |---|---|
//! | [`Client`] | safe calls: it runs a [`Request`] or a [`Batch`], picks a queue, resumes after page faults, and uses the CPU without a device |
//! | [`Descriptor`], [`CompletionRecord`] | the 64 bytes that describe an operation, and the 32 bytes of its result |
//! | [`Portal`], [`DevicePortal`] | the submission of descriptors to a work queue |
//! | [`wait`] | waiting for completion records |
//! | [`system`] | discovery, configuration and diagnostics of the devices of Linux |
//! | [`software`] | the same operations on the CPU |
//! | [`costs`] | rates and costs of a device, for models |
//! | [`fork`], [`instructions`], [`affinity`], [`panics`] | helpers: detection of forks, the CPU's instructions, threads |
//!
//! A copy without a client, by the emulated device of the crate `memferry-dsa-emulator`:
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
//! // SAFETY: source, target and record outlive the loop below, and no other code uses the target.
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
//! Source: Intel DSA Architecture Specification, revision 3.0 (document 341204-006US); this crate implements the features
//! of devices of version 1.0. Linux' `include/uapi/linux/idxd.h`.

#![deny(unsafe_code)]

#[cfg(not(target_endian = "little"))]
compile_error!(
    "descriptors and completion records are little-endian in memory: build for a little-endian target"
);

mod address;
#[allow(unsafe_code)]
pub mod affinity;
#[cfg(not(memferry_loom))]
pub mod client;
mod completion;
pub mod costs;
mod descriptor;
mod dif;
#[cfg_attr(memferry_loom, allow(dead_code))] // where there is no client
pub mod driver;
mod flags;
pub mod fork;
pub mod instructions;
mod operation;
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
