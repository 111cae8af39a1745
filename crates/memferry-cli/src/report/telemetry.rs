//! The table of what monitors of the machine counted beside the rows of a record.

use memferry_bench::telemetry::{Count, Counts};

use super::page::{row, table};
use super::records::{Record, Row};
use crate::output::{count, number};

/// The table; empty if the machine had no monitors.
pub(super) fn html(record: &Record) -> String {
    let watched: Vec<(&Row, &Counts)> =
        record.rows.iter().filter_map(|row| Some((row, row.telemetry.as_ref()?))).collect();
    // Rows of one window have the same counts.
    let windows: Vec<_> = watched.chunk_by(|(_, one), (_, other)| one == other).collect();
    if windows.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for window in &windows {
        let (first, counts) = window[0];
        let name = match window.len() {
            1 => first.name.clone(),
            rows_count => format!("{} and {} more", first.name, rows_count - 1),
        };
        for count in &counts.counts {
            rows += &row(&name, &cells(count, counts.seconds));
        }
    }
    let heads = ["row", "seconds", "monitor", "quantity", "of", "value", "unit", "per second", "note"];
    format!(
        "<details class=\"rows\">\n<summary>What monitors of the machine counted meanwhile, measured in \
         {}</summary>\n<p>Everything from the preparation of a measurement to its end counts, peers included, and what \
         others do on the machine; counts of the cache are those of the benchmark's processes.</p>\n{}</details>\n",
        count(windows.len(), "window"),
        table(&heads, &rows)
    )
}

fn cells(count: &Count, seconds: f64) -> [String; 8] {
    let is_increase = count.series.is_empty();
    let note = match (count.min, count.max, count.counted_share) {
        (Some(min), Some(max), _) => format!("mean of {} to {}", number(min), number(max)),
        (.., Some(share)) => format!("estimated: counted in {:.0} % of the time", 100.0 * share),
        _ => String::new(),
    };
    [
        number(seconds),
        count.monitor.to_string(),
        count.name.clone(),
        count.place.clone().unwrap_or_default(),
        number(count.value),
        count.unit.clone(),
        if is_increase { number(count.value / seconds) } else { String::new() },
        note,
    ]
}
