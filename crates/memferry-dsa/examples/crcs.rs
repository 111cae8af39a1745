//! CRC-32C, of successive pieces, and while copying: `cargo run -p memferry-dsa --example crcs`.

mod common;

use memferry_dsa::Request;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    println!("of \"123456789\": {:#010x}", client.run(Request::crc(0, b"123456789"))?);
    // The result is the seed of the next piece.
    let first = client.run(Request::crc(0, b"1234"))?;
    println!("in two pieces:  {:#010x}", client.run(Request::crc(first, b"56789"))?);

    let (source, mut target) = (vec![0xffu8; 1 << 20], vec![0u8; 1 << 20]);
    let crc = client.run(Request::copy_crc(0, &source, &mut target))?;
    assert_eq!(source, target);
    println!("copied {} bytes whose CRC is {crc:#010x}", source.len());
    common::tell(&client);
    Ok(())
}
