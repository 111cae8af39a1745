//! The thread that executes what this process submits to a device.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memferry_dsa::affinity;
use memferry_dsa::panics;
use memferry_dsa_emulator::CheckedMemory;
use memferry_dsa_emulator::shared::{Client, Connected};

use crate::process::{self, complain};
use crate::trap::signals;
use crate::wiped::{self, Wiped};

/// How often to look whether the program has left.
const LOOK: Duration = Duration::from_millis(50);

/// Starts it, and waits until it can execute.
pub(crate) fn start(client: &Client, device: usize) -> io::Result<()> {
    let (says, hears) = mpsc::channel();
    let client = client.clone();
    // The program's signals are not for this thread: it would run their handlers, which know nothing of it.
    let before = signals::block_others();
    let spawned = thread::Builder::new().name("memferry-dsa".to_owned()).spawn(move || {
        // Where these CPUs are none of ours any more, it stays on those of the thread that starts it.
        let _ = affinity::confine(&client.devices().cpus());
        let opened = open();
        let (memory, trace) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let _ = says.send(Err(error)); // who asked waits for it
                return;
            }
        };
        let _ = says.send(Ok(()));
        drop(says);
        work(&client, device, &memory, trace);
    });
    signals::restore(before);
    spawned?;
    hears.recv().unwrap_or_else(|_| Err(io::Error::other("its thread has ended")))
}

/// What the thread needs of the system. Its file descriptors are its own: programs close all that they have inherited,
/// and the numbers would be other files' by then.
fn open() -> io::Result<(CheckedMemory, Option<File>)> {
    // SAFETY: the descriptors of this thread alone change from here on.
    let is_apart = unsafe { libc::unshare(libc::CLONE_FILES) } == 0;
    if is_apart {
        // Kept, the copies would keep the other ends of the program's pipes from seeing an end. Standard error stays,
        // for what there is to say. SAFETY: the copies are this thread's, and it has opened nothing yet.
        unsafe {
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            libc::dup2(null, 0);
            libc::dup2(null, 1);
        }
    }
    // SAFETY: the program has submitted the descriptors that are executed over it, and answers for what they name.
    let memory = unsafe { CheckedMemory::open() }?;
    let trace = process::connected().map_or(Ok(None), Connected::open_trace).unwrap_or_else(|error| {
        without_trace(error);
        None
    });
    Ok((memory, trace))
}

fn without_trace(error: impl Display) {
    complain(&format!("the trace cannot be written and ends here: {error}"));
}

fn work(client: &Client, device: usize, memory: &CheckedMemory, trace: Option<File>) {
    let mut engine = client.engine(device);
    if let Some(trace) = trace {
        engine.trace(trace, without_trace);
    }
    let mut looked = Instant::now();
    let looks = || {
        if looked.elapsed() > LOOK {
            end_if_alone();
            looked = Instant::now();
        }
        false
    };
    // A panic in the device must not end the program: it never sees its completions then.
    if let Some(Err(error)) = panics::contain(|| engine.run(memory, looks)) {
        complain(&format!("no device has this configuration: {error}"));
    }
}

/// Ends the process if its program has ended all its threads: without this one, it would be gone.
///
/// That takes a first thread that has ended before the others, which is rare, and soon seen.
fn end_if_alone() {
    static ENDS: AtomicBool = AtomicBool::new(false);
    if !has_ended("/proc/self/stat") {
        return;
    }
    let Some(process) = wiped::get().and_then(Wiped::process) else { return };
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    let running = threads.flatten().filter(|thread| !has_ended(thread.path().join("stat"))).count();
    if running == process.engine_count() && !ENDS.swap(true, Ordering::Relaxed) {
        // SAFETY: what libc does after the last thread of a program; nobody else runs.
        unsafe { libc::exit(0) }
    }
}

/// Whether the thread with this file of `/proc` has ended: a dead one is there until all are.
///
/// Allocates nothing: it is called all the time, and a program may be at its end.
///
/// Source: proc_pid_stat(5), field 3. The second one is a name in parentheses, of 64 bytes at most, that may contain
/// anything.
fn has_ended(stat: impl AsRef<Path>) -> bool {
    let mut start = [0; 128];
    let count = File::open(stat).and_then(|mut file| file.read(&mut start)).unwrap_or(0);
    let state = start[..count].windows(3).rfind(|window| window.starts_with(b") "));
    state.is_some_and(|window| matches!(window[2], b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_ended() {
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
            assert_eq!(has_ended(&path), expected, "{stat}");
        }
        assert!(!has_ended("/nowhere") && !has_ended("/proc/self/stat"));
    }
}
