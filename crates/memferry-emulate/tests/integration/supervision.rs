//! Supervision of the program: its status, its signals, and the removal of all processes and mounts.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use memferry_testing::{Needs, skip};

use crate::emulator::{emulate, emulate_script, is_available, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// A number that no other process has as an argument, also not those of concurrent tests. It is also a long time, in
/// seconds or in milliseconds.
fn word() -> String {
    static WORDS: AtomicU32 = AtomicU32::new(0);
    (std::process::id() * 100 + WORDS.fetch_add(1, Ordering::Relaxed)).to_string()
}

/// Returns the processes that have this word as an argument.
fn processes(word: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    })
    .collect()
}

fn children(pid: i32) -> Vec<i32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} does not happen");
        sleep(Duration::from_millis(5));
    }
}

/// Waits for the exit of a child, with a limit.
fn status(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("the program's end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

fn kill(signal: &str, pid: i32) {
    // `--` because a group's number begins with a minus.
    assert!(Command::new("kill").args([signal, "--", &pid.to_string()]).status().unwrap().success());
}

/// Starts a run of one program, which has `word` as an argument.
fn start(word: &str) -> Child {
    let child = emulate_script("", &format!("exec sleep {word}")).spawn().unwrap();
    wait_until("the program's start", || processes(word).len() == 1);
    child
}

/// Starts a run with a daemon in its own session besides the program; both have `word` as an argument.
fn start_with_daemon(word: &str) -> Child {
    let script = format!("setsid sleep {word} & sleep {word}");
    let child = emulate_script("", &script).process_group(0).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the program's start", || processes(word).len() == 2);
    child
}

#[test]
fn the_status_is_that_of_the_program() {
    if !is_available() {
        return;
    }
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        assert_eq!(emulate_script("", script).status().unwrap().code(), Some(code));
    }
    for signal in [1, 2, 6, 9, 11, 15, 31] {
        let status = emulate_script("", &format!("kill -{signal} $$")).status().unwrap();
        assert_eq!(status.signal(), Some(signal), "{status}");
        assert!(!status.core_dumped());
    }
}

#[test]
fn programs_that_cannot_be_run_are_errors() {
    for (program, code) in [("a-name-that-nobody-uses", 127), ("/", 126), ("/etc/passwd", 126)] {
        let output = emulate("", &[program]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).starts_with("memferry: cannot ") && text(&output).contains(program));
    }
    let output = emulate("--config /nowhere", &["true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output).contains("/nowhere: cannot be read"), "{}", text(&output));
}

/// A fork in a process with threads could leave a lock held for ever.
#[test]
fn a_process_with_threads_is_refused() {
    let error = memferry_emulate::run(memferry_emulate::Options::new("true")).unwrap_err();
    assert!(matches!(error, memferry_emulate::Error::Threads(count) if count > 1), "{error}");
}

#[test]
fn signals_reach_the_program() {
    if !is_available() {
        return;
    }
    for signal in ["TERM", "INT", "HUP", "USR1", "USR2", "QUIT"] {
        let word = word();
        let script = format!("trap 'kill $!; exit 42' {signal}; sleep {word} & wait");
        let mut child = emulate_script("", &script).spawn().unwrap();
        wait_until("the program's start", || processes(&word).len() == 1);
        kill(&format!("-{signal}"), child.id() as i32);
        assert_eq!(status(&mut child).code(), Some(42), "{signal}");
    }
    // An unhandled signal kills the program, and the command reports the same status.
    let mut child = start(&word());
    kill("-TERM", child.id() as i32);
    assert_eq!(status(&mut child).signal(), Some(15));
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    if !is_available() {
        return;
    }
    for victim in ["caller", "supervisor", "program", "group"] {
        let word = word();
        let child = start_with_daemon(&word);
        let caller = child.id() as i32;
        let supervisor = children(caller)[0];
        let program = children(supervisor)[0];
        kill(
            "-KILL",
            match victim {
                "caller" => caller,
                "supervisor" => supervisor,
                "program" => program,
                _ => -caller,
            },
        );
        let output = child.wait_with_output().unwrap();
        match victim {
            "supervisor" => {
                assert_eq!(output.status.code(), Some(125));
                assert!(text(&output).contains("was killed by signal 9"), "{}", text(&output));
            }
            _ => assert_eq!(output.status.signal(), Some(9), "{victim}: {}", text(&output)),
        }
        wait_until("the end of all processes", || processes(&word).is_empty());
        wait_until("the supervisor's end", || !fs::exists(format!("/proc/{supervisor}")).unwrap());
    }
}

/// The same with descriptors in flight, mapped queues and a process that maps them again all the time.
#[test]
fn a_process_killed_at_work_leaves_nothing_behind() {
    const TEST: &str = "/usr/libexec/accel-config/test/dsa_test";
    if !is_available() {
        return;
    }
    if !Path::new(TEST).is_file() {
        let why = format!("{TEST} is not installed; `cargo xtask setup` does it");
        return skip(Needs::Program("accel-config-test"), why);
    }
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    let before = mounts();
    for victim in ["caller", "supervisor", "group"] {
        // The word is also the time-out of the test program.
        let word = word();
        let script =
            format!("while :; do {TEST} -w 1 -l 2097152 -o 1 -b 3 -c 16 -t {word} > /dev/null; done");
        let mut command = emulate("--preload", &["sh", "-c", &script, &word]);
        let child = command.process_group(0).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the work's start", || processes(&word).len() > 2);
        sleep(Duration::from_millis(50));
        let caller = child.id() as i32;
        kill(
            "-KILL",
            match victim {
                "caller" => caller,
                "supervisor" => children(caller)[0],
                _ => -caller,
            },
        );
        child.wait_with_output().unwrap();
        wait_until("the end of all processes", || processes(&word).is_empty());
        assert_eq!(mounts(), before, "{victim}");
    }
}

#[test]
fn nothing_is_visible_outside() {
    if !is_available() {
        return;
    }
    let look = || {
        let dsa = ["/sys/bus/dsa", "/sys/module/idxd", "/dev/dsa/wq0.0", "/dev/.memferry"];
        (fs::read_to_string("/proc/self/mounts").unwrap(), dsa.map(|path| fs::exists(path).unwrap()))
    };
    let before = look();
    let mut child = start(&word());
    assert_eq!(look(), before);
    kill("-TERM", child.id() as i32);
    child.wait().unwrap();
    assert_eq!(look(), before);
}

#[test]
fn processes_that_outlive_the_program_are_killed_or_waited_for() {
    if !is_available() {
        return;
    }
    let start = Instant::now();
    // The first process ignores SIGTERM from its start, because the signal may arrive before it runs.
    let word = word();
    let script =
        format!("trap '' TERM; (while :; do sleep {word}; done) & trap - TERM; setsid sleep {word} & exit 3");
    let output = emulate_script("", &script).stdout(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output).contains("that the program left behind"), "{}", text(&output));
    assert!(processes(&word).is_empty() && start.elapsed() < PATIENCE);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("done");
    let script = format!("(sleep 0.3; cat /sys/bus/dsa/devices/dsa0/state > {}) & exit 4", file.display());
    let status = emulate_script("--wait", &script).status().unwrap();
    assert_eq!(status.code(), Some(4));
    assert_eq!(fs::read_to_string(file).unwrap(), "enabled\n", "a daemon keeps its devices");
}

#[test]
fn unusual_programs_run() {
    if !is_available() {
        return;
    }
    let run = |script: &str| {
        let output = emulate_script("", script).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{script}: {}", text(&output));
        text(&output)
    };
    let state = "grep -q enabled /sys/bus/dsa/devices/dsa0/state";
    // Daemons close all descriptors.
    let closing: String = (3..10).map(|fd| format!("exec {fd}>&-; ")).collect();
    run(&format!("exec <&- >&- 2>&-; {closing}{state}"));
    run(&format!("exec sh -c 'exec sh -c \"{state}\"'"));
    run(&format!("cd /dev/shm && {state} && [ $(pwd) = /dev/shm ]"));
    run(&format!("ulimit -v 100000; ulimit -n 8; {state}"));
    // Another root directory has no devices, as on a real machine.
    let directory = tempfile::tempdir().unwrap();
    let output = emulate("", &["chroot", directory.path().to_str().unwrap(), "/bin/true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", text(&output));
    // A process that exceeds its memory limit dies alone.
    let script = "ulimit -v 50000; exec tail /dev/zero";
    let output = emulate_script("", script).output().unwrap();
    assert!(!output.status.success() && output.status.code() != Some(125), "{}", text(&output));
    assert_eq!(run("echo x > /dev/null; ls /dev/fd/ > /dev/null; [ -c /dev/tty ] && echo fine"), "fine\n");
}

#[test]
fn the_program_starts_soon() {
    if !is_available() {
        return;
    }
    let median = |mut command: Command| {
        let mut times: Vec<Duration> = (0..9)
            .map(|_| {
                let start = Instant::now();
                assert!(command.status().unwrap().success());
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let alone = median(Command::new("true"));
    let emulated = median(emulate("--devices 8", &["true"]));
    println!("true: {alone:?} alone, {emulated:?} on eight emulated devices");
    assert!(emulated < alone + Duration::from_millis(500), "{emulated:?}");
}
