//! Which devices take part in a copy, on the machine of the papers.

use memferry::mover::{Journey, Route, SHARE_BYTES_MIN};
use memferry::topology::{Machine, NodeId};

fn xeon_max() -> Machine {
    Machine::from_profile("xeon-max-9468-2s-flat").expect("built in")
}

fn journey(source: u32, target: u32) -> Journey {
    Journey {
        source_node: Some(NodeId(source)),
        target_node: Some(NodeId(target)),
        size_bytes: 1 << 30,
        turn: 0,
    }
}

/// On this machine device N is that of node N.
fn devices(route: Route, journey: Journey) -> Vec<usize> {
    route.devices(&xeon_max(), journey).into_iter().map(|share| share.device).collect()
}

/// Fürst 2024, figure 3.6: node 8 is the HBM of node 0, 11 is on its socket, 12 and 15 on the other.
#[test]
fn routes_are_those_of_the_papers() {
    let of = |route| [8, 11, 12, 15].map(|target| devices(route, journey(0, target)));
    let lists = |lists: [&[usize]; 4]| lists.map(<[usize]>::to_vec);
    assert_eq!(of(Route::Single), lists([&[0], &[0], &[0], &[0]]), "on the source node");
    // Within a node: the on-node device and one off-node.
    assert_eq!(of(Route::PushPull), lists([&[0, 1], &[0, 3], &[0, 4], &[0, 7]]));
    let socket: &[usize] = &[0, 1, 2, 3];
    assert_eq!(
        of(Route::Socket),
        lists([socket, socket, &[0, 1, 4, 5], &[0, 1, 7, 4]]),
        "two on each socket"
    );
    assert_eq!(of(Route::Smart), lists([socket, socket, &[0, 4], &[0, 7]]), "source and target");
    for list in of(Route::All) {
        let mut sorted = list.clone();
        sorted.sort_unstable();
        assert_eq!((list[0], sorted), (0, (0..8).collect()));
    }
    // Two devices have 60 GiB/s, as good as the source's memory.
    assert_eq!(of(Route::Adaptive), of(Route::PushPull));
    let turns: Vec<_> =
        (0..10).map(|turn| devices(Route::RoundRobin, Journey { turn, ..journey(0, 8) })).collect();
    assert_eq!(turns, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1].map(|device| vec![device]));
}

#[test]
fn adaptive_takes_more_where_memory_is_faster_and_fewer_where_one_is_enough() {
    // Out of HBM into HBM: eight devices have 240 GiB/s, which is what the memory has.
    assert_eq!(devices(Route::Adaptive, journey(8, 12)).len(), 8);
    let text = include_str!("../../../machines/xeon-max-9468-2s-flat.json");
    let begin = text.find(r#""name": "dram_mb_per_s", "value": "#).expect("it has one") + 34;
    let end = begin + text[begin..].find(',').expect("more follows");
    let slow = format!("{}30000{}", &text[..begin], &text[end..]);
    let slow = Machine::from_profile_text("slow memory", &slow).expect("consistent");
    assert_eq!(Route::Adaptive.devices(&slow, journey(0, 8)).len(), 1);
    // Where nothing is known: push-pull, as the thesis recommends.
    let recorded = include_str!("../../../machines/made-up-two-tiers.json");
    let unknown = recorded.replacen(
        r#""accelerators": null"#,
        r#""accelerators": {"source": "made up", "value": [
            {"name": "dsa0", "node": 0, "work_queues": null, "engines": null, "mb_per_s_max": null},
            {"name": "dsa1", "node": 0, "work_queues": null, "engines": null, "mb_per_s_max": null},
            {"name": "dsa2", "node": 0, "work_queues": null, "engines": null, "mb_per_s_max": null}]}"#,
        1,
    );
    let unknown = Machine::from_profile_text("unknown", &unknown).expect("consistent");
    assert_eq!(Route::Adaptive.devices(&unknown, journey(0, 1)).len(), 2);
}

#[test]
fn shares_cover_the_copy_and_small_copies_are_not_split() {
    let machine = xeon_max();
    let routes = [
        Route::Single,
        Route::RoundRobin,
        Route::PushPull,
        Route::Socket,
        Route::Smart,
        Route::All,
        Route::Adaptive,
    ];
    let sizes = [0, 1, SHARE_BYTES_MIN - 1, SHARE_BYTES_MIN, 2 * SHARE_BYTES_MIN - 1, 2 * SHARE_BYTES_MIN];
    for route in routes {
        for size_bytes in sizes.into_iter().chain([(1 << 30) + 1]) {
            for (source, target) in [(0, 8), (0, 11), (3, 12), (15, 0), (77, 8), (77, 78)] {
                let shares = route.devices(&machine, Journey { size_bytes, ..journey(source, target) });
                let mut end = 0;
                for share in &shares {
                    assert_eq!(share.bytes.start, end, "{route:?} {size_bytes}");
                    assert!(share.bytes.start % 4096 == 0);
                    end = share.bytes.end;
                }
                assert_eq!(end, size_bytes);
                assert!(
                    shares.len() == 1
                        || shares.iter().all(|share| share.bytes.len() >= SHARE_BYTES_MIN - 4096)
                );
                let mut devices: Vec<_> = shares.iter().map(|share| share.device).collect();
                devices.sort_unstable();
                devices.dedup();
                assert_eq!(devices.len(), shares.len(), "nobody has two shares");
            }
        }
    }
    // Small copies of `Smart` are the business of the target's device, of others that of the source's.
    let small = Journey { size_bytes: 4096, ..journey(0, 11) };
    assert_eq!((devices(Route::Smart, small), devices(Route::PushPull, small)), (vec![3], vec![0]));
}

#[test]
fn without_devices_there_are_no_shares() {
    let machine = Machine::two_tiers().expect("built in");
    assert!(Route::All.devices(&machine, journey(0, 1)).is_empty());
}
