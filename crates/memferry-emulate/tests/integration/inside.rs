//! Files and devices as a program sees them. Each test runs a second time as a program, as root in the namespace.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memferry_dsa::internals::system::Directory;
use memferry_dsa::system::{ApplyOptions, Config, Plan, Profile, SystemState};
use memferry_dsa::{CompletionRecord, Descriptor, Flags, Opcode, Status};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};

use crate::emulator::is_inside;

const DEVICE: &str = "/sys/bus/dsa/devices/dsa0";

fn read(path: &str) -> String {
    fs::read_to_string(format!("{DEVICE}/{path}")).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// One write(2), as a shell's redirection does it.
fn write(path: &str, value: &str) -> Result<(), i32> {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{DEVICE}/{path}") };
    let errno = |error: io::Error| error.raw_os_error().unwrap();
    let mut file = OpenOptions::new().write(true).truncate(true).open(path).map_err(errno)?;
    file.write(value.as_bytes()).map_err(errno).map(|count| assert_eq!(count, value.len()))
}

fn bind(driver: &str, file: &str, name: &str) -> Result<(), i32> {
    write(&format!("/sys/bus/dsa/drivers/{driver}/{file}"), name)
}

#[test]
fn memferry_configures_the_devices() {
    if !is_inside("--devices 8 --disabled", "inside::memferry_configures_the_devices") {
        return;
    }
    for profile in Profile::all() {
        // The driver in memory and its served files must agree.
        let found = SystemState::discover().unwrap();
        let devices: Vec<FakeDevice> = found
            .devices
            .iter()
            .map(|device| FakeDevice::complete(device.id, device.node.unwrap()))
            .collect();
        let fake = FakeDriver::new(&devices);
        let ids: Vec<_> = found.devices.iter().map(|device| device.id).collect();
        let count = profile.config().devices.len();
        let config = Config::for_devices(&ids[..count], &profile.shape());
        let options = ApplyOptions { disable_first: true, enable: true };
        for files in [&Directory::system() as &dyn memferry_dsa::internals::system::Files, &fake] {
            let plan = Plan::new(&config, &SystemState::read(files).unwrap(), options).unwrap();
            plan.apply_to(files).unwrap();
        }
        let (mut real, mut fake) = (SystemState::discover().unwrap(), SystemState::read(&fake).unwrap());
        for state in [&mut real, &mut fake] {
            for queue in state.devices.iter_mut().flat_map(|device| &mut device.queues) {
                assert_eq!(queue.file.take().is_some(), queue.is_enabled(), "{}", queue.id);
                queue.minor = None; // numbered over all devices, here also those of earlier profiles
            }
            // A profile may leave out devices that the one before has enabled.
            state.devices.truncate(count);
        }
        assert_eq!(real.devices, fake.devices, "{}", profile.name());
    }
}

#[test]
fn attributes_behave_as_in_sysfs() {
    if !is_inside("--disabled", "inside::attributes_behave_as_in_sysfs") {
        return;
    }
    // A store may end with a newline; other white space is invalid.
    for (value, answer) in [
        ("7", Ok(())),
        ("8\n", Ok(())),
        (" 9", Err(22)),
        ("9 ", Err(22)),
        ("0x9", Err(22)),
        ("16", Err(22)),
        ("-1", Err(22)),
    ] {
        assert_eq!(write("wq0.0/priority", value), answer, "{value:?}");
    }
    assert_eq!(read("wq0.0/priority"), "8\n");
    assert_eq!(write("wq0.0/name", &"x".repeat(1025)), Err(22));
    assert_eq!(write("wq0.0/name", &"x".repeat(4097)), Err(7), "E2BIG beyond a page");
    assert_eq!(write("wq0.0/block_on_fault", "y"), Ok(()));
    assert_eq!(read("wq0.0/block_on_fault"), "1\n");
    assert_eq!(write("wq0.0/max_transfer_size", "3000"), Ok(()));
    assert_eq!(read("wq0.0/max_transfer_size"), "4096\n", "rounded up");

    // Modes hold for root too. No file can be created or removed.
    assert_eq!(write("wq0.0/state", "enabled"), Err(13));
    assert_eq!(File::open("/sys/bus/dsa/drivers/user/bind").unwrap_err().raw_os_error(), Some(13));
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&format!("{DEVICE}/wq0.0/size")), 0o100_644);
    assert_eq!(mode(&format!("{DEVICE}/wq0.0/clients")), 0o100_444);
    assert_eq!(mode("/sys/bus/dsa/drivers/idxd/bind"), 0o100_200);
    assert_eq!(fs::create_dir(format!("{DEVICE}/x")).unwrap_err().raw_os_error(), Some(1));
    assert_eq!(File::create(format!("{DEVICE}/x")).unwrap_err().raw_os_error(), Some(1));
    assert_eq!(fs::remove_file(format!("{DEVICE}/state")).unwrap_err().raw_os_error(), Some(1));

    // An open file shows the present value when it is read from the start, also in pieces.
    let mut file = File::open(format!("{DEVICE}/wq0.0/size")).unwrap();
    let mut byte = [0];
    assert_eq!(file.read(&mut byte).unwrap(), 1);
    write("wq0.0/size", "123").unwrap();
    let mut all = String::new();
    file.read_to_string(&mut all).unwrap();
    assert_eq!((byte, all.as_str()), (*b"0", "\n"));
    file.seek(SeekFrom::Start(0)).unwrap();
    all.clear();
    file.read_to_string(&mut all).unwrap();
    assert_eq!(all, "123\n");
    // Every write is a store, at any position of the file.
    let mut file = OpenOptions::new().write(true).open(format!("{DEVICE}/wq0.0/size")).unwrap();
    for size in ["1", "2", "3"] {
        assert_eq!(file.write(size.as_bytes()).unwrap(), 1);
        assert_eq!(read("wq0.0/size"), format!("{size}\n"));
    }
    // An attribute that does not apply has its own error number.
    let errno = |path: &str| fs::read(format!("{DEVICE}/{path}")).unwrap_err().raw_os_error();
    assert_eq!(errno("wq0.0/cdev_minor"), Some(6));
    assert_eq!(write("wq0.0/mode", "dedicated"), Ok(()));
    assert_eq!(errno("wq0.0/enqcmds_retries"), Some(95));
}

#[test]
fn devices_and_queues_come_and_go() {
    if !is_inside("", "inside::devices_and_queues_come_and_go") {
        return;
    }
    let queue = Path::new("/dev/dsa/wq0.0");
    assert!(queue.exists());
    assert_eq!(bind("user", "bind", "wq0.0"), Err(16));
    assert_eq!(bind("user", "bind", "wq9.9"), Err(19));
    assert_eq!(bind("idxd", "unbind", "wq0.0"), Err(19));
    assert_eq!(write("wq0.0/size", "1"), Err(1), "the device is enabled");
    assert_eq!(write("wq0.0/threshold", "1"), Err(6), "the queue is enabled");

    let file = File::open(queue).unwrap();
    assert_eq!((read("wq0.0/clients").as_str(), read("clients").as_str()), ("1\n", "1\n"));
    assert_eq!(bind("user", "unbind", "wq0.0"), Ok(()));
    assert!(!queue.exists() && Path::new("/dev/dsa/wq0.1").exists());
    assert!(!Path::new("/sys/bus/dsa/devices/wq0.0/driver").exists());
    assert_eq!(
        (&*read("wq0.0/state"), &*read("wq0.0/type"), &*read("wq0.0/size")),
        ("disabled\n", "none\n", "64\n")
    );
    drop(file);

    // Unbinding resets attributes. The status of the last command tells which one is missing.
    write("wq0.0/driver_name", "user").unwrap();
    assert_eq!(bind("user", "bind", "wq0.0"), Err(6));
    assert_eq!(read("cmd_status"), "0x80040000\n", "no name");
    for (attribute, value) in [("name", "again"), ("threshold", "10"), ("priority", "3")] {
        write(&format!("wq0.0/{attribute}"), value).unwrap();
    }
    assert_eq!(bind("user", "bind", "wq0.0"), Ok(()));
    assert_eq!((&*read("wq0.0/type"), &*read("cmd_status")), ("user\n", "0x0\n"));
    assert!(queue.exists());
    let link = fs::canonicalize("/sys/bus/dsa/devices/wq0.0/driver").unwrap();
    assert_eq!(link, Path::new("/sys/bus/dsa/drivers/user"));
    let minor = read("wq0.0/cdev_minor");
    let device = format!("/dev/char/{}:{}", read("cdev_major").trim(), minor.trim());
    assert_eq!(fs::canonicalize(device).unwrap(), queue);
    assert_eq!(
        fs::canonicalize("/sys/bus/dsa/devices/wq0.0").unwrap(),
        fs::canonicalize(format!("{DEVICE}/wq0.0")).unwrap()
    );

    assert_eq!(bind("idxd", "unbind", "dsa0"), Ok(()));
    assert_eq!(fs::read_dir("/dev/dsa").unwrap().count(), 0);
    assert_eq!(
        (&*read("state"), &*read("wq0.1/size"), &*read("group0.0/engines")),
        ("disabled\n", "0\n", "\n")
    );
    assert_eq!(bind("idxd", "bind", "dsa0"), Err(6));
    assert_eq!(read("cmd_status"), "0x800d0000\n");
}

/// Submits by write(2) and waits for the record.
fn submit(file: &mut File, descriptor: Descriptor, record: &CompletionRecord) -> io::Result<Status> {
    let descriptor = descriptor.with_completion(record);
    assert_eq!(file.write(&descriptor.to_bytes())?, 64);
    let start = Instant::now();
    loop {
        if let Some(completion) = record.poll() {
            return Ok(completion.status);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not complete");
        std::thread::yield_now();
    }
}

fn open(queue: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/dev/dsa/{queue}"))
}

#[test]
fn written_descriptors_are_executed() {
    if !is_inside("", "inside::written_descriptors_are_executed") {
        return;
    }
    for queue in ["wq0.0", "wq0.1"] {
        let mut file = open(queue).unwrap();
        let source: Vec<u8> = (0..100_000u32).map(|index| (index * 7) as u8).collect();
        let mut target = vec![0; source.len()];
        let copy = |target: &mut [u8]| {
            Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), target.len() as u32)
        };
        // The write makes the pages of the target present.
        target.fill(1);
        let status = submit(&mut file, copy(&mut target), &CompletionRecord::new()).unwrap();
        assert_eq!((status, target == source), (Status::Success, true), "{queue}");
        // A page that is not writable is a fault, and no process crashes.
        let to_code = Descriptor::memmove(source.as_ptr(), submit as *const u8, 64);
        let status = submit(&mut file, to_code, &CompletionRecord::new()).unwrap();
        assert_eq!(status, Status::PageFault);
        let nowhere = Descriptor::fill(0, 0x10u64, 64);
        assert_eq!(submit(&mut file, nowhere, &CompletionRecord::new()).unwrap(), Status::PageFault);
        let nowhere = nowhere.with_flags(nowhere.flags() | Flags::BLOCK_ON_FAULT);
        assert_ne!(submit(&mut file, nowhere, &CompletionRecord::new()).unwrap(), Status::Success);
        // The kernel refuses these before they reach the device.
        let batch = Descriptor::batch(source.as_ptr(), 2);
        assert_eq!(batch.opcode(), Ok(Opcode::Batch));
        assert_eq!(file.write(&batch.to_bytes()).unwrap_err().raw_os_error(), Some(22));
        let crooked = Descriptor::noop().with_completion_at(0x1001u64);
        assert_eq!(file.write(&crooked.to_bytes()).unwrap_err().raw_os_error(), Some(22));
        // Only whole descriptors are submitted.
        assert_eq!(file.write(&[0; 63]).unwrap(), 0);
        assert_eq!(file.write(&[0; 130]).unwrap(), 128);
        // A dedicated queue has one user.
        assert_eq!(
            open(queue).err().and_then(|error| error.raw_os_error()),
            (queue == "wq0.1").then_some(16)
        );
    }
    assert_eq!(read("clients"), "0\n");
}

/// The driver retries while the device answers Retry.
#[test]
fn a_write_is_retried() {
    if !is_inside("--seed 2 --no-faults", "inside::a_write_is_retried") {
        return;
    }
    let mut file = open("wq0.0").unwrap();
    for _ in 0..200 {
        assert_eq!(file.write(&Descriptor::noop().to_bytes()).unwrap(), 64);
    }
}

#[test]
fn a_file_belongs_to_the_process_that_opened_it() {
    if !is_inside("", "inside::a_file_belongs_to_the_process_that_opened_it") {
        return;
    }
    let mut file = open("wq0.0").unwrap();
    assert_eq!(file.write(&Descriptor::noop().to_bytes()).unwrap(), 64);
    // A child that inherits the file has another address space, and so has a program that replaces the opener by
    // exec(2).
    let bash = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).stderr(std::process::Stdio::null());
        command.status().unwrap()
    };
    assert!(bash("exec 9>/dev/dsa/wq0.0 && printf '\\0%.0s' {1..64} >&9").success(), "bash itself");
    assert!(!bash("exec 9>/dev/dsa/wq0.0 && head -c 64 /dev/zero >&9").success(), "a child");
    assert!(!bash("exec head -c 64 /dev/zero > /dev/dsa/wq0.0").success(), "another program");
    // Processes that are killed with descriptors in flight do not block the queue.
    for _ in 0..40 {
        let status = bash("exec 9>/dev/dsa/wq0.0; printf '\\0%.0s' {1..2048} >&9 || exit 1; kill -9 $$");
        assert_eq!(status.signal(), Some(9));
    }
    let record = CompletionRecord::new();
    assert_eq!(submit(&mut file, Descriptor::noop(), &record).unwrap(), Status::Success);
}
