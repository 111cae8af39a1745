//! The outcomes of operations.

use crate::completion::DeltaResult;
use crate::dif::DifTags;
use crate::software::dif::Mismatch;
use crate::software::{Delta, DeltaError};

/// The end of an operation that the device or the CPU has executed as the specification describes, with its outcome.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ended {
    /// Without a result.
    Done,
    /// CRC Generation, Copy with CRC.
    Crc(u32),
    /// Compare, Compare Pattern.
    Compared(Option<usize>),
    /// Create Delta.
    Created(Delta),
    /// Apply Delta.
    Applied(Result<(), DeltaError>),
    /// DIF Insert.
    Inserted(DifTags),
    /// DIF Check, DIF Strip.
    Checked(Result<DifTags, Mismatch>),
    /// DIF Update.
    Updated(Result<(DifTags, DifTags), Mismatch>),
}

impl Ended {
    /// The outcome; `None` if the operation does not yield an `O`.
    pub fn outcome<O: Outcome>(self) -> Option<O> {
        O::from_end(self)
    }

    /// Whether the members behind a fence run: the data was good, and the result is in `expected`, whose bit `n` stands for
    /// result `n`.
    pub(crate) fn is_success(&self, expected: Option<u8>) -> bool {
        let is_expected = |result: u32| expected.is_none_or(|results| results >> result & 1 == 1);
        match self {
            Ended::Done | Ended::Crc(_) | Ended::Inserted(_) => true,
            Ended::Compared(difference) => is_expected(difference.is_some().into()),
            Ended::Created(Delta::Equal) => is_expected(0),
            Ended::Created(Delta::Complete { .. }) => is_expected(1),
            Ended::Created(Delta::Overflow { .. }) => is_expected(2),
            Ended::Applied(applied) => applied.is_ok(),
            Ended::Checked(checked) => checked.is_ok(),
            Ended::Updated(updated) => updated.is_ok(),
        }
    }
}

/// The type of a request's outcome, by its operation.
///
/// | operation | outcome |
/// |---|---|
/// | No-op, Memory Move, Fill, Dualcast, Cache Flush | `()` |
/// | CRC Generation, Copy with CRC | `u32`, the CRC, which is the seed for the data that follows |
/// | Compare, Compare Pattern | `Option<usize>`, the exact offset of the first difference |
/// | Create Delta | [`Delta`] |
/// | Apply Delta | `Result<(), DeltaError>` |
/// | DIF Insert | [`DifTags`] of the next block |
/// | DIF Check, Strip | `Result<DifTags, Mismatch>`, of the source's next block |
/// | DIF Update | `Result<(DifTags, DifTags), Mismatch>`, of source and target |
///
/// Unexpected data is an outcome too: the operation has completed.
///
/// ```
/// use memferry_dsa::{Client, ClientError, Outcome, Request};
///
/// fn run<O: Outcome>(client: &Client, request: Request<'_, O>) -> Result<O, ClientError> {
///     client.run(request)
/// }
/// ```
pub trait Outcome: sealed::FromEnd {}

mod sealed {
    /// Only the types in the table are outcomes.
    pub trait FromEnd: Sized {
        /// The outcome; `None` if the operation was another.
        fn from_end(end: super::Ended) -> Option<Self>;
    }
}

macro_rules! outcomes {
    ($($type:ty: $pattern:pat => $value:expr;)*) => {
        $(impl Outcome for $type {}
        impl sealed::FromEnd for $type {
            fn from_end(end: Ended) -> Option<$type> {
                match end {
                    $pattern => Some($value),
                    _ => None,
                }
            }
        })*
    };
}

outcomes! {
    (): Ended::Done => ();
    u32: Ended::Crc(crc) => crc;
    Option<usize>: Ended::Compared(difference) => difference;
    Delta: Ended::Created(delta) => delta;
    Result<(), DeltaError>: Ended::Applied(applied) => applied;
    DifTags: Ended::Inserted(next) => next;
    Result<DifTags, Mismatch>: Ended::Checked(checked) => checked;
    Result<(DifTags, DifTags), Mismatch>: Ended::Updated(updated) => updated;
}

/// The set of these results of Create Delta in the format of descriptors.
pub(super) fn delta_results(results: &[DeltaResult]) -> u8 {
    results.iter().fold(0, |set, result| set | 1 << *result as u8)
}
