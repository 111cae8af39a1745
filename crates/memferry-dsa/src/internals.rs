//! Parts for the other crates of this project, outside the API. They may change with any version.
//!
//! | module | content |
//! |---|---|
//! | `driver` | many requests on many queues without a thread or a clock, for owners that provide both |
//! | `portal`, `request`, `wait`, `software`, `system` | the seams to device and driver, and building blocks of the API |
//! | `device_time` | the time that a device takes, without a thread or a clock |
//! | `fork`, `instructions`, `affinity`, `panics` | forks, the CPU's instructions, threads |

pub use crate::address::PAGE_BYTES;

/// Affinity of threads.
pub mod affinity {
    pub use crate::affinity::*;
}

/// The time that a device takes.
pub mod device_time {
    pub use crate::device_time::*;
}

/// Many requests on many queues, without a thread or a clock.
pub mod driver {
    pub use crate::driver::*;
}

/// Detection of forks.
pub mod fork {
    pub use crate::fork::*;
}

/// Instructions of the CPU.
pub mod instructions {
    pub use crate::instructions::*;
}

/// Containment of panics.
pub mod panics {
    pub use crate::panics::*;
}

/// Portals, their platform and their parts.
pub mod portal {
    pub use crate::portal::*;
}

/// Requests without a borrow.
pub mod request {
    pub use crate::request::*;
}

/// Every operation on the CPU.
pub mod software {
    pub use crate::software::compare::{compare, compare_pattern};
    pub use crate::software::copy::{copy, dualcast};
    pub use crate::software::crc::copy_crc;
    pub use crate::software::delta::{DELTA_BYTES_MAX, ENTRY_BYTES};
    pub use crate::software::fill::fill;
    pub use crate::software::flush::{Flush, flush};
    pub use crate::software::isa::Isa;
    pub use crate::software::*;

    /// Data integrity fields.
    pub mod dif {
        pub use crate::software::dif::*;
    }
}

/// The files of the driver, and the settings in a configuration.
pub mod system {
    pub use crate::system::config::{DeviceSettings, EngineSettings, GroupSettings, Json, QueueSettings};
    pub use crate::system::discover::{DEVICES, DRIVERS};
    pub use crate::system::error::shorten;
    pub use crate::system::files::{Directory, FILE_BYTES_MAX, Files, Owner};
    pub use crate::system::*;
}

/// The thread that watches completion records, and the polling of other threads.
pub mod wait {
    pub use crate::wait::*;
}
