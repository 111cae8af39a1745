//! A host of a workload: who moves its bytes, and the clock.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use memferry::internals::{Hardware, Offload};
use memferry::model::ModelError;
use memferry::topology::Machine;
use memferry_dsa::system::SystemError;
use memferry_dsa::{Client, ClientError, ClientOptions, MemberError};
use memferry_dsa_emulator::{ConfigError, FaultPlan};

use super::movers::{Copies, Core, Mover};
use super::virtual_time::{VirtualCore, VirtualTime, client};

/// A case that cannot be run, or whose bytes are wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// The device did not execute a request.
    #[error("the device did not move the bytes: {0}")]
    Move(#[from] ClientError),
    /// The device did not execute a member of a batch.
    #[error("the device did not execute a member of a batch: {0}")]
    Member(#[from] MemberError),
    /// The emulated device cannot be made.
    #[error("the emulated device cannot be made: {0}")]
    Device(#[from] ConfigError),
    /// The profile lacks a figure.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// This machine cannot be examined.
    #[error("the DSA queues of this machine cannot be read: {0}")]
    System(#[from] SystemError),
    /// The result of a workload is not the expected one.
    #[error("the case {case} has a wrong result: {what}; please report this")]
    Wrong {
        /// The workload.
        case: &'static str,
        /// The difference.
        what: String,
    },
}

/// Fails unless the result of a case is right.
pub(super) fn check(
    case: &'static str,
    is_right: bool,
    what: impl FnOnce() -> String,
) -> Result<(), CaseError> {
    if is_right { Ok(()) } else { Err(CaseError::Wrong { case, what: what() }) }
}

/// Times of the operations of a run, in nanoseconds. Element `n` of both is about operation `n`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// From the begin of an operation until its bytes have arrived.
    pub elapsed_ns: Vec<f64>,
    /// The part in which the core was busy, and did not wait for the device; only in virtual time.
    pub busy_ns: Vec<f64>,
}

enum Clock {
    Real(Instant),
    Virtual(Arc<VirtualTime>),
}

/// A core that runs a workload, with or without a device.
pub struct Host {
    core: Box<dyn Mover>,
    device: Option<Box<dyn Mover>>,
    clock: Clock,
}

impl Host {
    /// This machine's core. With a device, that moves the bytes.
    pub fn real(device: Option<Box<dyn Mover>>) -> Host {
        Host { core: Box::new(Core), device, clock: Clock::Real(Instant::now()) }
    }

    /// This machine's core and its DSA queues; `None` without a usable queue.
    ///
    /// # Errors
    /// [`CaseError::System`]
    pub fn system() -> Result<Option<Host>, CaseError> {
        // The CPU would be measured under the name of a device.
        let options = ClientOptions { may_use_cpu: false, faults_max: u32::MAX, ..ClientOptions::default() };
        let (client, _) = Client::discover(options)?;
        let has_queue = client.portals().len() > 0;
        Ok(has_queue.then(|| Host::real(Some(Box::new(client)))))
    }

    /// A core of a machine in virtual time.
    ///
    /// # Errors
    /// [`CaseError::Model`]
    pub fn virtual_core(machine: &Machine) -> Result<Host, CaseError> {
        let offload = Offload::of(&Hardware::of(machine)?)?;
        let time = Arc::new(VirtualTime::default());
        Ok(Host {
            core: Box::new(VirtualCore::new(offload, time.clone())),
            device: None,
            clock: Clock::Virtual(time),
        })
    }

    /// A core of a machine in virtual time, with an emulated device of the machine and its misbehaviour.
    ///
    /// # Errors
    /// [`CaseError::Model`], [`CaseError::Device`]
    pub fn virtual_device(machine: &Machine, faults: FaultPlan) -> Result<Host, CaseError> {
        let costs = Offload::of(&Hardware::of(machine)?)?.costs()?;
        let mut host = Host::virtual_core(machine)?;
        if let Clock::Virtual(time) = &host.clock {
            host.device = Some(Box::new(client(costs, faults, time.clone())?));
        }
        Ok(host)
    }

    /// Whether a device moves the bytes.
    pub fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// The time of the core.
    pub fn now_ns(&self) -> f64 {
        match &self.clock {
            Clock::Real(start) => start.elapsed().as_nanos() as f64,
            Clock::Virtual(time) => time.now_ns(),
        }
    }

    /// Executes work of the core. In virtual time it takes `virtual_ns`.
    pub fn work<R>(&self, virtual_ns: f64, work: impl FnOnce() -> R) -> R {
        if let Clock::Virtual(time) = &self.clock {
            time.work(virtual_ns);
        }
        work()
    }

    /// Who moves large amounts of bytes: the device, or else the core.
    pub fn mover(&self) -> &dyn Mover {
        self.device.as_deref().unwrap_or(&*self.core)
    }

    /// Copies; sources below `bytes_min` are copied by the core.
    ///
    /// # Errors
    /// As [`Mover::copy`].
    pub fn copy_from(&self, bytes_min: usize, source: &[u8], target: &mut [u8]) -> Result<(), CaseError> {
        let mover = if source.len() < bytes_min { &*self.core } else { self.mover() };
        mover.copy(vec![(source, target)])
    }

    /// Runs `count` operations as one, and adds their mean times to the samples.
    pub(super) fn sample<R>(&self, samples: &mut Samples, count: usize, operations: impl FnOnce() -> R) -> R {
        let waited_ns = || match &self.clock {
            Clock::Real(_) => None,
            Clock::Virtual(time) => Some(time.waited_ns()),
        };
        let (begin_ns, waited_before_ns) = (self.now_ns(), waited_ns());
        let result = operations();
        let elapsed_ns = self.now_ns() - begin_ns;
        samples.elapsed_ns.push(elapsed_ns / count as f64);
        if let (Some(before), Some(after)) = (waited_before_ns, waited_ns()) {
            samples.busy_ns.push((elapsed_ns - (after - before)) / count as f64);
        }
        result
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_virtual = matches!(self.clock, Clock::Virtual(_));
        let has_device = self.has_device();
        f.debug_struct("Host").field("is_virtual", &is_virtual).field("has_device", &has_device).finish()
    }
}

/// Copies of equal pieces of a source and a target.
pub(super) fn pieces<'a>(source: &'a [u8], target: &'a mut [u8], piece_bytes: usize) -> Copies<'a> {
    source.chunks(piece_bytes).zip(target.chunks_mut(piece_bytes)).collect()
}
