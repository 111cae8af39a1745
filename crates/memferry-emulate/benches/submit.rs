//! `cargo bench -p memferry-emulate --bench submit`: what a submission costs, with its call site patched and without.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Machine, told};
use memferry_dsa::emulator::shared::Options;
use memferry_dsa::measure::submission::Costs;

fn main() {
    println!("load average: {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
    for (name, patches, threads) in
        [("trapped, 1 thread", false, 1), ("patched, 1 thread", true, 1), ("patched, 4 threads", true, 4)]
    {
        let machine = Machine::new(&Options { patches, ..Options::default() });
        let arguments = [&threads.to_string(), "full"];
        let output =
            machine.program(env!("CARGO_BIN_EXE_submit_cost"), &arguments).output().expect("it runs");
        assert!(output.status.success(), "{}", told(&output));
        let costs: Costs = serde_json::from_slice(&output.stdout).expect("what the program prints");
        println!(
            "{name}: submission {:.1} ns, bare trap {:.1} ns, difference {:.1} ns, {:.0} % accepted",
            median(costs.submit_ns.clone()),
            median(costs.bare_trap_ns.clone()),
            median(costs.overhead_ns()),
            100.0 * costs.accepted_share,
        );
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
