//! The detection of lost devices of Linux, after which the memory of descriptors in flight is given back.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::internals::portal::StateFiles;
use memferry_dsa::{
    Client, ClientError, ClientOptions, Descriptor, DevicePortal, OpenOptions, Portal, Request, Submission,
    SubmitError,
};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FakePlatform, FaultPlan, shared_queue};

use crate::slow::{Pace, Slow};

/// A directory with the attributes of a queue and its device; removed on drop.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(name: &str) -> Sysfs {
        let directory = std::env::temp_dir().join(format!("memferry-gone-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let sysfs = Sysfs(directory);
        ["queue", "device"].iter().for_each(|of| sysfs.write(of, "enabled\n"));
        sysfs
    }

    fn write(&self, of: &str, state: &str) {
        fs::write(self.0.join(of), state).expect("a file");
    }

    fn states(&self) -> StateFiles {
        let open = |of: &str| File::open(self.0.join(of)).ok();
        StateFiles { queue: open("queue"), device: open("device") }
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(device: Arc<dyn Portal>, states: StateFiles) -> Arc<DevicePortal<FakePlatform>> {
    let platform = FakePlatform::new(device);
    // SAFETY: the tests write "disabled" only for devices without descriptors in flight.
    unsafe { platform.set_states(states) };
    let path = Path::new("/dev/dsa/wq0.0");
    DevicePortal::open_on(platform, path, shared_queue("wq0.0", 4), OpenOptions::default()).expect("a queue")
}

fn emulated() -> Arc<dyn Portal> {
    Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).expect("a device").portal(0)
}

/// A queue once counted as gone when the path of its state no longer existed. In a process without `/sys`, or after a
/// `chroot`, which is safe code, this was true of live queues: the client gave borrowed memory back, and the device then
/// wrote to it.
#[test]
fn live_memory_is_not_given_back() {
    let sysfs = Sysfs::new("live");
    let pace = Pace { ahead: Duration::from_millis(700), each: Duration::ZERO, lost_count: 0 };
    let portal = open(Slow::new(shared_queue("wq0.0", 4), pace), sysfs.states());
    drop(sysfs);
    let client = Client::new(vec![portal], ClientOptions::default());
    let mut target = vec![0; 4096];
    let answer = client.run(Request::fill(u64::MAX, &mut target));
    let live: &[u8] = &target;
    let before = live.to_vec();
    std::thread::sleep(Duration::from_secs(1));
    assert!(live == before, "a live slice changed after {answer:?}");
    assert_eq!(answer, Ok(()));
}

/// The open attributes are read by each check, and prove that a device has stopped.
#[test]
fn the_open_attributes_prove_a_stop() {
    for (of, state) in [("queue", "disabled\n"), ("device", "disabled\n"), ("device", "halted\n")] {
        let sysfs = Sysfs::new("over");
        let portal = open(emulated(), sysfs.states());
        assert!(!portal.is_gone(), "{of} {state}");
        sysfs.write(of, state);
        let start = Instant::now();
        while !portal.is_gone() {
            assert!(start.elapsed() < Duration::from_secs(60), "{of} {state}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: a no-op without a record names no memory.
        assert_eq!(unsafe { portal.submit(&Descriptor::noop()) }, Err(SubmitError::Gone), "{of} {state}");
        sysfs.write(of, "enabled\n");
        assert!(portal.is_gone(), "{of} {state}: once gone, for ever");
    }
}

/// A child once read the attributes of its parent's opening. The parent's queue was gone, so the child refused the queue
/// that it could have opened, or gave back memory of a descriptor that the new queue had accepted.
#[test]
fn the_parents_queue_proves_nothing_about_the_childs() {
    let sysfs = Sysfs::new("child");
    let platform = FakePlatform::new(emulated());
    // SAFETY: the parent has submitted nothing.
    unsafe { platform.set_states(sysfs.states()) };
    let path = Path::new("/dev/dsa/wq0.0");
    let portal =
        DevicePortal::open_on(platform.clone(), path, shared_queue("wq0.0", 4), OpenOptions::default())
            .expect("a queue");
    sysfs.write("device", "disabled\n");
    std::thread::sleep(Duration::from_millis(60));
    assert!(portal.is_gone(), "for the parent");
    platform.fork();
    // SAFETY: the device that the child opens does not stop.
    unsafe { platform.set_states(StateFiles::default()) };
    assert!(!portal.is_gone(), "the child has not opened it yet");
    // SAFETY: a no-op without a record names no memory.
    assert_eq!(unsafe { portal.submit(&Descriptor::noop()) }, Ok(Submission::Accepted));
    std::thread::sleep(Duration::from_millis(60));
    assert!(!portal.is_gone(), "the child's queue lives");
}

/// An attribute that is missing, empty or has another value proves nothing.
#[test]
fn other_states_prove_nothing() {
    let sysfs = Sysfs::new("unproven");
    let without = || StateFiles { queue: File::open(sysfs.0.join("never-there")).ok(), device: None };
    let portals = [open(emulated(), without()), open(emulated(), sysfs.states())];
    for state in ["", "unknown\n", "enabled"] {
        sysfs.write("queue", state);
        std::thread::sleep(Duration::from_millis(60));
        assert!(portals.iter().all(|portal| !portal.is_gone()), "{state:?}");
    }
}

/// A drain of a queue that refuses submissions once succeeded, although the device still had descriptors in flight.
#[test]
fn a_drain_of_a_refusing_queue_is_no_drain() {
    let device = emulated();
    let platform = FakePlatform::new(device);
    let options = OpenOptions { method: memferry_dsa::SubmitMethod::Write, ..OpenOptions::default() };
    let path = Path::new("/dev/dsa/wq0.0");
    let portal =
        DevicePortal::open_on(platform.clone(), path, shared_queue("wq0.0", 4), options).expect("a queue");
    let client = Client::new(vec![portal], ClientOptions::default());
    platform.fail_write(libc::ENXIO);
    for _ in 0..2 {
        let drained = client.run(Request::drain());
        assert!(matches!(drained, Err(ClientError::NoDevice(_))), "{drained:?}");
    }
}
