//! Parts for the project's own benchmarks, command and tests, outside the API. They may change with any version.

pub use crate::cache::replay::index_hits;
pub use crate::copy_method::CopyMethod;
pub use crate::copy_method::calibration::{Bytes, Trial};
pub use crate::memory::placement::nodes_of_pages;
pub use crate::memory::pool::IDLE_BYTES_MAX;
pub use crate::memory::weights::interleave_weights;
pub use crate::model::clients::{Part, queries_per_s};
pub use crate::model::cluster::{
    ClusterLimit, ClusterQuery, ClusterRun, Exchange, ExchangeKind, Network, NetworkBytes, Workers,
};
pub use crate::model::copiers::{Copier, Executor, copier_rates};
pub use crate::model::cores::{copies_s, reads_s, worker_copy_s};
pub use crate::model::hardware::{Hardware, NodeMemory, PARAMETERS};
pub use crate::model::offload::{Offload, copy_s};
pub use crate::model::pipeline::{Pipeline, Run};
pub use crate::model::side_cache::hit_share;
pub use crate::model::tasks::{TableScan, TaskRun, TaskScans};
pub use crate::model::traffic::Fairness;
pub use crate::mover::engine::faulty::{Faults, Faulty};
pub use crate::mover::engine::storage::DiskFaults;
pub use crate::mover::schedule::INLINE_BYTES_MAX;
pub use crate::route::{
    Endpoints, EngineSite, SHARE_BYTES_MIN, Share, device_shares, engine_shares, first_engine,
};
pub use crate::topology::domain::{Domain, Socket};
pub use crate::topology::list::parse as parse_id_list;
pub use crate::topology::machine::{Origin, PersistentMemory};
pub use crate::topology::measured::Measured;
pub use crate::topology::parameter::{Basis, Fact, Parameter};
pub use crate::topology::recording::Recording;

/// The asymmetric fence of the cache.
pub mod barrier {
    pub use crate::cache::barrier::*;
}
