//! Private parts for the project's own benchmarks, outside the API. They may change with any version.

pub use crate::cache::replay::index_hits;
pub use crate::copy_method::calibration::{Bytes, Trial};
pub use crate::model::clients::{Part, queries_per_s};
pub use crate::model::cores::{copies_s, reads_s, worker_copy_s};
pub use crate::model::side_cache::hit_share;
pub use crate::topology::list::parse as parse_id_list;
