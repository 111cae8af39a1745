//! Questions on machines: what belongs together, and which memory some CPUs should prefer.

use memferry::internals::Recording;
use memferry::topology::{Machine, Node, NodeId, Tier};
use proptest::prelude::*;

use crate::fixtures;
use crate::fixtures::{broken, everything, hbm_flat, hbm_flat_without_hmat, odd_nodes, one_node, two_nodes};

fn read(tree: &fixtures::Tree) -> Machine {
    Machine::discover_at(tree.root()).unwrap()
}

fn ids<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<u32> {
    nodes.into_iter().map(|node| node.id.0).collect()
}

fn near(machine: &Machine, cpus: u32) -> Vec<u32> {
    ids(machine.memories_near(NodeId(cpus)))
}

fn domains(machine: &Machine) -> Vec<(Option<u32>, u32, Vec<u32>)> {
    let domains = machine.domains().into_iter();
    domains.map(|d| (d.socket, d.cpu_node.0, d.memories.iter().map(|node| node.0).collect())).collect()
}

#[test]
fn domains_and_sockets() {
    let machine = read(&hbm_flat());
    assert_eq!(domains(&machine), [(Some(0), 0, vec![2]), (Some(1), 1, vec![3])]);
    assert_eq!(machine.sockets().iter().map(|socket| socket.id).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert!(!machine.is_sub_numa());

    // Node 2 has CPUs and no memory.
    let odd = read(&odd_nodes());
    assert_eq!(domains(&odd), [(None, 0, vec![3, 4]), (None, 2, vec![])]);
    assert_eq!(odd.sockets().len(), 1);
    assert!(!odd.is_sub_numa(), "nobody says that they share a socket");

    let sub_numa = read(&hbm_flat().socket(0..4, 0));
    assert!(sub_numa.is_sub_numa() && sub_numa.sockets()[0].domains.len() == 2);
    // Two nodes whose sockets are known, one whose is not.
    let some = read(&two_nodes().socket(0..2, -1));
    assert_eq!(some.sockets().iter().map(|socket| socket.id).collect::<Vec<_>>(), [Some(1), None]);
}

/// Virtual machines have many sockets in one node: naming the first would be wrong.
#[test]
fn a_node_on_several_sockets_is_on_none() {
    let machine = read(&one_node().socket(0..2, 0).socket(2..4, 1));
    assert_eq!(machine.node(NodeId(0)).unwrap().socket, None);
}

#[test]
fn xeon_max_prefers_its_hbm_then_its_ddr() {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    assert!(machine.is_sub_numa());
    assert_eq!(machine.sockets().len(), 2);
    for i in 0..8 {
        let own = near(&machine, i);
        assert_eq!(own[..2], [8 + i, i]);
        assert_eq!(near(&machine, 8 + i), own, "HBM stands for its CPUs");
        let socket = |id: &u32| machine.node(NodeId(*id)).unwrap().socket == Some(i / 4);
        assert!(own[..8].iter().all(socket), "the own socket first: {own:?}");
    }
    assert_eq!(near(&machine, 5), [13, 5, 12, 14, 15, 4, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]);
}

/// Neither the neighbour's 0.06 % more nor 10 % are a reason to leave the own memory.
#[test]
fn measured_machines_prefer_their_own() {
    for name in ["skylake-8180-snc-on", "broadwell-2699v4-cod-on", "skylake-8180-snc-off"] {
        let machine = Machine::from_profile(name).unwrap();
        for node in machine.nodes() {
            assert_eq!(near(&machine, node.id.0)[0], node.id.0, "{name}");
        }
    }
    let skylake = Machine::from_profile("skylake-8180-snc-on").unwrap();
    assert_eq!(near(&skylake, 2), [2, 3, 0, 1]);
}

#[test]
fn figures_tiers_kinds_and_distances_in_this_order() {
    assert_eq!(near(&read(&hbm_flat()), 0), [2, 0, 3, 1], "by bandwidth, the other socket by its own tiers");
    assert_eq!(near(&read(&hbm_flat_without_hmat().tier(0, "2-3").tier(4, "0-1")), 1), [3, 1, 2, 0]);
    assert_eq!(near(&read(&hbm_flat_without_hmat()), 1), [1, 3, 0, 2], "nothing but distances");
    // Remote DRAM before own CXL, and CXL before persistent memory; CPUs without memory have an order too.
    assert_eq!(near(&read(&odd_nodes()), 0), [0, 3, 4]);
    assert_eq!(near(&read(&odd_nodes()), 2), [0, 3, 4]);
    let machine = read(&everything().allowed("0-3", "0-4"));
    assert_eq!(near(&machine, 0), [2, 0, 3, 1, 4]);
    assert_eq!(near(&machine, 1), [3, 1, 2, 0, 4]);
    // A figure beats the exception for other domains' memory.
    let figures =
        hbm_flat().hmat(3, "access1", &[0, 1], 204800, 130).hmat(2, "access1", &[0, 1], 204800, 130);
    assert_eq!(near(&read(&figures), 0), [2, 3, 0, 1]);
}

/// Memory of another domain is not tried before the own for its kind alone, though it is called faster.
#[test]
fn a_neighbours_hbm_comes_after_the_own_memory() {
    let one_hbm = hbm_flat().socket(0..4, 0).node(2, "", 0, "13 23 10 23");
    let machine = read(&one_hbm);
    assert_eq!(ids(machine.faster_than(NodeId(0))), [3]);
    assert_eq!(near(&machine, 0), [0, 3, 1]);
    assert_eq!(near(&machine, 1), [3, 1, 0]);
}

#[test]
fn what_is_not_allowed_is_not_offered() {
    let machine = read(&everything());
    let [zero, one] = [0, 1].map(|id| machine.node(NodeId(id)).unwrap().clone());
    assert_eq!((zero.allowed_cpus, one.allowed_cpus), (vec![0, 1], vec![2]));
    assert!(zero.is_allowed && !one.is_allowed);
    assert_eq!(near(&machine, 1), [3, 2, 0, 4], "node 1 itself is not allowed");
    let no_hbm = read(&everything().allowed("0-3", "0-1,4"));
    assert_eq!(no_hbm.nearest_faster(NodeId(0)), None);
    assert_eq!(no_hbm.node(NodeId(2)).unwrap().tier, Tier::Hbm, "it is still HBM");
    assert_eq!(near(&no_hbm, 0), [0, 1, 4]);
    let nothing = read(&two_nodes().allowed("0-3", "7"));
    assert!(near(&nothing, 0).is_empty());
}

#[test]
fn room_leaves_a_spare() {
    // HBM of 1 GiB, 5/8 of it can be had, and a thirty-second of it stays free: 19/32.
    let machine = read(&hbm_flat());
    let hbm = machine.node(NodeId(2)).unwrap();
    assert!(
        hbm.has_room((1 << 30) / 32 * 19)
            && !hbm.has_room((1 << 30) / 32 * 19 + 1)
            && !hbm.has_room(u64::MAX)
    );
    // A profile knows sizes at best: 16 GiB of HBM, and nothing about its DDR.
    let profile = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let [ddr, hbm] = [0, 8].map(|id| profile.node(NodeId(id)).unwrap());
    assert!(hbm.has_room((16 << 30) / 32 * 31) && !hbm.has_room(16 << 30) && ddr.has_room(16 << 30));
}

/// From CPUs 0 bandwidth says that 2 is faster than 3, tiers 3 than 4, and kinds 4 than 2.
#[test]
fn a_circle_is_an_order_too() {
    let tree = fixtures::Tree::new()
        .online("0-4")
        .node(0, "0-1", 1 << 20, "10 20 20 20 20")
        .node(1, "2-3", 1 << 20, "20 10 20 20 20")
        .node(2, "", 1 << 20, "20 20 10 20 20")
        .node(3, "", 1 << 20, "20 20 20 10 20")
        .node(4, "", 1 << 20, "20 20 20 20 10")
        .socket(0..4, 0)
        .hmat(1, "access0", &[1], 1000, 100)
        .hmat(2, "access0", &[0], 2000, 100)
        .hmat(3, "access0", &[0], 1000, 100)
        .hmat(4, "access0", &[1], 5000, 100)
        .tier(4, "3")
        .tier(5, "2,4")
        .dax("dax0.0", "pci0000:00/cxl_root/decoder0.0", 2);
    let machine = read(&tree);
    assert_eq!([2, 3, 4].map(|id| machine.nodes()[id].tier), [Tier::Cxl, Tier::Unknown, Tier::Hbm]);
    broken::check(&machine);
    // Node 3 is in the own domain and not known to be slow, so it opens the circle.
    assert_eq!(near(&machine, 0), [0, 3, 4, 1, 2]);
}

/// A machine out of nothing but numbers: up to 8 domains, with what is known of each memory left to chance.
fn machine() -> impl Strategy<Value = Machine> {
    let node = (
        any::<bool>(),
        0u32..4,
        prop::option::of(1u64..400),
        0u64..3,
        any::<bool>(),
        prop::option::of(0u32..3),
    );
    (prop::collection::vec(node, 1..9), prop::collection::vec(11u32..40, 81)).prop_map(
        |(nodes, distances)| {
            let mut tree = Recording::new();
            let at = |id: usize, file: &str| format!("sys/devices/system/node/node{id}/{file}");
            let mut allowed = Vec::new();
            let count = nodes.len();
            tree.insert("sys/devices/system/node/online", &format!("0-{}", count - 1));
            for (id, (has_cpu, socket, bandwidth, gib, is_allowed, tier)) in nodes.into_iter().enumerate() {
                let has_cpu = has_cpu || id == 0;
                tree.insert(&at(id, "cpulist"), &if has_cpu { id.to_string() } else { String::new() });
                let kib = gib << 20;
                tree.insert(
                    &at(id, "meminfo"),
                    &format!("Node {id} MemTotal: {kib} kB\nNode {id} MemFree: {kib} kB\n"),
                );
                let row = (0..count).map(|to| if to == id { 10 } else { distances[id * 9 + to] }.to_string());
                tree.insert(&at(id, "distance"), &row.collect::<Vec<_>>().join(" "));
                let package = format!("sys/devices/system/cpu/cpu{id}/topology/physical_package_id");
                tree.insert(&package, &(socket / 2).to_string());
                if let Some(bandwidth) = bandwidth {
                    let class = at(id, "access1/initiators");
                    tree.insert(&format!("{class}/read_bandwidth"), &bandwidth.to_string());
                    for cpus in 0..=socket {
                        tree.insert_link(&format!("{class}/node{cpus}"), &format!("../../../node{cpus}"));
                    }
                }
                if let Some(tier) = tier {
                    let list = format!("sys/devices/virtual/memory_tiering/memory_tier{tier}/nodelist");
                    let others = tree.text(&list).map(|text| format!("{text},")).unwrap_or_default();
                    tree.insert(&list, &format!("{others}{id}"));
                }
                allowed.extend(is_allowed.then(|| id.to_string()));
            }
            tree.insert("proc/self/status", &format!("Mems_allowed_list:\t{}\n", allowed.join(",")));
            Machine::discover_in(&tree).unwrap()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The order has every usable memory once and nothing else, follows bandwidths where all are known
    /// (`check`), and of two memories of a domain begins with the one that `auto` would copy to.
    #[test]
    fn the_order_is_total(machine in machine()) {
        broken::check(&machine);
        for domain in machine.domains() {
            let order = machine.memories_near(domain.cpu_node);
            let place = |id| order.iter().position(|node| node.id == id);
            let is_own = |node: &&Node| node.cpu_node == domain.cpu_node;
            // Two memories of the domain, and no third one that could close a circle.
            if order.len() == 2 && order.iter().all(is_own) && place(domain.cpu_node).is_some() {
                let faster = machine.nearest_faster(domain.cpu_node);
                let first = faster.map_or(domain.cpu_node, |node| node.id);
                prop_assert_eq!(place(first), Some(0));
            }
        }
    }
}
