//! Memory Fill: repeats the pattern from the start of the target.
//!
//! With an unaligned target, a fault may stop it between multiples of 8; software rotates the pattern to resume.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (Memory Fill).

use memferry_dsa::internals::software;
use memferry_dsa::{Completion, Descriptor};

use super::walk::Walk;
use super::{Env, Execute, Stop};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// A fill in progress.
#[derive(Debug)]
pub(crate) struct Fill {
    walk: Walk<1>,
    pattern: u64,
}

impl Fill {
    pub(super) fn new(descriptor: &Descriptor) -> Fill {
        Fill {
            walk: Walk::new([(descriptor.address_2(), Access::Write)], descriptor),
            pattern: descriptor.pattern(),
        }
    }
}

impl Execute for Fill {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let pattern = self.pattern;
        self.walk.piece(env, |env, span| {
            let bytes = &mut env.scratch.first[..span.bytes as usize];
            repeat(pattern, span.offset, bytes);
            Ok(env.memory.write(span.at[0], bytes)?)
        })
    }

    fn stopped(&self, fault: Fault) -> Completion {
        fault.completion(self.walk.done())
    }
}

/// Fills `bytes`, which start at `offset` in a region with the pattern.
pub(super) fn repeat(pattern: u64, offset: u32, bytes: &mut [u8]) {
    software::fill(pattern.rotate_right(8 * (offset % 8)), bytes);
}
