//! Programs with the library of `memferry place` on a machine with several NUMA nodes, page by page.
//!
//! ```text
//! a test ── starts ──▶ `child` (stage launch) ── exec ──▶ `child` (stage program) with the library
//! ```
//!
//! The program looks at its own pages by move_pages(2), and at its policies by /proc/self/numa_maps. Cases that users lost
//! time with are tests here: memory of a device's program interleaved, a policy overridden, copies for each node until
//! memory ran out, pages in the cache that kept the node of an earlier run.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use std::alloc::{Layout, alloc, dealloc};
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::{env, io, ptr, slice};

use memferry::Machine;
use memferry::internals::{interleave_weights, nodes_of_pages};
use memferry::memory::Mapping;
use memferry::topology::NodeId;
use memferry_offload::Summary;
use memferry_offload::place::{Options, Pattern, Policy, execute};
use memferry_testing::{Needs, skip};
use numa_support::{MIB, PAGE, fill_for_good, on_several_nodes, write_pattern};

const STAGE: &str = "MEMFERRY_TEST_STAGE";
const CASE: &str = "MEMFERRY_TEST_CASE";
const ARGUMENT: &str = "MEMFERRY_TEST_ARGUMENT";

/// The two nodes of a test: the first one with CPUs and memory, and the last one with memory.
fn two_nodes(machine: &Machine) -> (NodeId, NodeId) {
    let with_memory = || machine.nodes().iter().filter(|node| node.memory_bytes > Some(0));
    let first = with_memory().find(|node| !node.cpus.is_empty()).expect("a test runs on it").id;
    (first, with_memory().map(|node| node.id).filter(|&id| id != first).last().expect("there are several"))
}

/// Runs a case, and returns its output.
#[track_caller]
fn run(case: &str, argument: &str) -> String {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .envs([(STAGE, "launch"), (CASE, case), (ARGUMENT, argument)])
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    let text =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{case} {argument}: {}\n{text}",
        output.status
    );
    text
}

#[test]
#[ignore = "entry point of processes that other tests start"]
fn child() {
    let (Ok(case), Ok(argument)) = (env::var(CASE), env::var(ARGUMENT)) else { return };
    let machine = Machine::discover().unwrap();
    let nodes = two_nodes(&machine);
    if env::var(STAGE).unwrap() == "program" {
        return program(&case, &argument, nodes);
    }
    // SAFETY: no other thread reads the environment: the test harness waits.
    unsafe { env::set_var(STAGE, "program") };
    let options = options(&case, &argument, &machine, nodes);
    panic!("{}", execute(&options));
}

fn options(case: &str, argument: &str, machine: &Machine, (first, last): (NodeId, NodeId)) -> Options {
    let of = |weights: [u32; 2]| vec![(first.0, weights[0]), (last.0, weights[1])];
    let cpus = |node: NodeId| machine.node(node).unwrap().cpus.clone();
    let with_cpus = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
    let near = |cpus: &[u32]| cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let options = Options {
        arguments: ["--exact", "child", "--ignored", "--nocapture"].map(Into::into).to_vec(),
        weights: of([3, 1]),
        pattern: Pattern::Stripes,
        heap: Policy::Interleave,
        anonymous: Policy::Interleave,
        near: with_cpus.map(|node| (near(&node.cpus), node.id.0)).collect(),
        cpus: Some(cpus(first)),
        summary: Summary::Stderr,
        ..Options::new(env::current_exe().unwrap())
    };
    let files = |policy| Options {
        heap: Policy::Leave,
        anonymous: Policy::Leave,
        files: vec![("*.data".into(), policy)],
        ..options.clone()
    };
    match case {
        "even" => Options { weights: of([1, 1]), pattern: Pattern::Even, ..options },
        "whole" => Options { weights: of([1, 1]), pattern: Pattern::Even, whole: true, ..options },
        "kernel" => Options { pattern: Pattern::Kernel, ..options },
        "first touch" => Options { heap: Policy::FirstTouch, anonymous: Policy::FirstTouch, ..options },
        "device" => Options { with_devices: argument == "with", ..options },
        "file" => files(Policy::Interleave),
        "replica" => {
            let on = argument.split(' ').nth(1).unwrap();
            let on = on.parse().ok().map(|node| cpus(NodeId(node)));
            Options { cpus: on, ..files(Policy::Replicate) }
        }
        _ => options,
    }
}

fn program(case: &str, argument: &str, nodes: (NodeId, NodeId)) {
    match case {
        "allocations" => allocations(nodes),
        "even" => in_turns(nodes, [1, 1]),
        "whole" => whole(nodes),
        "kernel" => in_turns(nodes, [3, 1]),
        "first touch" => first_touch(nodes),
        "grow" => grow(nodes),
        "own policy" => own_policy(nodes),
        "device" => device(argument == "with", nodes),
        "file" => file(Path::new(argument), nodes),
        "replica" => replica(argument),
        "full" => full(nodes),
        other => panic!("there is no case {other}"),
    }
}

/// An anonymous mapping by the program's own mmap.
fn map(bytes: usize) -> &'static mut [u8] {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which is never unmapped.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        slice::from_raw_parts_mut(start.cast(), bytes)
    }
}

/// The whole pages of some memory.
fn whole_pages(bytes: &[u8]) -> &[u8] {
    let before = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
    &bytes[before..before + (bytes.len() - before) / PAGE * PAGE]
}

fn nodes_of(bytes: &[u8]) -> Vec<NodeId> {
    nodes_of_pages(bytes).unwrap().into_iter().map(|node| node.expect("it was touched")).collect()
}

/// The policy of each address, from numa_maps.
struct Policies(Vec<(usize, String)>);

impl Policies {
    fn read() -> Policies {
        let maps = fs::read_to_string("/proc/self/numa_maps").unwrap();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let start = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
            (start, words.next().unwrap().to_owned())
        };
        Policies(maps.lines().map(line).collect())
    }

    fn at(&self, address: usize) -> &str {
        let index = self.0.partition_point(|&(start, _)| start <= address);
        &self.0[index - 1].1
    }
}

/// Each page is on the node of its stripe, and three quarters of the stripes are the first node's.
#[track_caller]
fn assert_stripes(bytes: &[u8], (first, last): (NodeId, NodeId)) {
    let pages = whole_pages(bytes);
    let policies = Policies::read();
    let nodes = nodes_of(pages);
    let mut of_first = 0;
    for (index, &node) in nodes.iter().enumerate() {
        let address = pages.as_ptr().addr() + index * PAGE;
        assert_eq!(policies.at(address), format!("prefer:{node}"), "page {index} of {}", nodes.len());
        assert!(node == first || node == last);
        of_first += usize::from(node == first);
    }
    // A stripe starts with a huge page: three of them are the largest difference.
    let wanted = nodes.len() * 3 / 4;
    assert!(of_first.abs_diff(wanted) <= 3 * 512.min(nodes.len() / 16), "{of_first} of {}", nodes.len());
}

fn allocations(nodes: (NodeId, NodeId)) {
    let mut mapped = map(64 * MIB);
    write_pattern(mapped);
    assert_stripes(mapped, nodes);
    let mut small_pages = map(4 * MIB);
    write_pattern(small_pages);
    assert_stripes(small_pages, nodes);
    let mut allocated = Vec::with_capacity(33 * MIB + 5);
    allocated.resize(33 * MIB + 5, 7_u8);
    assert_stripes(&allocated, nodes);
    let mut zeroed = vec![0_u8; 32 * MIB];
    write_pattern(&mut zeroed);
    assert_stripes(&zeroed, nodes);
    let layout = Layout::from_size_align(32 * MIB, 2 * MIB).unwrap();
    // SAFETY: the size is not zero; the memory is written before it is read, and freed with its layout.
    unsafe {
        let aligned = alloc(layout);
        let bytes = slice::from_raw_parts_mut(aligned, layout.size());
        bytes.fill(1);
        assert_stripes(bytes, nodes);
        dealloc(aligned, layout);
    }
    // Small memory and the stack stay on the node of the thread.
    let small = vec![1_u8; 512 << 10];
    let stack = [1_u8; 64 << 10];
    for bytes in [small.as_slice(), std::hint::black_box(&stack)] {
        assert!(nodes_of(bytes).iter().all(|&node| node == nodes.0), "{:?}", nodes_of(bytes));
    }
    drop((allocated, zeroed));
    (mapped, small_pages) = (&mut [], &mut []);
    let _ = (mapped, small_pages);
}

/// Units of pages in turn, as the kernel interleaves: each run of a period has each node as often as its weight.
fn in_turns((first, last): (NodeId, NodeId), weights: [usize; 2]) {
    // SAFETY: it takes numbers. Huge pages would be units of their own.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    let mapped = map(8 * MIB);
    write_pattern(mapped);
    let mut allocated = Vec::with_capacity(8 * MIB);
    allocated.resize(8 * MIB, 3_u8);
    for bytes in [&*mapped, whole_pages(&allocated)] {
        let nodes = nodes_of(bytes);
        let period = weights[0] + weights[1];
        for run in nodes.windows(period) {
            let count = |node: NodeId| run.iter().filter(|&&found| found == node).count();
            // By each page's address or by the order of faults, which is the same here.
            assert_eq!([count(first), count(last)], weights, "{nodes:?}");
        }
    }
}

/// The policy of the process takes turns by faults, also for page tables, so pages are only counted.
fn whole((first, last): (NodeId, NodeId)) {
    let small = vec![1_u8; 512 << 10];
    let nodes = nodes_of(&small);
    let count = |node: NodeId| nodes.iter().filter(|&&found| found == node).count();
    assert_eq!(count(first) + count(last), nodes.len(), "{nodes:?}");
    assert!(count(first).min(count(last)) >= nodes.len() / 3, "{nodes:?}");
}

fn first_touch(nodes: (NodeId, NodeId)) {
    let mapped = map(4 * MIB);
    write_pattern(mapped);
    let policies = Policies::read();
    assert_eq!(policies.at(mapped.as_ptr().addr()), "local");
    assert!(nodes_of(mapped).iter().all(|&node| node == nodes.0), "the thread's node");
}

/// Growing keeps content and placement: several stripes cannot be moved by mremap(2).
fn grow(nodes: (NodeId, NodeId)) {
    const PIECE: usize = 7 * MIB;
    let mut grown: Vec<u8> = Vec::new();
    for piece in 0..4 {
        grown.reserve_exact(PIECE);
        grown.resize((piece + 1) * PIECE, 0);
        write_pattern(&mut grown[piece * PIECE..]);
    }
    grown.chunks(PIECE).for_each(assert_content);
    assert_stripes(&grown, nodes);
    let mapped = map(16 * MIB);
    write_pattern(mapped);
    // SAFETY: the mapping is this function's, and only the new address is used later.
    let moved = unsafe {
        let moved = libc::mremap(mapped.as_mut_ptr().cast(), 16 * MIB, 40 * MIB, libc::MREMAP_MAYMOVE);
        assert_ne!(moved, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        slice::from_raw_parts_mut(moved.cast::<u8>(), 40 * MIB)
    };
    assert_content(&moved[..16 * MIB]);
    moved[16 * MIB..].fill(1);
    assert_stripes(moved, nodes);
}

/// As a program that uses libnuma.
fn own_policy((_, last): (NodeId, NodeId)) {
    let mut mask = [0 as libc::c_ulong; 16];
    mask[last.0 as usize / 64] = 1 << (last.0 % 64);
    // SAFETY: the mask has the length given with it.
    let answer = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED as libc::c_long, mask.as_ptr(), 1025)
    };
    assert_eq!(answer, 0);
    let mapped = map(4 * MIB);
    write_pattern(mapped);
    assert!(nodes_of(mapped).iter().all(|&node| node == last));
}

const DEVICE: &str = "/dev/infiniband/memferry-test";

fn device(places: bool, nodes: (NodeId, NodeId)) {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a device that is /dev/zero.
    let page =
        unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    let staging = map(32 * MIB);
    write_pattern(staging);
    if places {
        return assert_stripes(staging, nodes);
    }
    assert!(nodes_of(staging).iter().all(|&node| node == nodes.0), "near the thread that fills it");
}

/// A read-only mapping of a file, as model loaders make it.
fn map_file(path: &Path) -> &'static [u8] {
    let file = fs::File::open(path).unwrap();
    let bytes = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping of a file that nobody changes; it is never unmapped.
    unsafe {
        let start =
            libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        slice::from_raw_parts(start.cast::<u8>(), bytes)
    }
}

fn assert_content(bytes: &[u8]) {
    let mut expected = vec![0; bytes.len()];
    write_pattern(&mut expected);
    assert!(bytes == expected, "the content of the file");
}

fn file(path: &Path, (first, last): (NodeId, NodeId)) {
    let mapped = map_file(path);
    assert_content(mapped);
    let nodes = nodes_of(mapped);
    let count = |node| nodes.iter().filter(|&&found| found == node).count();
    assert_eq!(count(first) + count(last), nodes.len(), "{nodes:?}");
    // A stripe starts with a huge page.
    assert!(count(first).abs_diff(nodes.len() * 3 / 4) <= 3 * 512, "{} of {}", count(first), nodes.len());
}

/// The argument: the file, the node of the CPUs or `all`, and `copied` or `shared`.
fn replica(argument: &str) {
    let words: Vec<&str> = argument.split(' ').collect();
    let mapped = map_file(Path::new(words[0]));
    assert_content(mapped);
    let policy = Policies::read().at(mapped.as_ptr().addr()).to_owned();
    if words[2] == "copied" {
        let node = NodeId(words[1].parse().unwrap());
        assert_eq!(policy, format!("prefer:{node}"));
        assert!(nodes_of(mapped).iter().all(|&found| found == node), "{:?}", nodes_of(mapped));
    } else {
        assert_eq!(policy, "default");
    }
}

fn full((first, _): (NodeId, NodeId)) {
    let mapped = map(24 * MIB);
    write_pattern(mapped);
    assert_content(mapped);
    assert!(nodes_of(mapped).iter().filter(|&&node| node == first).count() >= 12 * MIB / PAGE);
}

/// Whether this is a guest, where a test may change the machine. If not, the calling test is skipped.
fn is_guest() -> bool {
    let is_guest = env::var_os("MEMFERRY_GUEST_LAYOUT").is_some();
    if !is_guest {
        skip(Needs::Guest, "it changes the machine");
    }
    is_guest
}

#[test]
fn stripes_follow_weights_page_by_page() {
    on_several_nodes(|_, _| {
        let text = run("allocations", "");
        assert!(text.contains("allocations with a policy"), "{text}");
        assert!(text.contains("placed ranges freed before the exit"), "{text}");
        assert!(text.contains("weights"), "{text}");
    });
}

#[test]
fn equal_weights_take_turns() {
    on_several_nodes(|_, _| {
        run("even", "");
        let text = run("whole", "");
        assert!(text.contains("stacks and small memory, too"), "{text}");
    });
}

#[test]
fn the_kernel_interleaves_by_its_weights() {
    on_several_nodes(|machine, _| {
        if !is_guest() {
            return;
        }
        let (first, last) = two_nodes(machine);
        let Ok(before) = interleave_weights(machine) else {
            return skip(Needs::Kernel("weighted interleaving"), "it came with Linux 6.9");
        };
        let set = |node: NodeId, weight: u32| {
            fs::write(format!("/sys/kernel/mm/mempolicy/weighted_interleave/node{node}"), weight.to_string())
        };
        set(first, 3).and_then(|()| set(last, 1)).unwrap();
        run("kernel", "");
        set(first, before[&first]).and_then(|()| set(last, before[&last])).unwrap();
    });
}

#[test]
fn first_touch_is_a_policy_of_its_own() {
    on_several_nodes(|_, _| _ = run("first touch", ""));
}

#[test]
fn growing_keeps_content_and_placement() {
    on_several_nodes(|_, _| _ = run("grow", ""));
}

/// llama.cpp's mirror leaves a user's policy alone for the same reason: the user knows better.
#[test]
fn a_policy_of_the_program_is_left_alone() {
    on_several_nodes(|_, _| {
        let text = run("own policy", "");
        assert!(text.contains("because the program has a memory policy of its own"), "{text}");
    });
}

/// A program with a GPU fell from 2.32 to 0.22 tokens per second when its pinned staging buffers were interleaved with
/// the rest of its memory.
#[test]
fn programs_with_devices_keep_their_memory_near() {
    on_several_nodes(|_, _| {
        if !is_guest() {
            return;
        }
        fs::create_dir_all("/dev/infiniband").unwrap();
        let path = std::ffi::CString::new(DEVICE).unwrap();
        // SAFETY: the path ends with a zero. The numbers are those of /dev/zero.
        let made = unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 5)) };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        let texts = [run("device", "without"), run("device", "with")];
        fs::remove_file(DEVICE).unwrap();
        assert!(texts[0].contains("because the program uses a GPU, a network adapter"), "{}", texts[0]);
        assert!(!texts[1].contains("because the program uses"), "{}", texts[1]);
    });
}

/// A file with a pattern, which is in the page cache of the node of this thread.
fn cached_file(bytes: usize) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.data");
    let mut content = vec![0; bytes];
    write_pattern(&mut content);
    fs::write(&path, content).unwrap();
    (directory, path)
}

/// Weights of a model stayed on the node where an earlier run had read them.
#[test]
fn cached_pages_of_a_file_are_moved() {
    on_several_nodes(|_, _| {
        let (_directory, path) = cached_file(32 * MIB);
        let text = run("file", path.to_str().unwrap());
        assert!(text.contains("files with a policy: 1, 32.0 MiB"), "{text}");
    });
}

#[test]
fn a_replica_is_on_the_node_of_its_process() {
    on_several_nodes(|machine, _| {
        let (_directory, path) = cached_file(8 * MIB);
        let nodes =
            machine.nodes().iter().filter(|node| !node.cpus.is_empty() && node.memory_bytes > Some(0));
        for node in nodes.map(|node| node.id).take(3) {
            let text = run("replica", &format!("{} {node} copied", path.display()));
            assert!(text.contains("files copied to the node of the process: 1, 8.0 MiB"), "{text}");
        }
        let text = run("replica", &format!("{} all shared", path.display()));
        assert!(text.contains("because the threads may run on several nodes"), "{text}");
        let (first, _) = two_nodes(machine);
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        let text = run("replica", &format!("{} {first} shared", path.display()));
        drop(writer);
        assert!(text.contains("open for writing"), "{text}");
    });
}

/// Copies for the four nodes of a machine with sub-NUMA clusters ended in the OOM killer.
#[test]
fn a_full_node_gets_no_replica() {
    on_several_nodes(|machine, nodes| {
        let Some((node, _)) = numa_support::a_node_to_fill(machine, nodes) else { return };
        let with_cpus = machine.nodes().iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id);
        // The node of copies is the node of the CPUs, so a node with CPUs is filled.
        let node = if machine.node(node).unwrap().cpus.is_empty() { with_cpus.last().unwrap() } else { node };
        let (_directory, path) = cached_file(16 * MIB);
        let hog: Vec<Mapping> = fill_for_good(machine, node);
        let text = run("replica", &format!("{} {node} shared", path.display()));
        drop(hog);
        assert!(text.contains("because the nodes have no room for them"), "{text}");
    });
}

/// Stripes are preferences: a strictly bound page fault on a full node calls the OOM killer.
#[test]
fn a_full_node_does_not_end_the_program() {
    on_several_nodes(|machine, nodes| {
        let Some((smallest, _)) = numa_support::a_node_to_fill(machine, nodes) else { return };
        let (_, last) = two_nodes(machine);
        let hog: Vec<Mapping> = fill_for_good(machine, if smallest == last { smallest } else { last });
        run("full", "");
        drop(hog);
    });
}
