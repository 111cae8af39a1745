//! Portals to all work queues that this process can use.

use std::sync::Arc;

use super::{DevicePortal, OpenOptions};
use crate::system::{DeviceId, QueueFilter, SystemError, SystemState, Version};

/// The open work queues of this machine that match a filter.
#[derive(Debug)]
pub struct OpenQueues {
    /// The queues, device by device.
    pub queues: Vec<OpenQueue>,
    /// A sentence for each queue, device or driver that cannot be used, and why.
    pub diagnostics: Vec<String>,
}

/// An open work queue.
#[derive(Clone, Debug)]
pub struct OpenQueue {
    /// The device of the queue.
    pub device: DeviceId,
    /// The device's version; 0 if the driver does not report it.
    pub version: Version,
    /// The portal to the queue.
    pub portal: Arc<DevicePortal>,
}

impl OpenQueues {
    /// Opens every work queue of Linux that matches `filter` and that this process can use.
    ///
    /// A machine without such queues is not an error: `queues` is empty then, and `diagnostics` say why.
    ///
    /// # Errors
    /// An attribute in sysfs cannot be read or parsed.
    pub fn open(filter: &QueueFilter) -> Result<OpenQueues, SystemError> {
        let state = SystemState::discover()?;
        let diagnosis = state.diagnose(filter);
        let mut diagnostics: Vec<String> = diagnosis.diagnostics.iter().map(ToString::to_string).collect();
        let mut queues = Vec::new();
        for (device, queue) in diagnosis.usable {
            // A queue without a file is among the diagnostics.
            let Some(file) = &queue.file else { continue };
            match DevicePortal::open(file.path.as_ref(), queue.info(device)?, OpenOptions::default()) {
                Ok(portal) => {
                    let version = device.version.unwrap_or(Version(0));
                    queues.push(OpenQueue { device: device.id, version, portal });
                }
                Err(error) => diagnostics.push(error.to_string()),
            }
        }
        Ok(OpenQueues { queues, diagnostics })
    }
}
