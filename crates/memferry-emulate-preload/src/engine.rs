//! The engine thread: it executes the descriptors that this process submits to a device. And the thread that exits the
//! process once those of the program are gone.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memferry_dsa::internals::{affinity, panics};
use memferry_dsa_emulator::CheckedMemory;
use memferry_dsa_emulator::shared::{Client, Connected};

use crate::fork_local::{self, ForkLocal};
use crate::process::{self, warn};
use crate::trap::{guarded, signals};

/// Shortest time between two checks whether the program's threads have exited.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time until the next check while the program's first thread runs. A program whose last thread calls
/// pthread_exit(3) exits this much later; all others exit by themselves. Each check takes 0.1 ms of a cold CPU.
const FIRST_THREAD_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The same after the first thread has exited: then the return of any other thread can be the end of the program.
const OTHER_THREADS_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the engine thread of a device, and waits until it can execute descriptors.
pub(crate) fn start(client: &Client, device: usize) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    let client = client.clone();
    // The new thread inherits the mask: it must not run signal handlers of the program.
    let before = signals::block_unhandled();
    let spawned = thread::Builder::new().name("memferry-dsa".to_owned()).spawn(move || {
        // If the process may no longer use these CPUs, the thread stays on those of the thread that starts it.
        let _ = affinity::confine(&client.devices().cpus());
        let opened = open();
        let (memory, trace) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let _ = sender.send(Err(error)); // `start` waits for it
                return;
            }
        };
        let _ = sender.send(Ok(()));
        drop(sender);
        run_engine(&client, device, &memory, trace);
    });
    signals::restore(before);
    spawned?;
    receiver.recv().unwrap_or_else(|_| Err(io::Error::other("the engine thread has exited")))
}

/// Starts the thread that exits the process when it gets a message from an engine thread. It ends with the sender.
///
/// It shares the file descriptors of the program, so that exit(3) can write buffered output. An engine thread has others.
pub(crate) fn start_exit() -> io::Result<mpsc::Sender<()>> {
    let (sender, receiver) = mpsc::channel();
    let before = signals::block_unhandled();
    let spawned = thread::Builder::new().name("memferry-exit".to_owned()).spawn(move || {
        if receiver.recv().is_ok() {
            // SAFETY: libc does the same after the last thread of a program; no other thread of the program runs.
            unsafe { libc::exit(0) }
        }
    });
    signals::restore(before);
    spawned.map(|_| sender)
}

/// Opens the memory of the process and the trace. The thread gets a file descriptor table of its own: a program may
/// close all descriptors that it does not know, and reuse their numbers.
fn open() -> io::Result<(CheckedMemory, Option<File>)> {
    // SAFETY: it takes a number, and changes the descriptor table of this thread alone.
    let is_apart = unsafe { libc::unshare(libc::CLONE_FILES) } == 0;
    if is_apart {
        // Copies of the program's descriptors would keep its pipes open. Standard error stays open for messages.
        // SAFETY: the copies belong to this thread, which has opened no descriptor yet.
        unsafe {
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            libc::dup2(null, 0);
            libc::dup2(null, 1);
        }
    }
    // SAFETY: the program has submitted the descriptors that are executed on this memory, and is responsible for the
    // addresses in them.
    let memory = unsafe { CheckedMemory::open() }?.with_record_store(guarded::store_record);
    let trace = process::connected().map_or(Ok(None), Connected::open_trace).unwrap_or_else(|error| {
        without_trace(error);
        None
    });
    Ok((memory, trace))
}

fn without_trace(error: impl Display) {
    warn(&format!("the trace cannot be written and ends here: {error}"));
}

fn run_engine(client: &Client, device: usize, memory: &CheckedMemory, trace: Option<File>) {
    let mut engine = client.engine(device);
    if let Some(trace) = trace {
        engine.trace(trace, without_trace);
    }
    let (mut last_check, mut interval) = (Instant::now(), FIRST_THREAD_CHECK_INTERVAL);
    let check = || {
        if last_check.elapsed() > CHECK_INTERVAL {
            interval = exit_if_alone();
            last_check = Instant::now();
        }
        ControlFlow::Continue(interval)
    };
    // A panic in the device must not kill the program. The program then sees no completions.
    if let Some(Err(error)) = panics::contain(|| engine.run(memory, check)) {
        warn(&format!("the device has an invalid configuration and executes nothing: {error}"));
    }
}

/// Exits the process if all threads of the program have exited: without the threads of this library, it would be gone.
/// Returns the time until the next check.
///
/// The check is cheap while the first thread runs, which mostly is the last one to exit.
fn exit_if_alone() -> Duration {
    static IS_EXITING: AtomicBool = AtomicBool::new(false);
    if !has_exited("/proc/self/stat") {
        return FIRST_THREAD_CHECK_INTERVAL;
    }
    let next = OTHER_THREADS_CHECK_INTERVAL;
    let Some(process) = fork_local::get().and_then(ForkLocal::process) else { return next };
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return next };
    let running = threads.flatten().filter(|thread| !has_exited(thread.path().join("stat"))).count();
    if running == process.thread_count() && !IS_EXITING.swap(true, Ordering::Relaxed) {
        let _ = process.exit.send(()); // its receiver lives as long as the process
    }
    next
}

/// Whether the thread with this file of `/proc` has exited. The first thread stays listed until all have exited.
///
/// Allocates nothing, because it is called all the time, also while the program exits.
///
/// Source: proc_pid_stat(5), field 3. Field 2 is a name in parentheses, of at most 64 bytes, with any characters.
fn has_exited(stat: impl AsRef<Path>) -> bool {
    let mut start = [0; 128];
    let count = File::open(stat).and_then(|mut file| file.read(&mut start)).unwrap_or(0);
    let state = start[..count].windows(3).rfind(|window| window.starts_with(b") "));
    state.is_some_and(|window| matches!(window[2], b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exited_threads_are_zombies_or_dead() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stat");
        for (stat, expected) in [
            ("1 (name) Z 0 0 0", true),
            ("1 (name) X 0", true),
            ("1 (name) S 0", false),
            ("1 (a) Z (b) R 0", false),
            ("1 (a) S (b) Z 0", true),
            ("", false),
        ] {
            fs::write(&path, stat).unwrap();
            assert_eq!(has_exited(&path), expected, "{stat}");
        }
        assert!(!has_exited("/nowhere") && !has_exited("/proc/self/stat"));
    }
}
