//! Supervision: caller and supervisor watch each other, and each kills the rest when the other dies.
//!
//! ```text
//! caller ── supervisor ── program ── ...         parents and children
//!    signals ──────▶ program                     sent to the caller or the supervisor
//!    status  ◀──────                             of the program
//! ```
//!
//! Caller and supervisor hold the two ends of a pair of sockets, so each sees the death of the other. Both are
//! subreapers, so each adopts the descendants that the other leaves. The supervisor has a process group of its own: a
//! signal to the caller's group, also SIGKILL, reaches caller and program, and the supervisor cleans up.
//!
//! Source: prctl(2), PR_SET_CHILD_SUBREAPER; credentials(7).

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use memferry_dsa_emulator::procfs::{self, Stat};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use crate::error::Error;
use crate::system::{self, Pid};

/// Time between SIGTERM and SIGKILL for processes that outlive the program: enough to write a file, and short for a
/// user.
const TERM_GRACE: Duration = Duration::from_secs(1);
/// How long a process may take to die of SIGKILL. A process that waits for an unresponsive file system never dies.
const KILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval of the checks whether killed processes have died.
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Longest time without a check in a loop that waits for events.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);

/// The treatment of processes that outlive the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Leftovers {
    /// They get SIGTERM, and SIGKILL one second later.
    #[default]
    Terminate,
    /// The run waits for them and keeps their devices. For programs that start a daemon.
    Wait,
}

/// Signals that the caller and the supervisor receive and forward: all except those that stop a job, which must stop
/// the caller together with the program, and those of their own errors.
pub(crate) fn handled_signals() -> SigSet {
    system::all_signals_but(&[&STOPS[..], &ERRORS].concat())
}

/// Signals that the supervisor blocks: also those that stop a job. A terminal stops a background process group that
/// writes a message (`stty tostop`), and the program would wait for the stopped supervisor.
pub(crate) fn supervisor_signals() -> SigSet {
    system::all_signals_but(&ERRORS)
}

const STOPS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
const ERRORS: [Signal; 7] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
    Signal::SIGTRAP,
    Signal::SIGABRT,
    Signal::SIGSYS,
];

/// The last message of the supervisor.
enum Report {
    Exited(ExitStatus),
    Failed(Error),
}

/// In the caller: forwards signals until the supervisor exits, and returns the status of the program.
///
/// `before` are the children that the caller had before the run; they are not killed.
pub(crate) fn wait_for_supervisor(
    supervisor: Pid,
    mut channel: UnixStream,
    signals: &SigSet,
    before: &[Pid],
) -> Result<ExitStatus, Error> {
    let failed = Error::system("wait for signals");
    let how = loop {
        let signal = system::wait_for_signal(signals, WAIT_INTERVAL).map_err(&failed)?;
        match signal {
            Some(signal) if signal.number == libc::SIGCHLD => {}
            Some(signal) if signal.is_from_process() => {
                // An error means that the supervisor has exited, which the loop sees next.
                let _ = channel.write(&[signal.number as u8]);
            }
            _ => {}
        }
        // After every signal: one SIGCHLD can stand for several children.
        let mut exited = None;
        let has_children =
            reap_all(supervisor, &mut exited).map_err(Error::system("wait for the supervisor"))?;
        if let Some(status) = exited {
            break status;
        }
        if !has_children {
            // The status is lost: other code of the caller has reaped the supervisor.
            break ExitStatus::from_raw(libc::SIGKILL);
        }
    };
    let mut report = Vec::new();
    channel.read_to_end(&mut report).map_err(Error::system("read from the supervisor"))?;
    let report = read_report(&report);
    if report.is_none() {
        kill_descendants(before);
    }
    match report {
        Some(Report::Exited(status)) => Ok(status),
        Some(Report::Failed(error)) => Err(error),
        None => {
            let how = how.signal().map(|signal| format!(" by signal {signal}")).unwrap_or_default();
            Err(Error::SupervisorGone { how })
        }
    }
}

/// In the supervisor: waits until the program and the processes that outlive it have exited.
///
/// `None`: the caller is gone, and all processes have been killed.
pub(crate) fn wait_for_program(
    program: Pid,
    channel: &mut UnixStream,
    signals: &SignalFd,
    leftovers: Leftovers,
) -> io::Result<Option<ExitStatus>> {
    let mut exited = None;
    let mut deadline: Option<Instant> = None;
    let mut is_reported = false;
    loop {
        if !reap_all(program, &mut exited)? {
            return Ok(exited);
        }
        if exited.is_some() && leftovers == Leftovers::Terminate {
            let late = *deadline.get_or_insert_with(|| {
                signal_children(libc::SIGTERM, &[]);
                Instant::now() + TERM_GRACE
            });
            if Instant::now() >= late {
                if !std::mem::replace(&mut is_reported, true) {
                    let left = children(&[]);
                    eprintln!("memferry: ended {} that the program left behind", names(&left));
                }
                signal_children(libc::SIGKILL, &[]);
            }
            if Instant::now() >= late + KILL_WAIT_MAX {
                warn_unkillable(&children(&[]));
                return Ok(exited);
            }
        }
        let interval = if deadline.is_some() { KILL_POLL_INTERVAL } else { WAIT_INTERVAL };
        let [has_signal, has_message] = system::wait_readable([signals.as_fd(), channel.as_fd()], interval)?;
        if has_signal {
            for signal in system::take_signals(signals)? {
                if signal != libc::SIGCHLD {
                    forward(program, exited, signal);
                }
            }
        }
        if has_message {
            let mut bytes = [0; 64];
            match channel.read(&mut bytes) {
                Ok(0) | Err(_) => {
                    kill_descendants(&[]);
                    return Ok(None);
                }
                Ok(count) => {
                    for signal in &bytes[..count] {
                        forward(program, exited, i32::from(*signal));
                    }
                }
            }
        }
    }
}

/// Forwards a signal to the program; after its exit, to the processes that outlive it.
fn forward(program: Pid, exited: Option<ExitStatus>, signal: i32) {
    match exited {
        // The program is not reaped yet, so the number is still its own.
        None => drop(system::kill(program, signal)),
        Some(_) => signal_children(signal, &[]),
    }
}

/// Reaps children that have exited, and stores the status of `wanted` if it is one of them. False: no children are
/// left.
fn reap_all(wanted: Pid, exited: &mut Option<ExitStatus>) -> io::Result<bool> {
    loop {
        match system::reap() {
            Ok(Some(reaped)) if reaped.pid == wanted => *exited = Some(ExitStatus::from_raw(reaped.status)),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Kills all descendants except the children in `spared`. The children of a killed process become children of this one
/// and are killed next, until none are left, or the remaining ones do not die.
pub(crate) fn kill_descendants(spared: &[Pid]) {
    let start = Instant::now();
    loop {
        let left = children(spared);
        if left.is_empty() {
            return;
        }
        if start.elapsed() >= KILL_WAIT_MAX {
            return warn_unkillable(&left);
        }
        for pid in left {
            let _ = system::kill(pid, libc::SIGKILL);
        }
        while let Ok(Some(_)) = system::reap() {}
        std::thread::sleep(KILL_POLL_INTERVAL);
    }
}

fn warn_unkillable(pids: &[Pid]) {
    eprintln!(
        "memferry: SIGKILL does not end {}, and memferry does not wait any longer; such a process mostly waits for an \
        unresponsive file system: restart its server, or unmount it with `umount --force`",
        names(pids)
    );
}

fn signal_children(signal: i32, spared: &[Pid]) {
    for pid in children(spared) {
        let _ = system::kill(pid, signal);
    }
}

/// Returns the children of this process that are not zombies, except the spared ones.
pub(crate) fn children(spared: &[Pid]) -> Vec<Pid> {
    let me = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<Pid>().ok()) else {
            continue;
        };
        let Ok(Some(stat)) = Stat::of(pid as u32) else { continue };
        if stat.parent == me && stat.state != b'Z' && !spared.contains(&pid) {
            found.push(pid);
        }
    }
    found
}

/// Returns text such as "2 processes (1234 sleep, 1240 cat)".
fn names(pids: &[Pid]) -> String {
    let name = |pid: &Pid| format!("{pid} {}", procfs::name(*pid as u32));
    let list = pids.iter().map(name).collect::<Vec<_>>().join(", ");
    let word = if pids.len() == 1 { "process" } else { "processes" };
    format!("{} {word} ({list})", pids.len())
}

/// In the supervisor: sends the outcome to the caller.
pub(crate) fn report(channel: &mut UnixStream, outcome: Result<ExitStatus, &Error>) {
    let bytes = match outcome {
        Ok(status) => [b"E".as_slice(), &status.into_raw().to_le_bytes()].concat(),
        Err(error) => [b"F".as_slice(), &[error.exit_code()], error.to_string().as_bytes()].concat(),
    };
    // An error means that the caller is gone.
    let _ = channel.write_all(&bytes);
}

fn read_report(bytes: &[u8]) -> Option<Report> {
    match bytes {
        [b'E', status @ ..] => {
            let status = i32::from_le_bytes(status.try_into().ok()?);
            Some(Report::Exited(ExitStatus::from_raw(status)))
        }
        [b'F', code, text @ ..] => {
            let text = String::from_utf8_lossy(text).into_owned();
            Some(Report::Failed(Error::Supervisor { text, code: *code }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_they_were_sent() {
        let (mut mine, mut theirs) = UnixStream::pair().unwrap();
        let mut arrive = |outcome: Result<ExitStatus, &Error>| {
            report(&mut theirs, outcome);
            let mut bytes = [0; 256];
            let count = mine.read(&mut bytes).unwrap();
            read_report(&bytes[..count]).unwrap()
        };
        assert!(
            matches!(arrive(Ok(ExitStatus::from_raw(9))), Report::Exited(status) if status.signal() == Some(9))
        );
        let error = Error::NoProgram { program: "nowhere".to_owned() };
        let Report::Failed(arrived) = arrive(Err(&error)) else { panic!() };
        assert_eq!((arrived.to_string(), arrived.exit_code()), (error.to_string(), 127));
        assert!(read_report(b"").is_none() && read_report(b"E12").is_none());
    }
}
