//! The processes: who watches whom, and what happens when one of them dies.
//!
//! ```text
//! caller ── supervisor ── program ── ...         a line of parents
//!    signals ──────▶ program                     those sent to the caller or the supervisor
//!    status  ◀──────                             how the program ended
//! ```
//!
//! Caller and supervisor hold the two ends of a pair of sockets, so that each sees when the other is gone, and both
//! are subreapers, so that each finds the descendants that the other leaves. The supervisor has a process group of
//! its own: a signal to the caller's group, `kill -9` included, reaches caller and program and not the one who cleans
//! up.
//!
//! Source: prctl(2), PR_SET_CHILD_SUBREAPER; credentials(7).

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use memferry_dsa_emulator::procfs::{self, Stat};

use crate::error::Error;
use crate::system::{self, Pid, Signals};

/// Between SIGTERM and SIGKILL for what the program leaves behind. Long enough to write a file, short enough to wait.
const GRACE: Duration = Duration::from_secs(1);
/// How long a process may take to die of SIGKILL. One that waits for a file system that does not answer takes for ever.
const DEATH_MAX: Duration = Duration::from_secs(5);
/// How often processes that ignore everything are looked at; they are killed and just take time to die.
const PATIENCE: Duration = Duration::from_millis(10);
/// How often the loops look around without any event.
const TICK: Duration = Duration::from_secs(1);

/// What becomes of processes that the program leaves behind when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Leftovers {
    /// They are ended: SIGTERM, and SIGKILL a second later. The devices are gone with the program.
    #[default]
    End,
    /// They are waited for, as a daemon's starter must be.
    WaitFor,
}

/// Signals that the caller and the supervisor wait for: all but those that stop a job, which must stop the caller with
/// the program, and those of errors of their own.
pub(crate) fn handled_signals() -> Signals {
    Signals::all_but(&[&STOPS[..], &ERRORS].concat())
}

/// Signals that the supervisor blocks. It has a process group of its own, which a terminal stops when it writes a
/// message (`stty tostop`), and the program would wait for it.
pub(crate) fn supervisor_signals() -> Signals {
    Signals::all_but(&ERRORS)
}

const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
const ERRORS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// What the supervisor says last.
enum Report {
    Ended(ExitStatus),
    Failed(Error),
}

/// In the caller: hands on signals until the supervisor has ended, and says how the program did.
///
/// `before` are the children that this process had already, which are left alone.
pub(crate) fn watch(
    supervisor: Pid,
    mut channel: UnixStream,
    signals: &Signals,
    before: &[Pid],
) -> Result<ExitStatus, Error> {
    let failed = Error::system("wait for signals");
    let how = loop {
        let signal = signals.wait(TICK).map_err(&failed)?;
        match signal {
            Some(signal) if signal.number == libc::SIGCHLD => {}
            Some(signal) if signal.is_from_process() => {
                // If nobody listens, the supervisor's end is the next thing to happen.
                let _ = channel.write(&[signal.number as u8]);
            }
            _ => {}
        }
        // At every turn: one SIGCHLD can stand for several.
        if let Some(status) = reap_until(supervisor)? {
            break status;
        }
    };
    let mut report = Vec::new();
    channel.read_to_end(&mut report).map_err(Error::system("read from the supervisor"))?;
    let report = read_report(&report);
    if report.is_none() {
        end_descendants(before);
    }
    match report {
        Some(Report::Ended(status)) => Ok(status),
        Some(Report::Failed(error)) => Err(error),
        None => {
            let how = how.signal().map(|signal| format!(" by signal {signal}")).unwrap_or_default();
            Err(Error::SupervisorGone { how })
        }
    }
}

/// Takes children that have ended; how the one that is asked for did, if it is among them.
fn reap_until(wanted: Pid) -> Result<Option<ExitStatus>, Error> {
    loop {
        match system::reap() {
            Ok(Some(reaped)) if reaped.pid == wanted => return Ok(Some(ExitStatus::from_raw(reaped.status))),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                // Somebody else has waited for it: how it ended is lost.
                return Ok(Some(ExitStatus::from_raw(libc::SIGKILL)));
            }
            Err(error) => return Err(Error::system("wait for the supervisor")(error)),
        }
    }
}

/// In the supervisor: waits for the program's end, and for that of what it leaves behind.
///
/// None: the caller is gone, and all processes have been ended.
pub(crate) fn attend(
    program: Pid,
    channel: &mut UnixStream,
    signals: &OwnedFd,
    leftovers: Leftovers,
) -> io::Result<Option<ExitStatus>> {
    let mut ended = None;
    let mut deadline: Option<Instant> = None;
    let mut told = false;
    loop {
        match collect(program, &mut ended)? {
            Children::None => return Ok(ended),
            Children::Some => {}
        }
        if ended.is_some() && leftovers == Leftovers::End {
            let late = *deadline.get_or_insert_with(|| {
                signal_children(libc::SIGTERM, &[]);
                Instant::now() + GRACE
            });
            if Instant::now() >= late {
                if !std::mem::replace(&mut told, true) {
                    let left = children(&[]);
                    eprintln!("memferry: ended {} that the program left behind", names(&left));
                }
                signal_children(libc::SIGKILL, &[]);
            }
            if Instant::now() >= late + DEATH_MAX {
                tell_unkillable(&children(&[]));
                return Ok(ended);
            }
        }
        let patience = if deadline.is_some() { PATIENCE } else { TICK };
        let [signalled, spoken] =
            system::wait_readable([signals.as_raw_fd(), channel.as_raw_fd()], patience)?;
        if signalled {
            for signal in system::take_signals(signals)? {
                if signal != libc::SIGCHLD {
                    forward(program, ended, signal);
                }
            }
        }
        if spoken {
            let mut bytes = [0; 64];
            match channel.read(&mut bytes) {
                Ok(0) | Err(_) => {
                    end_descendants(&[]);
                    return Ok(None);
                }
                Ok(count) => {
                    for signal in &bytes[..count] {
                        forward(program, ended, i32::from(*signal));
                    }
                }
            }
        }
    }
}

/// Hands a signal on; to what the program left behind, once it has ended.
fn forward(program: Pid, ended: Option<ExitStatus>, signal: i32) {
    match ended {
        // It is not waited for yet, so the number is still its own.
        None => drop(system::kill(program, signal)),
        Some(_) => signal_children(signal, &[]),
    }
}

enum Children {
    None,
    Some,
}

fn collect(program: Pid, ended: &mut Option<ExitStatus>) -> io::Result<Children> {
    loop {
        match system::reap() {
            Ok(Some(reaped)) if reaped.pid == program => *ended = Some(ExitStatus::from_raw(reaped.status)),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Children::Some),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(Children::None),
            Err(error) => return Err(error),
        }
    }
}

/// Kills all descendants but the children in `spared`. Those of a killed process become this one's children and are
/// next, until there are none, or until those that are left do not die.
pub(crate) fn end_descendants(spared: &[Pid]) {
    let start = Instant::now();
    loop {
        let left = children(spared);
        if left.is_empty() {
            return;
        }
        if start.elapsed() >= DEATH_MAX {
            return tell_unkillable(&left);
        }
        for pid in left {
            let _ = system::kill(pid, libc::SIGKILL);
        }
        while let Ok(Some(_)) = system::reap() {}
        std::thread::sleep(PATIENCE);
    }
}

fn tell_unkillable(pids: &[Pid]) {
    eprintln!(
        "memferry: SIGKILL does not end {}, and memferry ends without waiting any longer; mostly such a process waits for \
        a file system that does not answer: restart its server, or unmount it with `umount --force`",
        names(pids)
    );
}

fn signal_children(signal: i32, spared: &[Pid]) {
    for pid in children(spared) {
        let _ = system::kill(pid, signal);
    }
}

/// The children of this process that have not ended, but for those that are spared.
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

/// "2 processes (1234 sleep, 1240 cat)".
fn names(pids: &[Pid]) -> String {
    let name = |pid: &Pid| format!("{pid} {}", procfs::name(*pid as u32));
    let list = pids.iter().map(name).collect::<Vec<_>>().join(", ");
    let word = if pids.len() == 1 { "process" } else { "processes" };
    format!("{} {word} ({list})", pids.len())
}

/// In the supervisor: says how it went.
pub(crate) fn report(channel: &mut UnixStream, outcome: Result<ExitStatus, &Error>) {
    let bytes = match outcome {
        Ok(status) => [b"E".as_slice(), &status.into_raw().to_le_bytes()].concat(),
        Err(error) => [b"F".as_slice(), &[error.exit_code()], error.to_string().as_bytes()].concat(),
    };
    // Nobody is left to be told if this fails.
    let _ = channel.write_all(&bytes);
}

fn read_report(bytes: &[u8]) -> Option<Report> {
    match bytes {
        [b'E', status @ ..] => {
            let status = i32::from_le_bytes(status.try_into().ok()?);
            Some(Report::Ended(ExitStatus::from_raw(status)))
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
    fn a_report_survives_its_way() {
        let (mut mine, mut theirs) = UnixStream::pair().unwrap();
        let mut arrive = |outcome: Result<ExitStatus, &Error>| {
            report(&mut theirs, outcome);
            let mut bytes = [0; 256];
            let count = mine.read(&mut bytes).unwrap();
            read_report(&bytes[..count]).unwrap()
        };
        assert!(
            matches!(arrive(Ok(ExitStatus::from_raw(9))), Report::Ended(status) if status.signal() == Some(9))
        );
        let error = Error::NoProgram { program: "nowhere".to_owned() };
        let Report::Failed(arrived) = arrive(Err(&error)) else { panic!() };
        assert_eq!((arrived.to_string(), arrived.exit_code()), (error.to_string(), 127));
        assert!(read_report(b"").is_none() && read_report(b"E12").is_none());
    }
}
