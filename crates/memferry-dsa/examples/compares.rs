//! Compare two regions, and one with a pattern: `cargo run -p memferry-dsa --example compares`.

mod common;

use memferry_dsa::Request;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    let (before, mut after) = (vec![1u8; 1 << 20], vec![1u8; 1 << 20]);
    println!("equal: {:?}", client.run(Request::compare(&before, &after))?);
    after[123_456] = 2;
    println!("the first difference is at {:?}", client.run(Request::compare(&before, &after))?);

    let zeros = vec![0u8; 100_000];
    let is_zero = client.run(Request::compare_pattern(0, &zeros))?.is_none();
    println!("{} bytes are {}", zeros.len(), if is_zero { "zero" } else { "not all zero" });
    common::tell(&client);
    Ok(())
}
