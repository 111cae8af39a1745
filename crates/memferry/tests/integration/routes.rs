//! Which engines take part in a copy, on the machine of the papers and on odd ones.

use memferry::internals::{
    Endpoints, EngineSite, Hardware, Offload, SHARE_BYTES_MIN, copy_s, device_shares, engine_shares,
};
use memferry::mover::{EngineKind, Route};
use memferry::topology::{Machine, NodeId};

const ROUTES: [Route; 7] = [
    Route::Single,
    Route::RoundRobin,
    Route::PushPull,
    Route::Socket,
    Route::Smart,
    Route::All,
    Route::Adaptive,
];

fn xeon_max() -> Machine {
    Machine::from_profile("xeon-max-9468-2s-flat").expect("built in")
}

fn endpoints(source: u32, target: u32) -> Endpoints {
    Endpoints {
        source_node: Some(NodeId(source)),
        target_node: Some(NodeId(target)),
        size_bytes: 1 << 30,
        turn: 0,
    }
}

/// On this machine device N is that of node N.
fn devices(machine: &Machine, route: Route, endpoints: Endpoints) -> Vec<usize> {
    device_shares(route, machine, endpoints).into_iter().map(|share| share.engine).collect()
}

/// A calibration knows no rates of devices that it could not use: others copy for them.
#[test]
fn devices_of_unknown_rate_take_no_part_where_others_are_known() {
    let text = xeon_max().profile_text("Fürst 2024").unwrap();
    let known_are = |known: &[usize]| {
        let mut profile: serde_json::Value = serde_json::from_str(&text).unwrap();
        let devices = profile["accelerators"]["value"].as_array_mut().unwrap();
        for (index, device) in devices.iter_mut().enumerate() {
            if !known.contains(&index) {
                device["mb_per_s_max"] = serde_json::Value::Null;
            }
        }
        Machine::from_profile_text("some of it", &profile.to_string()).unwrap()
    };
    let endpoints = endpoints(0, 8);
    let some = known_are(&[1, 6]);
    assert_eq!(devices(&some, Route::Single, endpoints), [1]);
    assert_eq!(devices(&some, Route::All, endpoints), [1, 6]);
    assert_eq!(devices(&some, Route::RoundRobin, Endpoints { turn: 3, ..endpoints }), [6]);
    let hardware = Hardware::of(&some).unwrap();
    assert!(copy_s(&some, &hardware, Route::All, endpoints).is_ok());
    assert_eq!(Offload::of(&hardware).unwrap().device_rate(), 32_212_254_720.0);

    let none = known_are(&[]);
    assert_eq!(devices(&none, Route::All, endpoints).len(), 8, "who copies is known, how fast is not");
    assert!(Offload::of(&Hardware::of(&none).unwrap()).is_err());
}

/// A cost that is not known is an error where it counts, not a guess.
#[test]
fn unknown_costs_of_a_device_are_errors() {
    const PROFILE: &str = include_str!("../../machines/spr-56c.json");
    let without = |name: &str| {
        let named = format!("\"name\": \"{name}\"");
        assert!(PROFILE.contains(&named));
        // Another parameter, which devices do not have.
        let text = PROFILE.replace(&named, "\"name\": \"query_ns\"");
        Hardware::of(&Machine::from_profile_text("made up", &text).unwrap()).unwrap()
    };
    for name in ["submit_ns", "device_offload_ns", "device_descriptor_ns"] {
        let error = Offload::of(&without(name)).unwrap_err().to_string();
        assert!(error.contains(&format!("parameter {name} is not known")), "{error}");
    }
    let other = ["submit_shared_ns", "device_dispatch_ns", "device_batch_ns", "device_member_ns"];
    for name in other.into_iter().chain(["device_page_request_ns"]) {
        let offload = Offload::of(&without(name)).unwrap();
        let error = offload.costs().unwrap_err().to_string();
        assert!(error.contains(&format!("parameter {name} is not known")), "{error}");
        assert!(offload.rate(4096.0, 8) > 0.0, "single copies in a dedicated queue do without it");
        assert!(offload.batch_rate(4096.0, 8, 1).is_err());
    }
}

/// Node 8 is the HBM of node 0, 11 is on its socket, 12 and 15 are on the other.
///
/// Source: Fürst 2024, figure 3.6; draft, figure 3.6, for `Smart`.
#[test]
fn routes_are_those_of_the_papers() {
    let machine = xeon_max();
    let of = |route| [8, 11, 12, 15].map(|target| devices(&machine, route, endpoints(0, target)));
    assert_eq!(of(Route::Single), [[0], [0], [0], [0]], "on the source node");
    // Within a node: the on-node device and one off-node.
    assert_eq!(of(Route::PushPull), [[0, 1], [0, 3], [0, 4], [0, 7]]);
    let socket = vec![0, 1, 2, 3];
    assert_eq!(
        of(Route::Socket),
        [socket.clone(), socket.clone(), vec![0, 1, 4, 5], vec![0, 1, 7, 4]],
        "two on each socket between sockets"
    );
    assert_eq!(of(Route::Smart), [socket.clone(), socket, vec![0, 4], vec![0, 7]]);
    for mut all in of(Route::All) {
        assert_eq!(all[0], 0);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
    let turns =
        (0..10).map(|turn| devices(&machine, Route::RoundRobin, Endpoints { turn, ..endpoints(0, 8) }));
    assert_eq!(turns.flatten().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
}

/// The papers' cases begin at node 0. The sockets are alike, HBM belongs to its CPUs' node, and a copy back takes those
/// of the copy there.
#[test]
fn other_nodes_are_like_those_of_the_papers() {
    let machine = xeon_max();
    let set = |route, source, target| {
        let mut engines = devices(&machine, route, endpoints(source, target));
        engines.sort_unstable();
        engines
    };
    let other_socket = |node: u32| node ^ 4;
    for route in ROUTES {
        for (source, target) in (0..16).flat_map(|source| (0..16).map(move |target| (source, target))) {
            let what = format!("{route:?} from {source} to {target}");
            let engines = set(route, source, target);
            assert_eq!(engines, set(route, source % 8, target % 8), "{what}");
            if route == Route::RoundRobin {
                continue;
            }
            let mut mirrored = set(route, other_socket(source), other_socket(target));
            mirrored.iter_mut().for_each(|device| *device ^= 4);
            mirrored.sort_unstable();
            assert_eq!(engines, mirrored, "{what}");
            if source % 8 != target % 8 && route != Route::Single {
                assert_eq!(engines, set(route, target, source), "{what}");
            }
        }
    }
}

/// Once every node of a socket had its first device as the helper.
#[test]
fn within_their_nodes_neighbours_have_different_helpers() {
    let machine = xeon_max();
    let helper = |node| devices(&machine, Route::PushPull, endpoints(node, node + 8))[1];
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(helper), [1, 2, 3, 0, 5, 6, 7, 4]);
}

/// Two on the node are not one there and one elsewhere.
#[test]
fn push_pull_within_a_node_takes_one_engine_of_another() {
    let site = |node| EngineSite { kind: EngineKind::Dsa, node: Some(NodeId(node)) };
    let engines = |sites: &[EngineSite]| -> Vec<usize> {
        let shares = engine_shares(Route::PushPull, &xeon_max(), sites, endpoints(0, 8));
        shares.into_iter().map(|share| share.engine).collect()
    };
    assert_eq!(engines(&[site(0), site(0), site(1)]), [0, 2]);
    assert_eq!(engines(&[site(0), site(0)]), [0, 1], "where there is no other");
}

#[test]
fn adaptive_takes_as_many_as_the_memories_can_use() {
    // What this profile's memories can do nobody has published: what the thesis recommends.
    assert_eq!(devices(&xeon_max(), Route::Adaptive, endpoints(0, 8)), [0, 1]);
    let machine = Machine::from_profile_with_placeholders("xeon-max-9468-2s-flat").expect("built in");
    // A device has 32 GB/s, DDR 40 and HBM 215 there.
    assert_eq!(devices(&machine, Route::Adaptive, endpoints(0, 8)), [0, 1]);
    assert_eq!(devices(&machine, Route::Adaptive, endpoints(8, 12)).len(), 8);
    assert_eq!(devices(&machine, Route::Adaptive, endpoints(0, 0)), [0], "reading and writing share 40 GB/s");
    let unknown = Endpoints { target_node: None, ..endpoints(8, 8) };
    assert_eq!(devices(&machine, Route::Adaptive, unknown), [0, 1]);
    let cores = [0, 1, 4].map(|node| EngineSite { kind: EngineKind::Cpu, node: Some(NodeId(node)) });
    let shares = engine_shares(Route::Adaptive, &machine, &cores, endpoints(8, 12));
    assert_eq!(shares.iter().map(|share| share.engine).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn shares_cover_the_copy_evenly_and_small_copies_are_not_split() {
    let machine = xeon_max();
    let sizes = [0, 1, SHARE_BYTES_MIN, 2 * SHARE_BYTES_MIN - 1, 2 * SHARE_BYTES_MIN, (9 << 20) + 1];
    for route in ROUTES {
        for size_bytes in sizes {
            for (source, target) in [(0, 8), (0, 11), (3, 12), (15, 0), (77, 8), (77, 78)] {
                let shares =
                    device_shares(route, &machine, Endpoints { size_bytes, ..endpoints(source, target) });
                let what = format!("{route:?}, {size_bytes} bytes from {source} to {target}: {shares:?}");
                let mut end = 0;
                for share in &shares {
                    assert_eq!(share.bytes.start, end, "{what}");
                    assert!(share.bytes.len() >= SHARE_BYTES_MIN || shares.len() == 1, "{what}");
                    assert!(share.bytes.len().abs_diff(size_bytes / shares.len()) <= 1, "{what}");
                    end = share.bytes.end;
                }
                assert_eq!(end, size_bytes, "{what}");
                let mut engines: Vec<_> = shares.iter().map(|share| share.engine).collect();
                engines.sort_unstable();
                engines.dedup();
                assert_eq!(engines.len(), shares.len(), "{what}");
            }
        }
    }
    // Small copies of `Smart` are the target's business, of all others the source's.
    let small = Endpoints { size_bytes: 2 * SHARE_BYTES_MIN - 1, ..endpoints(0, 11) };
    let alone = ROUTES.map(|route| devices(&machine, route, small));
    assert_eq!(alone, [[0], [0], [0], [0], [3], [0], [0]]);
}

#[test]
fn machines_that_lack_something_have_routes_too() {
    let machine = Machine::two_tiers().expect("built in");
    for route in ROUTES {
        assert!(device_shares(route, &machine, endpoints(0, 1)).is_empty(), "no device: {route:?}");
    }
    let machine = xeon_max();
    let shares = |route: Route, nodes: &[Option<u32>], endpoints| {
        let site = |node: &Option<u32>| EngineSite { kind: EngineKind::Dsa, node: node.map(NodeId) };
        let sites: Vec<_> = nodes.iter().map(site).collect();
        let shares = engine_shares(route, &machine, &sites, endpoints);
        shares.into_iter().map(|share| share.engine).collect::<Vec<_>>()
    };
    // All on one node: the second one helps there.
    assert_eq!(shares(Route::PushPull, &[Some(0), Some(0), Some(0)], endpoints(0, 8)), [0, 1]);
    // None at the target, on its socket, or anywhere known.
    assert_eq!(shares(Route::PushPull, &[Some(0), Some(2)], endpoints(0, 9)), [0, 1]);
    assert_eq!(shares(Route::Socket, &[Some(0), Some(1)], endpoints(0, 12)), [0, 1]);
    assert_eq!(shares(Route::Socket, &[Some(5), Some(6)], endpoints(0, 8)), [0]);
    assert_eq!(shares(Route::Smart, &[Some(0)], endpoints(0, 12)), [0]);
    assert_eq!(shares(Route::All, &[None, Some(0), None], endpoints(0, 8)), [1, 2, 0]);
}
