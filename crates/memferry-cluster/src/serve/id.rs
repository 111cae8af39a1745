//! Names that cannot be guessed: of queries, prepared statements and tokens.

use std::fmt;

use tonic::{Code, Status};

use super::error::status;

/// 128 random bits. Who knows the id of a query may fetch it, so it must not be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id([u8; 16]);

impl Id {
    /// A new id from the random numbers of the operating system.
    pub(super) fn random() -> Result<Id, Status> {
        Ok(Id(random()?))
    }

    /// Reads the bytes of [`Id::bytes`].
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Id> {
        bytes.try_into().ok().map(Id)
    }

    pub(super) fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Random bytes of the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Status> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| status(Code::Internal, format!("the system gives no random numbers: {error}")))?;
    Ok(bytes)
}
