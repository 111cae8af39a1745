//! Descriptions of devices for the fake driver.

use memferry_dsa::system::DeviceId;

use crate::config::Capabilities;

/// The description of a device in a [`FakeDriver`](super::FakeDriver).
///
/// ```
/// use memferry_dsa::system::{DeviceId, SystemState};
/// use memferry_dsa_emulator::{FakeDevice, FakeDriver};
///
/// let without_pasid = FakeDevice { pasid: false, ..FakeDevice::sapphire_rapids(DeviceId(0), 0) };
/// let state = SystemState::read(&FakeDriver::new(&[without_pasid]))?;
/// assert_eq!(state.devices[0].id, DeviceId(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FakeDevice {
    /// The name.
    pub id: DeviceId,
    /// The NUMA node.
    pub node: Option<u32>,
    /// The version, `0x100`.
    pub version: u32,
    /// GENCAP.
    pub gen_cap: u64,
    /// `op_cap` as the kernel prints it.
    pub op_cap: &'static str,
    /// Groups, engines, work queues.
    pub counts: (u32, u32, u32),
    /// Entries that the queues share.
    pub entries: u32,
    /// Read buffers that the groups share.
    pub read_buffers: u32,
    /// Whether PASIDs are enabled.
    pub pasid: bool,
    /// Whether the device is configurable.
    pub configurable: bool,
    /// The kernel version, which decides about the attributes.
    pub kernel: FakeKernel,
}

/// A kernel version with its set of attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FakeKernel {
    /// 5.18: no driver_name, op_config and progress limits.
    Old,
    /// 6.7 and later.
    New,
}

impl FakeDevice {
    /// A device of Sapphire Rapids or Xeon Max on a kernel since 2024.
    ///
    /// Source: listings of `accel-config list` on Sapphire Rapids and Emerald Rapids.
    pub fn sapphire_rapids(id: DeviceId, node: u32) -> FakeDevice {
        FakeDevice {
            id,
            node: Some(node),
            version: 0x100,
            gen_cap: 0x40915f0107,
            op_cap: "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f027d",
            counts: (4, 4, 8),
            entries: 128,
            read_buffers: 96,
            pasid: true,
            configurable: true,
            kernel: FakeKernel::New,
        }
    }

    /// A device with all optional features of version 1.0: the delta operations, cache control for Cache Flush, and
    /// readback for Drain. No part on the market has them. Linux hides Batch as on any part of version 1.0.
    ///
    /// Source: DSA specification, OPCAP and GENCAP; the rest is [`sapphire_rapids`](Self::sapphire_rapids).
    pub fn complete(id: DeviceId, node: u32) -> FakeDevice {
        FakeDevice {
            gen_cap: Capabilities::ALL.bits(),
            op_cap: "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03fd",
            ..FakeDevice::sapphire_rapids(id, node)
        }
    }

    /// The same device on a kernel of 2022, which shows Batch.
    pub fn on_old_kernel(id: DeviceId, node: u32) -> FakeDevice {
        FakeDevice {
            op_cap: "0x1003f03ff 0x0 0x0 0x0",
            kernel: FakeKernel::Old,
            ..FakeDevice::sapphire_rapids(id, node)
        }
    }

    /// A device of version 2.0 with an event log.
    ///
    /// The operations are those that Sierra Forest lists. The event log of 64-byte entries, fault information and
    /// 16-byte fill are optional features of version 2.0.
    pub fn version_2(id: DeviceId, node: u32) -> FakeDevice {
        FakeDevice {
            version: 0x200,
            gen_cap: 0x40915f0107 | 1 << 10 | 1 << 12 | 1 << 13,
            op_cap: "00000000,00000000,00000000,00000000,00000000,00000000,0000007b,00bf067f",
            ..FakeDevice::sapphire_rapids(id, node)
        }
    }
}
