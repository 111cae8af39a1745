//! Engines of the devices that this machine has.

use std::sync::Arc;

use memferry_dsa::Portal;
use memferry_dsa::portal::{OpenQueue, OpenQueues};
use memferry_dsa::system::QueueFilter;

use super::{DsaEngine, DsaOptions};
use crate::mover::MoverError;

impl DsaEngine {
    /// An engine for each DSA of this machine, over all of its work queues that this process can use; named `dsa0`
    /// and so on, as the kernel does.
    ///
    /// The version in `options` is lowered to that of the device, and the name is not used. Queues that cannot be used
    /// are left out as long as there are others; `memferry topology` tells of them.
    ///
    /// # Errors
    /// [`MoverError::NoDsa`] without any queue, and says why; otherwise as [`new`](DsaEngine::new).
    pub fn discover(options: &DsaOptions) -> Result<Vec<DsaEngine>, MoverError> {
        let OpenQueues { queues, diagnostics } = OpenQueues::open(&QueueFilter::default())?;
        if queues.is_empty() {
            return Err(MoverError::NoDsa { why: diagnostics.join("; ") });
        }
        let of_device = |queues: &[OpenQueue]| {
            let portals = queues.iter().map(|queue| -> Arc<dyn Portal> { queue.portal.clone() }).collect();
            let first = &queues[0];
            let version = options.version.min(first.version);
            DsaEngine::new(portals, DsaOptions { name: first.device.to_string(), version, ..options.clone() })
        };
        queues.chunk_by(|one, next| one.device == next.device).map(of_device).collect()
    }
}
