//! Cache Flush: writes the lines of a region back from the CPU's caches. Memory does not change, so read permission is
//! enough.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (Cache Flush).

use memferry_dsa::{Completion, Descriptor};

use super::walk::Walk;
use super::{Env, Execute, Stop};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// A flush in progress.
#[derive(Debug)]
pub(crate) struct CacheFlush {
    walk: Walk<1>,
}

impl CacheFlush {
    pub(super) fn new(descriptor: &Descriptor) -> CacheFlush {
        CacheFlush { walk: Walk::new([(descriptor.address_2(), Access::Read)], descriptor) }
    }
}

impl Execute for CacheFlush {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        self.walk.piece(env, |env, span| {
            env.memory.flush(span.at[0], span.bytes as usize);
            Ok(())
        })
    }

    fn stopped(&self, fault: Fault) -> Completion {
        fault.completion(self.walk.done())
    }
}
