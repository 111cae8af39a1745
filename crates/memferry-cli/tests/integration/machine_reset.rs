//! Persistent memory of a guest that is reset in mid-write: the next guest finds the last acknowledged version of a replica,
//! or a newer one, and never a mixture.
//!
//! The program in the guest is this test program. A reset is the end of QEMU by a signal. QEMU has no CPU caches, so this
//! does not show that cache lines are written back; it shows the order of writes, on a real kernel and file system.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use memferry::Replica;
use memferry::mover::Mover;
use memferry::topology::Machine;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::{can_boot, has_kernel, turn};
use crate::support::memferry;

const PROFILE: &str = "made-up-fsdax-node";
/// Number of resets, if it is not the default.
const RESETS: &str = "MEMFERRY_RESETS";
const RESETS_DEFAULT: u32 = 3;
/// Tells this program that it runs in a guest: whether it checks and writes, or only checks.
const IN_GUEST: &str = "MEMFERRY_TEST_REPLICAS";
const MOUNT: &str = "/run/pmem0";
/// The replicas: one is written by system calls, the other through a mapping, by a mover.
const REPLICAS: [&str; 2] = ["called", "mapped"];
const CAPACITY_BYTES: usize = 4 << 20;
/// Longest time from the first acknowledgements of a guest to its reset.
const WRITING_MAX: Duration = Duration::from_millis(1500);
/// Several times the slowest guest on two busy CPUs.
const SECONDS_MAX: &str = "300";
/// Before what this program says in the guest.
const SAYS: &str = "replica: ";

#[test]
fn a_guest_that_is_reset_leaves_complete_versions() {
    if let Ok(work) = std::env::var(IN_GUEST) {
        return in_guest(work == "write");
    }
    if !can_boot() {
        return;
    }
    let _turn = turn();
    let resets = std::env::var(RESETS).map_or(RESETS_DEFAULT, |count| count.parse().expect("a number"));
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::from(REPLICAS.map(|name| (name.to_owned(), 0)));
    let mut newer = 0;
    for reset in 0..resets {
        let Some(guest) = Guest::boot(directory.path(), "write") else { return };
        newer += guest.check_and_reset(&format!("reset {reset}"), &mut acknowledged);
    }
    let Some(guest) = Guest::boot(directory.path(), "check") else { return };
    newer += guest.check_to_the_end(&mut acknowledged);
    println!(
        "{resets} resets; acknowledged at last: {acknowledged:?}; newer than acknowledged: {newer} times"
    );
}

/// A guest with this program.
struct Guest {
    child: Child,
    lines: Box<dyn Iterator<Item = String>>,
    /// Reads standard error.
    errors: thread::JoinHandle<String>,
    /// The first line.
    first: Option<String>,
}

impl Guest {
    /// `None` if there is no kernel, which is reported as a skipped test.
    fn boot(directory: &Path, work: &str) -> Option<Guest> {
        let this = std::env::current_exe().unwrap();
        let test = "machine_reset::a_guest_that_is_reset_leaves_complete_versions";
        let mut command = memferry(&["machine", "boot", PROFILE, "--timeout", SECONDS_MAX, "--persistent"]);
        command.arg(directory).arg("--").arg(this);
        command.args(["--exact", test, "--test-threads=1", "--nocapture"]).env(IN_GUEST, work);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let said = |line: String| Some(line.split_once(SAYS)?.1.to_owned());
        let mut lines = output.lines().map_while(Result::ok).filter_map(said);
        let mut errors = child.stderr.take().unwrap();
        let errors = thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).unwrap();
            text
        });
        let first = lines.next();
        let guest = Guest { child, lines: Box::new(lines), errors, first };
        if guest.first.is_some() {
            return Some(guest);
        }
        let text = guest.end();
        assert!(!has_kernel(&text), "the guest said nothing: {text}");
        None
    }

    /// Compares what the guest finds with what was acknowledged, resets it when it writes, and notes what it acknowledged.
    /// Returns how many versions were newer than the last acknowledged ones.
    fn check_and_reset(mut self, when: &str, acknowledged: &mut BTreeMap<String, u64>) -> u32 {
        let mut newer = 0;
        let mut writing = BTreeMap::new();
        while writing.len() < REPLICAS.len() {
            let Some(line) = self.next_line() else {
                panic!("{when}: the guest ended before it wrote: {}", self.end())
            };
            newer += take(&line, when, acknowledged);
            if let [name, "acknowledged", _] = line.split(' ').collect::<Vec<_>>()[..] {
                writing.insert(name.to_owned(), ());
            }
        }
        let random = RandomState::new().hash_one(when);
        thread::sleep(WRITING_MAX.mul_f64((random % 1000) as f64 / 1000.0));
        let machine = child_of(&self.child).expect("QEMU runs");
        kill(machine, Signal::SIGKILL).unwrap();
        while let Some(line) = self.next_line() {
            newer += take(&line, when, acknowledged);
        }
        let text = self.end();
        assert!(text.contains("signal 9 killed qemu-system-x86_64"), "{when}: {text}");
        newer
    }

    /// As [`check_and_reset`](Guest::check_and_reset), for a guest that ends by itself.
    fn check_to_the_end(mut self, acknowledged: &mut BTreeMap<String, u64>) -> u32 {
        let (mut newer, mut found_count) = (0, 0);
        while let Some(line) = self.next_line() {
            newer += take(&line, "at the end", acknowledged);
            found_count += u32::from(line.contains(" found "));
        }
        let status = self.child.wait().unwrap();
        let text = self.end();
        assert!(status.success() && found_count == REPLICAS.len() as u32, "{text}");
        newer
    }

    fn next_line(&mut self) -> Option<String> {
        self.first.take().or_else(|| self.lines.next())
    }

    /// Waits for the end and returns standard error.
    fn end(mut self) -> String {
        self.child.wait().unwrap();
        self.errors.join().unwrap()
    }
}

/// Takes a line `NAME found VERSION` or `NAME acknowledged VERSION`. Returns 1 if a found version is newer than the last
/// acknowledged one.
fn take(line: &str, when: &str, acknowledged: &mut BTreeMap<String, u64>) -> u32 {
    let [name, word, version] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{when}: {line}") };
    let version: u64 = version.parse().unwrap();
    let last = acknowledged.get_mut(name).unwrap_or_else(|| panic!("{when}: {line}"));
    let before = std::mem::replace(last, version);
    match word {
        "found" => {
            assert!(version >= before, "{when}: {name} has version {version} after {before}");
            u32::from(version > before)
        }
        _ => {
            assert_eq!((word, version), ("acknowledged", before + 1), "{when}: {name}");
            0
        }
    }
}

/// The process that a process has started.
fn child_of(parent: &Child) -> Option<Pid> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let child = numbers.find(|number| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // The name, in parentheses, may have any characters. Behind it: state, parent.
        let parent_of = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent_of == Some(parent.id())
    });
    child.map(Pid::from_raw)
}

/// Checks the replicas, and writes versions until the reset if `writes` is true.
fn in_guest(writes: bool) {
    let threads = REPLICAS.map(|name| {
        thread::spawn(move || {
            let path = Path::new(MOUNT).join(name);
            let mut replica = match path.exists() {
                true => Replica::open(&path).unwrap(),
                false => Replica::create(&path, CAPACITY_BYTES as u64).unwrap(),
            };
            assert_eq!(replica.damaged_version(), None, "{name}");
            let mut version = replica.version().unwrap_or(0);
            if version > 0 {
                assert!(replica.restore().unwrap().unwrap() == content_of(version), "{name} {version}");
                println!("{SAYS}{name} found {version}");
            }
            if name == "mapped" {
                let machine = Arc::new(Machine::discover().unwrap());
                // SAFETY: no other process knows the file.
                unsafe { replica.map(Mover::builder(machine).build().unwrap()).unwrap() };
            }
            if !writes {
                return;
            }
            loop {
                version += 1;
                assert_eq!(replica.write(&[content_of(version)]).unwrap(), version);
                println!("{SAYS}{name} acknowledged {version}");
            }
        })
    });
    for thread in threads {
        if thread.join().is_err() {
            // The other thread writes for ever.
            std::process::exit(101);
        }
    }
}

/// The content of a version, of a size of its own: each page has the version and its own number.
fn content_of(version: u64) -> Vec<u8> {
    const PAGE: usize = 4096;
    let mut content = vec![0; CAPACITY_BYTES - (version as usize * 4099) % (CAPACITY_BYTES / 2)];
    for (number, page) in content.chunks_exact_mut(PAGE).enumerate() {
        page.fill(version as u8);
        page[..8].copy_from_slice(&version.to_le_bytes());
        page[PAGE - 8..].copy_from_slice(&(number as u64).to_le_bytes());
    }
    content
}
