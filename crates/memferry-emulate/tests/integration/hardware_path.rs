//! The hardware path of memferry-dsa, unmodified, on emulated devices: ENQCMD, MOVDIR64B and UMWAIT, which the preload
//! library catches, and `write(2)`. Each test runs a second time as a program on these devices.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::system::{QueueFilter, SystemState};
use memferry_dsa::{
    Backoff, Client, ClientOptions, Descriptor, DevicePortal, OpenOptions, Portal, PortalKind, QueueMode,
    Request, SleepState, Submission, SubmitMethod, Wait,
};
use memferry_dsa_emulator::conformance::{self, Thoroughness};

use crate::emulator::{is_available, is_inside};

/// Options that wait long: the test machine may be busy.
fn options() -> ClientOptions {
    ClientOptions {
        backoff: Backoff::new(100_000),
        timeout: Duration::from_secs(60),
        ..ClientOptions::default()
    }
}

/// Opens the queues of this mode, as any program would.
fn open(mode: QueueMode, way: SubmitMethod) -> Vec<Arc<dyn Portal>> {
    let state = SystemState::discover().unwrap();
    let usable = state.diagnose(&QueueFilter::default()).usable;
    let found: Vec<Arc<dyn Portal>> = usable
        .into_iter()
        .filter_map(|(device, queue)| Some((device, queue, queue.file.as_ref()?)))
        .map(|(device, queue, file)| (queue.info(device).unwrap(), file))
        .filter(|(info, _)| info.mode == mode)
        .map(|(info, file)| {
            let options = OpenOptions { method: way, ..OpenOptions::default() };
            DevicePortal::open(file.path.as_ref(), info, options).unwrap() as Arc<dyn Portal>
        })
        .collect();
    assert!(!found.is_empty(), "no {mode:?} queue");
    found
}

/// Runs the conformance suite on these portals.
fn conforms(portals: Vec<Arc<dyn Portal>>, wait: Wait, seed: u64) {
    let kind = portals[0].kind();
    let options = ClientOptions { wait, ..options() };
    let report = conformance::run(&Client::new(portals, options), Thoroughness::Quick, seed);
    println!("{kind:?}, {wait:?}: {report}");
    assert!(report.passed(), "{kind:?}, {wait:?}: {report}");
    assert!(report.stats.submitted > 400, "the device had little to do: {report}");
}

/// Runs the calling test on devices with and without faults, and with and without patched call sites. Returns true
/// inside.
fn runs(test: &str) -> bool {
    if std::env::var_os("MEMFERRY_TEST_INSIDE").is_none() && !is_available() {
        return false;
    }
    ["", "--no-patch --seed 1", "--seed 2"]
        .iter()
        .any(|options| is_inside(&format!("--preload {options}"), &format!("hardware_path::{test}")))
}

#[test]
fn a_shared_queue_by_enqcmd() {
    if runs("a_shared_queue_by_enqcmd") {
        let portals = open(QueueMode::Shared, SubmitMethod::Mapped);
        assert_eq!(portals[0].kind(), PortalKind::Enqcmd);
        for wait in Wait::ALL {
            conforms(portals.clone(), wait, 11);
        }
    }
}

#[test]
fn a_dedicated_queue_by_movdir64b() {
    if runs("a_dedicated_queue_by_movdir64b") {
        let portals = open(QueueMode::Dedicated, SubmitMethod::Mapped);
        assert_eq!(portals[0].kind(), PortalKind::Movdir64b);
        conforms(portals, Wait::Umwait(SleepState::Light), 12);
    }
}

#[test]
fn both_by_write() {
    if runs("both_by_write") {
        for mode in [QueueMode::Shared, QueueMode::Dedicated] {
            let portals = open(mode, SubmitMethod::Write);
            assert_eq!(portals[0].kind(), PortalKind::Write);
            conforms(portals, Wait::Spin, 13);
        }
    }
}

/// The client uses the wait instructions, not its replacements for processors without them.
#[test]
fn all_instructions_are_there() {
    if runs("all_instructions_are_there") {
        assert_eq!(CpuFeatures::detect(), CpuFeatures::ALL);
    }
}

#[test]
fn threads_on_one_queue() {
    if runs("threads_on_one_queue") {
        let portals = open(QueueMode::Shared, SubmitMethod::Mapped);
        std::thread::scope(|scope| {
            for (seed, wait) in (20..).zip(Wait::ALL) {
                let portals = portals.clone();
                scope.spawn(move || conforms(portals, wait, seed));
            }
        });
    }
}

/// A parent and its child use the queue that the parent has opened, at the same time. Each executes its own
/// descriptors.
#[test]
#[allow(unsafe_code)]
fn a_process_and_its_child() {
    if !runs("a_process_and_its_child") {
        return;
    }
    let portals = open(QueueMode::Shared, SubmitMethod::Mapped);
    conforms(portals.clone(), Wait::Spin, 30);
    let program = std::env::current_exe().unwrap();
    let mut other = Command::new(program);
    let mut other = other.args(["hardware_path::all_instructions_are_there", "--exact"]).spawn().unwrap();
    // SAFETY: the child does not return into the test. It uses objects of this thread, and locks of libc, which fork
    // keeps consistent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let run = AssertUnwindSafe(|| conforms(portals, Wait::Umwait(SleepState::Deep), 31));
        let passed = std::panic::catch_unwind(run);
        // SAFETY: it ends the process.
        unsafe { libc::_exit(i32::from(passed.is_err())) }
    }
    conforms(portals, Wait::Spin, 32);
    let mut status = 0;
    // SAFETY: it writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child, a wait status");
    assert!(other.wait().unwrap().success());
}

/// A queue is opened for the address space of the opener: a child cannot map an inherited file, but can open the queue
/// itself.
#[test]
#[allow(unsafe_code)]
fn only_the_opener_maps_a_queue() {
    if !is_inside("--preload", "hardware_path::only_the_opener_maps_a_queue") {
        return;
    }
    let open = || File::options().read(true).write(true).open("/dev/dsa/wq0.0").unwrap();
    let map = |file: &File| {
        // SAFETY: a new mapping where the kernel wants it.
        let mapped = unsafe {
            libc::mmap(ptr::null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED { io::Error::last_os_error().raw_os_error() } else { None }
    };
    let file = open();
    assert_eq!(map(&file), None);
    // SAFETY: the child maps files and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = map(&file) == Some(libc::EPERM) && map(&open()).is_none();
        // SAFETY: it ends the process.
        unsafe { libc::_exit(i32::from(!is_right)) }
    }
    let mut status = 0;
    // SAFETY: it writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((status, map(&file)), (0, None));
}

/// The library maps the file itself, so a dedicated queue has a user as long as it is mapped, also without a descriptor.
#[test]
#[allow(unsafe_code)]
fn a_mapping_keeps_a_dedicated_queue() {
    if !is_inside("--preload", "hardware_path::a_mapping_keeps_a_dedicated_queue") {
        return;
    }
    let open = || File::options().read(true).write(true).open("/dev/dsa/wq0.1");
    let map = |file: &File, protection, kind| {
        // SAFETY: a new mapping where the kernel wants it.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), 4096, protection, kind, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error().raw_os_error()) } else { Ok(mapped) }
    };
    let file = open().unwrap();
    let mapped = map(&file, libc::PROT_WRITE, libc::MAP_SHARED).unwrap();
    drop(file);
    for _ in 0..20 {
        assert_eq!(open().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    }
    // A store that is no submission ends in a signal and is not lost, also after the program has changed the rights.
    for (rights, signal) in [(libc::PROT_NONE, libc::SIGSEGV), (libc::PROT_WRITE, libc::SIGBUS)] {
        // SAFETY: the child maps the queue that only it then has, stores to it and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let page = map(
                &File::options().read(true).write(true).open("/dev/dsa/wq0.0").unwrap(),
                rights | libc::PROT_WRITE,
                libc::MAP_SHARED,
            );
            // SAFETY: the page is mapped; the store is to end the process.
            unsafe {
                libc::mprotect(page.unwrap(), 4096, rights);
                page.unwrap().cast::<u8>().write_volatile(1);
                libc::_exit(0)
            }
        }
        let mut status = 0;
        // SAFETY: it writes the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal, "{status:#x}");
    }
    // SAFETY: nothing refers to the page.
    assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
    // The kernel reports the end of the file a little later.
    let start = std::time::Instant::now();
    while open().is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "the queue stays busy");
    }
    // As the kernel checks a shared mapping.
    let reads = File::open("/dev/dsa/wq0.0").unwrap();
    assert_eq!(map(&reads, libc::PROT_WRITE, libc::MAP_SHARED), Err(Some(libc::EACCES)));
    assert_eq!(map(&reads, libc::PROT_WRITE, 0), Err(Some(libc::EINVAL)));
    assert!(map(&reads, libc::PROT_READ, libc::MAP_SHARED).is_ok());
}

/// A queue is disabled while a process with descriptors in it is stopped. The device drops its descriptors, and its
/// other queues go on.
#[test]
#[allow(unsafe_code)]
fn a_stopped_process_does_not_stop_other_queues() {
    if !is_inside("--preload", "hardware_path::a_stopped_process_does_not_stop_other_queues") {
        return;
    }
    const BYTES: usize = 32 << 20;
    let (mut told, mut tells) = io::pipe().unwrap();
    // SAFETY: the child uses what this thread has, and waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let portal = open(QueueMode::Shared, SubmitMethod::Mapped).remove(0);
        let (source, mut target) = (vec![1u8; BYTES], vec![2u8; BYTES]); // touched: a page fault would end each copy at once
        let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), BYTES as u32);
        // SAFETY: nothing else uses these buffers, which live until the process exits.
        while unsafe { portal.submit(&copy) }.unwrap() == Submission::Accepted {}
        tells.write_all(b"!").unwrap();
        // SAFETY: it waits.
        unsafe { libc::pause() };
    }
    told.read_exact(&mut [0]).unwrap();
    // SAFETY: they take numbers.
    unsafe { libc::kill(child, libc::SIGSTOP) };
    std::fs::write("/sys/bus/dsa/drivers/user/unbind", "wq0.0").unwrap();
    let portals = open(QueueMode::Dedicated, SubmitMethod::Mapped);
    let client = Client::new(portals, ClientOptions { may_use_cpu: false, ..options() });
    let (source, mut target) = ([3u8; 777], [0u8; 777]);
    client.run(Request::copy(&source, &mut target)).unwrap();
    assert_eq!(source, target);
    // SAFETY: as above; the status is written.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut 0, 0);
    }
}

/// The reader of a pipe sees the whole trace, and its end only after the program has exited.
#[test]
fn a_trace_into_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let is_outside = std::env::var_os("MEMFERRY_TEST_INSIDE").is_none();
    if is_outside && !is_available() {
        return;
    }
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = is_outside.then(|| Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap());
    let with_trace = format!("--preload --trace {}", pipe.display());
    if is_inside(&with_trace, "hardware_path::a_trace_into_a_pipe") {
        for way in [SubmitMethod::Write, SubmitMethod::Mapped] {
            let client = Client::new(open(QueueMode::Shared, way), options());
            let (source, mut target) = ([3u8; 777], [0u8; 777]);
            client.run(Request::copy(&source, &mut target)).unwrap();
        }
        return;
    }
    let read = reader.unwrap().wait_with_output().unwrap().stdout;
    let copies = String::from_utf8(read).unwrap().matches("\"size\":777").count();
    assert_eq!(copies, 2);
}

/// The trace has descriptors of each way, whether the program executes them or, for `write(2)`, the supervisor.
#[test]
fn a_trace_of_each_way() {
    let is_outside = std::env::var_os("MEMFERRY_TEST_INSIDE").is_none();
    if is_outside && !is_available() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let with_trace = format!("--preload --trace {}", file.path().display());
    if is_inside(&with_trace, "hardware_path::a_trace_of_each_way") {
        for (mode, way) in [
            (QueueMode::Shared, SubmitMethod::Mapped),
            (QueueMode::Dedicated, SubmitMethod::Mapped),
            (QueueMode::Shared, SubmitMethod::Write),
            (QueueMode::Dedicated, SubmitMethod::Write),
        ] {
            let client = Client::new(open(mode, way), ClientOptions { may_use_cpu: false, ..options() });
            let (source, mut target) = ([3u8; 777], [0u8; 777]);
            client.run(Request::copy(&source, &mut target)).unwrap();
            assert_eq!(source, target);
        }
        return;
    }
    let text = std::fs::read_to_string(file.path()).unwrap();
    let is_copy = |line: &&str| line.contains("\"descriptor\"") && line.contains("\"size\":777");
    let mut ways: Vec<String> = text
        .lines()
        .filter(is_copy)
        .map(|line| {
            let after = |name: &str| line.split(&format!("\"{name}\":\"")).nth(1).unwrap().split('"').next();
            format!("{} by {}", after("queue").unwrap(), after("way").unwrap())
        })
        .collect();
    ways.sort();
    let expected = ["wq0.0 by enqcmd", "wq0.0 by write", "wq0.1 by movdir64b", "wq0.1 by write"];
    assert_eq!(ways, expected, "{text}");
    let count = |event: &str| text.matches(&format!("{{\"event\":\"{event}\"")).count();
    assert_eq!(count("descriptor"), count("completion"), "{text}");
}
