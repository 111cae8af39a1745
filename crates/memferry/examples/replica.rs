//! Data that survives a reset of the machine: `cargo run -p memferry --example replica [PATH]`.
//!
//! PATH is a new file on persistent memory (a file system mounted with DAX), or on any disk; without it, the file is a
//! temporary one. The machine is a made-up one, as in the example `cache`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use memferry::cache::{Access, Cache, CacheMut, Location};
use memferry::memory::{Binding, Mapping};
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};
use memferry::{Replica, ReplicaError};

const DRAM: NodeId = NodeId(0);
const HBM: NodeId = NodeId(1);
const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or_else(|| directory.path().join("prices"), PathBuf::from);

    let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
    let cache = Cache::builder(mover).budget(HBM, 8 * MIB).build()?;
    let prices = CacheMut::new(&cache, vec![10_u8; MIB], Some(DRAM), 64 << 10);

    // A writer changes prices. Each version that must not get lost is written, and durable when `write` returns.
    let mut replica = Replica::create(&path, MIB as u64)?;
    for price in 11..=13 {
        prices.mutate(|bytes| bytes[5] = price);
        let version = replica.write(&[prices.read()])?;
        println!("version {version} of {} is durable", path.display());
    }

    // One process at a time has it open: two would overwrite each other's versions.
    assert!(matches!(Replica::open(&path), Err(ReplicaError::Locked { .. })));

    // The process ends, or the machine is reset, even in the middle of a write.
    drop((replica, prices, cache));

    // The next process restores the newest complete version to the memory that it is read from.
    let replica = Replica::open(&path)?;
    let machine = Arc::new(Machine::discover()?);
    let home = Binding::Bind(machine.nodes()[0].id);
    let mut restored = Mapping::new(&machine, usize::try_from(replica.len())?, home)?;
    replica.restore_into(&mut restored)?;
    println!("version {} has {} bytes", replica.version().ok_or("no version was written")?, restored.len());
    assert_eq!((replica.version(), restored[5], restored[6]), (Some(3), 13, 10));

    // It is a region of a cache like any other memory.
    let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
    let cache = Cache::builder(mover).budget(HBM, 8 * MIB).build()?;
    let region = cache.register_on(restored, Some(DRAM));
    let entry = cache.access(&region, 0..64 << 10, Access::default())?;
    assert_eq!((entry.wait(), entry.as_slice()[5]), (Location::Near(HBM), 13));
    Ok(())
}
