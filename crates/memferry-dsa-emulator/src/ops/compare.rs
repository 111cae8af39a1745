//! Compare and Compare Pattern: the first difference between two regions, or between a region and a pattern.
//!
//! A difference before a fault is reported instead of the fault.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (Compare, Compare Pattern).

use memferry_dsa::internals::software;
use memferry_dsa::{Address, Completion, Descriptor, Flags, Status};

use super::fill::repeat;
use super::walk::{Interrupted, Walk};
use super::{Env, Execute, Stop};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// A comparison of two regions in progress, or of one region with a pattern.
#[derive(Debug)]
pub(crate) struct Compare<const REGIONS: usize> {
    walk: Walk<REGIONS>,
    pattern: u64, // for one region
    expected: Expected,
}

/// The results that Check Result expects: bit `n` for result `n`. Without Check Result every result is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected(u8);

impl Expected {
    /// Bit 0 of the expected result: equal or different.
    fn of_comparison(descriptor: &Descriptor) -> Expected {
        Expected::checked(descriptor, 1 << (descriptor.expected_result() & 1))
    }

    /// The results that the descriptor's mask allows.
    pub(super) fn of_mask(descriptor: &Descriptor) -> Expected {
        Expected::checked(descriptor, descriptor.expected_result())
    }

    fn checked(descriptor: &Descriptor, results: u8) -> Expected {
        Expected(if descriptor.flags().contains(Flags::CHECK_RESULT) { results } else { u8::MAX })
    }

    /// The completion with this result: Success, or PredicateFalse if another result is expected.
    pub(super) fn completion(self, result: u8) -> Completion {
        let status = if self.0 >> result & 1 == 1 { Status::Success } else { Status::PredicateFalse };
        Completion { result, ..Completion::new(status) }
    }

    fn differs_at(self, offset: u32) -> Interrupted {
        let completion = Completion { bytes_completed: offset, ..self.completion(1) };
        Interrupted::Stop(Stop::Complete(completion))
    }
}

impl Compare<2> {
    pub(super) fn new(descriptor: &Descriptor) -> Compare<2> {
        Compare::over([descriptor.address_1(), descriptor.address_2()], descriptor)
    }
}

impl Compare<1> {
    pub(super) fn with_pattern(descriptor: &Descriptor) -> Compare<1> {
        Compare::over([descriptor.address_1()], descriptor)
    }
}

impl<const REGIONS: usize> Compare<REGIONS> {
    fn over(sources: [Address; REGIONS], descriptor: &Descriptor) -> Compare<REGIONS> {
        Compare {
            walk: Walk::new(sources.map(|source| (source, Access::Read)), descriptor),
            pattern: descriptor.pattern(),
            expected: Expected::of_comparison(descriptor),
        }
    }
}

impl<const REGIONS: usize> Execute for Compare<REGIONS> {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let (expected, pattern) = (self.expected, self.pattern);
        self.walk.piece(env, |env, span| {
            let size = span.bytes as usize;
            let (first, second) = (&mut env.scratch.first[..size], &mut env.scratch.second[..size]);
            env.memory.read(span.at[0], first)?;
            match span.at.get(1) {
                Some(other) => env.memory.read(*other, second)?,
                None => repeat(pattern, span.offset, second),
            }
            let Some(at) = software::compare(first, second) else { return Ok(()) };
            let offset = span.offset + at as u32;
            // For a pattern the specification only promises an offset that is not after the first difference.
            let is_rounded = REGIONS == 1 && env.chance.draws(|plan| plan.rounded_differences_per_mille);
            Err(expected.differs_at(if is_rounded { offset & !7 } else { offset }))
        })
    }

    fn succeeded(&self) -> Completion {
        self.expected.completion(0)
    }

    fn stopped(&self, fault: Fault) -> Completion {
        fault.completion(self.walk.done())
    }
}
