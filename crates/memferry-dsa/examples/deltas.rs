//! The differences between two versions, applied to a replica: `cargo run -p memferry-dsa --example deltas`.
//!
//! Current devices lack both operations; then the CPU runs them, and the last line reports it.

mod common;

use memferry_dsa::Request;
use memferry_dsa::software::Delta;

/// Sources are aligned to 8 bytes.
#[repr(align(8))]
struct Version([u8; 4096]);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    let (old, mut new, mut replica) = (Version([0; 4096]), Version([0; 4096]), Version([0; 4096]));
    new.0[8..11].copy_from_slice(b"abc");
    new.0[4000] = 1;
    let mut record = [0u8; 1000];
    match client.run(Request::create_delta(&old.0, &new.0, &mut record))? {
        Delta::Equal => println!("nothing has changed"),
        Delta::Complete { size_bytes } => {
            println!("the change takes {size_bytes} bytes: {:02x?}", &record[..size_bytes]);
            client.run(Request::apply_delta(&record[..size_bytes], &mut replica.0))??;
            assert_eq!(replica.0, new.0);
            println!("the replica is up to date");
        }
        Delta::Overflow { bytes_compared, .. } => {
            println!("too much has changed: the record describes only the first {bytes_compared} bytes");
        }
    }
    common::tell(&client);
    Ok(())
}
