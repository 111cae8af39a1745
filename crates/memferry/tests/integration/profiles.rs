//! What a profile may say beyond published figures: nodes that are offline, and figures of ours for a guest.

use memferry::topology::{Machine, NodeId, NodeSet, TopologyError};

const TWO_TIERS: &str = include_str!("../../machines/made-up-two-tiers.json");

fn with(text: &str, name: &str) -> Result<Machine, TopologyError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(name);
    std::fs::write(&file, text).unwrap();
    Machine::from_profile_with_placeholders(file.to_str().unwrap())
}

/// The profile of two tiers with its placeholders replaced.
fn two_tiers(placeholders: &str) -> String {
    let at = TWO_TIERS.find(r#""placeholders""#).expect("it has some");
    format!("{}\"placeholders\": {placeholders}}}", &TWO_TIERS[..at])
}

#[test]
fn published_figures_are_kept_and_missing_ones_filled() {
    for name in Machine::profiles() {
        let (published, filled) =
            (Machine::from_profile(name).unwrap(), Machine::from_profile_with_placeholders(name).unwrap());
        for (before, after) in published.nodes().iter().zip(filled.nodes()) {
            assert!(after.memory_bytes.is_some(), "{name} has no size for node {}", after.id);
            assert!(before.memory_bytes.is_none() || before.memory_bytes == after.memory_bytes, "{name}");
        }
        for from in published.nodes() {
            for to in published.nodes() {
                let (before, after) = (published.link(from.id, to.id), filled.link(from.id, to.id));
                assert!(after.distance.is_some(), "{name} has no distance from {} to {}", from.id, to.id);
                assert!(before.distance.is_none() || before.distance == after.distance);
                assert!(
                    before.read_bytes_per_s.is_none() || before.read_bytes_per_s == after.read_bytes_per_s
                );
                assert!(before.read_latency_ns.is_none() || before.read_latency_ns == after.read_latency_ns);
            }
        }
    }
}

#[test]
fn planning_never_sees_a_placeholder() {
    let home = NodeId(0);
    let xeon_max = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    assert_eq!(xeon_max.placeholder(), None);
    assert_eq!(xeon_max.link(home, NodeId(8)).read_bytes_per_s, None);
    assert_eq!(xeon_max.node(home).unwrap().memory_bytes, None);

    let guest = Machine::from_profile_with_placeholders("xeon-max-9468-2s-flat").unwrap();
    assert!(guest.placeholder().unwrap().contains("nothing is measured"), "{:?}", guest.placeholder());
    let (own, near) = (guest.link(home, home), guest.link(home, NodeId(8)));
    assert!(near.read_bytes_per_s > own.read_bytes_per_s && near.read_latency_ns > own.read_latency_ns);
    assert_eq!((own.distance, near.distance), (Some(10), Some(13)));
    // A reason that was there before stays.
    let made_up = Machine::from_profile_with_placeholders("made-up-two-tiers").unwrap();
    let reason = made_up.placeholder().unwrap();
    assert!(reason.starts_with("all of it is made up") && reason.contains("figures of ours"), "{reason}");
}

#[test]
fn offline_nodes() {
    let odd = Machine::from_profile("made-up-odd-nodes").unwrap();
    assert_eq!(odd.offline(), &NodeSet::from(NodeId(2)));
    assert_eq!(odd.nodes().iter().map(|node| node.id.0).collect::<Vec<_>>(), [0, 1, 3, 4]);
    assert_eq!(odd.node(NodeId(1)).unwrap().memory_bytes, Some(0));
    assert!(Machine::two_tiers().unwrap().offline().is_empty());

    let both = TWO_TIERS.replacen(r#""facts": []"#, r#""facts": [], "offline": [1]"#, 1);
    let error = with(&both, "machine.json").unwrap_err().to_string();
    assert!(error.contains("node 1 is there and offline"), "{error}");
}

#[test]
fn wrong_placeholders_are_explained() {
    with(&two_tiers(r#"{"why": "a test"}"#), "machine.json").unwrap();
    for (placeholders, words) in [
        (r#"{}"#, "missing field `why`"),
        (r#"{"why": " "}"#, "do not say why"),
        (r#"{"why": "a test", "speed": 1}"#, "unknown field `speed`"),
        (r#"{"why": "a test", "memory_mib": [1]}"#, "memory_mib must have 2 figures"),
        (r#"{"why": "a test", "distances": [[10]]}"#, "placeholders: distances must have 2 rows"),
        (
            r#"{"why": "a test", "read_mb_per_s": [[1, 0], [1, 1]]}"#,
            "placeholders: read_mb_per_s has the figure 0",
        ),
    ] {
        let text = two_tiers(placeholders);
        let error = with(&text, "machine.json").unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        // Likewise where they are not used: a broken profile is broken for everybody.
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("machine.json");
        std::fs::write(&file, text).unwrap();
        Machine::from_profile(file.to_str().unwrap()).unwrap_err();
    }
}
