//! Tests of the library over loopback, and of the program.

mod processes;
mod secured;
mod serve;
mod shards;
mod simulation;
mod stores;
