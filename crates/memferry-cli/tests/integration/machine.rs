//! `memferry machine boot`: programs in guests, and what keeps guests from booting.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry_testing::{Needs, skip};
use nix::poll::{PollFd, PollFlags};
use nix::pty::{OpenptyResult, Winsize, openpty};

use crate::support::{USAGE, fails, memferry, says, text};

/// Three nodes, of which the last has memory only.
const PROFILE: &str = "made-up-cxl-node";
/// Exit status of errors before the program.
const NOT_BOOTED: i32 = 125;
/// Several times the slowest guest on two busy CPUs.
const SECONDS_MAX: &str = "300";

/// Guests run one at a time: each takes a CPU, and memory.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn boot(options: &[&str], program: &[&str]) -> Command {
    let arguments =
        [&["machine", "boot", PROFILE, "--timeout", SECONDS_MAX], options, &["--"], program].concat();
    let mut command = memferry(&arguments);
    command.stdin(Stdio::null());
    command
}

/// The output of a guest; `None` if this machine cannot boot guests, which is reported as a skipped test.
fn guest(options: &[&str], program: &[&str]) -> Option<Output> {
    if !can_boot() {
        return None;
    }
    let _turn = turn();
    let output = boot(options, program).output().unwrap();
    has_kernel(&text(&output.stderr)).then_some(output)
}

pub(crate) fn can_boot() -> bool {
    let can_boot = cfg!(target_arch = "x86_64") && is_installed("qemu-system-x86_64");
    if !can_boot {
        skip(Needs::Program("qemu-system-x86_64"), "no QEMU for x86-64 guests here");
    }
    can_boot
}

pub(crate) fn has_kernel(stderr: &str) -> bool {
    let line = stderr.lines().find(|line| line.starts_with("error: no kernel for the guest"));
    if let Some(line) = line {
        skip(Needs::Program("kernel of a guest"), line);
    }
    line.is_none()
}

/// The columns `most` and `at exit` of a node in the page map, in MiB.
fn mib_on_node(stderr: &str, node: u32) -> (f64, f64) {
    let map = stderr.split_once("by node, in MiB\n").unwrap_or_else(|| panic!("no page map: {stderr}")).1;
    let line = map.lines().nth(1 + node as usize).unwrap();
    let columns: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(columns[0], node.to_string(), "{stderr}");
    let number = |from_end: usize| columns[columns.len() - from_end].parse().unwrap();
    (number(2), number(1))
}

fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    base.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache")).join("memferry/numa")
}

#[test]
fn a_program_runs_on_the_nodes_of_the_profile() {
    let directory = tempfile::tempdir().unwrap();
    let (written, read) = (directory.path().join("written"), directory.path().join("read, only"));
    fs::create_dir(&written).unwrap();
    fs::create_dir(&read).unwrap();
    fs::write(read.join("input"), "from the host\n").unwrap();
    let script = "
        cat /sys/devices/system/node/online /sys/devices/system/node/has_cpu
        cat \"$2/input\"
        cat \"$2/input\" > \"$1/output\"
        for directory in \"$2\" /etc; do touch \"$directory/new\" 2>/dev/null && echo \"wrote to $directory\"; done
        touch /tmp/new && echo temporary
        [ -t 1 ] || [ -t 2 ] || echo no terminal
        echo \"$MEMFERRY_TEST_WORD\" >&2
        exit 7";
    let (written, read) = (written.to_str().unwrap(), read.to_str().unwrap());
    let options = ["--share", written, "--share", &format!("{read}:ro")];
    if !can_boot() {
        return;
    }
    let turn = turn();
    let mut command = boot(&options, &["sh", "-c", script, "sh", written, read]);
    let child =
        command.env("MEMFERRY_TEST_WORD", "word").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    drop(turn);
    let stderr = text(&output.stderr);
    if !has_kernel(&stderr) {
        return;
    }
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert_eq!(text(&output.stdout), "0-2\n0-1\nfrom the host\ntemporary\nno terminal\n", "{stderr}");
    assert!(stderr.contains("booting made-up-cxl-node: 3 nodes") && stderr.contains("\nword\n"), "{stderr}");
    assert_eq!(fs::read_to_string(Path::new(written).join("output")).unwrap(), "from the host\n");
    // The shell itself: at its end it has its pages, on nodes with CPUs.
    let on_nodes = [0, 1, 2].map(|node| mib_on_node(&stderr, node));
    assert!(on_nodes[0].1 + on_nodes[1].1 > 0.3 && on_nodes[2].1 < 0.1, "{stderr}");
    assert!(!cache().join(format!("run-{id}")).exists(), "its files remain");
}

/// The memory of a table is on the node that the program asked for, and the page map says so.
#[test]
fn the_page_map_shows_the_node_of_a_table() {
    let own = env!("CARGO_BIN_EXE_memferry");
    let program = [own, "sql", "--tpch", "0.002", "--home", "2", "select count(*) from lineitem"];
    let Some(output) = guest(&[], &program) else { return };
    let stderr = text(&output.stderr);
    assert!(output.status.success() && text(&output.stdout).contains("11957"), "{stderr}");
    let most = [0, 1, 2].map(|node| mib_on_node(&stderr, node).0);
    assert!(most[2] > 1.5, "{stderr}");
}

#[test]
fn a_full_node_has_no_free_memory() {
    let meminfo = "grep -h MemFree /sys/devices/system/node/node[12]/meminfo";
    let Some(output) = guest(&["--full", "2"], &["sh", "-c", meminfo]) else { return };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let free_kib: Vec<u64> = text(&output.stdout)
        .lines()
        .map(|line| line.split_whitespace().nth(3).and_then(|kib| kib.parse().ok()).expect("a size"))
        .collect();
    assert!(
        free_kib.len() == 2 && free_kib[0] > 200 << 10 && free_kib[1] < 100 << 10,
        "{free_kib:?} KiB are free"
    );
}

#[test]
fn a_shell_has_the_terminal() {
    if !can_boot() {
        return;
    }
    let _turn = turn();
    let size = Winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
    let before = nix::sys::termios::tcgetattr(&slave).unwrap();
    let mut command = memferry(&["machine", "boot", PROFILE, "--timeout", SECONDS_MAX]);
    command.env("SHELL", "/bin/sh").env("PS1", "guest> ").stdin(slave.try_clone().unwrap());
    command.stdout(slave.try_clone().unwrap()).stderr(slave.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    drop(command);
    let (mut terminal, mut screen, mut bytes) = (fs::File::from(master), String::new(), [0; 4096]);
    while child.try_wait().unwrap().is_none() {
        // This process keeps the terminal open, so that its modes can be read at the end.
        let mut poll = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        if nix::poll::poll(&mut poll, 100u8).unwrap() == 0 {
            continue;
        }
        let count = terminal.read(&mut bytes).unwrap();
        let had_prompt = screen.contains("guest> ");
        screen += &String::from_utf8_lossy(&bytes[..count]);
        if !had_prompt && screen.contains("guest> ") {
            terminal.write_all(b"stty size; tty; exit 5\r").unwrap();
        }
    }
    if !has_kernel(&screen) {
        return;
    }
    assert_eq!(child.wait().unwrap().code(), Some(5), "{screen}");
    assert!(screen.contains("33 77") && screen.contains("/dev/ttyS2"), "{screen}");
    assert!(nix::sys::termios::tcgetattr(&slave).unwrap() == before, "the terminal is not restored");
}

#[test]
fn ctrl_c_ends_the_guest() {
    if !can_boot() {
        return;
    }
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let shared = directory.path().to_str().unwrap();
    let started = directory.path().join("started");
    let script = "touch \"$1/started\"; sleep 1000";
    let boot = boot(&["--share", shared], &["sh", "-c", script, "sh", shared]);
    // A shell starts what runs in the background with SIGINT ignored, and memferry leaves an ignored signal ignored.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(boot.get_program()).args(boot.get_args());
    command.envs(boot.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(120);
    while !started.exists() && child.try_wait().unwrap().is_none() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    let id = child.id();
    interrupt(&child);
    let interrupted = Instant::now();
    let output = child.wait_with_output().unwrap();
    if !has_kernel(&text(&output.stderr)) {
        return;
    }
    assert_eq!(output.status.signal(), Some(2), "{}", text(&output.stderr));
    assert!(interrupted.elapsed() < Duration::from_secs(20));
    assert!(!cache().join(format!("run-{id}")).exists(), "its files remain");
    let processes = Command::new("sh").args(["-c", "cat /proc/*/cmdline | tr '\\0' ' '"]).output().unwrap();
    assert!(
        !String::from_utf8_lossy(&processes.stdout).contains(&format!("run-{id}/initramfs")),
        "QEMU runs on"
    );
}

fn interrupt(child: &Child) {
    let id = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
}

// Errors, without a guest.

#[test]
fn wrong_command_lines_are_explained() {
    let boot = ["machine", "boot"];
    let with = |rest: &[&'static str]| [&boot, rest].concat();
    fails(&with(&["cray-1", "--", "true"]), USAGE, &["cray-1", "xeon-max-9468-2s-flat"]);
    // Standard input of a test may be a terminal.
    let output = memferry(&with(&[PROFILE])).stdin(Stdio::null()).output().unwrap();
    says(&output, USAGE, &["no terminal", "name a program after --"]);
    fails(&with(&[PROFILE, "--", "no-such-program"]), 127, &["cannot find no-such-program"]);
    fails(&with(&[PROFILE, "--", "/etc/passwd"]), 126, &["/etc/passwd"]);
    fails(&with(&[PROFILE, "--share", "/nowhere", "--", "true"]), NOT_BOOTED, &["cannot share /nowhere"]);
    fails(&with(&["nowhere.json", "--", "true"]), NOT_BOOTED, &["cannot build a guest", "nowhere.json"]);
}

#[test]
fn missing_parts_are_named_with_their_packages() {
    let empty = tempfile::tempdir().unwrap();
    let output = boot(&[], &["/bin/true"]).env("PATH", empty.path()).output().unwrap();
    let command = "`sudo apt-get install --no-install-recommends qemu-system-x86 xz-utils zstd libc-bin`";
    says(&output, NOT_BOOTED, &["qemu-system-x86_64", command]);
    if can_boot() {
        let output =
            boot(&[], &["/bin/true"]).env("MEMFERRY_NUMA_KERNEL", "/nowhere/vmlinuz").output().unwrap();
        says(&output, NOT_BOOTED, &["MEMFERRY_NUMA_KERNEL=/nowhere/vmlinuz: No such file"]);
    }
}
