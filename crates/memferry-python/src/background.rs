//! A thread that attaches to the interpreter on behalf of engines: it releases buffers and wakes event loops.

use std::process;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;

use pyo3::Python;

type Task = Box<dyn FnOnce(Python<'_>) + Send>;

/// The thread's queue, and the process that the thread is in: a forked child has no threads and starts its own.
static QUEUE: Mutex<Option<(u32, Sender<Task>)>> = Mutex::new(None);

/// Runs `task` soon, attached to the interpreter. Nothing runs after the interpreter's end.
pub(crate) fn run(task: impl FnOnce(Python<'_>) + Send + 'static) {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let process = process::id();
    if queue.as_ref().is_none_or(|(owner, _)| *owner != process) {
        let (sender, tasks) = mpsc::channel::<Task>();
        let work = move || {
            for task in tasks {
                // After the interpreter's end its objects are gone, and the task with them must not run nor be dropped.
                let mut task = Some(task);
                Python::try_attach(|py| task.take().map(|task| task(py)));
                std::mem::forget(task);
            }
        };
        let started = thread::Builder::new().name("memferry-python".to_owned()).spawn(work);
        if started.is_err() {
            // Without a thread the buffers stay exported, which is safe.
            std::mem::forget(task);
            return;
        }
        // The sender of the parent process stays: its drop would wake a thread that is not there.
        std::mem::forget(queue.replace((process, sender)));
    }
    if let Some((_, sender)) = &*queue {
        // The thread ends only with the process.
        let _ = sender.send(Box::new(task));
    }
}
