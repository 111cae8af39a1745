//! The origin of a number that is shown or kept.

pub(crate) use memferry_bench::harness::Provenance as How;
use memferry_query::Dsa;

use crate::bench::device_provenance;

/// The provenance of copies by this DSA; under `memferry emulate` this machine's own is emulated too.
pub(crate) fn of_dsa(dsa: Dsa) -> How {
    match dsa {
        Dsa::System => device_provenance(),
        _ => How::Emulated,
    }
}
