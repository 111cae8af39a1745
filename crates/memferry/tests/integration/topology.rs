//! Machines from sysfs trees of several shapes, from broken ones, and from profiles.

use std::fs;

use memferry::internals::Origin;
use memferry::topology::{Machine, NodeId, Tier, TopologyError};
use proptest::prelude::*;

use crate::fixtures::{Tree, everything, hbm_flat, hbm_flat_without_hmat, odd_nodes, one_node, two_nodes};

fn read(tree: &Tree) -> Machine {
    Machine::discover_at(tree.root()).unwrap()
}

fn error(tree: &Tree) -> TopologyError {
    Machine::discover_at(tree.root()).unwrap_err()
}

fn tiers(machine: &Machine) -> Vec<Tier> {
    machine.nodes().iter().map(|node| node.tier).collect()
}

fn cpu_nodes(machine: &Machine) -> Vec<u32> {
    machine.nodes().iter().map(|node| node.cpu_node.0).collect()
}

#[test]
fn this_machine() {
    let machine = Machine::discover().unwrap();
    assert!(machine.is_this_machine());
    assert!(machine.nodes().iter().any(|node| !node.cpus.is_empty()));
    assert!(machine.nodes().iter().any(|node| node.memory_bytes > Some(0)));
    assert!(machine.nodes().iter().all(|node| node.free_bytes <= node.memory_bytes));
    let cpus: usize = machine.nodes().iter().map(|node| node.cpus.len()).sum();
    assert!(cpus >= std::thread::available_parallelism().unwrap().get());
    assert!(machine.kernel().is_some());
    let json = serde_json::to_value(&machine).unwrap();
    assert_eq!(json["origin"], "discovered");
    assert_eq!(json["nodes"].as_array().unwrap().len(), machine.node_count());
}

#[test]
fn one() {
    let machine = read(&one_node());
    assert_eq!((machine.name(), machine.origin()), ("recorded", Origin::Recorded));
    assert_eq!(machine.cpu(), Some("Intel(R) Xeon(R) CPU Max 9468"));
    assert_eq!(machine.kernel(), Some("6.12.1"));
    let node = machine.node(NodeId(0)).unwrap();
    assert_eq!((node.socket, node.tier, node.cpu_node), (Some(0), Tier::Dram, NodeId(0)));
    assert_eq!(node.cpus, [0, 1, 2, 3]);
    assert_eq!(machine.link(NodeId(0), NodeId(0)).distance, Some(10));
    assert_eq!(machine.nearest_faster(NodeId(0)), None);
    let error = machine.node(NodeId(8)).unwrap_err().to_string();
    assert_eq!(error, "recorded has no node 8; it has node 0");
}

#[test]
fn a_kernel_without_numa_has_one_node() {
    let machine = read(&Tree::new());
    assert_eq!(machine.node_count(), 1);
    let node = machine.node(NodeId(0)).unwrap();
    assert_eq!((node.cpus.len(), node.memory_bytes), (4, Some(1 << 30)));
    assert_eq!(node.socket, None);
}

/// Seen on Firecracker with Linux 6.18: memory added after boot is in /proc/meminfo, not in the only node's
/// file.
#[test]
fn one_node_has_all_of_the_machines_memory() {
    let machine =
        read(&one_node().file("proc/meminfo", "MemTotal: 400 kB\nMemFree: 1 kB\nMemAvailable: 300 kB"));
    let node = &machine.nodes()[0];
    assert_eq!((node.memory_bytes, node.free_bytes), (Some(400 << 10), Some(300 << 10)));
}

#[test]
fn two() {
    let machine = read(&two_nodes());
    assert_eq!(machine.node(NodeId(1)).unwrap().socket, Some(1));
    assert_eq!(machine.node(NodeId(1)).unwrap().memory_bytes, Some(4 << 30));
    // Half is free, and half of the quarter in page cache can be had.
    assert_eq!(machine.node(NodeId(1)).unwrap().free_bytes, Some((4 << 30) / 8 * 5));
    assert_eq!(machine.link(NodeId(0), NodeId(1)).distance, Some(21));
    assert!(machine.faster_than(NodeId(0)).is_empty());
    let engines: Vec<_> =
        machine.accelerators().iter().map(|engine| (engine.name.as_str(), engine.node)).collect();
    assert_eq!(engines, [("dsa0", Some(NodeId(0))), ("dsa2", Some(NodeId(1))), ("dsa10", Some(NodeId(1)))]);
    assert_eq!(machine.accelerators()[0].work_queues_count, Some(8));
}

#[test]
fn an_accelerator_without_an_online_node_has_none() {
    let machine = read(&one_node().dsa("dsa0", -1).dsa("dsa1", 7));
    assert!(machine.accelerators().iter().all(|engine| engine.node.is_none()));
}

#[test]
fn hbm_by_hmat() {
    let machine = read(&hbm_flat().dsa("dsa0", 0).dsa("dsa1", 1));
    assert_eq!(tiers(&machine), [Tier::Dram, Tier::Dram, Tier::Hbm, Tier::Hbm]);
    assert_eq!(cpu_nodes(&machine), [0, 1, 0, 1]);
    let sockets: Vec<_> = machine.nodes().iter().map(|node| node.socket.unwrap()).collect();
    assert_eq!(sockets, [0, 1, 0, 1]);
    let link = machine.link(NodeId(1), NodeId(3));
    assert_eq!((link.read_bytes_per_s, link.write_bytes_per_s), (Some(204800 << 20), None));
    assert_eq!((link.read_latency_ns, link.write_latency_ns), (Some(130.0), Some(131.0)));
    assert_eq!(machine.link(NodeId(0), NodeId(3)).read_bytes_per_s, None);
    let faster: Vec<_> = machine.faster_than(NodeId(0)).iter().map(|node| node.id.0).collect();
    assert_eq!(faster, [2], "HBM of the other socket is not known to be faster");
    assert_eq!(machine.nearest_faster(NodeId(1)).unwrap().id, NodeId(3));
    assert_eq!(machine.nearest_faster(NodeId(2)), None);
}

#[test]
fn the_class_of_cpus_wins_over_all_initiators() {
    let machine = read(&hbm_flat().hmat(2, "access1", &[1], 1000, 300));
    assert_eq!(machine.link(NodeId(1), NodeId(2)).read_bytes_per_s, Some(1000 << 20));
    assert_eq!(machine.link(NodeId(0), NodeId(2)).read_bytes_per_s, None);
    assert_eq!(machine.node(NodeId(2)).unwrap().cpu_node, NodeId(1));
}

#[test]
fn hbm_by_the_kernels_tiers() {
    let machine = read(&hbm_flat_without_hmat().tier(0, "2-3").tier(4, "0-1"));
    assert_eq!(tiers(&machine), [Tier::Dram, Tier::Dram, Tier::Hbm, Tier::Hbm]);
    assert_eq!(cpu_nodes(&machine), [0, 1, 0, 1], "by distance");
    assert_eq!(machine.nearest_faster(NodeId(0)).unwrap().id, NodeId(2));
}

/// Nodes 0 and 3 have no figures in common, and one tier for all says nothing: then the kind of memory
/// judges.
#[test]
fn hbm_of_a_neighbour_in_one_tier() {
    let machine = read(&hbm_flat().tier(4, "0-3").socket(0..4, 0));
    let faster: Vec<_> = machine.faster_than(NodeId(0)).iter().map(|node| node.id.0).collect();
    assert_eq!(faster, [2, 3]);
}

#[test]
fn memory_that_nothing_is_known_of_is_not_called_faster() {
    for tree in [hbm_flat_without_hmat(), hbm_flat_without_hmat().tier(4, "0-3")] {
        let machine = read(&tree);
        assert_eq!(tiers(&machine)[2..], [Tier::Unknown, Tier::Unknown]);
        assert_eq!(machine.nearest_faster(NodeId(0)), None);
    }
}

#[test]
fn offline_memoryless_cxl_and_persistent() {
    let machine = read(&odd_nodes());
    let ids: Vec<_> = machine.nodes().iter().map(|node| node.id.0).collect();
    assert_eq!(ids, [0, 2, 3, 4]);
    assert_eq!(tiers(&machine), [Tier::Dram, Tier::Unknown, Tier::Cxl, Tier::Pmem]);
    assert_eq!(cpu_nodes(&machine), [0, 2, 0, 0]);
    assert_eq!(machine.node(NodeId(2)).unwrap().memory_bytes, Some(0));
    assert_eq!(machine.node(NodeId(3)).unwrap().kernel_tier, Some(11));
    assert_eq!(machine.link(NodeId(0), NodeId(4)).distance, Some(30));
    assert!(machine.node(NodeId(1)).unwrap_err().to_string().ends_with("it has nodes 0, 2, 3, 4"));
    // From CXL, the DRAM of its CPUs is faster; never the node without memory.
    let faster: Vec<_> = machine.faster_than(NodeId(3)).iter().map(|node| node.id.0).collect();
    assert_eq!(faster, [0]);
}

#[test]
fn what_the_kernel_allows_and_does() {
    let machine = read(&everything());
    let allowed: Vec<_> = machine.nodes().iter().map(|node| node.is_allowed).collect();
    assert_eq!(allowed, [true, false, true, true, true]);
    let cpus: Vec<_> = machine.nodes().iter().map(|node| node.allowed_cpus.clone()).collect();
    assert_eq!(cpus, [vec![0, 1], vec![2], vec![], vec![], vec![]]);
    assert_eq!(machine.offline().to_string(), "5");
    assert_eq!(machine.offline_cpus(), [4], "5 to 7 are possible, not present");
    assert_eq!(machine.is_numa_balancing_on(), Some(true));
    assert_eq!(machine.is_demotion_enabled(), Some(true));
    let caches: Vec<_> = machine.nodes().iter().map(|node| node.side_cache_bytes).collect();
    assert_eq!(caches, [None, None, None, None, Some(1 << 30)]);
    let two_levels = read(&everything().side_cache(4, 2, 1 << 20));
    assert_eq!(two_levels.nodes()[4].side_cache_bytes, Some((1 << 30) + (1 << 20)));
    let json = serde_json::to_value(&machine).unwrap();
    assert_eq!(json["offline"], serde_json::json!([5]));
    assert_eq!(json["numa_balancing"], serde_json::json!({"is_normal": false, "is_tiering": true}));
    assert_eq!(json["nodes"][1]["allowed_cpus"], serde_json::json!([2]));

    let silent = read(&two_nodes());
    assert!(silent.nodes().iter().all(|node| node.is_allowed && node.allowed_cpus == node.cpus));
    assert!(silent.offline().is_empty() && silent.offline_cpus().is_empty());
    assert_eq!((silent.is_numa_balancing_on(), silent.is_demotion_enabled()), (None, None));
    for (bits, on) in [("0", false), ("1", true), ("3", true), ("4", false)] {
        let machine = read(&two_nodes().file("proc/sys/kernel/numa_balancing", bits));
        assert_eq!(machine.is_numa_balancing_on(), Some(on), "{bits}");
    }
}

/// Virtual machines have been seen to list all nodes that a kernel can have.
#[test]
fn hundreds_of_possible_nodes() {
    let machine = read(&two_nodes().file("sys/devices/system/node/possible", "0-1023"));
    assert_eq!(machine.offline().len(), 1022);
    assert_eq!(machine.offline().to_string(), "2-1023");
}

/// LXC lets a container see its own CPUs in `cpu/online`, and all of them in the nodes.
#[test]
fn a_cpu_of_a_node_that_is_not_online_may_not_be_used() {
    let machine = read(&two_nodes().file("sys/devices/system/cpu/online", "1,3"));
    let cpus: Vec<_> = machine.nodes().iter().map(|node| node.allowed_cpus.clone()).collect();
    assert_eq!(cpus, [[1], [3]]);
    assert_eq!(machine.nodes()[0].cpus, [0, 1]);
    assert!(machine.offline_cpus().is_empty());
}

/// The kernel leaves the links to a node in place when the node goes.
#[test]
fn initiators_that_are_not_online_are_passed_over() {
    let machine = read(&hbm_flat().hmat(2, "access1", &[0, 7], 1000, 300));
    assert_eq!(machine.link(NodeId(0), NodeId(2)).read_bytes_per_s, Some(1000 << 20));
    let machine = read(&hbm_flat().hmat(2, "access1", &[7], 1000, 300));
    assert_eq!(machine.link(NodeId(0), NodeId(2)).read_bytes_per_s, None);
    assert_eq!(machine.node(NodeId(2)).unwrap().cpu_node, NodeId(0), "by distance");
}

/// The list of CPUs of a large machine is some MiB, of which the first CPU is read.
#[test]
fn a_long_cpuinfo() {
    let cpu = "processor\t: 0\nmodel name\t: Long\n".to_owned() + &"flags\t\t: fpu vme\n".repeat(200);
    let machine = read(&one_node().file("proc/cpuinfo", cpu.repeat(1000)));
    assert_eq!(machine.cpu(), Some("Long"));
    let error = error(&one_node().file("proc/meminfo", cpu.repeat(1000))).to_string();
    assert!(error.contains("longer than 1 MiB") && error.contains("proc/meminfo"), "{error}");
}

#[test]
fn every_file_of_a_node_is_needed() {
    for file in ["online", "node1/cpulist", "node1/distance", "node1/meminfo"] {
        let tree = two_nodes();
        fs::remove_file(tree.root().join("sys/devices/system/node").join(file)).unwrap();
        let error = error(&tree);
        assert!(matches!(error, TopologyError::Read { .. }), "{error:?}");
        assert!(error.to_string().contains(file) && error.to_string().contains("try again"), "{error}");
    }
    assert!(error(&empty()).to_string().contains("sys/devices/system/cpu/online"));
}

/// No file at all.
fn empty() -> Tree {
    let tree = Tree::new();
    for directory in ["sys", "proc"] {
        fs::remove_dir_all(tree.root().join(directory)).unwrap();
    }
    tree
}

#[test]
fn nonsense_is_quoted() {
    for (file, text) in [
        ("sys/devices/system/node/online", "0-"),
        ("sys/devices/system/node/online", "0-4294967295"),
        ("sys/devices/system/node/node0/cpulist", "all"),
        ("sys/devices/system/node/node0/distance", "10 far"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: lots"),
        ("sys/devices/system/node/node0/access0/initiators/read_bandwidth", "fast"),
        ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "left"),
        ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "x"),
        ("sys/bus/dsa/devices/dsa0/numa_node", "here"),
        ("sys/devices/system/node/possible", "all"),
        ("sys/devices/system/node/node1/memory_side_cache/index1/size", "1G"),
        ("sys/devices/system/cpu/present", "0-"),
        ("sys/kernel/mm/numa/demotion_enabled", "perhaps"),
        ("proc/sys/kernel/numa_balancing", "-1"),
        ("proc/self/status", "Mems_allowed_list: 0-"),
        ("proc/self/status", "Cpus_allowed_list"),
    ] {
        let error = error(&two_nodes().file(file, text));
        assert!(matches!(error, TopologyError::Parse { .. }), "{file}: {error:?}");
        assert!(error.to_string().contains(file) && error.to_string().contains(text), "{error}");
    }
}

#[test]
fn contradictions_name_both_sides() {
    for (tree, sides) in [
        (two_nodes().node(1, "1-3", 1, "21 10"), ["CPU 1", "node 0 and in node 1"]),
        (two_nodes().node(1, "2-3", 1, "21 10 30"), ["3 distances", "2 nodes"]),
        (two_nodes().online("0"), ["2 distances", "1 nodes"]),
        (two_nodes().online("0-5000"), ["5001 nodes", "at most 1024"]),
        (two_nodes().node(1, "2-3", 1, "9 10"), ["node 1 is 9 from node 0", "than the 10 from itself"]),
        (
            two_nodes().node(0, "0-1", 1, "0 10").node(1, "2-3", 1, "20 21"),
            ["node 1 is 20", "21 from itself"],
        ),
        (two_nodes().file("sys/devices/system/node/possible", "0"), ["node 1 is online", "node/possible"]),
        (two_nodes().online(""), ["contradicts itself", "no node"]),
        (two_nodes().node(0, "", 1, "10 21").node(1, "", 1, "21 10"), ["no node", "has a CPU"]),
    ] {
        let error = error(&tree);
        assert!(matches!(error, TopologyError::Contradiction { .. }), "{error:?}");
        assert!(sides.iter().all(|side| error.to_string().contains(side)), "{error}");
    }
}

/// The way there may be longer than the way back, and virtual nodes of one memory are all local.
#[test]
fn distances_need_not_be_symmetric_or_different() {
    let machine = read(&two_nodes().node(0, "0-1", 1, "10 30").node(1, "2-3", 1, "10 10"));
    assert_eq!(machine.link(NodeId(0), NodeId(1)).distance, Some(30));
    assert_eq!(machine.link(NodeId(1), NodeId(0)).distance, Some(10));
}

/// Root may read everything, so an unreadable file is a directory here.
#[test]
fn an_unreadable_file_is_an_error_even_where_a_missing_one_is_not() {
    let tree = two_nodes();
    fs::create_dir_all(tree.root().join("sys/devices/virtual/memory_tiering/memory_tier4/nodelist")).unwrap();
    fs::remove_file(tree.root().join("proc/cpuinfo")).unwrap();
    fs::create_dir(tree.root().join("proc/cpuinfo")).unwrap();
    let error = error(&tree);
    assert!(matches!(error, TopologyError::Read { .. }), "{error:?}");
    assert!(error.to_string().contains("cpuinfo"), "{error}");
}

/// Whatever is in one of the files, or if it is missing: a machine or a sentence, never a panic.
#[test]
fn broken_trees_never_panic() {
    let trees = [one_node(), two_nodes(), hbm_flat(), odd_nodes()].map(|tree| (tree.files(), tree));
    let text = prop_oneof![
        "[0-9 ,-]{0,12}",
        "(Node [0-9] )?MemTotal: {0,3}[0-9]{0,21}( kB)?\nMemFree: [0-9]{1,21} kB",
        "\\PC{0,20}"
    ];
    proptest!(|(shape in 0..trees.len(), file in any::<prop::sample::Index>(), text in prop::option::of(text))| {
        let (files, tree) = &trees[shape];
        let file = file.get(files);
        let before = fs::read(file).unwrap();
        match text {
            Some(text) => fs::write(file, text).unwrap(),
            None => fs::remove_file(file).unwrap(),
        }
        let outcome = Machine::discover_at(tree.root());
        fs::write(file, before).unwrap();
        match outcome {
            Ok(machine) => {
                for node in machine.nodes() {
                    machine.faster_than(node.id);
                    prop_assert!(!machine.node(node.cpu_node).unwrap().cpus.is_empty());
                }
            }
            Err(error) => prop_assert!(error.to_string().len() > 20),
        }
    });
}

/// A profile with a piece replaced: likewise.
#[test]
fn broken_profiles_never_panic() {
    let good = include_str!("../../machines/made-up-two-tiers.json");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("machine.json");
    proptest!(|(cut in 0..good.len(), length in 0usize..40, text in "[0-9\\[\\]{},\": a-z-]{0,12}")| {
        let rest = &good[(cut + length).min(good.len())..];
        fs::write(&file, format!("{}{text}{rest}", &good[..cut])).unwrap();
        if let Err(error) = Machine::from_profile(file.to_str().unwrap()) {
            prop_assert!(error.to_string().len() > 20);
        }
    });
}

fn from_text(text: &str) -> Result<Machine, TopologyError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("machine.json");
    fs::write(&file, text).unwrap();
    Machine::from_profile(file.to_str().unwrap())
}

#[test]
fn every_profile_loads_under_its_name() {
    assert_eq!(Machine::profiles().len(), 11);
    for name in Machine::profiles() {
        let machine = Machine::from_profile(name).unwrap();
        assert_eq!((machine.name(), machine.origin()), (name, Origin::Profile));
        assert_eq!(machine.placeholder().is_some(), name.starts_with("made-up"), "{name}");
        assert!(machine.nodes().iter().all(|node| node.free_bytes.is_none()));
    }
}

#[test]
fn xeon_max() {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    assert_eq!(machine.node_count(), 16);
    for i in 0..8 {
        let (ddr, hbm) = (machine.node(NodeId(i)).unwrap(), machine.node(NodeId(8 + i)).unwrap());
        assert_eq!((ddr.tier, ddr.cpus.len(), ddr.memory_bytes), (Tier::Dram, 12, None));
        assert_eq!((hbm.tier, hbm.cpus.len(), hbm.memory_bytes), (Tier::Hbm, 0, Some(16 << 30)));
        assert_eq!((hbm.cpu_node, hbm.socket, ddr.socket), (NodeId(i), Some(i / 4), Some(i / 4)));
        assert_eq!(machine.nearest_faster(NodeId(i)).unwrap().id, NodeId(8 + i));
        assert_eq!(machine.nearest_faster(NodeId(8 + i)), None);
        let engine = machine.accelerators().iter().find(|engine| engine.node == Some(NodeId(i))).unwrap();
        assert_eq!(engine.bytes_per_s_max, Some(30 << 30));
    }
    let faster: Vec<_> = machine.faster_than(NodeId(5)).iter().map(|node| node.id.0).collect();
    assert_eq!(faster, [13, 12, 14, 15], "its own HBM first, then that of its socket");
    assert_eq!(machine.facts()[0].value, 65.56);
}

/// Tables 4, 6 and 8 of Greinsmark 2020: row = CPUs, column = memory.
#[test]
fn measured_links() {
    let broadwell = Machine::from_profile("broadwell-2699v4-cod-on").unwrap();
    assert_eq!(broadwell.link(NodeId(1), NodeId(0)).read_bytes_per_s, Some(18_335_000_000));
    assert_eq!(broadwell.link(NodeId(0), NodeId(1)).read_bytes_per_s, Some(15_322_000_000));
    let skylake = Machine::from_profile("skylake-8180-snc-on").unwrap();
    assert_eq!(skylake.link(NodeId(0), NodeId(1)).read_bytes_per_s, Some(58_122_900_000));
    assert_eq!(skylake.link(NodeId(2), NodeId(1)).read_latency_ns, Some(142.0));
    // The neighbour measured 0.06 % above the own memory: that is not "faster".
    assert!((0..4).all(|node| skylake.faster_than(NodeId(node)).is_empty()));
}

#[test]
fn two_tiers() {
    let machine = Machine::two_tiers().unwrap();
    assert_eq!(tiers(&machine), [Tier::Dram, Tier::Hbm]);
    assert_eq!(machine.nearest_faster(NodeId(0)).unwrap().id, NodeId(1));
    assert_eq!(machine.nearest_faster(NodeId(9)), None);
    assert!(machine.placeholder().is_some());
    let profile = include_str!("../../machines/made-up-two-tiers.json");
    let empty = from_text(&profile.replace("4096", "0")).unwrap();
    assert_eq!(empty.nearest_faster(NodeId(0)), None, "there is no HBM in it");
}

#[test]
fn wrong_profiles_are_explained() {
    let good = include_str!("../../machines/made-up-two-tiers.json");
    from_text(good).unwrap();
    for (from, to, words) in [
        (r#""name""#, r#""nmae""#, "unknown field `nmae`, expected one of `name`"),
        (r#""tier": "hbm""#, r#""tier": "fast""#, "unknown variant `fast`"),
        (r#""tier": "hbm""#, r#""tier": "hbm", "colour": 1"#, "unknown field `colour`"),
        (r#""id": 1"#, r#""id": 0"#, "node 0 comes after node 0"),
        (r#""cpus": "0-1""#, r#""cpus": "0-""#, r#"cpus of node 0 are "0-""#),
        (r#""cpus": "0-1""#, r#""cpus": """#, "belongs to the CPUs of node 0, which has none"),
        (r#""cpus": """#, r#""cpus": "7""#, "node 1 has CPUs of its own, and belongs to those of node 0"),
        (r#""source": "made up""#, r#""source": "hearsay""#, "does not begin with one of the references"),
        (
            r#""distances": null"#,
            r#""distances": {"value": [[10]], "source": "made up"}"#,
            "2 rows of 2 figures",
        ),
        (
            r#""read_latency_ns": null"#,
            r#""read_latency_ns": {"value": [[10, null], [-1, null]], "source": "made up"}"#,
            "read_latency_ns has the figure -1",
        ),
        (
            r#""accelerators": null"#,
            r#""accelerators": {"source": "made up", "value": [{"name": "dsa0", "node": 5}]}"#,
            "dsa0 is attached to node 5",
        ),
        (
            r#""facts": [],"#,
            r#""facts": [], "persistent_memory": {"source": "made up", "value": [{"node": 5, "size_mib": 1}]},"#,
            "persistent memory is attached to node 5, which does not exist",
        ),
        (
            r#""facts": [],"#,
            r#""facts": [], "persistent_memory": {"source": "made up", "value": [{"node": 1, "size_mib": 0}]},"#,
            "the persistent memory of node 1 has no size",
        ),
        (r#""name": "made-up-two-tiers","#, "", "missing field `name`"),
        (r#", "tier": "hbm""#, "", "missing field `tier`"),
        (
            r#""facts": [],"#,
            r#""facts": [], "parameters": [{"name": "submit_ns"}],"#,
            "missing field `value`",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let error = from_text(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("machine.json"), "{error}");
    }
}

#[test]
fn unknown_profiles_list_the_known() {
    let error = Machine::from_profile("xeon").unwrap_err();
    assert!(matches!(error, TopologyError::UnknownProfile { .. }), "{error:?}");
    assert!(error.to_string().contains("xeon-max-9468-2s-flat"), "{error}");
    let error = Machine::from_profile("./nowhere.json").unwrap_err().to_string();
    assert!(error.contains("cannot read ./nowhere.json"), "{error}");
}
