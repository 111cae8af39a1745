//! The client of this machine's queues.

use std::sync::Arc;

use super::{Client, ClientOptions};
use crate::portal::{OpenQueues, Portal};
use crate::system::{QueueFilter, SystemError};

impl Client {
    /// Opens every work queue of Linux that this process can use. Returns the client, and a sentence for each queue,
    /// device or driver that cannot be used.
    ///
    /// A machine without usable queues is not an error: the CPU executes the client's requests. The version in `options`
    /// is lowered to that of the oldest device.
    ///
    /// # Errors
    /// An attribute in sysfs cannot be read or parsed.
    pub fn discover(mut options: ClientOptions) -> Result<(Client, Vec<String>), SystemError> {
        let OpenQueues { queues, diagnostics } = OpenQueues::open(&QueueFilter::default())?;
        for queue in &queues {
            options.version = options.version.min(queue.version);
        }
        let portals = queues.into_iter().map(|queue| queue.portal as Arc<dyn Portal>).collect();
        Ok((Client::new(portals, options), diagnostics))
    }
}
