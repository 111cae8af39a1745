//! Who decides what: where copies go, out of which memory, and what one access may say about it.
//! `cargo run -p memferry --example policies`.
//!
//! The machine is a Xeon Max with two sockets, from its profile: nodes 0 to 7 have CPUs and DDR, nodes 8 to 15 the HBM
//! of the same domains. Memory "on" its nodes lies in this machine's.

use std::error::Error;
use std::sync::Arc;

use memferry::cache::{Access, Cache, Location, Request, Why};
use memferry::memory::Pool;
use memferry::mover::{Mover, Route};
use memferry::topology::{Machine, NodeId};

const KIB: usize = 1 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let machine = Arc::new(Machine::from_profile("xeon-max-9468-2s-flat")?);
    // Who copies is the mover's policy: its route.
    let mover = Mover::builder(machine.clone()).route(Route::Single).build()?;
    let column: Arc<[u8]> = (0..256 * KIB).map(|index| index as u8).collect();

    // Where copies go is a placement. This one moves data to the memory that is faster for the reader than where it
    // lies: to the HBM of the reader's own domain.
    let cache = Cache::builder(mover.clone())
        .budget(NodeId(8), 128 * KIB)
        .budget(NodeId(12), 128 * KIB)
        .placement(|machine, request| request.nearest_faster(machine))
        .build()?;
    let region = cache.register_chunked(column.clone(), Some(NodeId(0)), 64 * KIB);
    let on_node = |node: u32| Access { requester: Some(NodeId(node)), ..Access::default() };
    let entry = cache.access(&region, 0..64 * KIB, on_node(0))?;
    println!("a reader on node 0 gets a copy on {:?}", entry.wait());

    // A datum may be near on several nodes at once. Without a named node, each reader gets the best copy that is ready.
    let copy = cache.access(&region, 0..64 * KIB, Access::near(NodeId(12)))?;
    assert_eq!(copy.wait(), Location::Near(NodeId(12)));
    drop((entry, copy));
    println!("now node 0 reads on {:?}", cache.access(&region, 0..64 * KIB, on_node(0))?.wait());
    println!("and node 4 reads on {:?}", cache.access(&region, 0..64 * KIB, on_node(4))?.wait());

    // A placement is also any function of source node, requesting node and size. `None` leaves the data where it is.
    let large_only =
        |_: &Machine, request: &Request<'_>| (request.size_bytes >= 16 * KIB).then_some(request.nodes[0]);
    // Which memory is the business of pools. One may serve several caches, and the program's own blocks.
    let pool = Pool::new(machine, NodeId(8), 128 * KIB)?;
    let own = pool.allocate(96 * KIB)?;
    let cache = Cache::builder(mover).pool(pool.clone()).placement(large_only).build()?;
    let region = cache.register_chunked(column, Some(NodeId(0)), 64 * KIB);
    let small = cache.access(&region, 0..KIB, Access::default())?;
    assert_eq!(small.wait(), Location::Source(Why::NotPlaced));

    // A pool that gives nothing is an answer like any other: the bytes are read at the source.
    let refused = cache.access(&region, 0..64 * KIB, Access::default())?;
    assert_eq!(refused.wait(), Location::Source(Why::NoRoom));
    drop(own);
    assert_eq!(cache.access(&region, 0..64 * KIB, Access::default())?.wait(), Location::Near(NodeId(8)));

    // `location` tells without waiting where the bytes are now.
    let entry = cache.access(&region, 64 * KIB..128 * KIB, Access::default())?;
    println!("at first: {:?}, in the end: {:?}", entry.location(), entry.wait());
    println!("{} of {} bytes of the pool are in use", pool.used_bytes(), pool.budget_bytes());
    Ok(())
}
