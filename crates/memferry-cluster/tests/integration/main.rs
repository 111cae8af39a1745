//! Tests of clusters: the map, simulated failures, and real processes.

mod shards;
mod simulation;
