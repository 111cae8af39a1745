//! The machine as text, at most 100 columns wide for common machines.
//!
//! A box is a socket. A line in it is a domain: CPUs, one column for each tier, copy engines.

use memferry::topology::Node;

use super::links::{Links, Metric};
use super::overview::{Domain, Overview, node_note, node_size, short_ranges, tier_rank};
use crate::devices;
use crate::output::{Align, COLUMNS_MAX, Table, count, fill, framed, line, widen, wrapped};

/// Width of the two sides of a box.
const FRAME: usize = 4;
/// Matrices with more columns are not printed; `--json` has them.
const MATRIX_NODES_MAX: usize = 32;

pub(super) fn draw(overview: &Overview) -> String {
    let mut text = heading(overview);
    text += &format!("\n{}", boxes(overview));
    for remark in overview.remarks() {
        text += &wrapped(&remark, 0);
    }
    let end = wrapped(&overview.upgrade_sentence(), 0);
    for section in [memory(overview), engines(overview), queues(overview), ways(overview), end] {
        if !section.is_empty() {
            text += &format!("\n{section}");
        }
    }
    text
}

/// The name, the CPU, the amounts of all parts, and the sources.
fn heading(overview: &Overview) -> String {
    let mut text = format!("{}: {}", overview.name, overview.cpu.as_deref().unwrap_or("CPU unknown"));
    if let Some(kernel) = &overview.kernel {
        text += &format!(", Linux {kernel}");
    }
    text = wrapped(&text, 0) + &wrapped(&overview.amounts(), 0) + &wrapped(overview.origin_sentence(), 0);
    if let Some(placeholder) = &overview.placeholder {
        text += &wrapped(&format!("Placeholders: {placeholder}."), 0);
    }
    for reference in &overview.references {
        text += &wrapped(&format!("Source of figures: {reference}."), 0);
    }
    text
}

/// The boxes of the sockets, with aligned columns.
fn boxes(overview: &Overview) -> String {
    let tiers: Vec<usize> = overview.tiers().iter().map(|sum| tier_rank(sum.tier)).collect();
    let (sockets, width) = match body(overview, &tiers) {
        (sockets, width) if width + FRAME <= COLUMNS_MAX => (sockets, width),
        _ => body(overview, &[]),
    };
    let titles = overview.sockets.iter().map(|socket| socket.title().chars().count() + 2);
    let width = titles.fold(width, usize::max);
    overview
        .sockets
        .iter()
        .zip(&sockets)
        .map(|(socket, lines)| framed(&socket.title(), lines, width))
        .collect()
}

/// The lines of each socket, and the width of the longest. Each of the tiers, by rank, has a column; without tiers one
/// column has all memories.
fn body(overview: &Overview, tiers: &[usize]) -> (Vec<Vec<String>>, usize) {
    use Align::{Left, Right};
    let memories = [Left, Left, Right, Left].repeat(tiers.len().max(1));
    let align = [vec![Right, Left], memories, vec![Left]].concat();
    let rows: Vec<Vec<Vec<String>>> = (overview.sockets.iter())
        .map(|socket| socket.domains.iter().flat_map(|domain| rows(domain, tiers)).collect())
        .collect();
    let mut widths = vec![0; align.len()];
    rows.iter().flatten().for_each(|row| widen(&mut widths, row));
    let sockets: Vec<Vec<String>> = (rows.iter())
        .map(|rows| match rows.is_empty() {
            true => vec!["no CPUs, no memory".to_owned()],
            false => rows.iter().map(|row| line(row, &widths, &align, 0)).collect(),
        })
        .collect();
    let width = sockets.iter().flatten().map(|line| line.chars().count()).max().unwrap_or(0);
    (sockets, width)
}

/// The lines of a domain: one, or more if a cell needs them.
fn rows(domain: &Domain, tiers: &[usize]) -> Vec<Vec<String>> {
    let mut columns: Vec<Vec<[String; 4]>> = vec![Vec::new(); tiers.len().max(1)];
    for node in &domain.nodes {
        let slot = tiers.iter().position(|&tier| node.has_memory() && tier == tier_rank(node.tier));
        columns[slot.unwrap_or(0)].push(memory_cells(node));
    }
    let names: Vec<&str> = domain.engines.iter().map(|engine| engine.name.as_str()).collect();
    let engines = fill(&names.join(" "), ENGINES_WIDTH);
    let mut cpus = match (domain.cpus.len(), domain.nearest) {
        (0, nearest) => {
            let near = nearest.map_or(String::new(), |node| format!("near node {node}"));
            vec![("no CPUs".to_owned(), near)]
        }
        (many, _) => vec![(count(many, "CPU"), short_ranges(&domain.cpus))],
    };
    cpus.extend(domain.restriction().map(|restriction| (String::new(), restriction)));
    let height = columns.iter().map(Vec::len).chain([engines.len(), cpus.len()]).max().unwrap_or(0);
    (0..height)
        .map(|index| {
            let (count, list) = cpus.get(index).cloned().unwrap_or_default();
            let memories = columns.iter().flat_map(|column| column.get(index).cloned().unwrap_or_default());
            let engines = engines.get(index).map(|names| format!("  {names}")).unwrap_or_default();
            [count, list].into_iter().chain(memories).chain([engines]).collect()
        })
        .collect()
}

/// Width of the names of copy engines; more names go to the next line.
const ENGINES_WIDTH: usize = 20;

fn memory_cells(node: &Node) -> [String; 4] {
    let kind = if node.has_memory() { node.tier.to_string() } else { String::new() };
    // Two more spaces separate groups of columns.
    [format!("  node {}", node.id), kind, node_size(node), node_note(node).unwrap_or_default()]
}

/// The memory of each tier; empty for one tier, which is in the heading.
fn memory(overview: &Overview) -> String {
    let tiers = overview.tiers();
    let unknown = overview.nodes().any(|node| node.memory_bytes.is_none());
    if tiers.len() < 2 {
        return if unknown { "? is not known.\n".to_owned() } else { String::new() };
    }
    let mut table = Table::plain(vec![Align::Left, Align::Right, Align::Left, Align::Left]).indent(2);
    for sum in tiers {
        let tiers: Vec<String> = sum.kernel_tiers.iter().map(u32::to_string).collect();
        let kernel = match tiers.len() {
            0 => String::new(),
            1 => format!("kernel tier {}", tiers[0]),
            _ => format!("kernel tiers {}", tiers.join(", ")),
        };
        table.row(vec![sum.tier.to_string(), sum.size(), sum.place(), kernel]);
    }
    format!("Memory{}\n{table}", if unknown { " (? is not known)" } else { "" })
}

fn engines(overview: &Overview) -> String {
    let groups = overview.engine_groups();
    // The boxes show the node of each engine. Names are only necessary to distinguish several groups.
    let alike = groups.len() == 1;
    let lines = groups.into_iter().map(|(names, facts)| {
        let which = if alike { count(names.len(), "device") } else { names.join(" ") };
        let each = if names.len() > 1 { "each " } else { "" };
        wrapped(&if facts.is_empty() { format!("{which}: ?") } else { format!("{which}: {each}{facts}") }, 2)
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("Copy engines (DSA)\n{lines}") }
}

/// The configuration of the devices, and which queues can be used.
fn queues(overview: &Overview) -> String {
    let Some(dsa) = &overview.dsa else { return String::new() };
    let mut text = String::new();
    if !dsa.config.devices.is_empty() {
        text += &format!("{}\n", devices::picture(&dsa.config, &dsa.state));
        text += &format!("{}\n", devices::queues(&dsa.config, &dsa.state));
    }
    text + &dsa.findings.text()
}

/// Distances, bandwidths and latencies: by class, and as a matrix if the links of a class differ.
fn ways(overview: &Overview) -> String {
    let metrics = overview.links.known_metrics();
    if metrics.is_empty() {
        return match overview.links.rows.iter().map(Vec::len).sum() {
            0 | 1 => String::new(),
            _ => "From CPUs to memory: distances, bandwidths and latencies are not known.\n".to_owned(),
        };
    }
    let classes = overview.links.classes();
    let mut table = Table::plain([vec![Align::Left], vec![Align::Right; metrics.len()]].concat());
    let headings = metrics.iter().map(|(_, metric)| metric.heading.to_owned());
    table.row(std::iter::once("From CPUs to memory".to_owned()).chain(headings).collect());
    for class in &classes {
        let cells = metrics.iter().map(|(index, metric)| class.ranges[*index].text(metric));
        table.row(std::iter::once(format!("  {}", class.name)).chain(cells).collect());
    }
    let mut text = table.to_string();
    let unlike: Vec<_> =
        metrics.into_iter().filter(|(index, _)| !Links::are_alike(&classes, *index)).collect();
    if overview.links.to.len() > MATRIX_NODES_MAX && !unlike.is_empty() {
        text += "  (--json has each way by itself)\n";
        return text;
    }
    for (_, metric) in unlike {
        text += &format!("\n{}, from the CPUs of a row to the memory of a column\n", metric.title);
        text += &matrix(&overview.links, metric);
    }
    text
}

/// The matrix of a metric, in blocks of columns that fit the width.
fn matrix(links: &Links, metric: &Metric) -> String {
    let cells: Vec<Vec<String>> = (links.rows.iter())
        .map(|row| {
            row.iter().map(|link| metric.of(link).map_or("?".into(), |value| metric.text(value))).collect()
        })
        .collect();
    let heads: Vec<String> = links.to.iter().map(|node| node.id.to_string()).collect();
    let width = cells.iter().flatten().chain(&heads).map(String::len).max().unwrap_or(1) + 2;
    let first = links.from.iter().map(|node| node.id.to_string().len()).max().unwrap_or(1);
    let per_block = ((COLUMNS_MAX - 2 - first) / width).max(1);
    let blocks: Vec<String> = (0..heads.len())
        .step_by(per_block)
        .map(|start| {
            let end = (start + per_block).min(heads.len());
            let mut table = Table::plain(vec![Align::Right; end - start + 1]).indent(2);
            table.row([&[String::new()], &heads[start..end]].concat());
            for (from, row) in links.from.iter().zip(&cells) {
                table.row([&[from.id.to_string()], &row[start..end]].concat());
            }
            table.to_string()
        })
        .collect();
    blocks.join("\n")
}
