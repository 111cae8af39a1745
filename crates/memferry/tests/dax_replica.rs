//! Replicas in real files: processes that are killed, other processes, and files that are no replicas. Resets of the
//! machine are simulated in `src/replica/tests.rs`, and made with guests in `memferry-cli/tests/integration/machine_reset.rs`.
//!
//! `cargo xtask numa --machine made-up-fsdax-node` runs them on persistent memory. Elsewhere TMPDIR chooses the file system.

#[allow(dead_code)]
#[path = "../../memferry-dsa/tests/integration/fork_support/mod.rs"]
mod fork_support;

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fork_support::{alone, in_child};
use memferry::mover::Mover;
use memferry::topology::Machine;
use memferry::{Replica, ReplicaError};
use memferry_testing::{Needs, skip};
use serde::Deserialize;
use tempfile::TempDir;

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Bytes that depend on the seed and on their position. A word at a time: emulated CPUs are slow.
fn pattern(seed: u64, size_bytes: usize) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let words = (0..size_bytes.div_ceil(4)).flat_map(|_| (random.next() as u32).to_le_bytes());
    words.take(size_bytes).collect()
}

/// The path of a file that does not exist yet.
fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replica");
    (directory, path)
}

/// A closed replica with two versions.
fn closed(capacity_bytes: u64) -> (TempDir, PathBuf) {
    let (directory, path) = place();
    let mut replica = Replica::create(&path, capacity_bytes).unwrap();
    for fill in 1..=2_u8 {
        replica.write(&[vec![fill; capacity_bytes as usize]]).unwrap();
    }
    (directory, path)
}

#[test]
fn versions_are_restored_by_the_next_process() {
    let sizes = [0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];
    for capacity_bytes in sizes {
        let (_directory, path) = place();
        let mut replica = Replica::create(&path, capacity_bytes as u64).unwrap();
        assert_eq!((replica.version(), replica.restore().unwrap()), (None, None));
        let mut last = None;
        for size_bytes in sizes.into_iter().filter(|&size_bytes| size_bytes <= capacity_bytes).rev() {
            let content = pattern(size_bytes as u64 + 1, size_bytes);
            let (left, right) = content.split_at(size_bytes / 3);
            let version = replica.write(&[left, &[], right]).unwrap();
            assert_eq!(Some(version), last.map_or(Some(1), |last: u64| Some(last + 1)));
            assert_eq!(replica.restore().unwrap(), Some(content.clone()));
            drop(replica);
            replica = Replica::open(&path).unwrap();
            assert_eq!((replica.version(), replica.len()), (Some(version), size_bytes as u64));
            assert_eq!((replica.capacity_bytes(), replica.damaged_version()), (capacity_bytes as u64, None));
            assert_eq!(replica.restore().unwrap(), Some(content));
            last = Some(version);
        }
        let too_long = replica.write(&[vec![0; capacity_bytes], vec![0]]).unwrap_err();
        assert!(
            matches!(too_long, ReplicaError::TooLong { size_bytes, .. } if size_bytes == capacity_bytes as u64 + 1)
        );
        assert_eq!(replica.version(), last, "nothing was written");
    }
}

/// The content of a version, of a size of its own.
fn content_of(version: u64) -> Vec<u8> {
    pattern(2 * version, (3 << 20) - (version as usize * 4099) % (1 << 20))
}

const WRITER: &str = "MEMFERRY_TEST_REPLICA";

/// Writes versions for ever, and prints each that is acknowledged.
fn write_until_killed(path: &Path) -> ! {
    let mut replica = Replica::open(path).unwrap();
    loop {
        let version = replica.version().unwrap_or(0) + 1;
        assert_eq!(replica.write(&[content_of(version)]).unwrap(), version);
        println!("acknowledged {version}");
    }
}

/// A process that is killed in mid-write leaves the version before or the new one, and no lock.
#[test]
fn a_killed_writer_leaves_a_complete_version() {
    if let Some(path) = std::env::var_os(WRITER) {
        write_until_killed(path.as_ref());
    }
    let (_directory, path) = place();
    drop(Replica::create(&path, 3 << 20).unwrap());
    let mut random = Random(7);
    let mut between = 0;
    for round in 0..20 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_writer_leaves_a_complete_version", "--test-threads=1", "--nocapture"])
            .env(WRITER, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines().map(Result::unwrap);
        let number = |line: String| Some(line.split_once("acknowledged ")?.1.parse::<u64>().unwrap());
        let first = lines.by_ref().find_map(number).expect("the writer acknowledges a version");
        thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let last = lines.filter_map(number).last().unwrap_or(first);

        let replica = Replica::open(&path).unwrap();
        let version = replica.version().unwrap();
        assert!(version == last || version == last + 1, "round {round}: {version} after {last}");
        between += usize::from(version == last);
        assert!(
            replica.restore().unwrap().unwrap() == content_of(version),
            "round {round}: version {version}"
        );
        assert_eq!(replica.damaged_version(), None);
    }
    assert!(between > 0, "no writer was killed between two acknowledgements");
}

#[test]
fn a_replica_is_open_once() {
    let (_directory, path) = closed(100);
    let replica = Replica::open(&path).unwrap();
    let error = Replica::open(&path).unwrap_err();
    assert!(matches!(error, ReplicaError::Locked { .. }), "{error}");
    drop(replica);
    Replica::open(&path).unwrap();
}

/// The child has the file open, with the lock. It can neither write nor take the lock away from its parent.
#[test]
fn a_forked_child_does_not_use_the_replica() {
    alone("a_forked_child_does_not_use_the_replica", || {
        let (_directory, path) = closed(100);
        let replica = Replica::open(&path).unwrap();
        in_child(|| {
            let mut replica = replica;
            let refused = |error: ReplicaError| matches!(error, ReplicaError::Forked { .. });
            assert!(replica.write(&[[3_u8; 10]]).is_err_and(refused));
            assert!(replica.restore().is_err_and(refused));
            drop(replica);
        });
    });
}

/// Not earlier when a child drops its copy, and not later because a child is alive.
#[test]
fn a_lock_ends_with_its_replica() {
    alone("a_lock_ends_with_its_replica", lock_ends);
}

fn lock_ends() {
    let (_directory, path) = closed(100);
    let mut replica = Some(Replica::open(&path).unwrap());
    in_child(|| drop(replica.take()));
    assert!(matches!(Replica::open(&path), Err(ReplicaError::Locked { .. })), "the child dropped its copy");
    // SAFETY: the child calls async-signal-safe functions only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::sleep(60);
            libc::_exit(0)
        }
    }
    drop(replica);
    let opened = Replica::open(&path);
    // SAFETY: the child is this process' own, and is waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    opened.unwrap();
}

#[test]
fn files_that_are_no_replicas_are_refused_and_stay() {
    let (directory, path) = place();
    assert_error(&path, "No such file", "Replica::create makes a new file");
    assert_error(directory.path(), "directory", "pass the path of a file");
    let pipe = directory.path().join("pipe");
    let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: the string is live and ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_error(&pipe, "not a regular file", "");
    for (content, expected) in [
        (vec![], "too short"),
        (vec![0; 8191], "too short"),
        (vec![0; 8192], "did not finish"),
        (pattern(1, 20_000), "no header of one"),
    ] {
        fs::write(&path, &content).unwrap();
        assert_error(&path, expected, "");
        assert!(fs::read(&path).unwrap() == content, "{expected}: the file was changed");
    }
}

#[track_caller]
fn assert_error(path: &Path, expected: &str, advice: &str) {
    let text = Replica::open(path).unwrap_err().to_string();
    assert!(text.contains(expected) && text.contains(advice), "{text}");
    assert!(text.contains(&*path.to_string_lossy()), "{text}");
}

#[test]
fn other_formats_and_truncated_files_are_refused_and_stay() {
    let (_directory, path) = closed(5000);
    let content = fs::read(&path).unwrap();
    let mut other = content.clone();
    (other[8], other[4096 + 8]) = (2, 2);
    fs::write(&path, &other).unwrap();
    assert_error(&path, "has format 2", "reads format 1");
    assert!(fs::read(&path).unwrap() == other);
    // Headers, half of the data, all but one byte.
    for (len, expected) in
        [(4096, "too short"), (8192, "truncated"), (16_384, "truncated"), (content.len() - 1, "truncated")]
    {
        fs::write(&path, &content[..len]).unwrap();
        assert_error(&path, expected, "");
        assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
    }
    // A longer file has all that it needs.
    fs::write(&path, [content.as_slice(), &[7; 100]].concat()).unwrap();
    assert_eq!(Replica::open(&path).unwrap().version(), Some(2));
    // The headers of two replicas.
    let (_directory, path_of_another) = closed(5000);
    let mut mixed = content;
    mixed[..4096].copy_from_slice(&fs::read(path_of_another).unwrap()[..4096]);
    fs::write(&path, mixed).unwrap();
    assert_error(&path, "those of two replicas", "");
}

/// Files of any content: an error or a version, and never a panic. Most inputs are replicas with some bytes changed.
#[test]
fn any_file_is_an_error_or_a_version() {
    let (_directory, path) = closed(700);
    let content = fs::read(&path).unwrap();
    let versions = [[1; 700], [2; 700]];
    let (mut opened_count, mut refused_count) = (0, 0);
    for seed in 1..1000 {
        let mut random = Random(seed);
        let mut bytes = content.clone();
        for _ in 0..random.below(4) {
            let begin = [0, 4096, 8192, 12_288][random.below(4)] + random.below(100);
            let len = 1 + random.below(20);
            bytes[begin..begin + len].copy_from_slice(&pattern(seed, len));
        }
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len() + 1));
        }
        fs::write(&path, bytes).unwrap();
        match Replica::open(&path) {
            Ok(replica) => {
                let restored = replica.restore().unwrap().expect("a version was written");
                let version = replica.version().unwrap();
                assert_eq!(restored, versions[version as usize - 1], "seed {seed}");
                opened_count += 1;
            }
            Err(_) => refused_count += 1,
        }
    }
    assert!(opened_count > 150 && refused_count > 150, "{opened_count} {refused_count}");
}

#[test]
fn creation_replaces_nothing_and_leaves_nothing_behind() {
    let (directory, path) = closed(100);
    let content = fs::read(&path).unwrap();
    let exists = Replica::create(&path, 100).unwrap_err().to_string();
    assert!(exists.contains("exists") && exists.contains("open it with Replica::open"), "{exists}");
    assert!(fs::read(&path).unwrap() == content);
    let new = directory.path().join("new");
    for capacity_bytes in [u64::MAX, i64::MAX as u64, i64::MAX as u64 / 2] {
        let error = Replica::create(&new, capacity_bytes).unwrap_err();
        assert!(matches!(&error, ReplicaError::System { action: "create", .. }), "{error}");
    }
    assert!(!new.exists());
    let error = Replica::create(&directory.path().join("missing/new"), 1).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
}

/// A file system that becomes full, here as a limit of the size of files, fails before anything is written.
#[test]
fn a_file_without_room_leaves_nothing_behind() {
    alone("a_file_without_room_leaves_nothing_behind", || {
        let (_directory, path) = place();
        let limit = libc::rlimit { rlim_cur: 100_000, rlim_max: 100_000 };
        // SAFETY: numbers only; this process runs this test alone.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
        let error = Replica::create(&path, 100_000).unwrap_err();
        let ReplicaError::System { action: "allocate", source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("free some space"), "{error}");
        assert!(!path.exists());
        Replica::create(&path, 10_000).unwrap().write(&[[7_u8; 10_000]]).unwrap();
    });
}

/// Another process does not respect the lock. Each answer is an error, and no signal.
#[test]
fn a_file_that_changes_while_it_is_open_is_noticed() {
    let resize =
        |path: &Path, len: u64| OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    let (_directory, path) = closed(5000);
    let mut replica = Replica::open(&path).unwrap();
    let len = fs::metadata(&path).unwrap().len();
    resize(&path, 0);
    let error = replica.restore().unwrap_err();
    assert!(matches!(&error, ReplicaError::System { action: "read", .. }), "{error}");
    let error = replica.write(&[[7_u8; 10]]).unwrap_err();
    assert!(matches!(&error, ReplicaError::Truncated { .. }), "{error}");
    resize(&path, len);
    let error = replica.restore().unwrap_err();
    assert!(matches!(&error, ReplicaError::Damaged { .. }), "{error}");
    drop(replica);

    let (_directory, path) = closed(5000);
    let mut replica = Replica::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let error = replica.write(&[[7_u8; 10]]).unwrap_err().to_string();
    assert!(error.contains("it was removed while it was open"), "{error}");
    assert_eq!(replica.restore().unwrap(), Some(vec![2; 5000]), "its bytes are still there");
}

/// A full header of a version whose data another process changes.
#[test]
fn damaged_data_gives_the_version_before() {
    let (_directory, path) = closed(700);
    let mut content = fs::read(&path).unwrap();
    // The second version is in slot 0.
    content[8192 + 699] ^= 0x80;
    fs::write(&path, &content).unwrap();
    let mut replica = Replica::open(&path).unwrap();
    assert_eq!((replica.version(), replica.damaged_version()), (Some(1), Some(2)));
    let mut target = [0; 700];
    replica.restore_into(&mut target).unwrap();
    assert_eq!(target, [1; 700]);
    assert_eq!(replica.write(&[target]).unwrap(), 3);
    assert_eq!(replica.damaged_version(), None);
}

/// Without DAX a mapping is refused, and the replica works as before. With it, later versions are copied by the mover.
#[test]
fn a_mapping_needs_dax() {
    let (directory, path) = closed(5 << 20);
    let mut replica = Replica::open(&path).unwrap();
    let mover = Mover::builder(Arc::new(Machine::two_tiers().unwrap())).build().unwrap();
    // SAFETY: no other process knows the file.
    let mapped = unsafe { replica.map(mover.clone()) };
    if let Err(error) = &mapped {
        assert!(error.to_string().contains("mount -o dax"), "{error}");
    }
    for version in 3..=5 {
        assert_eq!(replica.write(&[pattern(2 * version, 5 << 20), vec![]]).unwrap(), version);
        assert!(replica.restore().unwrap() == Some(pattern(2 * version, 5 << 20)));
    }
    drop(replica);
    let mut replica = Replica::open(&path).unwrap();
    assert!(replica.restore().unwrap() == Some(pattern(10, 5 << 20)));
    assert_eq!(replica.write(&[[7_u8; 10]]).unwrap(), 6);
    let copied_bytes: u64 = mover.stats().engines.iter().map(|engine| engine.bytes).sum();
    if mapped.is_ok() {
        assert!(copied_bytes >= 3 * (5 << 20), "{copied_bytes} bytes were copied by the mover");
    } else {
        assert_eq!(copied_bytes, 0);
        let why = format!("{} has no DAX; TMPDIR chooses another directory", directory.path().display());
        skip(Needs::Kernel("DAX"), why);
    }
}

/// `/layout.json`, as `memferry_guest::Layout` is written.
#[derive(Deserialize)]
struct Layout {
    regions: Vec<Region>,
}

#[derive(Deserialize)]
struct Region {
    node: u32,
    size_mib: u64,
}

/// As the guest's kernel shows it.
#[test]
fn the_memory_lies_at_the_node_of_its_layout() {
    let Some(file) = std::env::var_os("MEMFERRY_GUEST_LAYOUT") else {
        return skip(Needs::Guest, "not a guest of `cargo xtask numa`, MEMFERRY_GUEST_LAYOUT is not set");
    };
    let layout: Layout = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert!(!layout.regions.is_empty());
    for (number, region) in layout.regions.iter().enumerate() {
        let value = |name: &str| -> u64 {
            let file = format!("/sys/bus/nd/devices/region{number}/{name}");
            fs::read_to_string(&file).unwrap().trim().parse().unwrap()
        };
        assert_eq!((value("numa_node"), value("size")), (region.node.into(), region.size_mib << 20));
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let own = mounts.lines().find(|line| line.starts_with(&format!("/dev/pmem{number} "))).unwrap();
        assert!(own.contains(&format!(" /run/pmem{number} ext4 ")) && own.contains("dax=always"), "{own}");
    }
}
