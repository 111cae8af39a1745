//! A server with two devices, plain files as queues, and programs that use them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memferry_dsa::WorkQueueInfo;
use memferry_dsa_emulator::shared::{DeviceSetup, Listener, Options, QueueAt, Server};
use memferry_dsa_emulator::{Capabilities, OPERATIONS, dedicated_queue, shared_queue};

/// The devices: `wq0.0` is shared, `wq0.1` dedicated, `wq1.0` shared with one entry.
pub(crate) struct Machine {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) state: Server,
    _listening: Listener,
}

impl Machine {
    pub(crate) fn new(options: &Options) -> Machine {
        let machine = Machine::empty(options, [Some(0), Some(0), None, None]);
        machine.queue(0, 0, &WorkQueueInfo { block_on_fault: true, ..shared_queue("", 64) });
        machine.queue(0, 1, &dedicated_queue("", 32));
        machine.queue(1, 0, &shared_queue("", 1));
        machine
    }

    /// One group with one engine and these queues: `wq0.0`, `wq0.1`, ...
    pub(crate) fn with(options: &Options, queues: &[WorkQueueInfo]) -> Machine {
        let machine = Machine::empty(options, [Some(0), None, None, None]);
        queues.iter().enumerate().for_each(|(queue, info)| machine.queue(0, queue, info));
        machine
    }

    fn empty(options: &Options, engine_groups: [Option<usize>; 4]) -> Machine {
        // The files are mapped, so they should not be on a disk.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let state = Server::create(options).unwrap();
        for device in 0..2 {
            let (operations, capabilities) = (OPERATIONS, Capabilities::ALL);
            let setup = DeviceSetup { number: device as u32, operations, capabilities, engine_groups };
            state.enable_device(device, &setup);
        }
        let listening = state.listen(&directory.path().join("devices"), |_| {}).unwrap();
        Machine { directory, state, _listening: listening }
    }

    fn queue(&self, device: usize, queue: usize, info: &WorkQueueInfo) {
        let at = QueueAt::new(device, queue).unwrap();
        self.state.enable_queue(at, 0, info).unwrap();
        let path = self.directory.path().join(format!("wq{device}.{queue}"));
        fs::write(&path, [0; 4096]).unwrap();
        let status = fs::metadata(&path).unwrap();
        self.state.set_portal(at, status.dev(), status.ino());
    }

    /// A program with these arguments, under emulation.
    pub(crate) fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.path());
        command.env("LD_PRELOAD", library());
        command.env("MEMFERRY_EMULATE_SOCKET", self.directory.path().join("devices"));
        command
    }
}

/// The path of the example `contends`, which cargo builds with the tests.
pub(crate) fn contends() -> String {
    let path = built("examples").join("contends");
    assert!(
        path.exists(),
        "{} is missing: cargo build -p memferry-emulate-preload --examples",
        path.display()
    );
    path.into_os_string().into_string().expect("cargo's paths are text")
}

/// The path of the library, in cargo's target directory.
pub(crate) fn library() -> PathBuf {
    let path = built("deps").join("libmemferry_emulate_preload.so");
    assert!(path.exists(), "{} is missing: cargo builds it with its tests", path.display());
    path
}

/// Returns a directory of the profile that this test was built with.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).expect("PROFILE/deps/TEST");
    profile.join(name)
}

pub(crate) fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
