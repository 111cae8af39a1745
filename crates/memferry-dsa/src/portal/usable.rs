//! Portals to all that this process can use.

use std::sync::Arc;

use super::{DevicePortal, OpenOptions};
use crate::system::{DeviceId, QueueFilter, SystemError, SystemState, Version};

/// The work queues that a process can use.
#[derive(Debug)]
pub struct OpenQueues {
    /// The queues, device by device.
    pub queues: Vec<OpenQueue>,
    /// A sentence for each queue, device or driver that cannot be used.
    pub diagnostics: Vec<String>,
}

/// An open work queue.
#[derive(Clone, Debug)]
pub struct OpenQueue {
    /// Its device.
    pub device: DeviceId,
    /// The device's version; 0 if the driver does not tell.
    pub version: Version,
    /// The way in.
    pub portal: Arc<DevicePortal>,
}

impl OpenQueues {
    /// Opens every work queue of Linux that is as wanted and that this process can use.
    ///
    /// Having none is no error: `queues` is empty then, and `diagnostics` say why.
    ///
    /// # Errors
    /// sysfs makes no sense.
    pub fn open(wanted: &QueueFilter) -> Result<OpenQueues, SystemError> {
        let state = SystemState::discover()?;
        let diagnosis = state.diagnose(wanted);
        let mut diagnostics: Vec<String> = diagnosis.diagnostics.iter().map(ToString::to_string).collect();
        let mut queues = Vec::new();
        for (device, queue) in diagnosis.usable {
            // Without a file it is among the diagnostics.
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
