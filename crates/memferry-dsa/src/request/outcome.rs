//! What an operation yields.

use crate::completion::DeltaResult;
use crate::dif::DifTags;
use crate::software::dif::Mismatch;
use crate::software::{Delta, DeltaError};

/// How an operation ended, as far as it ended as the specification says it should.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum End {
    Done,
    Crc(u32),
    Compared(Option<usize>),
    Created(Delta),
    Applied(Result<(), DeltaError>),
    Inserted(DifTags),
    Checked(Result<DifTags, Mismatch>),
    Updated(Result<(DifTags, DifTags), Mismatch>),
}

impl End {
    /// Whether the members behind a fence run: not if data was bad, nor with another result than those in `expected`,
    /// where bit `n` stands for result `n`.
    pub(crate) fn is_success(&self, expected: Option<u8>) -> bool {
        let is_expected = |result: u32| expected.is_none_or(|results| results >> result & 1 == 1);
        match self {
            End::Done | End::Crc(_) | End::Inserted(_) => true,
            End::Compared(difference) => is_expected(difference.is_some().into()),
            End::Created(Delta::Equal) => is_expected(0),
            End::Created(Delta::Complete { .. }) => is_expected(1),
            End::Created(Delta::Overflow { .. }) => is_expected(2),
            End::Applied(applied) => applied.is_ok(),
            End::Checked(checked) => checked.is_ok(),
            End::Updated(updated) => updated.is_ok(),
        }
    }
}

/// The type that a request yields, by its operation.
///
/// | operation | outcome |
/// |---|---|
/// | No-op, Memory Move, Fill, Dualcast, Cache Flush | `()` |
/// | CRC Generation, Copy with CRC | `u32`, the CRC and the seed of what follows |
/// | Compare, Compare Pattern | `Option<usize>`, the exact offset of the first difference |
/// | Create Delta | [`Delta`] |
/// | Apply Delta | `Result<(), DeltaError>` |
/// | DIF Insert | [`DifTags`] of the block that comes next |
/// | DIF Check, Strip | `Result<DifTags, Mismatch>`, of the source's block that comes next |
/// | DIF Update | `Result<(DifTags, DifTags), Mismatch>`, of source and target |
///
/// Data that is not what was expected is an outcome: the operation has done its work.
pub trait Outcome: sealed::FromEnd {}

mod sealed {
    /// Only the types in the table are outcomes.
    pub trait FromEnd: Sized {
        /// The outcome; `None` if the operation was another.
        fn from_end(end: super::Ended) -> Option<Self>;
    }
}

/// How a [`Task`](super::Task) ended, of whatever operation it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ended(pub(super) End);

impl Ended {
    pub(crate) fn new(end: End) -> Ended {
        Ended(end)
    }

    /// What it yields; `None` if its operation does not yield an `O`.
    pub fn outcome<O: Outcome>(self) -> Option<O> {
        O::from_end(self)
    }
}

#[cfg(not(memferry_loom))] // where there is no client
pub(crate) fn outcome<O: Outcome>(end: End) -> Option<O> {
    Ended(end).outcome()
}

macro_rules! outcomes {
    ($($type:ty: $pattern:pat => $value:expr;)*) => {
        $(impl Outcome for $type {}
        impl sealed::FromEnd for $type {
            fn from_end(end: Ended) -> Option<$type> {
                match end.0 {
                    $pattern => Some($value),
                    _ => None,
                }
            }
        })*
    };
}

outcomes! {
    (): End::Done => ();
    u32: End::Crc(crc) => crc;
    Option<usize>: End::Compared(difference) => difference;
    Delta: End::Created(delta) => delta;
    Result<(), DeltaError>: End::Applied(applied) => applied;
    DifTags: End::Inserted(next) => next;
    Result<DifTags, Mismatch>: End::Checked(checked) => checked;
    Result<(DifTags, DifTags), Mismatch>: End::Updated(updated) => updated;
}

/// The set with these results of Create Delta, as descriptors have it.
pub(super) fn delta_results(results: &[DeltaResult]) -> u8 {
    results.iter().fold(0, |set, result| {
        set | match result {
            DeltaResult::Equal => 1 << 0,
            DeltaResult::Complete => 1 << 1,
            DeltaResult::Overflow => 1 << 2,
        }
    })
}
