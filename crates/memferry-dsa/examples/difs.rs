//! Data integrity fields, as storage has them: `cargo run -p memferry-dsa --example difs`.

mod common;

use memferry_dsa::{DifBlock, DifFormat, DifSource, DifTags, DifTarget, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    let format = DifFormat::new(DifBlock::Bytes512);
    // The reference tag counts blocks; the application tag stays.
    let tags = DifTags { reference: 1000, application: 0x1234, application_mask: 0 };
    let (made, expected) =
        (DifTarget { tags, ..DifTarget::default() }, DifSource { tags, ..DifSource::default() });

    let data = vec![0x5au8; 8 * 512];
    let mut protected = vec![0u8; 8 * 520];
    let next = client.run(Request::dif_insert(&data, &mut protected, format, made))?;
    println!("8 blocks protected; the next has the reference tag {}", next.reference);

    let mut back = vec![0u8; 8 * 512];
    client.run(Request::dif_strip(&protected, &mut back, format, expected))??;
    assert_eq!(data, back);

    protected[3 * 520 + 17] ^= 1;
    match client.run(Request::dif_check(&protected, format, expected))? {
        Ok(_) => println!("all blocks are good"),
        Err(mismatch) => println!("{mismatch}"),
    }
    common::tell(&client);
    Ok(())
}
