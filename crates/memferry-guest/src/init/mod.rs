//! Process 1 of the guest: this program, started by the kernel.
//!
//! It mounts file systems, runs the commands or the program of the plan, reaps orphans, checks whether the OOM killer ran,
//! and exits through QEMU's debug-exit port. It never returns: the kernel would panic.
//!
//! For a program, the image has process 1 only: it mounts the host's folders ([`host_root`]), frees the image, and becomes
//! the same program there, which runs the program of the plan ([`program`]).

mod full;
mod host_root;
mod modules;
mod persistent;
mod program;

use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::plan::{self, Plan, PlanCommand};
use crate::serial;

/// The port of `-device isa-debug-exit` in [`crate::qemu`].
const EXIT_PORT: u16 = 0x501;
/// Interval between checks of a running command.
const PAUSE: Duration = Duration::from_millis(10);
/// Divisor of a node's size that limits the free pages in the list of each CPU.
const CPU_LISTS: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

/// Does the work of process 1 if this process was started as such in a guest, and does not return then.
///
/// Call it first in `main` of a program that puts itself into guests.
pub fn run_if_init() {
    if std::process::id() != 1 {
        return;
    }
    if let Some(plan) = plan_here() {
        run(plan);
    }
}

/// The profile of the guest that this process runs in. `None` outside guests of this crate.
///
/// Benchmarks ask: a guest's memory is as fast as the memory of the host, and its CPUs may be emulated.
pub fn profile_of_this_guest() -> Option<String> {
    let plan: Plan = serde_json::from_slice(&fs::read(plan_here()?).ok()?).ok()?;
    Some(plan.name)
}

/// The plan of the guest; `None` outside.
fn plan_here() -> Option<&'static str> {
    [plan::PLAN_IN_HOST, plan::PLAN].into_iter().find(|plan| Path::new(plan).exists())
}

fn run(plan: &str) -> ! {
    let all_ok = match follow_plan(plan) {
        Ok(all_ok) => all_ok,
        Err(why) => {
            println!("{}{why}", plan::FAILED);
            false
        }
    };
    leave(if all_ok { plan::STATUS_OK } else { plan::STATUS_FAILED })
}

fn follow_plan(file: &str) -> Result<bool, String> {
    let is_first = file == plan::PLAN;
    if is_first {
        // SAFETY: no memory is involved; the streams are the console.
        unsafe { libc::setsid() };
        println!("{} after {:.1} s", plan::UP, uptime_seconds());
    }
    let text = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    let plan: Plan = serde_json::from_slice(&text).map_err(|error| format!("{file}: {error}"))?;
    // SAFETY: pointer and length are those of a live string.
    unsafe { libc::sethostname(plan.name.as_ptr().cast(), plan.name.len()) };
    match &plan.program {
        Some(program) if is_first => {
            host_root::enter(program, plan.persistent.as_ref(), &text).map(|never| match never {})
        }
        Some(program) => {
            show_kernel_errors();
            plan.persistent.as_ref().map_or(Ok(()), persistent::mount_all)?;
            full::fill(&plan.full)?;
            program::run(program)?;
            Ok(true)
        }
        None => run_commands(&plan),
    }
}

fn run_commands(plan: &Plan) -> Result<bool, String> {
    mount_all()?;
    if let Some(memory) = &plan.persistent {
        modules::load_all(&memory.modules)?;
        persistent::mount_all(memory)?;
    }
    take_programs().map_err(|error| format!("cannot move the programs to node 0: {error}"))?;

    // Tests check that memory which they have just freed is free; pages in these lists do not count as free.
    if let Err(error) = fs::write(CPU_LISTS, i32::MAX.to_string()) {
        println!("guest: cannot set {CPU_LISTS}, tests take longer: {error}");
    }
    show_kernel_errors();
    full::fill(&plan.full)?;
    let mut all_ok = true;
    let mut lines = Vec::new();
    for command in &plan.commands {
        println!("\nguest: {}", command.argv.join(" "));
        let started = Instant::now();
        let outcome = run_command(command);
        all_ok &= outcome.is_ok();
        let verdict = outcome.map_or_else(|why| format!("FAILED, {why}"), |()| "ok".to_owned());
        let line = format!("guest: {:>6.1} s  {}: {verdict}", started.elapsed().as_secs_f64(), command.name);
        println!("{line}");
        lines.push(line);
    }
    if lines.len() > 1 {
        println!("\n{}", lines.join("\n"));
    }
    for line in oom_kills(&kernel_log()?) {
        println!("guest: FAILED, the OOM killer ran: {line}");
        all_ok = false;
    }
    if plan.record {
        serial::send_machine(Path::new("/"), &plan.name, plan::REPORT_LINE)
            .map_err(|error| format!("{}: {error}", plan::REPORT_LINE))?;
    }
    Ok(all_ok)
}

fn mount_all() -> Result<(), String> {
    for (kind, at, options) in [
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("debugfs", "/sys/kernel/debug", ""),
        ("devtmpfs", "/dev", ""),
        ("tmpfs", "/tmp", ""),
        ("tmpfs", "/run", ""),
        ("cgroup2", "/sys/fs/cgroup", ""),
        // Files are in memory. Those of the tests go to the node of the kernel, so that other nodes start empty.
        ("tmpfs", plan::PROGRAMS, "mpol=prefer:0,mode=755,size=90%"),
    ] {
        mount(kind, Path::new(at), kind, 0, options)
            .map_err(|error| format!("cannot mount {kind} on {at}: {error}"))?;
    }
    Ok(())
}

/// mount(2).
fn mount(
    source: impl AsRef<OsStr>,
    at: &Path,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (source, at) = (text(source.as_ref().as_bytes())?, text(at.as_os_str().as_bytes())?);
    let (kind, options) = (text(kind.as_bytes())?, text(options.as_bytes())?);
    // SAFETY: four pointers to live strings that end in NUL.
    let code =
        unsafe { libc::mount(source.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves the programs to node 0; the kernel unpacks the image to the node on which it runs.
fn take_programs() -> io::Result<()> {
    for entry in fs::read_dir(plan::ARRIVALS)? {
        let entry = entry?;
        fs::copy(entry.path(), Path::new(plan::PROGRAMS).join(entry.file_name()))?;
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

fn run_command(command: &PlanCommand) -> Result<(), String> {
    let (program, arguments) = command.argv.split_first().ok_or("the plan names no program")?;
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(&command.env)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    let deadline = Instant::now() + Duration::from_secs(command.seconds_max);
    let mut hangs = false;
    let status = loop {
        match reap() {
            // `reap` takes the exit status; `child.wait()` would fail.
            Some((pid, status)) if pid == child.id() => break status,
            Some(_) => {}
            None => {
                if Instant::now() >= deadline && !hangs {
                    hangs = true;
                    kill_all();
                }
                std::thread::sleep(PAUSE);
            }
        }
    };
    // Processes that the command left behind must not disturb the next one.
    end_all();
    match () {
        () if hangs => Err(format!("killed after {} s, its time limit", command.seconds_max)),
        () if libc::WIFSIGNALED(status) => Err(format!("killed by signal {}", libc::WTERMSIG(status))),
        () if libc::WEXITSTATUS(status) != 0 => Err(format!("exit status {}", libc::WEXITSTATUS(status))),
        () => Ok(()),
    }
}

/// Reaps an exited child or orphan, if there is one; returns its process id and status.
fn reap() -> Option<(u32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a live integer.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    u32::try_from(pid).ok().filter(|&pid| pid > 0).map(|pid| (pid, status))
}

fn has_children() -> bool {
    // SAFETY: a zeroed `siginfo_t` is a valid value of that plain struct, and live; WNOWAIT leaves the child as it is.
    let code = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
    };
    code == 0
}

/// Kills every process except this one, and waits for their end.
fn end_all() {
    kill_all();
    while has_children() {
        if reap().is_none() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Kills every process except this one.
fn kill_all() {
    // SAFETY: no memory is involved; -1 spares process 1 and kernel threads.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

fn uptime_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The kernel log, as `dmesg` prints it.
fn kernel_log() -> Result<String, String> {
    // Numbers of syslog(2).
    const READ_ALL: i32 = 3;
    const SIZE_BUFFER: i32 = 10;
    // SAFETY: this call takes no buffer.
    let size = unsafe { libc::klogctl(SIZE_BUFFER, std::ptr::null_mut(), 0) };
    let mut buffer = vec![0u8; usize::try_from(size).unwrap_or(0)];
    // SAFETY: pointer and size are those of `buffer`.
    let read = unsafe { libc::klogctl(READ_ALL, buffer.as_mut_ptr().cast(), size) };
    if read < 0 {
        return Err(format!("cannot read the kernel log: {}", io::Error::last_os_error()));
    }
    buffer.truncate(read as usize);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// Shows kernel errors on the console from now on. They include those of the OOM killer, after which a guest may hang or
/// panic before it reads the log.
fn show_kernel_errors() {
    const CONSOLE_LEVEL: i32 = 8;
    const ERRORS: i32 = 4;
    // SAFETY: this call takes no buffer. If it fails, the check of the log at the end remains.
    unsafe { libc::klogctl(CONSOLE_LEVEL, std::ptr::null_mut(), ERRORS) };
}

fn oom_kills(log: &str) -> Vec<&str> {
    log.lines().filter(|line| is_oom_kill(line)).collect()
}

/// Whether the OOM killer wrote this line (mm/oom_kill.c), for the machine or for a control group.
pub(crate) fn is_oom_kill(line: &str) -> bool {
    const WORDS: [&str; 3] = ["oom-kill:", "Out of memory: Killed process", "out of memory: Killed process"];
    WORDS.iter().any(|words| line.contains(words))
}

fn leave(status: u8) -> ! {
    // SAFETY: the first is the console; the second takes no memory; the port belongs to QEMU's debug-exit device and
    // writing to it ends the guest. Without that device the last call ends it, in a way that the host recognises.
    unsafe {
        libc::tcdrain(1);
        #[cfg(target_arch = "x86_64")]
        if libc::ioperm(EXIT_PORT.into(), 1, 1) == 0 {
            std::arch::asm!("out dx, al", in("dx") EXIT_PORT, in("al") status, options(nomem, nostack));
        }
        println!("guest: cannot report status {status}: {}", io::Error::last_os_error());
        libc::tcdrain(1);
        libc::reboot(libc::RB_POWER_OFF);
    }
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_kills_are_found() {
        let log = "[1] Killed process of mine\n\
                   [2] oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=8,cpuset=/\n\
                   [3] Out of memory: Killed process 77 (numa_memory)\n\
                   [4] Memory cgroup out of memory: Killed process 78 (x)\n";
        assert_eq!(oom_kills(log).len(), 3);
        assert!(oom_kills("oom_reaper: nothing\n").is_empty());
    }
}
