//! A client of what this machine has.

use std::sync::Arc;

use super::{Client, ClientOptions};
use crate::portal::{OpenQueues, Portal};
use crate::system::{QueueFilter, SystemError};

/// A client of all queues that this process can use, and why not of others.
#[derive(Debug)]
pub struct Discovered {
    /// The client; without queues if there are none.
    pub client: Client,
    /// A sentence for each queue, device or driver that cannot be used.
    pub diagnostics: Vec<String>,
}

impl Client {
    /// Opens every work queue of Linux that this process can use.
    ///
    /// The version in `options` is lowered to that of the oldest device.
    ///
    /// # Errors
    /// sysfs makes no sense; having no device is no error.
    pub fn discover(mut options: ClientOptions) -> Result<Discovered, SystemError> {
        let OpenQueues { queues, diagnostics } = OpenQueues::open(&QueueFilter::default())?;
        for queue in &queues {
            options.version = options.version.min(queue.version);
        }
        let portals = queues.into_iter().map(|queue| queue.portal as Arc<dyn Portal>).collect();
        Ok(Discovered { client: Client::new(portals, options), diagnostics })
    }
}
