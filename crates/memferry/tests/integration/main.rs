//! The tests that may share a process: linking one program takes less time than linking many.

mod cache_access;
mod cache_deadlocks;
mod cache_files;
mod cache_fork;
mod cache_made;
mod cache_model;
mod cache_model_room;
mod cache_mutable;
mod cache_placement;
mod cache_regions;
mod cache_room;
mod cache_stress;
mod cache_support;
mod engines;
mod fixtures;
#[path = "../../../memferry-dsa/tests/integration/fork_support/mod.rs"]
mod fork_support;
mod memory;
mod model;
mod model_placement;
mod mover;
mod mover_batches;
mod mover_drain;
mod mover_dsa;
mod mover_fork;
mod mover_lacks;
mod mover_operations;
mod mover_patience;
mod mover_policy;
mod mover_queues;
mod mover_split;
mod mover_stats;
mod mover_support;
mod mover_workers;
mod ordered;
mod panics;
mod profiles;
#[path = "../numa_support/refusing.rs"]
mod refusing;
mod routes;
#[path = "../../../memferry-dsa/tests/integration/slow/mod.rs"]
mod slow;
#[path = "../numa_support/smaps.rs"]
mod smaps;
mod topology;
mod topology_near;
mod topology_recorded;
