//! The model beside what was published: predictions of published figures, how its parameters were found, scenarios,
//! advice about devices, and TPC-H on many machines.

mod calibrate;
pub mod cluster;
mod coverage;
mod curves;
mod devices;
mod dispositions;
mod held_out;
mod predictions;
mod published;
mod scenario;
mod tables;
mod validate;

pub use calibrate::{Calibrated, kuper, thesis};
pub use coverage::{Coverage, Shown, coverage_page};
pub use curves::{PacketTime, copies_gain, devices_rate, storage_target_cores};
pub use devices::{DeviceAdvice, Shape, StreamAdvice, Thresholds, Workload};
pub use dispositions::{Disposition, Why};
pub use held_out::{draw_held_out, held_out};
pub use predictions::Prediction;
pub use published::{PublishedFigure, figures};
pub use scenario::{Scenario, scenario, scenarios};
pub use validate::{TwoNodes, Validation, two_nodes, validate, variants};
