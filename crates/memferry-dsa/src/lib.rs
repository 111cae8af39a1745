//! Intel's Data Streaming Accelerator (DSA) in user space: copies, fills, comparisons, CRCs and more by a device of Linux.
//!
//! A copy by the devices of this machine, or by the CPU if it has none:
//!
//! ```
//! use memferry_dsa::{Client, ClientOptions, Request};
//!
//! let (client, _) = Client::discover(ClientOptions::default())?;
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
//! | [`Wait`] | waiting for completion records |
//! | [`system`] | discovery, configuration and diagnostics of the devices of Linux |
//! | [`software`] | operations on the CPU whose results programs store or send |
//! | [`DeviceCosts`] | rates and costs of a device, for models |
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
//!
//! # Features
//!
//! `internals` adds a module of the same name for the other crates of this project. It is no part of the API: its
//! content may change with any version.

#![deny(unsafe_code)]
// Without the feature, a part of the crate has no users outside its tests.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub, unused_imports))]

#[cfg(not(target_endian = "little"))]
compile_error!(
    "descriptors and completion records are little-endian in memory: build for a little-endian target"
);

mod address;
#[allow(unsafe_code)]
mod affinity;
#[cfg(not(memferry_loom))]
mod client;
mod completion;
mod costs;
mod descriptor;
mod device_time;
mod dif;
#[cfg_attr(memferry_loom, allow(dead_code))] // where there is no client
mod driver;
mod flags;
mod fork;
mod instructions;
#[cfg(feature = "internals")]
pub mod internals;
mod operation;
mod panics;
mod portal;
#[cfg_attr(memferry_loom, allow(dead_code))] // where there is no client
mod request;
pub mod software;
mod sync;
pub mod system;
mod wait;

pub use address::Address;
#[cfg(not(memferry_loom))]
pub use client::{Client, ClientError, ClientOptions, ClientStats, OwnedError};
pub use completion::{Completion, CompletionRecord, DeltaResult, Status};
pub use costs::DeviceCosts;
pub use descriptor::Descriptor;
pub use dif::{
    DIF_BYTES, DifBlock, DifErrors, DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags,
};
pub use flags::Flags;
pub use instructions::SleepState;
pub use operation::{Opcode, OperationSet, UnknownOpcode};
pub use portal::{
    Backoff, BackoffError, DevicePortal, OpenError, OpenOptions, Portal, PortalCounters, PortalKind,
    QueueMode, Refused, Slots, Submission, SubmitError, SubmitMethod, WorkQueueInfo, WriteReason,
    submit_with_backoff,
};
#[cfg(not(memferry_loom))]
pub use request::{Batch, MemberError, Outcomes, Ticket};
pub use request::{Invalid, OnCpu, Outcome, Request, Source, Target};
pub use wait::TimedOut;
#[cfg(not(memferry_loom))]
pub use wait::Wait;
