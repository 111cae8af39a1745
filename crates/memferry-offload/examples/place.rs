//! `memferry place` without its command line: interleaves large memory over the given nodes, by stripes.
//!
//!     cargo run -p memferry-offload --example place -- --weights 0=3,1=1 --min-size 65536 -- sort big.txt

use std::process::ExitCode;

use memferry_offload::Summary;
use memferry_offload::place::{Options, Pattern, Policy, execute};

const USAGE: &str = "usage: place --weights NODE=WEIGHT,... [--min-size BYTES] [--file PATTERN] [--summary FILE | \
    --no-summary] [--whole] -- PROGRAM [ARGUMENT]...";

fn weights(text: &str) -> Option<Vec<(u32, u32)>> {
    let pair = |pair: &str| {
        let (node, weight) = pair.split_once('=')?;
        Some((node.parse().ok()?, weight.parse().ok()?))
    };
    text.split(',').map(pair).collect()
}

fn options() -> Option<Options> {
    let mut options = Options {
        pattern: Pattern::Stripes,
        heap: Policy::Interleave,
        anonymous: Policy::Interleave,
        ..Options::new("")
    };
    let mut arguments = std::env::args_os().skip(1);
    loop {
        match arguments.next()?.to_str()? {
            "--weights" => options.weights = weights(arguments.next()?.to_str()?)?,
            "--min-size" => options.size_bytes_min = arguments.next()?.to_str()?.parse().ok()?,
            "--file" => options.files.push((arguments.next()?, Policy::Interleave)),
            "--summary" => options.summary = Summary::File(arguments.next()?.into()),
            "--no-summary" => options.summary = Summary::None,
            "--whole" => options.whole = true,
            "--" => break,
            _ => return None,
        }
    }
    options.program = arguments.next()?;
    options.arguments = arguments.collect();
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let error = execute(&options);
    eprintln!("memferry: {error}");
    ExitCode::from(error.exit_code())
}
