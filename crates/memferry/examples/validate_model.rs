//! The model against everything that was published, the variants that were tried, and what the recipes give.
//!
//! ```sh
//! cargo run -p memferry --example validate_model
//! ```

use std::error::Error;

use memferry::model::{self, Thesis};
use memferry::topology::Machine;

fn main() -> Result<(), Box<dyn Error>> {
    let validation = model::validate()?;
    for bound in &validation.bounds {
        println!("{:48} {:10.3} {}", bound.name, bound.value, bound.unit);
    }
    println!("\n{:58} {:>10} {:>18} {:>8}", "row", "modelled", "published", "error");
    for prediction in &validation.predictions {
        let (low, high) = prediction.published;
        let published = if low == high { format!("{low}") } else { format!("{low} to {high}") };
        let name = format!("{} [{}]", prediction.name, prediction.rows.join(", "));
        let (predicted, error, unit) = (prediction.predicted, prediction.error_percent(), prediction.unit);
        let fit = if prediction.is_fit { "fit" } else { "" };
        println!("{name:58} {predicted:10.2} {published:>18} {error:+7.1}% {unit:10} {fit}");
        if let Some(reason) = prediction.unexplained {
            println!("    {reason}");
        }
    }
    println!();
    for row in model::variants()? {
        let published = row.peer_value.map_or(String::new(), |value| format!("{value:10.2}"));
        println!("{:58} {:10.2} {published:>10} {}", row.name, row.value, row.unit);
    }
    println!();
    for row in model::scenario("table-6.2")?.run(None)? {
        println!("{:58} {:10.2} {}", row.name, row.value, row.unit);
    }
    println!();
    let xeon_max = Machine::from_profile("xeon-max-9468-2s-flat")?;
    for (name, value) in model::thesis(&xeon_max, &Thesis::default(), None)? {
        println!("{name:24} {value:.4}");
    }
    for (name, value) in model::kuper(&Machine::from_profile("spr-56c")?)? {
        println!("{name:24} {value:.4}");
    }
    Ok(())
}
