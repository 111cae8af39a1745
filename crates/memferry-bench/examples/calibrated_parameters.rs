//! What the recipes of the calibrated parameters give: the values that belong into `machines/`.
//!
//! ```sh
//! cargo run -p memferry-bench --example calibrated_parameters
//! ```

use std::error::Error;

use memferry::topology::Machine;
use memferry_bench::model;

fn main() -> Result<(), Box<dyn Error>> {
    let xeon_max = Machine::from_profile("xeon-max-9468-2s-flat")?;
    let spr = Machine::from_profile("spr-56c")?;
    let thesis = model::thesis(&xeon_max)?;
    for (machine, calibrated) in [(&xeon_max, thesis), (&spr, model::kuper(&spr)?)] {
        println!("{}", machine.name());
        for (name, value) in calibrated {
            println!("    {name:24} {value:.4}");
        }
    }
    Ok(())
}
