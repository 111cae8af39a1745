//! The summary of a process, written when it exits: the kernel's answer about the pages that it has then, samples of
//! ranges that were freed before, and the ranges that were not placed. A process that ends by _exit(2), a signal or
//! exec(3) writes none.
//!
//! Source: Linux `show_numa_map` in fs/proc/task_mmu.c.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counts::{COUNTS, Ranges};
use crate::policy::{self, HAS_DEVICE};
use crate::settings::{Pattern, Policy, Settings, Summary};
use crate::{files, start, sys};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = finish;
#[cfg(test)]
const _: extern "C" fn() = finish;

/// The process that `prepare` was called in; 0: no summary.
static PROCESS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn prepare() {
    PROCESS.store(sys::process().into(), Ordering::Relaxed);
}

extern "C" fn finish() {
    let prepared = PROCESS.load(Ordering::Relaxed);
    let Some(settings) = policy::settings().filter(|_| prepared != 0) else { return };
    let is_child = prepared != u64::from(sys::process());
    // No panic may reach libc.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let maps = std::fs::read_to_string("/proc/self/numa_maps");
        let found = Found::parse(maps.as_deref().unwrap_or_default());
        match &settings.summary {
            Summary::None => {}
            Summary::Stderr if is_child => {}
            Summary::Stderr => start::warn(text(settings, &found, maps.is_ok()).trim_end()),
            Summary::File(path) => {
                let line = line(settings, &found);
                let file = sys::open(path, true);
                if file >= 0 {
                    // One call, so that lines of several processes do not mix.
                    sys::write(file as i32, line.as_bytes());
                    sys::close(file as i32);
                }
            }
        }
    }));
}

/// Bytes by node.
type Nodes = BTreeMap<u32, u64>;

/// The mappings of this process, by kind and policy.
#[derive(Debug, Default, PartialEq)]
struct Found(BTreeMap<(Kind, String), Nodes>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Anonymous,
    Heap,
    Stack,
    File,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Anonymous => "anonymous",
            Kind::Heap => "heap (brk)",
            Kind::Stack => "stack",
            Kind::File => "files",
        }
    }
}

impl Found {
    /// Reads numa_maps: `7f00 interleave:0-1 anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4`.
    fn parse(maps: &str) -> Found {
        let mut found = Found::default();
        for line in maps.lines() {
            // Two words in the name of a policy: `weighted interleave:0-1`.
            let line = line.replacen("weighted interleave", "weighted-interleave", 1);
            let mut words = line.split_whitespace().skip(1);
            let Some(policy) = words.next() else { continue };
            // The node of a stripe is not of interest.
            let policy = policy.split([':', '=']).next().unwrap_or(policy).to_owned();
            let (mut kind, mut pages, mut page_bytes) = (Kind::Anonymous, Vec::new(), 4096);
            for word in words {
                match word.split_once('=') {
                    None if word == "heap" => kind = Kind::Heap,
                    None if word == "stack" => kind = Kind::Stack,
                    Some(("file", name)) if !name.starts_with("/dev/zero") => kind = Kind::File,
                    Some(("kernelpagesize_kB", size)) => page_bytes = size.parse().unwrap_or(4) << 10,
                    Some((node, count)) if node.starts_with('N') => {
                        pages.extend(node[1..].parse::<u32>().ok().zip(count.parse::<u64>().ok()));
                    }
                    _ => {}
                }
            }
            if pages.is_empty() {
                continue;
            }
            let sums = found.0.entry((kind, policy)).or_default();
            for (node, count) in pages {
                *sums.entry(node).or_default() += count * page_bytes;
            }
        }
        found
    }
}

/// The sampled bytes of freed ranges.
fn freed() -> Nodes {
    let read = COUNTS.freed_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed));
    (0..).zip(read).filter(|&(_, bytes)| bytes > 0).collect()
}

fn policy_name(policy: &str) -> &str {
    match policy {
        "default" => "no policy",
        "prefer" => "stripes, replicas",
        "local" => "first touch",
        "weighted-interleave" => "weighted interleave",
        other => other,
    }
}

fn text(settings: &Settings, found: &Found, has_maps: bool) -> String {
    let mut rows: Vec<(String, &Nodes)> = (found.0.iter())
        .map(|((kind, policy), nodes)| (format!("{}, {}", kind.name(), policy_name(policy)), nodes))
        .collect();
    let freed = freed();
    if !freed.is_empty() {
        rows.push(("placed and freed (samples)".to_owned(), &freed));
    }
    let mut nodes: Vec<u32> = rows.iter().flat_map(|(_, nodes)| nodes.keys().copied()).collect();
    nodes.extend(settings.weights.iter().map(|&(node, _)| node));
    nodes.sort_unstable();
    nodes.dedup();
    let mut text = "MiB on each node at the exit, from /proc/self/numa_maps\n".to_owned();
    if !has_maps {
        text = "this kernel has no /proc/self/numa_maps, so the effect is not known\n".to_owned();
    }
    let mut row = |name: &str, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>10}")).collect();
        let _ = writeln!(text, "  {name:<34}{cells}");
    };
    row("", nodes.iter().map(|node| format!("node {node}")).collect());
    for (name, bytes) in &rows {
        let mib = |node: &u32| bytes.get(node).copied().unwrap_or(0) as f64 / f64::from(1 << 20);
        row(name, nodes.iter().map(|node| format!("{:.1}", mib(node))).collect());
    }
    let weight = |node: &u32| settings.weights.iter().find(|it| it.0 == *node).map_or(0, |it| it.1);
    if interleaves(settings) {
        row("weights", nodes.iter().map(|node| weight(node).to_string()).collect());
    }
    for sentence in sentences(settings) {
        let _ = writeln!(text, "  {sentence}");
    }
    text
}

fn interleaves(settings: &Settings) -> bool {
    let files = settings.files.iter().map(|&(_, policy)| policy);
    settings.is_whole
        || files.chain([settings.heap, settings.anonymous]).any(|policy| policy == Policy::Interleave)
}

/// The ranges by their fate, without those that have not happened.
fn fates() -> [(&'static str, &'static str, &'static Ranges); 12] {
    [
        ("heap", "allocations with a policy", &COUNTS.heap),
        ("anonymous", "anonymous mappings with a policy", &COUNTS.anonymous),
        ("files", "files with a policy", &COUNTS.files),
        ("replicas", "files copied to the node of the process", &COUNTS.replicas),
        (
            "unconfined",
            "files not copied, because the threads may run on several nodes (--on NODE confines them)",
            &COUNTS.unconfined,
        ),
        (
            "without_room",
            "files left where they are, because the nodes have no room for them",
            &COUNTS.without_room,
        ),
        (
            "writable",
            "files not copied, because they are writable, executable, shorter than the mapping, or open for writing",
            &COUNTS.writable,
        ),
        (
            "own_policy",
            "ranges left alone, because the program has a memory policy of its own (set_mempolicy, numactl)",
            &COUNTS.own_policy,
        ),
        (
            "after_device",
            "ranges left alone, because the program uses a GPU, a network adapter or the like, whose buffers must be \
             near it (--with-devices places them, too)",
            &COUNTS.after_device,
        ),
        (
            "without_weights",
            "ranges with equal weights (pages of hugetlbfs, or no stripes are left: vm.max_map_count)",
            &COUNTS.without_weights,
        ),
        ("refused", "ranges that the kernel refused to place", &COUNTS.refused),
        ("freed", "placed ranges freed before the exit", &COUNTS.freed),
    ]
}

fn sentences(settings: &Settings) -> Vec<String> {
    let mut sentences: Vec<String> = (fates().iter())
        .filter_map(|(_, text, ranges)| {
            let (count, bytes) = ranges.read();
            (count > 0).then(|| format!("{text}: {count}, {:.1} MiB", bytes as f64 / f64::from(1 << 20)))
        })
        .collect();
    if COUNTS.refused.read().0 > 0 {
        let error = std::io::Error::from_raw_os_error(COUNTS.refusal.load(Ordering::Relaxed));
        sentences.push(format!("the last refusal: {error}; see Mems_allowed_list in /proc/self/status"));
    }
    if settings.is_whole {
        sentences.push(
            "the policy of the process interleaves all its memory: stacks and small memory, too, which is often slower \
             than to place the large ranges alone"
                .to_owned(),
        );
    } else if sentences.is_empty() {
        sentences.push(format!(
            "nothing was placed: no range of {} KiB or more matched a policy",
            settings.size_bytes_min >> 10
        ));
    }
    sentences.extend(fits(settings));
    sentences
}

/// The advice for a process whose memory fits on one node: there, no access is remote.
fn fits(settings: &Settings) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak_bytes = peak.split_whitespace().next()?.parse::<usize>().ok()? << 10;
    let is_near = |node: u32| settings.near.iter().any(|&(_, near)| near == node);
    let nodes = settings.weights.iter().map(|&(node, _)| node).filter(|&node| is_near(node));
    let (node, size_bytes) =
        nodes.filter_map(|node| Some((node, files::size(node)?))).max_by_key(|it| it.1)?;
    (settings.weights.len() > 1 && interleaves(settings) && peak_bytes <= size_bytes / 2).then(|| {
        format!(
            "the peak of this process, {} MiB, would fit on node {node}: if the threads of that node suffice, `--on {node} \
             --policy first-touch` has no remote access",
            peak_bytes >> 20
        )
    })
}

/// The summary as JSON.
fn line(settings: &Settings, found: &Found) -> String {
    let nodes = |nodes: &Nodes| -> String {
        let pairs: Vec<String> = nodes.iter().map(|(node, bytes)| format!("\"{node}\":{bytes}")).collect();
        format!("{{{}}}", pairs.join(","))
    };
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
    let program: String = (program.to_string_lossy().chars())
        .map(|letter| if letter.is_control() || "\"\\".contains(letter) { '_' } else { letter })
        .collect();
    let pattern = match settings.pattern {
        Pattern::Even => "even",
        Pattern::Kernel => "kernel",
        Pattern::Stripes => "stripes",
    };
    let weights = settings.weights.iter().map(|&(node, weight)| (node, u64::from(weight))).collect();
    let mappings: Vec<String> = (found.0.iter())
        .map(|((kind, policy), bytes)| {
            let kind = kind.name().split(' ').next().unwrap_or_default();
            format!("{{\"kind\":\"{kind}\",\"policy\":\"{policy}\",\"bytes\":{}}}", nodes(bytes))
        })
        .collect();
    let fates: Vec<String> = (fates().iter())
        .map(|(name, _, ranges)| {
            let (count, bytes) = ranges.read();
            format!("\"{name}\":{{\"count\":{count},\"bytes\":{bytes}}}")
        })
        .collect();
    format!(
        "{{\"process\":{},\"program\":\"{program}\",\"pattern\":\"{pattern}\",\"weights\":{},\"device\":{},\
         \"mappings\":[{}],\"freed_samples\":{},{}}}\n",
        sys::process(),
        nodes(&weights),
        HAS_DEVICE.load(Ordering::Relaxed),
        mappings.join(","),
        nodes(&freed()),
        fates.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5500 default file=/usr/bin/cat mapped=2 N0=2 kernelpagesize_kB=4
5600 default heap anon=33 dirty=33 N0=30 N8=3 kernelpagesize_kB=4
7000 weighted interleave:0,8 anon=4 dirty=4 N0=3 N8=1 kernelpagesize_kB=4
7100 prefer:0 anon=2 dirty=2 N0=2 kernelpagesize_kB=2048
7200 prefer:8 anon=1 dirty=1 N8=1 kernelpagesize_kB=2048
7300 interleave:0,8
7400 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4
7500 default file=/dev/zero\\040(deleted) anon=1 N8=1 kernelpagesize_kB=4
";

    #[test]
    fn mappings_are_summed_by_kind_and_policy() {
        let found = Found::parse(MAPS);
        let of = |kind, policy: &str| found.0.get(&(kind, policy.to_owned())).cloned().unwrap_or_default();
        assert_eq!(of(Kind::File, "default"), Nodes::from([(0, 8192)]));
        assert_eq!(of(Kind::Heap, "default"), Nodes::from([(0, 30 << 12), (8, 3 << 12)]));
        assert_eq!(of(Kind::Anonymous, "weighted-interleave"), Nodes::from([(0, 3 << 12), (8, 1 << 12)]));
        assert_eq!(of(Kind::Anonymous, "prefer"), Nodes::from([(0, 4 << 20), (8, 2 << 20)]));
        assert_eq!(of(Kind::Anonymous, "default"), Nodes::from([(8, 1 << 12)]));
        assert_eq!(found.0.len(), 6, "a mapping without pages has no row");
    }
}
