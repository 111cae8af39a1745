//! The tests of the command: linking one program takes less time than linking many.

mod advise;
mod bench_memory;
mod bench_offload;
mod bench_papers;
mod bench_processes;
mod bench_qdp;
mod bench_sncdb;
mod calibrate;
mod cli;
mod cluster;
mod configure;
mod doctor;
mod emulate;
mod generated;
mod machine;
mod machine_reset;
mod place;
#[path = "../../../memferry-query/tests/integration/rates_support/mod.rs"]
mod rates_support;
mod report;
mod sim;
mod sql;
mod sql_placement;
mod sql_replica;
mod sql_shell;
mod sql_stores;
mod support;
