//! `cargo bench -p memferry-emulate --bench submit`: what a submission costs, with its call site patched and without.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Machine, told};
use memferry_dsa::emulator::shared::Options;

fn main() {
    println!("load average: {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
    for (name, patches, threads) in
        [("trapped, 1 thread", false, 1), ("patched, 1 thread", true, 1), ("patched, 4 threads", true, 4)]
    {
        let machine = Machine::new(&Options { patches, ..Options::default() });
        let arguments = ["20000", &threads.to_string()];
        let output =
            machine.program(env!("CARGO_BIN_EXE_submit_cost"), &arguments).output().expect("it runs");
        assert!(output.status.success(), "{}", told(&output));
        println!("{name}: {}", String::from_utf8_lossy(&output.stdout).trim().replace('\n', ", "));
    }
}
