//! The machine as a picture: sockets that contain domains, with their CPUs, memories and copy engines.
//!
//! [`panels`] are below the machine. Sizes are in pixels at scale 1.

use memferry::topology::{Accelerator, Node, Tier};

use super::overview::{Domain, Overview, Socket, engine_facts, node_note, node_size};
use super::panels;
use crate::canvas::{
    self, Anchor, BODY, Block, DOT, LARGE, SMALL, TINY, fitted, flow, paragraphs, text_width, wrapped,
};
use crate::output::count;

const MARGIN: i64 = 24;
const GAP: i64 = 12;
pub(super) const PAD: i64 = 10;

/// Smallest width of a domain's card.
const CARD_WIDTH_MIN: i64 = 190;
const BAR_HEIGHT: i64 = 10;
/// Domains with more CPUs have no squares, only the number.
const DOTS_MAX: usize = 128;

pub(super) fn draw(overview: &Overview) -> String {
    canvas::document(&picture(overview), &overview.name, &description(overview))
}

/// The picture as a part of a page.
pub(super) fn part(overview: &Overview, id: &str) -> String {
    canvas::part(&picture(overview), id, &overview.name, &description(overview))
}

fn description(overview: &Overview) -> String {
    [vec![overview.amounts() + "."], legible(overview)].concat().join(" ").replace('\u{a0}', " ")
}

/// The picture as a block, which tests can measure.
pub(super) fn picture(overview: &Overview) -> Block {
    let panels = panels::panels(overview);
    let domains = overview.domains().count();
    // A narrow picture for few domains, a wide one for many.
    let wished = match domains {
        0..=1 => 620,
        2..=16 => 940,
        _ => 1420,
    };
    let width = panels.iter().map(|panel| panel.width).fold(wished, i64::max);
    let mut body = Block::new("", width, 0);
    body.append(heading(overview, width), 0, 0);
    body.append(sockets(overview, width), 0, GAP);
    if !panels.is_empty() {
        body.append(flow(panels, width, 2 * MARGIN, MARGIN), 0, MARGIN);
    }
    body.append(paragraphs(&legible(overview), width, SMALL, "muted"), 0, MARGIN);
    let mut paper = Block::new("paper", width + 2 * MARGIN, body.height + 2 * MARGIN);
    paper.put(body, MARGIN, MARGIN);
    paper
}

/// The sentences below the picture.
fn legible(overview: &Overview) -> Vec<String> {
    let mut sentences = overview.remarks();
    sentences.extend(
        overview
            .dsa
            .iter()
            .flat_map(|dsa| dsa.findings.diagnostics())
            .map(|diagnostic| format!("DSA: {diagnostic}.")),
    );
    sentences.push(overview.upgrade_sentence());
    sentences.push(overview.origin_sentence().to_owned());
    sentences.extend(overview.references.iter().map(|reference| format!("Source of figures: {reference}.")));
    sentences
}

fn heading(overview: &Overview, width: i64) -> Block {
    let mut block = Block::new("", width, 0);
    for line in wrapped(&overview.name, width, LARGE, true) {
        block.height += 24;
        block.text(0, block.height - 4, LARGE, "ink strong", line);
    }
    let mut cpu = overview.cpu.clone().unwrap_or_else(|| "CPU unknown".to_owned());
    if let Some(kernel) = &overview.kernel {
        cpu += &format!(", Linux {kernel}");
    }
    block.append(paragraphs(&[cpu, overview.amounts()], width, BODY, "muted"), 0, 4);
    if let Some(placeholder) = &overview.placeholder {
        let warning = format!("Placeholders: {placeholder}.");
        block.append(paragraphs(&[warning], width, BODY, "warning strong"), 0, 0);
    }
    block
}

/// The sockets in a grid. Each has the number of columns that the largest socket needs, at most four. Domains without a
/// socket are in a row below.
fn sockets(overview: &Overview, width: i64) -> Block {
    let (on, off): (Vec<&Socket>, Vec<&Socket>) =
        overview.sockets.iter().partition(|socket| socket.id.is_some());
    // Without known sockets, all domains are in that row.
    let leading = if on.is_empty() { &off } else { &on };
    let domains_max = leading.iter().map(|socket| socket.domains.len()).max().unwrap_or(0) as i64;
    let fitting = (width - 2 * PAD + GAP) / (CARD_WIDTH_MIN + GAP);
    let columns = domains_max.clamp(1, fitting.clamp(1, 4));
    let socket_width_min = columns * (CARD_WIDTH_MIN + GAP) - GAP + 2 * PAD;
    let per_row = ((width + GAP) / (socket_width_min + GAP)).clamp(1, leading.len().max(1) as i64);
    let socket_width = (width - (per_row - 1) * GAP) / per_row;
    // All cards have the same width, so that bars can be compared.
    let scale = Scale::of(overview, (socket_width - 2 * PAD + GAP) / columns - GAP);
    let mut grid = Block::new("", width, 0);
    let blocks = on.iter().map(|socket| draw_socket(socket, socket_width, columns, &scale)).collect();
    for blocks in level(blocks, per_row as usize) {
        let mut line = Block::new("", width, 0);
        for (column, block) in blocks.into_iter().enumerate() {
            line.height = block.height;
            line.put(block, column as i64 * (socket_width + GAP), 0);
        }
        grid.append(line, 0, if grid.children.is_empty() { 0 } else { GAP });
    }
    for socket in off {
        let columns = (width - 2 * PAD + GAP) / (scale.card_width + GAP);
        let block = draw_socket(socket, width, columns, &scale);
        grid.append(block, 0, if grid.children.is_empty() { 0 } else { GAP });
    }
    if !overview.stray.is_empty() {
        let mut strip = Block::new("socket", width, 28).radius(8);
        strip.text(PAD, 19, BODY, "ink strong", "no known node");
        strip.append(chips(&overview.stray, width - 2 * PAD), PAD, 0);
        strip.height += PAD;
        grid.append(strip, 0, GAP);
    }
    if !overview.offline.is_empty() {
        let what = format!("offline nodes: {}", overview.offline);
        let mut strip = Block::new("heat-none unknown", width, 30).radius(8);
        strip.text(PAD, 20, SMALL, "muted", fitted(&what, width - 2 * PAD, SMALL, false));
        grid.append(strip.title(what), 0, GAP);
    }
    grid
}

/// Arranges blocks in rows; the blocks of a row get the same height.
fn level(blocks: Vec<Block>, per_row: usize) -> Vec<Vec<Block>> {
    let mut rows: Vec<Vec<Block>> = Vec::new();
    for block in blocks {
        match rows.last_mut() {
            Some(row) if row.len() < per_row => row.push(block),
            _ => rows.push(vec![block]),
        }
    }
    for row in &mut rows {
        let height = row.iter().map(|block| block.height).max().unwrap_or(0);
        row.iter_mut().for_each(|block| block.height = height);
    }
    rows
}

/// The common scale of all cards.
struct Scale {
    card_width: i64,
    /// Size of the longest bar.
    bytes_max: u64,
}

impl Scale {
    fn of(overview: &Overview, card_width: i64) -> Scale {
        let bytes_max = overview.nodes().filter_map(|node| node.memory_bytes).max().unwrap_or(0).max(1);
        Scale { card_width, bytes_max }
    }

    /// The width of a bar, at least two pixels and at most `width`.
    fn bar_width(&self, bytes: u64, width: i64) -> i64 {
        let share = bytes as f64 / self.bytes_max as f64;
        ((width as f64 * share).round() as i64).clamp(2, width)
    }
}

fn draw_socket(socket: &Socket, width: i64, columns: i64, scale: &Scale) -> Block {
    let title = socket.title();
    let mut block = Block::new("socket", width, 30).radius(10);
    block.text(PAD + 2, 20, BODY, "ink strong", title.clone());
    let cpus: usize = socket.domains.iter().map(|domain| domain.cpus.len()).sum();
    let right = match cpus {
        0 if socket.domains.is_empty() => "no CPUs, no memory".to_owned(),
        0 => "no CPUs".to_owned(),
        cpus => count(cpus, "CPU"),
    };
    block.text_at(Anchor::End, width - PAD - 2, 20, SMALL, "muted", right);
    let cards: Vec<Block> = socket.domains.iter().map(|domain| card(domain, scale)).collect();
    for (row, cards) in level(cards, columns as usize).into_iter().enumerate() {
        let mut line = Block::new("", width - 2 * PAD, 0);
        for (column, card) in cards.into_iter().enumerate() {
            line.height = card.height;
            line.put(card, column as i64 * (scale.card_width + GAP), 0);
        }
        block.append(line, PAD, if row > 0 { GAP } else { 0 });
    }
    block.height += PAD;
    block.title(title)
}

/// The card of a domain.
fn card(domain: &Domain, scale: &Scale) -> Block {
    let width = scale.card_width;
    let inner = width - 2 * PAD;
    let mut card = Block::new("domain", width, 26).radius(7).title(domain.title());
    let amount = if domain.cpus.is_empty() { String::new() } else { domain.cpus.len().to_string() };
    let room = inner - text_width(&amount, SMALL, false) - PAD;
    card.text(PAD, 19, SMALL, "ink strong", fitted(&domain.title(), room, SMALL, true));
    if !amount.is_empty() {
        card.text_at(Anchor::End, width - PAD, 19, SMALL, "muted figure", amount);
    }
    if (1..=DOTS_MAX).contains(&domain.cpus.len()) {
        card.append(dots(domain, inner), PAD, 2);
    }
    if let Some(restriction) = domain.restriction() {
        let mut line = Block::new("", inner, 16);
        line.text(0, 12, TINY, "warning", fitted(&restriction, inner, TINY, false));
        card.append(line.title(restriction), PAD, 2);
    }
    for node in &domain.nodes {
        card.append(memory(node, inner, scale), PAD, 8);
    }
    if !domain.engines.is_empty() {
        card.append(chips(&domain.engines, inner), PAD, 10);
    }
    card.height += PAD;
    card
}

/// A square for each CPU; hollow if this process may not use the CPU.
fn dots(domain: &Domain, width: i64) -> Block {
    const STEP: i64 = DOT + 2;
    let columns = ((width + 2) / STEP).max(1);
    let (mut allowed, mut refused) = (Vec::new(), Vec::new());
    for (index, cpu) in (0..).zip(&domain.cpus) {
        let corner = (index % columns * STEP, index / columns * STEP);
        let is_allowed = domain.allowed_cpus.binary_search(cpu).is_ok();
        if is_allowed { &mut allowed } else { &mut refused }.push(corner);
    }
    let rows = (domain.cpus.len() as i64 + columns - 1) / columns;
    let mut block = Block::new("", width, rows * STEP - 2);
    block.dots = vec![("cpu", allowed), ("cpu-off", refused)];
    block
}

/// The name of a memory, and a bar for its size.
fn memory(node: &Node, width: i64, scale: &Scale) -> Block {
    let mut block = Block::new("", width, 0);
    let id = format!("node {}", node.id);
    let kind = if node.has_memory() { tier_label(node.tier) } else { String::new() };
    let size = node_size(node);
    let note = node_note(node);
    let id_width = text_width(&id, SMALL, true) + 6;
    let (kind_width, size_width) = (text_width(&kind, SMALL, false), text_width(&size, SMALL, false));
    block.text(0, 12, SMALL, "ink strong", id.clone());
    if id_width + kind_width + PAD + size_width <= width {
        block.text(id_width, 12, SMALL, "ink", kind.clone());
        block.text_at(Anchor::End, width, 12, SMALL, "ink figure", size.clone());
        block.height = 16;
    } else {
        // On two lines in a narrow card.
        block.text_at(Anchor::End, width, 12, SMALL, "ink figure", size.clone());
        block.text(0, 27, SMALL, "ink", fitted(&kind, width, SMALL, false));
        block.height = 31;
    }
    if node.has_memory() {
        block.append(bar(node, width, scale), 0, 2);
    }
    if let Some(note) = &note {
        let mut line = Block::new("", width, 15);
        let class = if node.is_allowed { "muted" } else { "warning" };
        line.text(0, 12, TINY, class, fitted(note, width, TINY, false));
        block.append(line, 0, 1);
    }
    let facts = [kind, size].into_iter().chain(note).filter(|fact| !fact.is_empty());
    let facts: Vec<String> =
        facts.map(|fact| if fact == "?" { "size not known".into() } else { fact }).collect();
    block.title(format!("{id}: {}", facts.join(", ")))
}

fn bar(node: &Node, width: i64, scale: &Scale) -> Block {
    let tier = tier_class(node.tier);
    let Some(bytes) = node.memory_bytes else {
        return Block::new(format!("{tier} unknown"), width, BAR_HEIGHT);
    };
    let bar_width = scale.bar_width(bytes, width);
    let mut bar = Block::new(format!("{tier} bar"), bar_width, BAR_HEIGHT);
    if let Some(used) = node.free_bytes.map(|free| bytes.saturating_sub(free)).filter(|&used| used > 0) {
        bar.put(Block::new(format!("{tier} used"), scale.bar_width(used, bar_width), BAR_HEIGHT), 0, 0);
    }
    if !node.is_allowed {
        bar.class = format!("{tier} unknown");
        bar.children.clear();
    }
    bar
}

fn chips(engines: &[Accelerator], width: i64) -> Block {
    let chips = engines.iter().map(|engine| {
        let name = fitted(&engine.name, width - 14, TINY, false);
        let chip_width = text_width(&name, TINY, false) + 14;
        let mut chip = Block::new("chip", chip_width, 20).radius(4);
        chip.text_at(Anchor::Middle, chip_width / 2, 14, TINY, "ink", name);
        let facts = engine_facts(engine);
        let facts = if facts.is_empty() { "nothing else is known" } else { &facts };
        chip.title(format!("{}: {facts}", engine.name))
    });
    flow(chips.collect(), width, 5, 5)
}

pub(super) fn tier_class(tier: Tier) -> &'static str {
    match tier {
        Tier::Dram => "dram",
        Tier::Hbm => "hbm",
        Tier::Cxl => "cxl",
        Tier::Pmem => "pmem",
        _ => "other",
    }
}

pub(super) fn tier_label(tier: Tier) -> String {
    if tier == Tier::Unknown { "unknown kind".to_owned() } else { tier.to_string() }
}
