//! The kernel's list format: `0-3,8,10-11`.
//!
//! Source: Linux `Documentation/core-api/printk-formats.rst` (`%*pbl`), `bitmap_parselist`.

use super::NodeId;

/// No machine of today has more CPUs or nodes; a longer range is a broken file (`CONFIG_NR_CPUS` ends at
/// 8192).
const ID_MAX: u32 = 1 << 16;

/// The ids in ascending order without repetition; `None` if `text` is not such a list.
pub(crate) fn parse(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    let mut ids = Vec::new();
    if text.is_empty() {
        return Some(ids);
    }
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if first > last || last >= ID_MAX {
            return None;
        }
        ids.extend(first..=last);
    }
    ids.sort_unstable();
    ids.dedup();
    Some(ids)
}

/// Ascending ids as text.
pub(super) fn print(ids: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for id in ids {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(id) => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let parts = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Nodes for a sentence: `node 0`, `nodes 0, 1, 2`.
pub(super) fn join(nodes: &[NodeId]) -> String {
    let ids: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
    match ids.len() {
        0 => "none".into(),
        1 => format!("node {}", ids[0]),
        _ => format!("nodes {}", ids.join(", ")),
    }
}
