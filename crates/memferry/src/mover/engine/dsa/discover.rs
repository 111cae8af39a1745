//! Engines of this machine's devices.

use std::sync::Arc;

use memferry_dsa::Portal;
use memferry_dsa::internals::portal::{OpenQueue, OpenQueues};
use memferry_dsa::system::QueueFilter;

use super::{DsaEngine, DsaOptions};
use crate::mover::MoverError;

impl DsaEngine {
    /// Creates an engine for each DSA of this machine, with all work queues that this process can use. Their names are
    /// those of the kernel, such as `dsa0`.
    ///
    /// The name in `options` is ignored, and the version is at most that of the device. Unusable queues are skipped if
    /// there are others; `memferry topology` shows the reasons.
    ///
    /// # Errors
    /// [`MoverError::NoDsa`] without any usable queue, with the reasons; those of [`new`](DsaEngine::new).
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
