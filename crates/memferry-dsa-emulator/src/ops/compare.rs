//! Compare and Compare Pattern: the first difference between two regions, or between a region and a pattern.
//!
//! A difference before a fault is reported instead of the fault.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (Compare, Compare Pattern).

use memferry_dsa::{Completion, Descriptor, Flags, Status};

use super::fill::repeat;
use super::walk::{Interrupted, Walk};
use super::{Env, Execute, Stop};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// A comparison of two regions in progress.
#[derive(Debug)]
pub(crate) struct Compare {
    walk: Walk<2>,
    expected: Expected,
}

/// A comparison with a pattern in progress.
#[derive(Debug)]
pub(crate) struct ComparePattern {
    walk: Walk<1>,
    pattern: u64,
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

impl Compare {
    pub(super) fn new(descriptor: &Descriptor) -> Compare {
        let sources = [(descriptor.address_1(), Access::Read), (descriptor.address_2(), Access::Read)];
        Compare { walk: Walk::new(sources, descriptor), expected: Expected::of_comparison(descriptor) }
    }
}

impl Execute for Compare {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let expected = self.expected;
        self.walk.piece(env, |env, span| {
            let size = span.bytes as usize;
            let (first, second) = (&mut env.scratch.first[..size], &mut env.scratch.second[..size]);
            env.memory.read(span.at[0], first)?;
            env.memory.read(span.at[1], second)?;
            match first_difference(first, second) {
                Some(at) => Err(expected.differs_at(span.offset + at)),
                None => Ok(()),
            }
        })
    }

    fn succeeded(&self) -> Completion {
        self.expected.completion(0)
    }

    fn stopped(&self, fault: Fault) -> Completion {
        fault.completion(self.walk.done())
    }
}

impl ComparePattern {
    pub(super) fn new(descriptor: &Descriptor) -> ComparePattern {
        ComparePattern {
            walk: Walk::new([(descriptor.address_1(), Access::Read)], descriptor),
            pattern: descriptor.pattern(),
            expected: Expected::of_comparison(descriptor),
        }
    }
}

impl Execute for ComparePattern {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let (expected, pattern) = (self.expected, self.pattern);
        self.walk.piece(env, |env, span| {
            let size = span.bytes as usize;
            let (data, wanted) = (&mut env.scratch.first[..size], &mut env.scratch.second[..size]);
            env.memory.read(span.at[0], data)?;
            repeat(pattern, span.offset, wanted);
            let Some(at) = first_difference(data, wanted) else { return Ok(()) };
            let offset = span.offset + at;
            // The specification only promises an offset that is not after the first difference.
            let rounded = if env.chance.rounds_difference() { offset & !7 } else { offset };
            Err(expected.differs_at(rounded))
        })
    }

    fn succeeded(&self) -> Completion {
        self.expected.completion(0)
    }

    fn stopped(&self, fault: Fault) -> Completion {
        fault.completion(self.walk.done())
    }
}

fn first_difference(first: &[u8], second: &[u8]) -> Option<u32> {
    // Comparing whole slices is a fast call of memcmp; the search for the place is not.
    if first == second {
        return None;
    }
    first.iter().zip(second).position(|(one, other)| one != other).map(|at| at as u32)
}
