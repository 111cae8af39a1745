//! What is advised for the query of the thesis, and what asking costs.
//!
//! ```sh
//! cargo run -p memferry --example advise
//! ```

use std::error::Error;
use std::time::Instant;

use memferry::model::{Column, Plan, Stage};
use memferry::topology::{Machine, NodeId};

fn main() -> Result<(), Box<dyn Error>> {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat")?;
    let stage = |name: &str, column| Stage {
        name: name.into(),
        reads: vec![column],
        threads_count: 32,
        thread_rate_max: f64::INFINITY,
    };
    for (title, b) in [("both columns on node 0", 0), ("the second on node 1", 1), ("the second near", 8)] {
        let column = |name: &str, node| Column { name: name.into(), size_bytes: 4 << 30, node: NodeId(node) };
        let plan = Plan {
            columns: vec![column("a", 0), column("b", b)],
            stages: vec![stage("scan", 0), stage("aggregate", 1)],
            cpus: NodeId(0),
            chunk_bytes: 8 << 20,
            near: None,
            reads_to_come: 0,
        };
        let advice = plan.advise(&machine)?;
        let begin = Instant::now();
        const ROUNDS: u32 = 1000;
        for _ in 0..ROUNDS {
            std::hint::black_box(std::hint::black_box(&plan).advise(&machine)?);
        }
        let cost_us = begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS);
        println!("{title}: {:.1} ms; asked in {cost_us:.0} us", advice.predicted_s() * 1e3);
        advice.words().iter().for_each(|line| println!("    {line}"));
    }
    Ok(())
}
