//! Several requests in one submission, in order where it matters: `cargo run -p memferry-dsa --example batches`.

mod common;

use std::cell::Cell;

use memferry_dsa::{Batch, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    let sources: Vec<Vec<u8>> = (0..20).map(|index| vec![index; 4000]).collect();
    let mut targets = vec![0u8; 20 * 4000];
    // The buffer is the target of some members and the source of another.
    let whole = Cell::from_mut(&mut targets[..]).as_slice_of_cells();
    let mut batch = Batch::new();
    for (source, target) in sources.iter().zip(whole.chunks(4000)) {
        batch.add(Request::copy(source, target));
    }
    batch.fence();
    let crc = batch.add(Request::crc(0, whole));
    let outcomes = client.run_batch(batch)?;
    println!("20 regions gathered; the CRC of all is {:#010x}", outcomes.get(&crc)?);
    assert_eq!(targets, sources.concat());

    // The members behind the fence run only if the comparison has the expected result.
    let mut flag = [0u8; 8];
    let mut batch = Batch::new();
    batch.add(Request::compare(&sources[1], &sources[2]).expecting_equal());
    batch.fence();
    let set = batch.add(Request::fill(1, &mut flag));
    match client.run_batch(batch)?.get(&set) {
        Ok(()) => println!("the flag is set"),
        Err(error) => println!("the flag is not set: {error}"),
    }
    common::tell(&client);
    Ok(())
}
