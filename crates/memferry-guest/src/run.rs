//! One run of QEMU: its console, the streams of the guest's program, and its end.

use std::io::{self, BufRead, BufReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::layout::Layout;
use crate::qemu::{Boot, PROGRAM, ProgramLines, Qemu};
use crate::{init, plan};

/// Time limit from the start of QEMU to the first line of process 1. Observed: 3 to 10 s on two busy cores.
const BOOT_MAX: Duration = Duration::from_secs(40);
/// Interval between checks whether to stop.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are passed on at once.
const CHUNK: usize = 16 << 10;

/// A finished run of a guest.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub outcome: Outcome,
    /// Time until the first line of process 1.
    pub boot: Option<Duration>,
    /// Time until the end of QEMU.
    pub whole: Duration,
    /// Whether the guest's memory ran out.
    pub(crate) is_out_of_memory: bool,
}

/// The outcome of a run.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// Process 1 has followed its plan, and all commands succeeded.
    AllOk,
    /// A command failed.
    SomeFailed,
    /// The guest stopped before the end of its plan, with the reason. Worth a retry.
    NotFinished(String),
    /// It was told to stop.
    Stopped,
}

/// Limits of a run.
pub(crate) struct Limits<'a> {
    /// Time limit of the whole run.
    pub(crate) whole: Option<Duration>,
    /// Asked now and then: whether to stop.
    pub(crate) stop: &'a dyn Fn() -> bool,
}

/// The streams of the guest's program.
pub(crate) struct Streams {
    /// What is typed, if the program has a terminal.
    pub(crate) input: Option<Box<dyn Read + Send>>,
    pub(crate) output: Box<dyn Write + Send>,
    pub(crate) error: Box<dyn Write + Send>,
}

impl Qemu {
    /// Boots the guest and passes the lines of its console to `show` until it exits or `limit` has passed.
    ///
    /// # Errors
    /// QEMU cannot be started.
    pub fn run(
        &self,
        layout: &Layout,
        boot: &Boot<'_>,
        limit: Duration,
        show: &mut dyn FnMut(&str),
    ) -> Result<Run, Error> {
        self.run_with(layout, boot, &Limits { whole: Some(limit), stop: &|| false }, None, show)
    }

    /// As [`run`](Qemu::run); passes the streams of the guest's program on.
    pub(crate) fn run_with(
        &self,
        layout: &Layout,
        boot: &Boot<'_>,
        limits: &Limits<'_>,
        streams: Option<Streams>,
        show: &mut dyn FnMut(&str),
    ) -> Result<Run, Error> {
        let failed = |error: io::Error| Error::Qemu(format!("cannot start {PROGRAM}: {error}"));
        let has_input = streams.as_ref().is_some_and(|streams| streams.input.is_some());
        // With streams, the console and the program's standard error are pipes that QEMU inherits.
        let (console, console_end) = io::pipe().map_err(failed)?;
        let (error, error_end) = io::pipe().map_err(failed)?;
        let ends = [&console_end, &error_end].map(AsRawFd::as_raw_fd);
        let lines = streams.as_ref().map(|_| ProgramLines { console: ends[0], error: ends[1] });
        let mut command = Command::new(PROGRAM);
        command.args(self.arguments(layout, boot, lines));
        command.stdin(if has_input { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped());
        if lines.is_some() {
            // Ctrl-C is for this process, which ends QEMU.
            command.process_group(0);
        }
        let started = Instant::now();
        let mut guest = Guest { child: spawn(&mut command, lines.map(|_| ends)).map_err(failed)? };
        let output = guest.child.stdout.take().expect("it is piped");
        drop::<[PipeWriter; 2]>([console_end, error_end]);

        let is_closed = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = mpsc::channel();
        let mut copies = Vec::new();
        match streams {
            None => read_lines(output, sender),
            Some(streams) => {
                read_lines(console, sender);
                copies.push(copy(output, streams.output, &is_closed));
                copies.push(copy(error, streams.error, &is_closed));
                if let (Some(input), Some(typed)) = (streams.input, guest.child.stdin.take()) {
                    // Not joined: it waits for the terminal.
                    copy(input, Box::new(typed), &Arc::default());
                }
            }
        }
        let stop = || (limits.stop)() || is_closed.load(Ordering::Relaxed);
        let watched = Watched::until_end(&receiver, started, &Limits { stop: &stop, ..*limits }, show);
        let outcome = match watched.end {
            End::Exited => {
                let status = guest.child.wait().map_err(failed)?;
                self::outcome(status, watched.panic)
            }
            End::Late(why) => Outcome::NotFinished(why),
            End::Stopped => Outcome::Stopped,
        };
        drop(guest);
        for copy in copies {
            copy.join().map_err(|_| Error::Qemu("a thread that passes output on has panicked".to_owned()))?;
        }
        // Memory ran out, which our code must never cause: a retry would hide it.
        let outcome = match outcome {
            Outcome::NotFinished(why) if watched.is_out_of_memory => {
                show(&format!("guest: the OOM killer ran, and then {why}"));
                Outcome::SomeFailed
            }
            outcome => outcome,
        };
        let is_out_of_memory = watched.is_out_of_memory;
        Ok(Run { outcome, boot: watched.up, whole: started.elapsed(), is_out_of_memory })
    }
}

/// Starts QEMU with the file descriptors `inherited`. It ends with the thread that calls this.
fn spawn(command: &mut Command, inherited: Option<[i32; 2]>) -> io::Result<Child> {
    let parent = std::process::id();
    // SAFETY: between fork and exec this makes only system calls, which are async-signal-safe. The kernel sends the
    // signal when the thread that started QEMU exits; that thread waits for QEMU.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have exited before prctl.
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
            for descriptor in inherited.iter().flatten() {
                if libc::fcntl(*descriptor, libc::F_SETFD, 0) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    command.spawn()
}

/// Sends the lines of a console; the receiver sees its end.
fn read_lines(console: impl Read + Send + 'static, sender: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            // The console ends lines in "\r\n".
            if sender.send(line.trim_end_matches('\r').to_owned()).is_err() {
                return;
            }
        }
    });
}

/// Passes bytes on as they come, in a thread. Sets `is_closed` if they cannot be written.
fn copy(
    mut from: impl Read + Send + 'static,
    mut to: Box<dyn Write + Send>,
    is_closed: &Arc<AtomicBool>,
) -> thread::JoinHandle<()> {
    let is_closed = Arc::clone(is_closed);
    thread::spawn(move || {
        let mut chunk = [0; CHUNK];
        loop {
            match from.read(&mut chunk) {
                Ok(0) => return,
                Ok(length) => {
                    if to.write_all(&chunk[..length]).and_then(|()| to.flush()).is_err() {
                        // No order with other memory is needed: the flag is all that the other thread reads.
                        is_closed.store(true, Ordering::Relaxed);
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}

/// The observations on a console until its end.
struct Watched {
    end: End,
    /// Time until the first line of process 1.
    up: Option<Duration>,
    panic: Option<String>,
    is_out_of_memory: bool,
}

enum End {
    Exited,
    Late(String),
    Stopped,
}

impl Watched {
    fn until_end(
        lines: &mpsc::Receiver<String>,
        started: Instant,
        limits: &Limits<'_>,
        show: &mut dyn FnMut(&str),
    ) -> Watched {
        let mut watched = Watched { end: End::Exited, up: None, panic: None, is_out_of_memory: false };
        loop {
            let deadline = match (watched.up, limits.whole) {
                (Some(_), whole) => whole,
                (None, Some(whole)) => Some(whole.min(BOOT_MAX.max(whole / 4))),
                (None, None) => Some(3 * BOOT_MAX),
            };
            match lines.recv_timeout(PAUSE) {
                Ok(line) => {
                    if line.starts_with(plan::UP) {
                        watched.up.get_or_insert(started.elapsed());
                    } else if let Some(at) = line.find("Kernel panic") {
                        watched.panic.get_or_insert_with(|| line[at..].to_owned());
                    }
                    watched.is_out_of_memory |= init::is_oom_kill(&line);
                    show(&line);
                }
                Err(RecvTimeoutError::Disconnected) => return watched,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if (limits.stop)() {
                return Watched { end: End::Stopped, ..watched };
            }
            if let Some(deadline) = deadline.filter(|&deadline| started.elapsed() >= deadline) {
                let why = match watched.up {
                    None => format!("it did not boot within {} s", deadline.as_secs()),
                    Some(_) => format!(
                        "it did not finish within {} s; --timeout sets another limit",
                        deadline.as_secs()
                    ),
                };
                return Watched { end: End::Late(why), ..watched };
            }
        }
    }
}

/// A running QEMU; killed when dropped.
struct Guest {
    child: Child,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both fail if QEMU has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn outcome(status: ExitStatus, panic: Option<String>) -> Outcome {
    match (status.code(), panic) {
        (Some(code), _) if code == exit_code(plan::STATUS_OK) => Outcome::AllOk,
        (Some(code), _) if code == exit_code(plan::STATUS_FAILED) => Outcome::SomeFailed,
        (_, Some(panic)) => Outcome::NotFinished(format!("its kernel panicked: {panic}")),
        (Some(0), _) => Outcome::NotFinished("it powered off before it was done".to_owned()),
        (Some(code), _) => Outcome::NotFinished(format!("{PROGRAM} exited with status {code}, see above")),
        (None, _) => {
            let signal = status.signal().unwrap_or(0);
            let why = match signal {
                libc::SIGBUS => "; the disk with the files of its persistent memory may be full",
                _ => "",
            };
            Outcome::NotFinished(format!("signal {signal} killed {PROGRAM}{why}"))
        }
    }
}

/// QEMU's exit code for a value written to isa-debug-exit.
fn exit_code(value: u8) -> i32 {
    i32::from(value) << 1 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_become_outcomes() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(outcome(exited(33), None), Outcome::AllOk);
        assert_eq!(outcome(exited(35), None), Outcome::SomeFailed);
        // QEMU's own failure, a reboot, a signal.
        for status in [exited(1), exited(0), ExitStatus::from_raw(9)] {
            assert!(matches!(outcome(status, None), Outcome::NotFinished(_)), "{status}");
        }
        let panic = outcome(exited(0), Some("Kernel panic - not syncing".to_owned()));
        assert!(matches!(&panic, Outcome::NotFinished(why) if why.contains("not syncing")), "{panic:?}");
    }

    fn watch(lines: &[&str], limits: &Limits<'_>, ended: bool) -> Watched {
        let (sender, receiver) = mpsc::channel();
        lines.iter().for_each(|line| sender.send((*line).to_owned()).unwrap());
        let kept = (!ended).then_some(sender);
        let watched = Watched::until_end(&receiver, Instant::now(), limits, &mut |_| {});
        drop(kept);
        watched
    }

    #[test]
    fn a_console_is_watched_until_its_end() {
        let never = Limits { whole: None, stop: &|| false };
        let watched = watch(&["guest: up after 2 s", "[3] Kernel panic - not syncing"], &never, true);
        assert!(matches!(watched.end, End::Exited) && watched.up.is_some() && !watched.is_out_of_memory);
        assert_eq!(watched.panic.as_deref(), Some("Kernel panic - not syncing"));
        assert!(watch(&["oom-kill:constraint"], &never, true).is_out_of_memory);
        let stopped = watch(&["one"], &Limits { whole: None, stop: &|| true }, false);
        assert!(matches!(stopped.end, End::Stopped));
        let soon = Limits { whole: Some(Duration::from_millis(1)), stop: &|| false };
        let late = watch(&["guest: up"], &soon, false);
        assert!(matches!(late.end, End::Late(why) if why.contains("did not finish")));
    }

    #[test]
    fn an_output_that_is_closed_is_noticed() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let is_closed = Arc::new(AtomicBool::new(false));
        copy(&b"bytes"[..], Box::new(io::sink()), &is_closed).join().unwrap();
        assert!(!is_closed.load(Ordering::Relaxed));
        copy(&b"bytes"[..], Box::new(Closed), &is_closed).join().unwrap();
        assert!(is_closed.load(Ordering::Relaxed));
    }
}
