//! The program `memferry-cluster`, which `memferry serve` and `memferry worker` execute.

fn main() {}
