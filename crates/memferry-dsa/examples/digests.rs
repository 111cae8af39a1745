//! CRC-32C digests of the data that a storage target sends, several in one submission:
//! `cargo run -p memferry-dsa --example digests`.
//!
//! With data digests, NVMe/TCP puts the CRC-32C of the data behind it. `memferry bench cases --case digests` says what a core
//! gains.

mod common;

use memferry_dsa::software::{CrcMode, crc32c};
use memferry_dsa::{Batch, Request};

const READ_BYTES: usize = 16 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    let disk: Vec<u8> = (0..64 * READ_BYTES).map(|index| ((index * 31) >> 7) as u8).collect();
    // Reads that wait to be sent.
    let reads = [3, 60, 17, 4, 41, 8, 0, 22].map(|block| &disk[block * READ_BYTES..][..READ_BYTES]);

    let mut batch = Batch::new();
    let tickets = reads.map(|data| batch.add(Request::crc(0, data)));
    let outcomes = client.run_batch(batch)?;
    for (data, ticket) in reads.iter().zip(&tickets) {
        let digest = outcomes.get(ticket)?;
        println!("{} bytes with the digest {digest:#010x}", data.len());
        // The other end computes it again, here on the CPU.
        assert_eq!(digest, crc32c(0, data, CrcMode::default()));
    }
    common::tell(&client);
    Ok(())
}
