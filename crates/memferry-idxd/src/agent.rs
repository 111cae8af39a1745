//! Agents: what executes the descriptors that a process submits with `write(2)`.
//!
//! The kernel submits those for the process; here the supervisor does. For each process that writes there is a client
//! of the state file in its name, with an engine for each device, whose memory is the process'. It needs nothing from
//! the process, so that it serves static programs as well.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memferry_dsa::emulator::CheckedMemory;
use memferry_dsa::emulator::shared::{Client as Member, State as Shared};
use memferry_dsa::portal::Submission;
use memferry_dsa::{Descriptor, Flags, Opcode};

use crate::error::limit;
use crate::queues::{Client, Opener};
use crate::system;

/// How often processes are looked at that may be gone. Their entries keep others waiting.
const LOOK: Duration = Duration::from_millis(50);
/// Between two tries of a submission: what the driver's loop of ENQCMDS gives the device is given here to its thread.
const RETRY_PAUSE: Duration = Duration::from_micros(20);

/// The agents of all processes.
pub(crate) struct Agents(Arc<Inner>);

struct Inner {
    shared: Shared,
    agents: Mutex<HashMap<u32, Agent>>,
    /// With the lock of `agents`: somebody may have gone.
    look: Condvar,
}

/// A process, as far as it writes.
struct Agent {
    member: Member,
    /// Whose memory the engines work on.
    opener: Opener,
    /// By device.
    engines: HashMap<usize, Engine>,
}

/// A thread that executes.
struct Engine {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Drop for Agent {
    /// The place in the state file is free for others only after the engines have stopped.
    fn drop(&mut self) {
        self.engines.values().for_each(|engine| engine.stop.store(true, Ordering::Relaxed));
        for (_, engine) in self.engines.drain() {
            let _ = engine.thread.join(); // a panic has ended the supervisor already
        }
    }
}

impl Agents {
    /// No agents yet, and a thread that looks after them, and after all that use the state file.
    pub(crate) fn new(shared: Shared) -> Agents {
        let inner = Arc::new(Inner { shared, agents: Mutex::default(), look: Condvar::new() });
        let looks = Arc::clone(&inner);
        // Without the thread, what dead processes leave stays until the next one asks; so a failure is no end.
        let _ = thread::Builder::new().name("agents".to_owned()).spawn(move || looks.look_after());
        Agents(inner)
    }

    /// Somebody may have gone.
    pub(crate) fn look_soon(&self) {
        self.0.look.notify_one();
    }

    /// What the driver does with a descriptor that a thread has written.
    pub(crate) fn submit(
        &self,
        client: &Client,
        thread: u32,
        bytes: &[u8; 64],
        retries: u32,
    ) -> Result<(), i32> {
        let descriptor = Descriptor::from_bytes(bytes);
        let is_batch = descriptor.opcode() == Ok(Opcode::Batch);
        let has_record = descriptor.flags().contains(Flags::COMPLETION_ADDRESS_VALID);
        if is_batch || has_record && !descriptor.completion_address().0.is_multiple_of(32) {
            return Err(libc::EINVAL);
        }
        let member = self.0.member(client)?;
        let mut words = descriptor.to_words();
        for _ in 0..=retries {
            if member.written(client.at, &mut words, thread) == Submission::Accepted {
                return Ok(());
            }
            thread::sleep(RETRY_PAUSE);
        }
        Err(libc::EAGAIN)
    }
}

impl Inner {
    fn agents(&self) -> MutexGuard<'_, HashMap<u32, Agent>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member in the process' name, with an engine for the device.
    fn member(&self, client: &Client) -> Result<Member, i32> {
        let mut agents = self.agents();
        let process = client.opener.process;
        // It runs another program now; the descriptors of the one before are void, like its memory.
        if agents.get(&process).is_some_and(|agent| agent.opener != client.opener) {
            agents.remove(&process);
        }
        let agent = match agents.entry(process) {
            Entry::Occupied(agent) => agent.into_mut(),
            Entry::Vacant(place) => {
                let member = Member::join(&self.shared, process).map_err(|_| libc::ENOMEM)?;
                place.insert(Agent { member, opener: client.opener, engines: HashMap::new() })
            }
        };
        if !agent.engines.contains_key(&client.at.device) {
            let engine = self.engine(&agent.member, client.at.device).map_err(|error| {
                let advice = limit(&error).map(|advice| format!("; {advice}")).unwrap_or_default();
                eprintln!("memferry: cannot execute what process {process} writes: {error}{advice}");
                // What it says to a writer is that trying again is of no use, as EAGAIN would not.
                libc::ENOMEM
            })?;
            agent.engines.insert(client.at.device, engine);
        }
        self.look.notify_one();
        Ok(agent.member.clone())
    }

    /// Starts the engine of a process for a device.
    fn engine(&self, member: &Member, device: usize) -> io::Result<Engine> {
        let memory = memory_of(member.process())?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut engine = member.engine(device);
        match self.shared.options().open_trace() {
            Ok(None) => {}
            Ok(Some(trace)) => engine.trace(trace, without_trace),
            Err(error) => without_trace(error),
        }
        let stops = Arc::clone(&stop);
        let work = move || {
            // The configuration is the driver's, which has checked it.
            let _ = engine.run(&memory, || stops.load(Ordering::Relaxed));
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(work)?;
        Ok(Engine { stop, thread })
    }

    /// Forgets processes that are gone, for ever.
    fn look_after(&self) {
        let mut agents = self.agents();
        loop {
            // An agent first, and then what else the process has left: see `Agent::drop`.
            for process in self.shared.processes().into_iter().filter(|process| !is_running(*process)) {
                agents.remove(&process);
                self.shared.bury(process);
            }
            self.shared.reap(); // also those that run another program by now
            let has_users = !agents.is_empty() || !self.shared.processes().is_empty();
            agents = match has_users {
                true => {
                    let waited = self.look.wait_timeout(agents, LOOK);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                false => self.look.wait(agents).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

fn without_trace(error: io::Error) {
    eprintln!("memferry: the trace cannot be written: {error}");
}

/// The memory of a process that has opened a queue.
#[allow(unsafe_code)]
fn memory_of(process: u32) -> io::Result<CheckedMemory> {
    // SAFETY: it is not this process, which opens no queue: a wrong descriptor harms the process that wrote it.
    unsafe { CheckedMemory::of_process(process) }
}

/// Whether a process has not ended. One whose first thread alone has is running.
fn is_running(process: u32) -> bool {
    match system::stat(process).unwrap_or_default().split_whitespace().next() {
        None | Some("X") => false,
        Some("Z") => fs::read_dir(format!("/proc/{process}/task")).is_ok_and(|threads| threads.count() > 1),
        Some(_) => true,
    }
}
