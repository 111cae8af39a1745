use std::fs;

use memferry::topology::{Link, NodeId, NodeSet};
use memferry_dsa::system::{ApplyOptions, Plan, Profile};
use memferry_dsa_emulator::FakeDriver;
use serde_json::json;

use super::*;
use crate::canvas::tests::xml_error;
use crate::canvas::{Block, DOT};

fn profile(name: &str) -> Overview {
    Overview::of(&Machine::from_profile(name).unwrap())
}

/// A machine from the text of a profile.
fn machine(profile: &serde_json::Value) -> Machine {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("machine.json");
    fs::write(&file, profile.to_string()).unwrap();
    Machine::from_profile(file.to_str().unwrap()).unwrap_or_else(|error| panic!("{error}: {profile}"))
}

/// Pseudo-random numbers (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// The profile of a random machine: few or many nodes, memory without CPUs or socket, unknown sizes and links, odd names.
fn any_profile(seed: u64) -> serde_json::Value {
    let mut numbers = Numbers(seed);
    let names =
        ["plain", "<&\"'>", "a name of many words & signs <which> nobody would give", "机器", "tab\there"];
    let sockets = 1 + numbers.below(5);
    let per_socket = 1 + numbers.below(14);
    let (mut nodes, mut cpu) = (Vec::new(), 0);
    let mut id = numbers.below(3);
    for socket in (0..sockets).flat_map(|socket| vec![socket; per_socket as usize]) {
        let cpus_max = if numbers.one_in(5) { 300 } else { 40 };
        let cpus = 1 + numbers.below(cpus_max);
        // Some firmware alternates between sockets, so that the CPUs are not a range.
        let list: Vec<String> = match numbers.one_in(4) {
            true => (0..cpus).map(|i| (cpu + 2 * i).to_string()).collect(),
            false => vec![format!("{cpu}-{}", cpu + cpus - 1)],
        };
        cpu += 2 * cpus;
        let memory = [Some(numbers.below(1 << 22)), Some(0), None][numbers.below(3) as usize];
        let socket = if numbers.one_in(9) { None } else { Some(socket) };
        nodes.push(json!({ "id": id, "socket": socket, "cpus": list.join(","), "tier": "dram",
            "memory_mib": memory, "cpu_node": id }));
        id += 1 + numbers.below(2);
    }
    for _ in 0..numbers.below(24) {
        let owner = &nodes[numbers.below(sockets * per_socket) as usize];
        let socket = if numbers.one_in(4) { json!(null) } else { owner["socket"].clone() };
        let tier = ["hbm", "cxl", "pmem", "unknown"][numbers.below(4) as usize];
        let memory = if numbers.one_in(3) { None } else { Some(numbers.below(1 << 30)) };
        let owner = owner["cpu_node"].clone();
        nodes.push(json!({ "id": id, "socket": socket, "cpus": "", "tier": tier, "memory_mib": memory,
            "cpu_node": owner }));
        id += 1;
    }
    let mut matrix = |end: u64, density: u64| -> serde_json::Value {
        if numbers.one_in(3) {
            return json!(null);
        }
        let rows: Vec<Vec<Option<u64>>> = (0..nodes.len())
            .map(|_| {
                (0..nodes.len()).map(|_| (!numbers.one_in(density)).then(|| 1 + numbers.below(end))).collect()
            })
            .collect();
        json!({ "value": rows, "source": "made up" })
    };
    let (mut distances, read, latency) = (matrix(30, 100), matrix(500_000, 4), matrix(400, 2));
    // A node is nearest to itself.
    let rows = distances.get_mut("value").and_then(|rows| rows.as_array_mut());
    for (index, row) in rows.into_iter().flatten().enumerate() {
        row[index] = json!(1);
    }
    let mut engines = Vec::new();
    for index in 0..numbers.below(20) {
        let node = nodes[numbers.below(nodes.len() as u64) as usize]["id"].clone();
        let node = if numbers.one_in(6) { json!(null) } else { node };
        let name = format!("{}{index}", names[numbers.below(4) as usize]);
        engines.push(
            json!({ "name": name, "node": node, "work_queues": null, "engines": 4, "mb_per_s_max": null }),
        );
    }
    json!({
        "name": names[numbers.below(5) as usize].repeat(1 + numbers.below(4) as usize),
        "placeholder": if numbers.one_in(3) { Some("<none> of it & \"all\"") } else { None },
        "references": { "made up": "numbers of ours <&>" },
        "cpu": { "value": names[numbers.below(5) as usize], "source": "made up" },
        "nodes": { "value": nodes, "source": "made up" },
        "distances": distances,
        "read_mb_per_s": read,
        "write_mb_per_s": null,
        "read_latency_ns": latency,
        "write_latency_ns": null,
        "accelerators": { "value": engines, "source": "made up" },
        "facts": []
    })
}

/// The state of a Xeon Max's devices after a configuration.
fn configured(profile: &str) -> SystemState {
    let driver = FakeDriver::xeon_max();
    let config = Profile::named(profile).unwrap().config();
    let state = SystemState::read(&driver).unwrap();
    let options = ApplyOptions { disable_first: false, enable: true };
    Plan::new(&config, &state, options).unwrap().apply_to(&driver).unwrap();
    SystemState::read(&driver).unwrap()
}

/// The profiles, and random machines; in some of them this process may not use all resources.
fn overviews() -> Vec<Overview> {
    let mut overviews: Vec<Overview> = Machine::profiles().into_iter().map(profile).collect();
    for name in ["8n1d1e1w", "1n1d4e8w-dedicated"] {
        overviews.push(profile("xeon-max-9468-2s-flat").with_dsa(configured(name)));
    }
    for seed in 0..60 {
        let mut overview = Overview::of(&machine(&any_profile(seed)));
        let mut numbers = Numbers(seed + 1000);
        if seed % 3 == 0 {
            for domain in overview.sockets.iter_mut().flat_map(|socket| &mut socket.domains) {
                domain.allowed_cpus.retain(|_| !numbers.one_in(3));
                for node in &mut domain.nodes {
                    node.is_allowed = !numbers.one_in(3);
                    node.free_bytes = node.memory_bytes.map(|bytes| numbers.below(bytes.max(1)));
                }
            }
            overview.offline = [NodeId(900), NodeId(901), NodeId(950)].into();
            overview.sockets.push(overview::Socket { id: Some(99), domains: Vec::new() });
        }
        overviews.push(overview);
    }
    overviews
}

fn all_text(overview: &Overview) -> String {
    text::draw(overview)
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

/// Asserts that one line has all of `parts`.
#[track_caller]
fn assert_line(text: &str, parts: &[&str]) {
    let found = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "no line has {parts:?}:\n{text}");
}

// As text.

#[test]
fn sockets_hold_domains_and_those_their_memories() {
    let text = all_text(&profile("xeon-max-9468-2s-flat"));
    let (first, second) = text.split_once("─ socket 1 ─").unwrap();
    assert_has(first, &["─ socket 0 ─"]);
    assert_line(first, &["12 CPUs  0-11 ", "node 0  DRAM  ?", "node 8 ", "HBM  16 GiB", "dsa0"]);
    assert_line(first, &["36-47", "node 3 ", "node 11 ", "dsa6"]);
    assert_line(second, &["84-95", "node 7 ", "node 15 ", "dsa14"]);
    assert_line(&text, &["HBM", "128 GiB", "8 nodes: 8-15"]);
    assert_line(&text, &["8 devices", "32.2 GB/s"]);
    assert_has(
        &text,
        &["bandwidths and latencies are not known", "From a profile", "Anatol Constantin Fürst"],
    );
    assert_has(&text, &["to the HBM beside it: node 0 to 8, 1 to 9"]);
    assert!(!text.contains(" 0 B") && !text.contains("0.0"), "what is not known is no 0:\n{text}");
}

#[test]
fn text_has_at_most_100_columns() {
    for name in Machine::profiles() {
        let text = all_text(&profile(name));
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 100, "{widest}:\n{text}");
    }
    // Wide matrices are split.
    let mut overview = profile("xeon-max-9468-2s-flat");
    let mut figure = 0;
    for link in overview.links.rows.iter_mut().flatten() {
        figure += 1_234_500_000;
        link.read_bytes_per_s = Some(figure);
    }
    let text = all_text(&overview);
    assert_has(&text, &["Read bandwidth in GB/s", "158.0"]);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn equal_links_are_shown_as_a_class() {
    let text = all_text(&profile("skylake-8180-snc-on"));
    assert_line(&text, &["own DRAM", "58.0-58.1", "74-77"]);
    assert_line(&text, &["DRAM, same socket", "58.1", "82"]);
    assert_line(&text, &["DRAM, other socket", "34.2-34.3", "132-144"]);
    assert_has(&text, &["Read latency in ns, from"]);
    assert!(!text.contains("Read bandwidth in GB/s, from"), "0.3 % are no difference:\n{text}");

    let text = all_text(&profile("broadwell-2699v4-cod-on"));
    assert_line(&text, &["DRAM, same socket", "15.3-18.8"]);
    assert_line(&text, &["1  18.3  31.7  15.0  14.5"]);
}

#[test]
fn partly_known_links_are_marked() {
    let mut overview = profile("skylake-8180-snc-on");
    overview.links.rows[0][2] = Link::default();
    let text = all_text(&overview);
    assert_line(&text, &["DRAM, other socket", "34.2-34.3 or ?"]);
    assert_line(&text, &["0  58.1  58.1     ?  34.2"]);
    overview.links.rows.iter_mut().flatten().for_each(|link| *link = Link::default());
    assert_has(&all_text(&overview), &["distances, bandwidths and latencies are not known"]);
}

#[test]
fn unusable_resources_are_marked() {
    let mut overview = profile("skylake-8180-snc-on");
    let socket = &mut overview.sockets[1];
    socket.domains[0].allowed_cpus.truncate(4);
    socket.domains[1].allowed_cpus.clear();
    socket.domains[1].nodes[0].is_allowed = false;
    overview.sockets[0].domains[1].nodes[0].memory_bytes = Some(0);
    overview.offline = NodeSet::from([NodeId(4), NodeId(5)]);
    let text = all_text(&overview);
    assert_line(&text, &["allowed: 56-59"]);
    assert_line(&text, &["none allowed"]);
    assert_line(&text, &["node 3", "not allowed"]);
    assert_line(&text, &["node 1", "no memory"]);
    assert_has(
        &text,
        &["may not take memory from node 3 ", "may run on 60 of the 112 CPUs", "Nodes 4-5 are offline."],
    );
    let picture = svg::draw(&overview);
    assert_has(
        &picture,
        &["allowed: 56-59", "node 3: DRAM, 48 GiB, not allowed", "node 1: no memory", "offline nodes: 4-5"],
    );
    assert_has(&picture, &["class=\"cpu-off\"", "Nodes 4-5 are offline."]);
}

#[test]
fn placeholders_are_mentioned() {
    let overview = profile("made-up-two-tiers");
    assert_has(&all_text(&overview), &["Placeholders: all of it is made up", "beside it: node 0 to 1."]);
    assert_has(&svg::draw(&overview), &["Placeholders: all of it is made up"]);
}

#[test]
fn long_lists_of_cpus_are_shortened() {
    let even: Vec<u32> = (0..64).map(|i| 2 * i).collect();
    assert_eq!(overview::short_ranges(&even), "0,2 ... 126");
    assert_eq!(overview::short_ranges(&[0, 1, 2, 7]), "0-2,7");
    let mut far: Vec<u32> = (0..20).map(|i| u32::MAX - 40 + 2 * i).collect();
    assert_eq!(overview::short_ranges(&far), "4294967255 ... 4294967293");
    far.truncate(1);
    assert_eq!(overview::short_ranges(&far), "4294967255");
}

#[test]
fn text_and_picture_name_all_parts() {
    for overview in overviews() {
        let (text, picture) = (all_text(&overview), svg::draw(&overview));
        for node in overview.nodes() {
            let name = format!("node {}", node.id);
            assert!(text.contains(&format!("{name} ")), "{name} is not in:\n{text}");
            assert!(picture.contains(&format!("<title>{name}: ")), "{name} is not in:\n{picture}");
        }
        for engine in overview.engines() {
            // Lines are broken at spaces.
            let words = engine.name.split(' ').all(|word| text.contains(word));
            assert!(words, "{} is not in:\n{text}", engine.name);
            let escaped = engine.name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let escaped = escaped.replace('"', "&quot;").replace('\'', "&#39;");
            assert!(picture.contains(&format!("<title>{escaped}: ")), "{escaped} is not in:\n{picture}");
        }
        for text in [text, picture] {
            assert!(!text.contains("NaN") && !text.contains("inf\""), "{text}");
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        }
    }
}

// As a picture.

#[test]
fn pictures_are_well_formed() {
    for overview in overviews() {
        let picture = svg::draw(&overview);
        assert_eq!(xml_error(&picture), None, "{picture}");
        assert_has(&picture, &["role=\"img\"", "<title id=", "<desc id=", "prefers-color-scheme:dark"]);
        for outside in ["<script", "href", "url(", "@import"] {
            assert!(!picture.contains(outside), "{outside}");
        }
        assert_eq!(picture, svg::draw(&overview));
    }
}

fn is_inside(inner: (i64, i64, i64, i64), outer: &Block) -> bool {
    let (left, top, right, bottom) = inner;
    left >= 0 && top >= 0 && right <= outer.width && bottom <= outer.height
}

fn overlap(a: (i64, i64, i64, i64), b: (i64, i64, i64, i64)) -> bool {
    a.0 < b.2 && b.0 < a.2 && a.1 < b.3 && b.1 < a.3
}

fn edges(block: &Block) -> (i64, i64, i64, i64) {
    (block.x, block.y, block.x + block.width, block.y + block.height)
}

/// Checks that children and texts are inside their block and do not overlap.
fn check_layout(block: &Block, name: &str) {
    let texts: Vec<_> = (block.texts.iter())
        .map(|text| {
            let (left, right) = text.span();
            // The extent of letters above and below the base line.
            ((left, text.y - text.size * 3 / 4, right, text.y + text.size / 4), text.content.clone())
        })
        .collect();
    for (index, (edges_of_text, content)) in texts.iter().enumerate() {
        assert!(
            is_inside(*edges_of_text, block),
            "{name}: {content:?} {edges_of_text:?} sticks out of {:?}",
            edges(block)
        );
        for (other, other_content) in &texts[..index] {
            assert!(!overlap(*edges_of_text, *other), "{name}: {content:?} lies on {other_content:?}");
        }
    }
    for (x, y) in block.dots.iter().flat_map(|(_, corners)| corners) {
        let dot = (*x, *y, x + DOT, y + DOT);
        assert!(is_inside(dot, block), "{name}: a dot at {dot:?} sticks out of {:?}", edges(block));
    }
    for (index, child) in block.children.iter().enumerate() {
        let child_edges = edges(child);
        assert!(child.width >= 0 && child.height >= 0, "{name}: {child_edges:?}");
        assert!(is_inside(child_edges, block), "{name}: {child_edges:?} sticks out of {:?}", edges(block));
        for other in &block.children[..index] {
            assert!(
                !overlap(child_edges, edges(other)),
                "{name}: {child_edges:?} lies on {:?}",
                edges(other)
            );
        }
        for (text, content) in &texts {
            assert!(!overlap(child_edges, *text), "{name}: {content:?} lies under {child_edges:?}");
        }
        check_layout(child, name);
    }
}

#[test]
fn nothing_overlaps() {
    let overviews = overviews();
    let counts: Vec<usize> = overviews.iter().map(|overview| overview.nodes().count()).collect();
    assert!(counts.contains(&1) && counts.iter().any(|&count| count > 64), "{counts:?}");
    for overview in overviews {
        let picture = svg::picture(&overview);
        assert!(picture.width < 4000, "{}: {}", overview.name, picture.width);
        check_layout(&picture, &overview.name);
    }
}

#[test]
fn bars_are_proportional_to_sizes() {
    fn bars<'a>(block: &'a Block, found: &mut Vec<&'a Block>) {
        if block.class.ends_with(" bar") {
            found.push(block);
        }
        block.children.iter().for_each(|child| bars(child, found));
    }
    let picture = svg::picture(&profile("made-up-two-tiers"));
    let mut found = Vec::new();
    bars(&picture, &mut found);
    let width = |class: &str| found.iter().find(|bar| bar.class == class).unwrap().width;
    assert_eq!(width("dram bar"), 2 * width("hbm bar"));
    let picture = svg::draw(&profile("xeon-max-9468-2s-flat"));
    assert_eq!(picture.matches("class=\"dram unknown\"").count(), 8, "no size, no bar");
}
