//! The thread that executes what this process submits to a device.

use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::thread;

use memferry_dsa::emulator::CheckedMemory;
use memferry_dsa::emulator::shared::Client;

use crate::process::complain;
use crate::trap::signals;

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

/// What the thread needs of the system. Its file descriptors are its own: programs close all that they have inherited, and
/// the numbers would be other files' by then.
fn open(client: &Client) -> io::Result<(CheckedMemory, Option<File>)> {
    // SAFETY: the descriptors of this thread alone change from here on.
    let is_apart = unsafe { libc::unshare(libc::CLONE_FILES) } == 0;
    if is_apart {
        // Kept, the copies would keep the other ends of the program's pipes from seeing an end. Standard error stays, for
        // what there is to say.
        // SAFETY: the copies are this thread's, and it has opened nothing yet.
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
    // A panic in the device must not end the program: it never sees its completions then.
    let run = std::panic::AssertUnwindSafe(|| engine.run(memory, || false));
    if let Ok(Err(error)) = std::panic::catch_unwind(run) {
        complain(&format!("no device has this configuration: {error}"));
    }
}
