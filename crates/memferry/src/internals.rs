//! Private parts that the project's own benchmarks measure. They may change with any version.

pub use crate::cache::replay::index_hits;
pub use crate::copy_method::calibration::{Bytes, Trial};
pub use crate::topology::list::parse as parse_id_list;
