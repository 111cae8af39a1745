//! Dualcast: one source, two targets, with the same progress when a fault stops it.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (Dualcast).

use memferry_dsa::{Completion, Descriptor};

use super::walk::Walk;
use super::{Env, Execute, Stop};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// A dualcast in progress.
#[derive(Debug)]
pub(crate) struct Dualcast {
    walk: Walk<3>,
}

impl Dualcast {
    pub(super) fn new(descriptor: &Descriptor) -> Dualcast {
        let regions = [
            (descriptor.address_1(), Access::Read),
            (descriptor.address_2(), Access::Write),
            (descriptor.target_2(), Access::Write),
        ];
        Dualcast { walk: Walk::new(regions, descriptor) }
    }
}

impl Execute for Dualcast {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        self.walk.piece(env, |env, span| {
            let bytes = &mut env.scratch.first[..span.bytes as usize];
            let [source, target_1, target_2] = span.at;
            env.memory.read(source, bytes)?;
            env.memory.write(target_1, bytes)?;
            Ok(env.memory.write(target_2, bytes)?)
        })
    }

    fn stopped(&self, fault: Fault) -> Completion {
        fault.completion(self.walk.done())
    }
}
