//! Benchmarks of `memferry offload`: what its preload library costs calls that stay on the CPU, and a server.

mod calls;
mod server;

pub use calls::{OffloadError, SIZES, SmallCalls, small_calls};
pub use server::{Operation, ServerError, Throughput, VALUE_BYTES, redis_version, server_throughput};
