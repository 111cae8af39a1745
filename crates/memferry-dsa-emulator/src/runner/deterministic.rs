//! A device that is stepped in the calling thread: the same seed and calls give the same run, bit for bit.

use crate::config::{ConfigError, DeviceConfig, FaultPlan};
use crate::device::{Device, Stepped};
use crate::memory::Memory;

/// A device and its memory, stepped by hand.
///
/// ```
/// use memferry_dsa_emulator::{Deterministic, DeviceConfig, FakeMemory, FaultPlan};
/// use memferry_dsa::{Address, Descriptor, Status};
///
/// let memory = FakeMemory::new();
/// let (source, target, record) = (Address(0x1_0000), Address(0x2_0000), Address(0x3_0000));
/// memory.map(source, 4096);
/// memory.map(target, 4096);
/// memory.map(record, 32);
/// memory.store(source, b"bytes");
///
/// let mut run = Deterministic::new(&DeviceConfig::one_shared_queue(), FaultPlan::none(), memory)?;
/// run.device.submit(0, &Descriptor::memmove(source, target, 5).with_completion_at(record), 1)?;
/// run.run_until_idle();
///
/// assert_eq!(run.memory.poll(record).unwrap().status, Status::Success);
/// assert_eq!(run.memory.load(target, 5), b"bytes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Deterministic<M> {
    /// The device.
    pub device: Device,
    /// The memory that it works on.
    pub memory: M,
}

impl<M: Memory> Deterministic<M> {
    /// A device with empty queues over `memory`.
    ///
    /// # Errors
    /// [`ConfigError`]: the device refuses to be enabled with this configuration.
    pub fn new(
        config: &DeviceConfig,
        fault_plan: FaultPlan,
        memory: M,
    ) -> Result<Deterministic<M>, ConfigError> {
        Ok(Deterministic { device: Device::new(config, fault_plan)?, memory })
    }

    /// Executes the next piece of work.
    pub fn step(&mut self) -> Stepped {
        self.device.step(&self.memory)
    }

    /// Steps until the device is idle; returns the number of steps.
    pub fn run_until_idle(&mut self) -> u64 {
        let mut steps = 0;
        while self.step() == Stepped::Busy {
            steps += 1;
        }
        steps
    }
}
