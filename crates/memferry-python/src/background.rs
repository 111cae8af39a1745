//! A thread that attaches to the interpreter on behalf of engines: it releases buffers and wakes event loops.

use std::mem;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use pyo3::Python;

type Task = Box<dyn FnOnce(Python<'_>) + Send>;

/// The queue of the thread, and the process that the thread is in.
struct Queue {
    process: u32,
    sender: Sender<Task>,
}

/// The queue of this process, or of its parent: a forked child has no threads and starts its own. Queues live for ever.
///
/// No lock: engines call [`run`] without the interpreter, and a child that is forked meanwhile would wait for the lock for ever.
static QUEUE: AtomicPtr<Queue> = AtomicPtr::new(ptr::null_mut());

/// Runs `task` soon, attached to the interpreter. Nothing runs after the interpreter's end.
pub(crate) fn run(task: impl FnOnce(Python<'_>) + Send + 'static) {
    // Without a thread the buffers stay exported, which is safe. To drop the task would come back here.
    if let Err(refused) = sender().send(Box::new(task)) {
        mem::forget(refused);
    }
}

/// The sender of this process. The first call starts the thread, which ends only with the process.
fn sender() -> &'static Sender<Task> {
    let process = process::id();
    // ORDERING: Acquire pairs with the Release below: the queue has been written.
    let found = QUEUE.load(Ordering::Acquire);
    // SAFETY: it is null or from `Box::into_raw` below, and is never freed or written again.
    if let Some(queue) = unsafe { found.as_ref() }
        && queue.process == process
    {
        return &queue.sender;
    }
    let (sender, tasks) = mpsc::channel::<Task>();
    let ours = Box::into_raw(Box::new(Queue { process, sender }));
    // The queue of the parent process stays: its drop would wake a thread that is not there.
    // ORDERING: Release pairs with the Acquire above, on failure Acquire with the Release of the other thread.
    match QUEUE.compare_exchange(found, ours, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // If it cannot be started, the receiver is dropped, and `run` is refused.
            let _ = thread::Builder::new().name("memferry-python".to_owned()).spawn(move || work(tasks));
            // SAFETY: from `Box::into_raw` above, and never freed or written again.
            &unsafe { &*ours }.sender
        }
        Err(others) => {
            // SAFETY: `ours` was not published. The other thread published a queue of this process, which lives for ever.
            unsafe {
                drop(Box::from_raw(ours));
                &(*others).sender
            }
        }
    }
}

fn work(tasks: Receiver<Task>) {
    for task in tasks {
        // After the interpreter's end its objects are gone, and the task with them must not run nor be dropped.
        let mut task = Some(task);
        Python::try_attach(|py| task.take().map(|task| task(py)));
        mem::forget(task);
    }
}
