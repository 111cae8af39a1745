//! Emulated DSA devices in this process.

use std::sync::Arc;

use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

use crate::error::{Error, mf_status};
use crate::handles::{Object, insert, remove};
use crate::machine::{check_out, mf_node, put};
use crate::thread::call;

/// Emulated devices. 0 is none. Free them with `mf_emulator_free`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_emulator {
    /// The handle.
    pub id: u64,
}

/// Options of emulated devices. All zero: one device on node 0 with a shared queue, without misbehaviour.
#[derive(Copy, Clone, Debug, Default)]
#[repr(C)]
pub struct mf_emulator_options {
    /// Number of devices; 0 counts as 1. At most 64.
    pub devices_count: u32,
    /// The node of the first device; the others are on the nodes that follow.
    pub node: mf_node,
    /// Not 0: completions come late and out of order, queues are full at times, pages fault, as decided by this seed.
    pub seed: u64,
}

/// Devices that run until the last mover that uses them ends.
pub(crate) struct Devices(pub(crate) Vec<Arc<Emulator>>);

impl Object for Devices {
    const KIND: u64 = 2;
    const NAME: &'static str = "emulator";
}

/// Starts emulated devices in this process. NULL options are all zero.
///
/// They have the results of a device, not its speed: an engine is a thread. To run a program unchanged on emulated devices,
/// use the command `memferry emulate`.
///
/// # Safety
/// `options` is NULL or valid, `emulator` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_emulator_start(
    options: *const mf_emulator_options,
    emulator: *mut mf_emulator,
) -> mf_status {
    call(|_| {
        check_out(emulator, "emulator")?;
        // SAFETY: promised by the caller.
        let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
        let devices_count = options.devices_count.max(1);
        if devices_count > 64 {
            return Err(Error::argument(format!("{devices_count} devices are more than 64; start fewer")));
        }
        let devices = (0..devices_count).map(|device| {
            let config = DeviceConfig::one_shared_queue().on_node(options.node.wrapping_add(device));
            let plan = match options.seed {
                0 => FaultPlan::none(),
                seed => FaultPlan::from_seed(seed.wrapping_add(device.into())),
            };
            Ok(Emulator::start(&config, plan)?)
        });
        let id = insert(Devices(devices.collect::<Result<_, Error>>()?))?;
        // SAFETY: promised by the caller.
        unsafe { put(emulator, "emulator", mf_emulator { id }) }
    })
}

/// Frees the handle. The devices run on for the movers that use them.
#[unsafe(no_mangle)]
pub extern "C" fn mf_emulator_free(emulator: mf_emulator) -> mf_status {
    call(|_| remove::<Devices>(emulator.id, |_| None).map(drop))
}
