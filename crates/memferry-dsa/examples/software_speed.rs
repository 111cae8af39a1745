//! The speed of the software operations, against memcpy, memcmp, memset and crc-fast on the same bytes.
//!
//!     cargo run --release -p memferry-dsa --example software_speed [FILTER]

use memferry_dsa::software::measure::{self, Effort, Row};

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    println!(
        "{:<32} {:>10}  {:>28}  {:>8}  ratio, min, max",
        "operation", "bytes", "GB/s, min, max", "peer's"
    );
    measure::all(Effort::FULL, |row| {
        if row.name.contains(&filter) {
            print(row);
        }
    });
}

fn print(row: &Row) {
    let [rate, rate_min, rate_max] = row.bytes_per_second().map(|rate| rate / 1e9);
    let [ratio, ratio_min, ratio_max] = row.ratios();
    println!(
        "{:<32} {:>10}  {rate:>8.2} {rate_min:>9.2} {rate_max:>9.2}  {:>8.2}  {ratio:>5.2} {ratio_min:>5.2} {ratio_max:>5.2}  of {}",
        row.name,
        row.size_bytes,
        row.peer_bytes_per_second()[0] / 1e9,
        row.peer,
    );
}
