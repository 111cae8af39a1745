//! A message through segments of shared memory, as in libfabric: `cargo run -p memferry-dsa --example messages`.
//!
//! The sender copies the pieces of a message to segments, the receiver copies them to their place: each end with one batch of
//! a device. `memferry bench cases --case messages` has ping-pong and all-reduce.

mod common;

use memferry_dsa::{Batch, Client, Request};

const SEGMENT_BYTES: usize = 32 << 10;

/// Copies each piece of `source` to its place in `target`, in one submission.
fn copy_pieces(client: &Client, source: &[u8], target: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
    let mut batch = Batch::new();
    let pieces = source.chunks(SEGMENT_BYTES).zip(target.chunks_mut(SEGMENT_BYTES));
    let tickets: Vec<_> =
        pieces.map(|(source, target)| batch.add(Request::copy(source, target).into_cache())).collect();
    let outcomes = client.run_batch(batch)?;
    for ticket in &tickets {
        outcomes.get(ticket)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    // In two processes this is shared memory.
    let mut segments = vec![0; 1 << 20];
    let message: Vec<u8> = (0..300_000_u32).map(|index| (index % 251) as u8).collect();
    copy_pieces(&client, &message, &mut segments[..message.len()])?;

    let mut received = vec![0; message.len()];
    copy_pieces(&client, &segments[..message.len()], &mut received)?;
    assert_eq!(message, received);
    println!("{} bytes sent in {} segments", message.len(), message.len().div_ceil(SEGMENT_BYTES));
    common::tell(&client);
    Ok(())
}
