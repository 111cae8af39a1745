//! A client of what this machine has.

use super::{Client, ClientOptions};
use crate::portal::{DevicePortal, OpenOptions, Portal};
use crate::system::{State, SystemError, Wanted};

/// A client of all queues that this process can use, and why not of others.
#[derive(Debug)]
pub struct Discovered {
    /// The client; without queues if there are none.
    pub client: Client,
    /// A sentence for each queue, device or driver that cannot be used.
    pub troubles: Vec<String>,
}

impl Client {
    /// Opens every work queue of Linux that this process can use.
    ///
    /// The version in `options` is lowered to that of the oldest device.
    ///
    /// # Errors
    /// sysfs makes no sense; having no device is no error.
    pub fn discover(mut options: ClientOptions) -> Result<Discovered, SystemError> {
        let state = State::discover()?;
        let diagnosis = state.diagnose(&Wanted::default());
        let mut troubles: Vec<String> = diagnosis.troubles.iter().map(ToString::to_string).collect();
        let mut portals: Vec<std::sync::Arc<dyn Portal>> = Vec::new();
        for (device, queue) in diagnosis.usable {
            let Some(file) = &queue.file else { continue };
            match DevicePortal::open(file.path.as_ref(), queue.info(device)?, OpenOptions::default()) {
                Ok(portal) => {
                    options.version.0 = device.version.map_or(0, |version| version.0).min(options.version.0);
                    portals.push(portal);
                }
                Err(error) => troubles.push(error.to_string()),
            }
        }
        Ok(Discovered { client: Client::new(portals, options), troubles })
    }
}
