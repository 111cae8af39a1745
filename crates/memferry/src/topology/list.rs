//! The kernel's list format: `0-3,8,10-11`.
//!
//! Source: Linux `Documentation/core-api/printk-formats.rst` (`%*pbl`), `bitmap_parselist`.

use super::NodeId;

/// Limit of ids; a larger one means a broken file (`CONFIG_NR_CPUS` ends at 8192).
const ID_MAX: u32 = 1 << 16;

/// Parses a list into ascending ids without repetition; `None` if `text` is not a list.
pub fn parse(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut ids = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if first > last || last >= ID_MAX {
            return None;
        }
        ids.extend(first..=last);
        // The kernel prints each id once; `0-65535,0-65535,...` would otherwise take all memory.
        if ids.len() > ID_MAX as usize {
            return None;
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Some(ids)
}

/// Prints ascending ids as a list.
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

/// Prints nodes for a sentence: `node 0`, `nodes 0, 1, 2`.
pub(crate) fn join(nodes: &[NodeId]) -> String {
    let ids: Vec<_> = nodes.iter().map(NodeId::to_string).collect();
    match ids.len() {
        0 => "none".into(),
        1 => format!("node {}", ids[0]),
        _ => format!("nodes {}", ids.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (text, ids) in [
            ("", Some(vec![])),
            ("3", Some(vec![3])),
            ("0-3,8,10-11\n", Some(vec![0, 1, 2, 3, 8, 10, 11])),
            ("9,2-4,3", Some(vec![2, 3, 4, 9])),
            ("65535", Some(vec![65535])),
            ("65536", None),
            ("0-4294967295", None),
            ("0-99999999999", None),
            ("3-1", None),
            ("1,", None),
            ("-", None),
            ("0-1-2", None),
            ("0x1", None),
        ] {
            assert_eq!(parse(text), ids, "{text:?}");
        }
        assert_eq!(parse("0-65535").unwrap().len(), 65536);
        // A megabyte of this would otherwise become gigabytes.
        assert_eq!(parse(&["0-65535"; 3].join(",")), None);
    }

    #[test]
    fn what_is_printed_can_be_parsed() {
        for ids in [vec![], vec![0], vec![0, 1, 2], vec![0, 2, 3, 7, 65535]] {
            assert_eq!(parse(&print(ids.iter().copied())), Some(ids));
        }
    }
}
