//! Copy, fill, and copy to two targets at once: `cargo run -p memferry-dsa --example moves`.

mod common;

use memferry_dsa::Request;

/// Dualcast requires targets whose addresses are equal modulo 4096.
#[repr(align(4096))]
struct Page([u8; 4096]);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    let (source, mut target) = (vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
    client.run(Request::copy(&source, &mut target))?;
    assert_eq!(source, target);
    println!("copied {} bytes", source.len());

    // This core reads the bytes soon, so they may go to its cache.
    client.run(Request::fill(0xfeed, &mut target[..4096]).into_cache())?;
    println!("filled with {:02x?}...", &target[..8]);

    let (mut one, mut two) = (Page([0; 4096]), Page([0; 4096]));
    client.run(Request::dualcast(&source[..4096], &mut one.0, &mut two.0))?;
    assert!(one.0[..] == source[..4096] && two.0[..] == source[..4096]);
    println!("copied a page to two places");

    client.run(Request::cache_flush(&target))?;
    common::tell(&client);
    Ok(())
}
