//! Gradients are zeroed while the core prepares the next batch of training: `cargo run -p memferry-dsa --example gradients`.
//!
//! `memferry bench cases --case gradients` has the times of one layer of BERT.

mod common;

use std::thread;

use memferry_dsa::{Batch, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::client()?;

    let mut gradients: Vec<Vec<u8>> =
        [4 << 20, 4 << 20, 1 << 20, 4096].map(|bytes| vec![0xa5; bytes]).to_vec();
    let samples = thread::scope(|scope| -> Result<usize, Box<dyn std::error::Error>> {
        let prepared = scope.spawn(|| (0..1000).map(|index| index * index % 17).sum::<usize>());

        let mut batch = Batch::new();
        let tickets: Vec<_> =
            gradients.iter_mut().map(|tensor| batch.add(Request::fill(0, tensor))).collect();
        let outcomes = client.run_batch(batch)?;
        for ticket in &tickets {
            outcomes.get(ticket)?;
        }
        Ok(prepared.join().expect("the preparation does not panic"))
    })?;
    assert!(gradients.iter().flatten().all(|&byte| byte == 0));
    let bytes: usize = gradients.iter().map(Vec::len).sum();
    println!("{bytes} bytes are zero; the next batch is prepared: {samples}");
    common::tell(&client);
    Ok(())
}
