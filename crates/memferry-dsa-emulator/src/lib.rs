//! An emulated Intel DSA, for tests of software that uses one: the device, its driver's files, a conformance suite.
//!
//! The device follows the rules of the specification, with the limits of the 1.0 parts. It executes all operations of
//! version 1.0, or a configured subset, and it is exact, not fast.
//!
//! ```text
//! Portal / submit ──▶ queues ──▶ arbiter of the group ──▶ engines ──▶ completion records
//!                    (ring)      (priorities)            (batch unit,  (late, out of order)
//!                                                         operations)       │
//!                                                            └── Memory ◀───┘
//! ```
//!
//! | part | content |
//! |---|---|
//! | [`Device`] | a state machine that works only when it is stepped |
//! | [`Deterministic`] | steps a device in the calling thread; a seed replays a run exactly |
//! | [`Emulator`] | steps a device in a thread of its own, over the memory of this process; has portals |
//! | [`FaultPlan`] | injected misbehaviour within the specification: faults, delays, reordering |
//! | [`DeviceCosts`] | modelled durations, in virtual or real time; a measurement with them is `emulated` |
//! | [`shared`] | devices that several processes share |
//! | [`FakeDriver`], [`FakePlatform`] | the files of the driver `idxd`; Linux and the CPU as portals see them |
//! | [`conformance`] | checks for everything that executes requests, devices and software alike |
//!
//! A copy through a device that faults, delays and reorders:
//!
//! ```
//! use memferry_dsa::{Client, ClientOptions, Request};
//! use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
//!
//! let emulator = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::from_seed(42))?;
//! let client = Client::new(vec![emulator.portal(0)], ClientOptions::default());
//! let (source, mut target) = (vec![1; 100_000], vec![0; 100_000]);
//! client.run(Request::copy(&source, &mut target))?;
//! assert_eq!(source, target);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: Intel DSA Architecture Specification 3.0.

#![deny(unsafe_code)]

mod arc_ref;
mod config;
#[cfg(not(memferry_loom))]
pub mod conformance;
mod device;
mod driver;
mod memory;
mod monotonic;
mod ops;
pub mod procfs;
mod queue;
mod runner;
pub mod shared;
mod sync;

pub use config::{
    BATCH_MAX, Capabilities, ConfigError, DeviceConfig, DeviceCosts, ENTRIES_MAX, FaultPlan, GroupConfig,
    OPERATIONS, QUEUES_MAX, TRANSFER_BYTES_MAX, dedicated_queue, shared_queue,
};
pub use device::{Device, DeviceCounters, Stepped};
pub use driver::{FakeDevice, FakeDriver, FakeKernel, FakePlatform};
pub use memory::{
    Access, AddressSpace, CheckedMemory, DirectMemory, FakeMemory, Memory, ProcessMemory, RecordStore,
    Vanished, Visit,
};
pub use runner::{Deterministic, Emulator, StartError};
