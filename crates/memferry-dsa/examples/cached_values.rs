//! A cache server: a device copies large values to the answer, the core copies small ones:
//! `cargo run -p memferry-dsa --example cached_values`.
//!
//! Waiting for a device takes longer than a copy by the core below some KiB. `memferry bench cases --case cache` has latencies
//! up to the percentile 99.999.

mod common;

use std::collections::HashMap;

use memferry_dsa::{Client, ClientError, Request};

/// Below this the core copies: Kuper et al. (2024) offload copies above 8 KB.
const OFFLOAD_BYTES_MIN: usize = 8 << 10;

struct Cache {
    client: Client,
    values: HashMap<String, Vec<u8>>,
}

impl Cache {
    /// Copies the value of a key to the start of `answer`; returns its length.
    fn get(&self, key: &str, answer: &mut [u8]) -> Result<Option<usize>, ClientError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let answer = &mut answer[..value.len()];
        if value.len() < OFFLOAD_BYTES_MIN {
            answer.copy_from_slice(value);
        } else {
            // The core sends the answer next, so it may go to its cache.
            self.client.run(Request::copy(value, answer).into_cache())?;
        }
        Ok(Some(value.len()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let value = |kib: usize| (format!("{kib} KiB"), vec![kib as u8; kib << 10]);
    let values = [1, 8, 64, 1024].map(value).into_iter().collect();
    let cache = Cache { client: common::client()?, values };
    let mut answer = vec![0; 1 << 20];
    for key in ["1 KiB", "8 KiB", "64 KiB", "1024 KiB", "nothing"] {
        match cache.get(key, &mut answer)? {
            Some(len) => {
                assert_eq!(answer[..len], cache.values[key][..]);
                println!("{key}: {len} bytes");
            }
            None => println!("{key}: not there"),
        }
    }
    common::tell(&cache.client);
    Ok(())
}
