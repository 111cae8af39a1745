//! `memferry serve` with the client of arrow-flight, over loopback.

mod access;
mod bad_input;
mod cancel;
mod clients;
mod cluster;
mod disk;
mod fixture;
mod limits;
mod metadata;
mod program;
mod queries;
mod shutdown;
mod updates;
