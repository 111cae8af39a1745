//! The published number that a query repeats.

use serde_json::json;

use super::{Metric, Query, Synchronization, Variant};
use crate::model::figures;
use crate::papers::Published;

/// The published number for a metric of a query, in its unit: table 6.2 of Fürst 2024.
pub fn published(query: &Query, metric: Metric) -> Option<Published> {
    let nodes = query.nodes;
    let is_thesis = (query.column_bytes, query.scan_threads, query.aggregate_threads) == (4 << 30, 64, 32)
        && (nodes.home.0, nodes.near.map(|node| node.0)) == (0, Some(8))
        && query.sync == Synchronization::Relaxed;
    if !is_thesis {
        return None;
    }
    let (row, factor) = match (query.variant, metric) {
        (Variant::Baseline, Metric::TOTAL) => ("F072", 1.0),
        (Variant::UpperLimit, Metric::TOTAL) => ("F073", 1.0),
        (Variant::UpperLimit, Metric::SPEED_UP) => ("F077", 1.0),
        (Variant::Prefetching, Metric::TOTAL) => ("F082", 1.0),
        (Variant::Prefetching, Metric::SPEED_UP) => ("F080", 1.0),
        // Printed in percent.
        (Variant::Prefetching, Metric::HIT_RATE) => ("F081", 0.01),
        (Variant::Distributed, Metric::TOTAL) => ("F085", 1.0),
        (Variant::Distributed, Metric::SPEED_UP) => ("F083", 1.0),
        (Variant::Distributed, Metric::HIT_RATE) => ("F084", 0.01),
        _ => return None,
    };
    let value = figures().into_iter().find(|figure| figure.id == row)?.number()? * factor;
    let work = vec![("unit", json!(metric.unit)), ("how", json!("published"))];
    Some(Published { name: format!("published (Fürst 2024, {row})"), value, work })
}
