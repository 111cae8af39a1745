//! Tests of the library over loopback, and of the program.

mod processes;
mod serve;
mod shards;
mod simulation;
