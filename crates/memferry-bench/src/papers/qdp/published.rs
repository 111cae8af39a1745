//! Which published figure a query repeats.

use super::{Figure, Query, Synchronization, Variant};
use crate::model::figures;
use crate::papers::Published;

/// What was published of this figure of this query, in its unit: table 6.2 of Fürst 2024.
pub fn published(query: &Query, figure: Figure) -> Option<Published> {
    let nodes = query.nodes;
    let is_thesis = (query.column_bytes, query.scan_threads, query.aggregate_threads) == (4 << 30, 64, 32)
        && (nodes.home.0, nodes.near.map(|node| node.0)) == (0, Some(8))
        && query.sync == Synchronization::Relaxed;
    if !is_thesis {
        return None;
    }
    let (row, factor) = match (query.variant, figure) {
        (Variant::Baseline, Figure::Total) => ("F072", 1.0),
        (Variant::UpperLimit, Figure::Total) => ("F073", 1.0),
        (Variant::UpperLimit, Figure::SpeedUp) => ("F077", 1.0),
        (Variant::Prefetching, Figure::Total) => ("F082", 1.0),
        (Variant::Prefetching, Figure::SpeedUp) => ("F080", 1.0),
        // Printed in percent.
        (Variant::Prefetching, Figure::HitRate) => ("F081", 0.01),
        (Variant::Distributed, Figure::Total) => ("F085", 1.0),
        (Variant::Distributed, Figure::SpeedUp) => ("F083", 1.0),
        (Variant::Distributed, Figure::HitRate) => ("F084", 0.01),
        _ => return None,
    };
    let value = figures().into_iter().find(|figure| figure.id == row)?.number()? * factor;
    Some(Published { name: format!("published (Fürst 2024, {row})"), value })
}
