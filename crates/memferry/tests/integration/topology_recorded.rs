//! Recordings: what they keep, what broken ones do, and machines that change while they are read.
//!
//! `tests/recorded/NAME.json` are recordings, of machines and hand-made, and `NAME.txt` says in a line for
//! each node what is to be found in it. To add one, put its JSON there and run this test with
//! `MEMFERRY_RECORD=1`; then read what it wrote.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::{fs, io};

use memferry::internals::{Origin, Recording};
use memferry::topology::{Machine, NodeId, TopologyError};
use memferry_dsa::internals::system::Files;
use memferry_dsa::system::{ApplyOptions, DeviceId, Plan, Profile, QueueFilter, SystemState};
use memferry_dsa_emulator::FakeDriver;
use proptest::prelude::*;

use crate::fixtures;
use crate::fixtures::{
    broken, everything, hbm_flat, hbm_flat_without_hmat, odd_nodes, one_node, two_nodes,
    two_nodes_without_dsa,
};

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

/// Compares a text with a file, or writes it if asked to.
fn compare(file: &Path, text: &str) {
    if std::env::var_os("MEMFERRY_RECORD").is_some() {
        fs::write(file, text).unwrap();
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    assert_eq!(text, expected, "{} is old or missing; MEMFERRY_RECORD=1 writes it", file.display());
}

fn ids<'a>(nodes: impl IntoIterator<Item = &'a memferry::topology::Node>) -> Vec<u32> {
    nodes.into_iter().map(|node| node.id.0).collect()
}

/// A line for each node: what it is, and from CPUs the order in which they prefer memory.
fn summary(machine: &Machine) -> String {
    let mut text = String::new();
    for node in machine.nodes() {
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        let mib = node.memory_bytes.map_or("?".to_owned(), |bytes| (bytes >> 20).to_string());
        text += &format!(
            "node {}: socket {}, {} of {} CPUs, {mib} MiB {}, tier {}, {}",
            node.id,
            number(node.socket),
            node.allowed_cpus.len(),
            node.cpus.len(),
            node.tier,
            number(node.kernel_tier),
            if node.is_allowed { "allowed" } else { "not allowed" },
        );
        text += &match node.cpus.is_empty() {
            true => format!(", belongs to node {}\n", node.cpu_node),
            false => format!(", prefers {:?}\n", ids(machine.memories_near(node.id))),
        };
    }
    text
}

#[test]
fn every_recording_is_what_its_summary_says() {
    let mut count = 0;
    for entry in fs::read_dir(recorded()).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "json") {
            let machine = Machine::discover_at(&file).unwrap();
            assert_eq!(machine.origin(), Origin::Recorded);
            broken::check(&machine);
            compare(&file.with_extension("txt"), &summary(&machine));
            count += 1;
        }
    }
    assert!(count >= 4, "there are recordings in {}", recorded().display());
}

/// The hand-made recordings are those of the fixtures. Apart from the name, nothing of a machine is lost by
/// recording it.
#[test]
fn recordings_keep_what_the_reader_reads() {
    let shapes = [
        (everything(), Some("made-up-everything")),
        (hbm_flat(), Some("made-up-hbm-flat")),
        (odd_nodes(), Some("made-up-odd-nodes")),
        (one_node(), None),
        (two_nodes(), None),
        (hbm_flat_without_hmat().tier(0, "2-3").tier(4, "0-1"), None),
        (fixtures::Tree::new(), None),
    ];
    for (tree, name) in shapes {
        let recording = Recording::of(tree.root()).unwrap();
        assert_eq!(Machine::discover_in(&recording).unwrap(), Machine::discover_at(tree.root()).unwrap());
        let json = serde_json::to_string_pretty(&recording).unwrap() + "\n";
        assert_eq!(serde_json::from_str::<Recording>(&json).unwrap(), recording);
        if let Some(name) = name {
            compare(&recorded().join(format!("{name}.json")), &json);
        }
    }
}

#[test]
fn this_machine_can_be_recorded() {
    let recording = Recording::of("/").unwrap();
    let read = Machine::discover_in(&recording).unwrap();
    let here = Machine::discover().unwrap();
    assert_eq!((read.name(), read.cpu(), read.kernel()), (here.name(), here.cpu(), here.kernel()));
    assert_eq!(read.cpu_family_and_model(), here.cpu_family_and_model());
    assert_eq!(summary(&read), summary(&here));
    assert_eq!(read.is_numa_balancing_on(), here.is_numa_balancing_on());
    let named = recording.with_name("somebody's");
    assert_eq!(Machine::discover_in(&named).unwrap().name(), "somebody's");
    let json = serde_json::to_string(&named).unwrap();
    assert!(!json.contains(&format!("\"{}\\n\"", here.name())), "the host's name is gone");
    if std::env::var_os("MEMFERRY_RECORD").is_some_and(|what| what == "this machine") {
        let named = named.with_name("firecracker");
        let json = serde_json::to_string_pretty(&named).unwrap() + "\n";
        fs::write(recorded().join("firecracker-one-node.json"), json).unwrap();
    }
}

#[test]
fn a_recording_has_no_more_than_it_needs() {
    let tree = everything()
        .file("sys/devices/system/node/node0/numastat", "1")
        .file("sys/devices/pci0000:0/dsa0/power/control", "auto")
        .file("proc/cpuinfo", "processor: 0\nmodel name: A\n\nprocessor: 1\nmodel name: B")
        .file("proc/self/environ", "SECRET=1");
    let recording = Recording::of(tree.root()).unwrap();
    let text = |path: &str| recording.text(path).unwrap_or("none").to_owned();
    assert_eq!(text("proc/cpuinfo"), "processor: 0\nmodel name: A\n");
    assert_eq!(text("proc/self/status"), "Cpus_allowed_list:\t0-2\nMems_allowed_list:\t0,2-4\n");
    assert_eq!(text("proc/self/cgroup"), "0::/slice/ours\n");
    assert_eq!(text("sys/fs/cgroup/slice/memory.max"), "8589934592\n");
    assert_eq!(text("sys/devices/pci0000:0/dsa0/wq0.0/size"), "16\n");
    assert_eq!(text("sys/devices/pci0000:0/dsa0/engine0.0/group_id"), "0\n");
    assert_eq!(recording.head("sys/bus/dsa/devices/dsa2/numa_node", 9).unwrap(), b"1\n");
    for path in recording.paths() {
        assert!(!["numastat", "environ", "power", ".keep"].iter().any(|no| path.contains(no)), "{path}");
    }
}

/// What the driver shows, who may use its queues, and who asks: the same from a directory and from its recording.
#[test]
fn dsa_devices_are_recorded() {
    let driver = FakeDriver::xeon_max();
    let config = Profile::named("2n1d1e1w").unwrap().config();
    let state = SystemState::read(&driver).unwrap();
    let plan = Plan::new(&config, &state, ApplyOptions { disable_first: false, enable: true }).unwrap();
    plan.apply_to(&driver).unwrap();
    driver.become_user(1000, 0);
    let tree = two_nodes_without_dsa();
    driver.record_to(tree.root()).unwrap();
    let recording = Recording::of(tree.root()).unwrap();
    let recording: Recording = serde_json::from_str(&serde_json::to_string(&recording).unwrap()).unwrap();
    let (mut there, here) =
        (SystemState::discover_at(tree.root()).unwrap(), SystemState::read(&recording).unwrap());
    // What stands for a character device in the directory is a plain file somewhere else.
    for (was, is) in there.devices.iter_mut().zip(&here.devices) {
        for (was, is) in was.queues.iter_mut().zip(&is.queues) {
            if let (Some(was), Some(is)) = (&mut was.file, &is.file) {
                was.path.clone_from(&is.path);
                was.owner.is_device = true;
            }
        }
    }
    assert!(here == there, "{here:?}");
    assert_eq!((here.devices.len(), here.others.len(), here.drivers.len()), (8, 8, 4));
    let queue = here.queue(DeviceId(2).queue(0)).unwrap();
    assert_eq!((queue.driver.as_deref(), queue.file.as_ref().unwrap().owner.mode), (Some("user"), 0o600));
    let told = here
        .diagnose(&QueueFilter::default())
        .diagnostics
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    assert!(told.iter().any(|diagnostic| diagnostic.contains("dsa/wq2.0 has mode 0600")), "{told:?}");
    // The files cannot be opened as files, nor written.
    assert!(recording.read("dev/dsa/wq2.0").is_err());
    let error = recording.write("sys/bus/dsa/devices/dsa0/cmd_status", "1").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
}

/// Who made a recording is in it only where that decides what can be opened.
#[test]
fn who_recorded_is_nobody_s_business_without_a_dsa() {
    let status = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0\nMems_allowed_list:\t0\n";
    let tree = one_node().file("proc/self/status", status);
    assert_eq!(record(&tree).text("proc/self/status"), Some("Mems_allowed_list:\t0\n"));
    let tree = tree.dsa("dsa0", 0);
    let kept = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0\nMems_allowed_list:\t0\n";
    assert_eq!(record(&tree).text("proc/self/status"), Some(kept));
}

#[test]
fn files_that_are_no_recording_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("machine.json");
    let error = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let error = Machine::discover_at(&file).unwrap_err();
        assert!(error.to_string().contains("machine.json"), "{error}");
        error
    };
    for bytes in [&b""[..], b"{", b"[]", b"{\"a\": \"\xff\"}", b"{\"a\": 1}", b"sys"] {
        let error = error(bytes);
        assert!(matches!(error, TopologyError::Recording { .. }), "{error:?}");
    }
    let empty = error(b"{}");
    assert!(matches!(empty, TopologyError::Read { .. }), "{empty:?}");
    assert!(empty.to_string().contains("machine.json/sys/devices/system/cpu/online"), "{empty}");
    let absent = Machine::discover_at(directory.path().join("absent")).unwrap_err().to_string();
    assert!(absent.contains("absent") && absent.contains("a directory with sys and proc in it"), "{absent}");
}

/// Shows one tree up to a read, then another.
struct Changing<'a> {
    trees: &'a [Recording],
    /// Which tree the `n`-th look sees.
    at: &'a dyn Fn(usize) -> usize,
    looks: Cell<usize>,
}

impl Changing<'_> {
    fn look(&self) -> &Recording {
        let look = self.looks.replace(self.looks.get() + 1);
        &self.trees[(self.at)(look)]
    }
}

impl Files for Changing<'_> {
    fn name(&self) -> String {
        "changing".to_owned()
    }

    fn head(&self, file: &str, size_bytes_max: usize) -> io::Result<Vec<u8>> {
        self.look().head(file, size_bytes_max)
    }

    fn entries(&self, directory: &str) -> io::Result<Vec<String>> {
        self.look().entries(directory)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.look().link(path)
    }
}

/// How often a reader looks at this tree, and what it sees.
fn observe(trees: &[Recording], at: &dyn Fn(usize) -> usize) -> (usize, Result<Machine, TopologyError>) {
    let tree = Changing { trees, at, looks: Cell::new(0) };
    let outcome = Machine::discover_in(&tree);
    (tree.looks.get(), outcome)
}

fn record(tree: &fixtures::Tree) -> Recording {
    Recording::of(tree.root()).unwrap()
}

/// A node goes offline, or comes, after any of the reads: what is read is the machine before or after.
#[test]
fn a_node_that_comes_or_goes_while_reading() {
    let more = fixtures::Tree::new()
        .online("0-2")
        .node(0, "0-1", 4 << 20, "10 21 17")
        .node(1, "2-3", 4 << 20, "21 10 28")
        .node(2, "", 1 << 20, "17 28 10")
        .file("sys/devices/system/node/possible", "0-2");
    let less = two_nodes().file("sys/devices/system/node/possible", "0-2");
    for trees in [[record(&more), record(&less)], [record(&less), record(&more)]] {
        let whole = trees.each_ref().map(|tree| Machine::discover_in(tree).unwrap());
        let (looks, _) = observe(&trees, &|_| 0);
        assert!(looks > 20);
        for change in 0..=looks {
            let (_, seen) = observe(&trees, &|look| usize::from(look >= change));
            let seen = seen.unwrap_or_else(|error| panic!("changed before read {change}: {error}"));
            assert_eq!(seen, whole[usize::from(change < looks)], "changed before read {change}");
        }
    }
}

/// A machine that never stands still is an error that says so, or one of its states, and never a panic.
#[test]
fn a_machine_that_keeps_changing() {
    let trees = [record(&everything()), record(&two_nodes()), record(&odd_nodes())];
    let mut changing = 0;
    for period in 1..60 {
        let (looks, seen) = observe(&trees, &|look| look / period % trees.len());
        assert!(looks < 1000, "it gives up");
        match seen {
            Ok(machine) => broken::check(&machine),
            Err(TopologyError::Changing { machine, attempts, before, after }) => {
                assert_eq!((machine.as_str(), attempts), ("changing", 3));
                assert_ne!(before, after);
                changing += 1;
            }
            Err(error) => assert!(error.to_string().len() > 20, "{error}"),
        }
    }
    assert!(changing > 10, "{changing}");
}

/// A file that is gone for good is named, as if nothing had been tried again.
#[test]
fn a_file_that_does_not_come_back_is_named() {
    let mut half = record(&two_nodes());
    assert!(half.remove("sys/devices/system/node/node1"));
    let error = Machine::discover_in(&half).unwrap_err();
    assert!(matches!(error, TopologyError::Read { .. }), "{error:?}");
    assert!(
        error.to_string().contains("node1/cpulist") && error.to_string().contains("try again"),
        "{error}"
    );
    let trees = [half, record(&two_nodes())];
    let (_, seen) = observe(&trees, &|look| usize::from(look >= 20));
    assert_eq!(seen.unwrap().node(NodeId(1)).unwrap().cpus, [2, 3], "and read if it does");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// What `cargo xtask fuzz sysfs` does for longer.
    #[test]
    fn changed_recordings_never_panic(data in prop::collection::vec(any::<u8>(), 0..60)) {
        broken::sysfs(&data);
    }

    /// What `cargo xtask fuzz profile` does for longer.
    #[test]
    fn changed_profiles_never_panic(data in prop::collection::vec(any::<u8>(), 0..40)) {
        broken::profile(&data);
    }

    #[test]
    fn changed_json_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut json = include_bytes!("../recorded/made-up-odd-nodes.json").to_vec();
        let at = at.index(json.len());
        json[at] = byte;
        broken::json(&json);
    }
}

/// The fuzzed functions reach machines, not errors only.
#[test]
fn changed_recordings_are_often_machines() {
    let machines = (0u8..=255).filter(|&n| {
        let recording = broken::recording(&[n, 3, n, n.wrapping_mul(7), 2]);
        Machine::discover_in(&recording).is_ok()
    });
    let count = machines.count();
    assert!((50..250).contains(&count), "{count} of 256");
    assert!(broken::profile(&[1]).is_some());
}
