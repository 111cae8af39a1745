//! The page map of a guest's program as text.

use memferry::topology::{Machine, NodeId};
use memferry_guest::{Layout, NodeBytes, Pages};

use crate::output::{Table, count, ranges, wrapped};

/// A line for each node, and where the numbers come from.
pub(super) fn text(program: &str, pages: &Pages, layout: &Layout, machine: &Machine) -> String {
    let mut table = Table::new("node: | kind | CPUs | size: | most: | at exit:").indent(2);
    for node in &layout.nodes {
        let tier = machine.node(NodeId(node.id)).map(|node| node.tier.to_string());
        let kind = match tier {
            _ if node.memory_mib == 0 => "no memory".to_owned(),
            tier => tier.unwrap_or_else(|_| "?".to_owned()),
        };
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        let on_it = |bytes: &NodeBytes| mib(bytes.get(&node.id).copied().unwrap_or(0));
        table.row(vec![
            node.id.to_string(),
            kind,
            ranges(&node.cpus),
            node.memory_mib.to_string(),
            on_it(&pages.most),
            pages.at_exit.as_ref().map_or("?".to_owned(), on_it),
        ]);
    }
    let sources = format!(
        "most: in {} of all processes, at least 0.1 s apart, and at exit, from /proc/PID/numa_maps in the guest; a page that \
         several processes map counts for each; at exit: {program} alone, when its main thread ended, with its memory still \
         mapped. Nothing in a guest is a measurement of speed.",
        count(pages.samples as usize, "sample")
    );
    format!("memferry: memory of {program} by node, in MiB\n{table}{}", wrapped(&sources, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_line() {
        let layout = Layout::of("made-up-odd-nodes", 0).unwrap();
        let machine = Machine::from_profile("made-up-odd-nodes").unwrap();
        let pages = Pages {
            samples: 3,
            most: NodeBytes::from([(0, 3 << 20), (4, 1 << 19)]),
            at_exit: Some(NodeBytes::from([(4, 1 << 20)])),
        };
        let shown = text("sort", &pages, &layout, &machine);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["0", "DRAM", "0-1", "384", "3.0", "0.0"]);
        assert_eq!(lines[3], ["1", "no", "memory", "2-3", "0", "0.0", "0.0"]);
        assert_eq!(lines[5], ["4", "unknown", "128", "0.5", "1.0"]);
        assert!(shown.contains("in 3 samples") && shown.contains("a measurement of speed"), "{shown}");
        let unknown = text("sort", &Pages { at_exit: None, ..pages }, &layout, &machine);
        assert!(unknown.lines().nth(2).unwrap().ends_with('?'), "{unknown}");
    }
}
