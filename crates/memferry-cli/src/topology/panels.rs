//! The panels below the machine: a legend of the tiers, and the links from CPUs to memories as a table of classes and as
//! heat maps.

use memferry::topology::Node;

use super::links::{Links, Metric};
use super::overview::Overview;
use super::svg::{PAD, tier_class, tier_label};
use crate::canvas::{Anchor, BODY, Block, HeatMap, LINE, SMALL, TINY, paragraphs, text_width};
use crate::devices;
use crate::output::size;

/// A heat map with more columns is drawn only if the links of a class differ.
const HEAT_NODES_EASY: usize = 16;
/// Largest number of columns; wider heat maps are unreadable.
const HEAT_NODES_MAX: usize = 32;

/// The panels of a machine.
pub(super) fn panels(overview: &Overview) -> Vec<Block> {
    let mut panels = vec![legend(overview)];
    let sentences = overview.dsa.as_ref().map_or(Vec::new(), |dsa| devices::sentences(&dsa.config));
    if !sentences.is_empty() {
        panels.push(panel("DSA: work queues to engines", paragraphs(&sentences, 420, SMALL, "ink")));
    }
    let metrics = overview.links.known_metrics();
    let (rows, columns) = (overview.links.from.len(), overview.links.to.len());
    if metrics.is_empty() && rows * columns > 1 {
        let mut nothing = Block::new("", 0, 0);
        let sentence = "Distances, bandwidths and latencies are not known.".to_owned();
        nothing.append(paragraphs(&[sentence], 240, SMALL, "muted"), 0, 0);
        panels.push(panel("From CPUs to memory", nothing));
    }
    let heat = rows > 1 && columns <= HEAT_NODES_MAX;
    if !metrics.is_empty() && (!heat || rows > 2) {
        panels.push(classes(&overview.links, &metrics));
    }
    if heat {
        let classes = overview.links.classes();
        let worth = |index| columns <= HEAT_NODES_EASY || !Links::are_alike(&classes, index);
        let metrics = metrics.iter().filter(|(index, _)| worth(*index));
        panels.extend(metrics.map(|(_, metric)| heat_map(&overview.links, metric)));
    }
    panels
}

fn panel(title: &str, mut content: Block) -> Block {
    let inner = content.children.iter().map(|child| child.width).fold(content.width, i64::max);
    content.width = inner;
    let mut panel = Block::new("", inner.max(text_width(title, BODY, true)), 24);
    panel.text(0, 14, BODY, "ink strong", title);
    panel.append(content, 0, 0);
    panel
}

/// The legend of the tiers: colours, sizes and nodes.
fn legend(overview: &Overview) -> Block {
    const SWATCH: i64 = 14;
    let tiers = overview.tiers();
    let rows: Vec<[String; 3]> = (tiers.iter())
        .map(|sum| {
            let kernel: Vec<String> = sum.kernel_tiers.iter().map(u32::to_string).collect();
            let kernel = if kernel.is_empty() {
                String::new()
            } else {
                format!("; kernel tier {}", kernel.join(", "))
            };
            [tier_label(sum.tier), sum.size(), sum.place() + &kernel]
        })
        .collect();
    let mut content = Block::new("", 0, 0);
    let widths: Vec<i64> = (0..3)
        .map(|column| rows.iter().map(|row| text_width(&row[column], SMALL, false)).max().unwrap_or(0))
        .collect();
    let ends =
        [SWATCH + 8, SWATCH + 8 + widths[0] + PAD + widths[1], SWATCH + 8 + widths[0] + widths[1] + 2 * PAD];
    for (sum, [kind, size, place]) in tiers.iter().zip(rows) {
        let mut row = Block::new("", ends[2] + widths[2], LINE + 2);
        let swatch = Block::new(format!("{} bar", tier_class(sum.tier)), SWATCH, SWATCH);
        row.put(swatch, 0, 3);
        row.text(ends[0], 14, SMALL, "ink", kind);
        row.text_at(Anchor::End, ends[1], 14, SMALL, "ink figure", size);
        row.text(ends[2], 14, SMALL, "muted", place);
        content.append(row, 0, 0);
    }
    let mut notes = vec!["Square: CPU. Tag: copy engine (DSA).".to_owned()];
    if overview.engines().next().is_none() {
        notes = vec!["Square: CPU.".to_owned()];
    }
    if let Some(largest) =
        overview.nodes().filter_map(|node| node.memory_bytes).max().filter(|&bytes| bytes > 0)
    {
        notes.push(format!("Bar: capacity; the longest is {}.", size(largest)));
    }
    if overview.nodes().any(|node| node.free_bytes.is_some() && node.has_memory()) {
        notes.push("Filled part of a bar: in use.".to_owned());
    }
    if overview.nodes().any(|node| node.memory_bytes.is_none()) {
        notes.push("Dashed bar, ?: capacity not known.".to_owned());
    }
    if overview.nodes().any(|node| !node.is_allowed && node.has_memory()) {
        notes.push("Memory not allowed: closed to this process.".to_owned());
    }
    if overview.domains().any(|domain| domain.restriction().is_some()) {
        notes.push("Hollow square: CPU not allowed.".to_owned());
    }
    content.append(paragraphs(&notes, 300, TINY, "muted"), 0, 4);
    panel("Memory", content)
}

/// The table of the links, a row per class.
fn classes(links: &Links, metrics: &[(usize, &Metric)]) -> Block {
    let classes = links.classes();
    let rows: Vec<Vec<String>> = (classes.iter())
        .map(|class| {
            let cells = metrics.iter().map(|(index, metric)| class.ranges[*index].text(metric));
            std::iter::once(class.name.clone()).chain(cells).collect()
        })
        .collect();
    let headings: Vec<String> = std::iter::once(String::new())
        .chain(metrics.iter().map(|(_, metric)| metric.heading.to_owned()))
        .collect();
    let widths: Vec<i64> = (0..headings.len())
        .map(|column| {
            rows.iter()
                .chain([&headings])
                .map(|row| text_width(&row[column], SMALL, false))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let total = widths.iter().sum::<i64>() + (widths.len() as i64 - 1) * 18;
    let mut content = Block::new("", total, 0);
    for (index, row) in [headings].into_iter().chain(rows).enumerate() {
        let mut line = Block::new("", total, LINE + 2);
        let mut end = -18;
        for (column, (cell, width)) in row.into_iter().zip(&widths).enumerate() {
            end += 18 + width;
            let class = if index == 0 { "muted" } else { "ink figure" };
            match column {
                _ if cell.is_empty() => {}
                0 => line.text(0, 14, SMALL, class, cell),
                _ => line.text_at(Anchor::End, end, 14, SMALL, class, cell),
            }
        }
        content.append(line, 0, 0);
    }
    panel("From CPUs to memory", content)
}

/// The heat map of a metric.
fn heat_map(links: &Links, metric: &Metric) -> Block {
    let values: Vec<Vec<Option<f64>>> =
        links.rows.iter().map(|row| row.iter().map(|link| metric.of(link)).collect()).collect();
    let labels = |nodes: &[Node]| nodes.iter().map(|node| node.id.to_string()).collect();
    // Gaps separate the sockets.
    let gaps = |nodes: &[Node]| {
        nodes.iter().enumerate().map(|(at, node)| at > 0 && nodes[at - 1].socket != node.socket).collect()
    };
    let map = HeatMap {
        axes: "row: CPUs of node, column: memory of node; stronger is better",
        rows: labels(&links.from),
        columns: labels(&links.to),
        row_gaps: gaps(&links.from),
        column_gaps: gaps(&links.to),
        values,
        text: &|value| metric.text(value),
        more_is_better: metric.more_is_better,
    };
    panel(metric.title, map.draw())
}
