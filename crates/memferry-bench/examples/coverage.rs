//! The page about the figures and tables of the publications.
//!
//! ```sh
//! cargo run -p memferry-bench --example coverage > docs/benchmarks/coverage.md
//! ```

use std::error::Error;

use memferry_bench::model;

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", model::coverage_page(&model::validate()?.coverage));
    Ok(())
}
