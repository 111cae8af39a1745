//! The monitors of the machine: what benchmarks count with them, or why they are absent.

use std::sync::Arc;

use memferry_bench::telemetry::{Absent, Kernel, MonitorKind, SystemKernel, survey};
use memferry_dsa::internals::system::Files;
use serde::Serialize;

use crate::output::{capitalised, printable, wrapped};

/// The state of a kind of monitor.
#[derive(Debug, Serialize)]
pub(super) struct MonitorState {
    monitor: MonitorKind,
    is_present: bool,
    /// What it counts and where, or why it is absent.
    found: String,
}

/// The monitors of the machine with these files. On this machine the counters of perf are tried.
pub(super) fn monitors(files: &dyn Files, is_here: bool) -> Vec<MonitorState> {
    let kernel = is_here.then(|| Arc::new(SystemKernel::new()) as Arc<dyn Kernel>);
    let state = |(monitor, found): (MonitorKind, Result<String, Absent>)| MonitorState {
        monitor,
        is_present: found.is_ok(),
        found: found.unwrap_or_else(|absent| absent.to_string()),
    };
    survey(files, kernel.as_ref()).into_iter().map(state).collect()
}

pub(super) fn text(monitors: &[MonitorState]) -> String {
    let mut text = "What `memferry bench` records beside its rows:\n".to_owned();
    for MonitorState { monitor, is_present, found } in monitors {
        let name = match monitor {
            MonitorKind::Dsa => "DSA devices",
            MonitorKind::Cache => "last-level caches",
            MonitorKind::Memory => "memory controllers",
            MonitorKind::Energy => "energy",
        };
        let found = printable(found);
        let line = match is_present {
            true => format!("- {name}: {found}."),
            false => format!("- {name}: nothing. {}.", capitalised(&found)),
        };
        text += &wrapped(&line, 2);
    }
    text
}
