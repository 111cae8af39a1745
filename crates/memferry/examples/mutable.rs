//! Data that changes, cached: `cargo run -p memferry --example mutable`.
//!
//! The machine is a made-up one, as in the example `cache`.

use std::error::Error;
use std::sync::Arc;

use memferry::cache::{Access, Cache, CacheMut, Location, WriteBackError};
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

const DRAM: NodeId = NodeId(0);
const HBM: NodeId = NodeId(1);
const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
    let cache = Cache::builder(mover).budget(HBM, 8 * MIB).build()?;

    // Prices, looked up in chunks of 64 KiB. Version 0 is what it begins with.
    let prices = CacheMut::new(&cache, vec![10_u8; MIB], Some(DRAM), 64 << 10);

    // A reader takes a snapshot and brings near what it is going to read.
    let morning = prices.read();
    let near = morning.access(&cache, 0..64 << 10, Access::default())?;
    assert_eq!(near.wait(), Location::Near(HBM));

    // A writer changes prices. It works on a copy: nobody ever reads half a change, and no reader stops.
    let (version, old_price) = prices.mutate(|bytes| std::mem::replace(&mut bytes[5], 12));
    println!("price 5 went from {old_price} to 12, which is version {version}");

    // The reader goes on with the version that it has, near and at home.
    assert_eq!((near.as_slice()[5], morning[5], morning.version()), (10, 10, 0));

    // Whether a result is up to date is the reader's question, and its version is the answer.
    let sum: u64 = near.as_slice().iter().map(|&price| u64::from(price)).sum();
    if morning.version() != prices.version() {
        println!("a sum of {sum} was right in version {}, not in {}", morning.version(), prices.version());
    }

    // The next access copies anew: the old copy left the cache with the mutation.
    let fresh = prices.access(0..64 << 10, Access::default())?;
    fresh.wait();
    assert_eq!(fresh.as_slice()[5], 12);

    // Much to change? A draft is a private copy in fast memory, to be changed there and written back as a version.
    let mut draft = prices.draft(HBM)?;
    draft.iter_mut().for_each(|price| *price += 1);
    println!("all prices went up: version {}", draft.write_back()?);

    // If somebody else publishes meanwhile, the draft is outdated, and says so rather than undo their change.
    let draft = prices.draft(HBM)?;
    prices.mutate(|bytes| bytes[0] = 99);
    match draft.write_back() {
        Err(WriteBackError::Outdated { draft }) => {
            println!("a draft of version {} came too late", draft.version())
        }
        other => return Err(format!("expected an outdated draft, not {other:?}").into()),
    }
    assert_eq!((prices.read()[0], prices.read()[5], prices.read()[6]), (99, 13, 11));
    Ok(())
}
