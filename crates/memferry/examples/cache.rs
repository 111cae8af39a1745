//! The cache in one reading: `cargo run -p memferry --example cache`.
//!
//! It runs on a made-up machine with two memories, node 0 with the CPUs and a faster node 1, so that it shows the same
//! everywhere. On a real one, `Machine::discover()` takes the place of `Machine::two_tiers()`.

use std::error::Error;
use std::sync::Arc;

use memferry::cache::{Access, Cache, Location, Why};
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

const DRAM: NodeId = NodeId(0);
const HBM: NodeId = NodeId(1);
const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    // A cache stands on a mover, which copies. It may fill 8 MiB of the fast node; where a copy goes is the policy's
    // word.
    let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
    let cache = Cache::builder(mover)
        .budget(HBM, 8 * MIB)
        .placement(|machine, request| request.nearest_faster(machine))
        .build()?;

    // Sources are registered: any owner of bytes that stay where they are.
    let column: Vec<u8> = (0..16 * MIB).map(|index| (index % 251) as u8).collect();
    let expected: u64 = column[..4 * MIB].iter().map(|&byte| u64::from(byte)).sum();
    let column = cache.register_on(column, Some(DRAM));

    // Say early what will be needed. An access starts the copy and does not wait for it.
    let soon = cache.access(&column, 0..4 * MIB, Access::default())?;
    println!(
        "after the access:       {:?} (whether the copy is there by now is a matter of luck)",
        soon.location()
    );

    // The bytes are readable all along, at the source until the copy is there. Nobody has to wait. Who wants the near
    // copy can: `wait` sleeps, `try_wait` looks once, `entry.ready().await` and `entry.await` are for async code.
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    assert_eq!(sum(soon.as_slice()), expected);
    assert_eq!(soon.wait(), Location::Near(HBM));
    assert_eq!(sum(soon.as_slice()), expected);
    println!("after the wait:         {:?}", soon.location());

    // Another access to the same range shares the copy. A weak one takes what is there and starts nothing.
    let again = cache.access(&column, 0..4 * MIB, Access::default())?;
    assert!(again.is_ready());
    assert!(cache.access_weak(&column, 8 * MIB..9 * MIB, Access::default())?.is_none());

    // What is held stays; what is not makes room. Two entries of 4 MiB fill the budget, so a third finds no room
    // while both are held, and reads the source. That is an answer, not an error.
    let second = cache.access(&column, 4 * MIB..8 * MIB, Access::default())?;
    let third = cache.access(&column, 8 * MIB..12 * MIB, Access::default())?;
    assert_eq!(third.location(), Location::Source(Why::NoRoom));
    second.wait();
    drop(second);
    let third = cache.access(&column, 8 * MIB..12 * MIB, Access::default())?;
    assert_eq!(third.wait(), Location::Near(HBM));

    drop(third);

    // `location` tells without waiting where the bytes are now.
    let fourth = cache.access(&column, 12 * MIB..16 * MIB, Access::default())?;
    println!("at first: {:?}, in the end: {:?}", fourth.location(), fourth.wait());

    // A loop over chunks that are mostly near borrows them: a hit takes no lock, allocates nothing, and writes nothing
    // that other threads write. The chunk size says how the region is looked up. Parts of a chunk are found as well.
    drop(fourth);
    const CHUNK: usize = 16 << 10;
    let index = cache.register_chunked(vec![7_u8; MIB], Some(DRAM), CHUNK);
    for round in 0..3 {
        let mut near_count = 0;
        for start in (0..MIB).step_by(CHUNK) {
            let view = cache.view(&index, start..start + CHUNK, Access::default())?;
            near_count += usize::from(view.is_ready());
            assert_eq!(view.as_slice()[CHUNK / 2], 7);
        }
        println!("round {round}: {near_count} of {} chunks were near", MIB / CHUNK);
    }
    // A view stays on its thread and goes with the loop; what is to be kept becomes an entry.
    let kept = cache.view(&index, 100..200, Access::default())?.to_owned();
    assert_eq!(kept.as_slice(), [7; 100]);

    // After a change of the source, `invalidate` drops whatever overlaps the changed bytes. Holders keep what they
    // have.
    println!("invalidated entries:    {}", cache.invalidate(&column, 100..200)?);
    assert_eq!(sum(soon.as_slice()), expected);

    // The end of the region takes its entries out of the cache. An entry in hand keeps its bytes, and their owner.
    drop(column);
    assert_eq!(sum(again.as_slice()), expected);

    println!("{:#?}", cache.stats());
    Ok(())
}
