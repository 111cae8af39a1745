//! The thread that executes what this process submits to a device.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memferry_dsa::emulator::CheckedMemory;
use memferry_dsa::emulator::shared::Client;

use crate::process::complain;
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
        let opened = open(&client);
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
fn open(client: &Client) -> io::Result<(CheckedMemory, Option<File>)> {
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
    Ok((memory, client.state().options().open_trace()?))
}

fn work(client: &Client, device: usize, memory: &CheckedMemory, trace: Option<File>) {
    let mut engine = client.engine(device);
    if let Some(trace) = trace {
        engine.trace(trace, |error| complain(&format!("the trace cannot be written and ends here: {error}")));
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
    let run = std::panic::AssertUnwindSafe(|| engine.run(memory, looks));
    if let Ok(Err(error)) = std::panic::catch_unwind(run) {
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
/// Source: proc_pid_stat(5), field 3. The second one is a name in parentheses that may contain anything.
fn has_ended(stat: impl AsRef<Path>) -> bool {
    let text = fs::read_to_string(stat).unwrap_or_default();
    text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
