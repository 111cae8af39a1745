//! The tests of measuring that may share a process: linking one program takes less time than linking many.

mod cases;
mod model;
mod mover_measure;
mod records;
