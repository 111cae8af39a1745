//! Executors: they execute the descriptors that a process submits with `write(2)`.
//!
//! On silicon the kernel submits those descriptors for the process; here the supervisor does. Each address space that
//! submits has one executor: a client of the shared state in the name of its process, with an engine thread for each
//! device. It needs no code in the process, so it serves static programs as well.
//!
//! An engine works on the address space, also after the process has executed another program. It exits when no process
//! has the address space any more. The client then drops the remaining descriptors.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memferry_dsa::{Descriptor, Flags, Opcode, Submission};
use memferry_dsa_emulator::shared::{Client, Server as Shared};
use memferry_dsa_emulator::{AddressSpace, ProcessMemory};

use crate::error::limit;
use crate::opener::Opener;
use crate::queues::QueueFile;

/// Interval of the checks for address spaces that are gone. Their queue entries keep other processes waiting.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two checks of an engine whether its address space is gone, with a system call.
const ENGINE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between two tries of a submission. It leaves the core to the engine; the driver repeats ENQCMDS without a
/// pause.
const RETRY_PAUSE: Duration = Duration::from_micros(20);

/// The executors of all address spaces. Descriptors in flight when it is dropped never complete.
pub(crate) struct Executors(Arc<Inner>);

/// Shared by the threads of the file system, the reaper thread and the engine threads.
struct Inner {
    shared: Shared,
    executors: Mutex<Vec<Executor>>,
    /// Wakes the reaper. Its mutex is `executors`.
    wake: Condvar,
    /// Written once, when `Executors` is dropped. Read by the reaper and the engines.
    is_stopping: Arc<AtomicBool>,
}

/// The executor of one address space.
struct Executor {
    opener: Arc<Opener>,
    engines: Vec<Engine>,
    /// Leaves the shared state when it is dropped, which is after its engines have exited.
    client: Client,
}

/// An engine thread.
struct Engine {
    device: usize,
    thread: JoinHandle<()>,
}

impl Executor {
    /// Whether no process has the address space, and the engines have exited. No thread waits for an engine, because
    /// one of its accesses may be a page fault that a user process should handle and never does (userfaultfd(2)).
    fn is_finished(&self) -> bool {
        !self.opener.space().is_some_and(AddressSpace::is_alive)
            && self.engines.iter().all(|engine| engine.thread.is_finished())
    }
}

impl Drop for Executors {
    fn drop(&mut self) {
        // Under the lock, so that the reaper is not between its check and its wait.
        let _executors = self.0.executors();
        self.0.is_stopping.store(true, Ordering::Relaxed);
        self.check_soon();
    }
}

impl Executors {
    /// Starts without executors, and with a thread that reaps them.
    pub(crate) fn new(shared: Shared) -> Executors {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let inner =
            Arc::new(Inner { shared, executors: Mutex::default(), wake: Condvar::new(), is_stopping });
        let reaper = Arc::clone(&inner);
        // Not fatal: without the thread, entries of dead processes stay until the next request.
        let _ = thread::Builder::new().name("executors".to_owned()).spawn(move || reaper.reap());
        Executors(inner)
    }

    /// Wakes the reaper: a process may have gone.
    pub(crate) fn check_soon(&self) {
        self.0.wake.notify_one();
    }

    /// Submits a descriptor that a thread has written, with the checks of the driver. `retries` is the number of tries
    /// that may find the queue full; it is counted down.
    pub(crate) fn submit(
        &self,
        file: &QueueFile,
        thread: u32,
        bytes: &[u8; 64],
        retries: &mut u32,
    ) -> Result<(), i32> {
        let descriptor = Descriptor::from_bytes(bytes);
        let is_batch = descriptor.opcode() == Ok(Opcode::Batch);
        let has_record = descriptor.flags().contains(Flags::COMPLETION_ADDRESS_VALID);
        if is_batch || has_record && !descriptor.completion_address().0.is_multiple_of(32) {
            return Err(libc::EINVAL);
        }
        let client = self.0.client(file)?;
        let mut words = descriptor.to_words();
        while client.write(file.at, &mut words, thread) != Submission::Accepted {
            *retries = retries.checked_sub(1).ok_or(libc::EAGAIN)?;
            thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }
}

impl Inner {
    fn executors(&self) -> MutexGuard<'_, Vec<Executor>> {
        self.executors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the client of the address space that opened the file, and starts an engine for its device if there is
    /// none.
    fn client(&self, file: &QueueFile) -> Result<Client, i32> {
        let space = file.opener.space().ok_or(libc::EPERM)?;
        let process = file.opener.process();
        let mut executors = self.executors();
        let known = executors.iter().position(|executor| Arc::ptr_eq(&executor.opener, &file.opener));
        let executor = match known {
            Some(known) => &mut executors[known],
            None => {
                let client = self.shared.join(process).map_err(|_| libc::ENOMEM)?;
                executors.push(Executor { opener: Arc::clone(&file.opener), engines: Vec::new(), client });
                executors.last_mut().expect("it was pushed above")
            }
        };
        if !executor.engines.iter().any(|engine| engine.device == file.at.device) {
            let engine = self.engine(&executor.client, file.at.device, space).map_err(|error| {
                let advice = limit(&error).map(|advice| format!("; {advice}")).unwrap_or_default();
                eprintln!(
                    "memferry: cannot execute descriptors that process {process} writes: {error}{advice}"
                );
                // Unlike EAGAIN, it tells the writer that another try is of no use.
                libc::ENOMEM
            })?;
            executor.engines.push(engine);
        }
        self.wake.notify_one();
        Ok(executor.client.clone())
    }

    /// Starts the engine of an address space for a device.
    fn engine(&self, client: &Client, device: usize, space: &AddressSpace) -> io::Result<Engine> {
        let memory = memory_of(space);
        let mut engine = client.engine(device);
        match self.shared.trace() {
            Ok(None) => {}
            Ok(Some(trace)) => engine.trace(trace, without_trace),
            Err(error) => without_trace(error),
        }
        let (is_stopping, space) = (Arc::clone(&self.is_stopping), space.clone());
        let work = move || {
            // It fails for an invalid configuration only, and the driver has checked this one.
            let _ = engine.run(&memory, || match is_stopping.load(Ordering::Relaxed) || !space.is_alive() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(ENGINE_CHECK_INTERVAL),
            });
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(work)?;
        Ok(Engine { device, thread })
    }

    /// Removes executors of address spaces that are gone, until `is_stopping`. After a wake-up it also has the shared
    /// state check for dead processes with engines of their own, which the state itself does only now and then.
    fn reap(&self) {
        let mut executors = self.executors();
        while !self.is_stopping.load(Ordering::Relaxed) {
            executors.retain(|executor| !executor.is_finished());
            let time = if executors.is_empty() { Duration::MAX } else { CHECK_INTERVAL };
            let waited = self.wake.wait_timeout(executors, time).unwrap_or_else(PoisonError::into_inner);
            executors = waited.0;
            if !waited.1.timed_out() {
                self.shared.maintain(Instant::now());
            }
        }
    }
}

pub(crate) fn without_trace(error: io::Error) {
    eprintln!("memferry: the trace cannot be written: {error}");
}

/// The memory that a queue was opened from.
#[allow(unsafe_code)]
fn memory_of(space: &AddressSpace) -> ProcessMemory {
    // SAFETY: `Openers::for_thread` refuses this process. `Queues::write` takes descriptors from threads with this
    // address space only: a wrong descriptor harms the program that wrote it.
    unsafe { space.memory() }
}
