//! `cargo bench -p memferry-dsa --bench emulator`: the speed of the emulated device in its thread, without a timing
//! model.
//!
//! Each figure is the median of several runs and the best of them; on a machine with others at work only the best
//! says something about the device. It says nothing about silicon.

mod core;

use core::Transfer;

const RUNS: usize = 9;

fn main() {
    println!("load average: {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
    let emulator = core::device();
    let portal = &*emulator.portal(0);
    let millions = |name: &str, run: &dyn Fn() -> f64| {
        let mut rates: Vec<f64> = (0..RUNS).map(|_| run() / 1e6).collect();
        rates.sort_by(f64::total_cmp);
        println!("{name:<44} median {:>8.2}  best {:>8.2}  million/s", rates[RUNS / 2], rates[RUNS - 1]);
    };
    millions("no-ops, 32 in flight", &|| core::singles(portal, 32, 300_000));
    millions("no-ops, 1 in flight", &|| core::singles(portal, 1, 50_000));
    millions("no-ops in batches of 64", &|| core::batches(portal, 64, false, 20_000));
    millions("no-ops in batches of 64, a record each", &|| core::batches(portal, 64, true, 20_000));
    let mut times: Vec<_> = (0..RUNS).map(|_| core::round_trip(portal, 20_000)).collect();
    times.sort();
    println!(
        "{:<44} median {:>8?}  best {:>8?}",
        "round trip of a no-op, spinning",
        times[RUNS / 2],
        times[0]
    );
    for transfer in [Transfer::Copy, Transfer::Fill, Transfer::Compare, Transfer::Crc] {
        millions(&format!("bytes of {transfer:?}, 1 MiB each"), &|| {
            core::transfers(portal, transfer, 1 << 20, 200)
        });
    }
}
