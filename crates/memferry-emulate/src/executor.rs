//! Agents: what executes the descriptors that a process submits with `write(2)`.
//!
//! The kernel submits those for the process; here the supervisor does. Each address space that submits has a client of the
//! shared state, in the name of its process, with an engine for each device. It needs nothing from the process, so that it
//! serves static programs as well.
//!
//! An engine works on the address space, also after the process has executed another program, and ends when no process has
//! the address space any more. The client drops the descriptors that are left.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memferry_dsa::portal::Submission;
use memferry_dsa::{Descriptor, Flags, Opcode};
use memferry_dsa_emulator::shared::{Client as Member, State as Shared};
use memferry_dsa_emulator::{AddressSpace, ProcessMemory};

use crate::error::limit;
use crate::opener::Opener;
use crate::queues::Client;

/// How often address spaces are looked at that may be gone. Their entries keep others waiting.
const LOOK: Duration = Duration::from_millis(50);
/// Between two tries of a submission: what the driver's loop of ENQCMDS gives the device is given here to its thread.
const RETRY_PAUSE: Duration = Duration::from_micros(20);

/// The agents of all processes. Descriptors in flight when it is dropped never complete.
pub(crate) struct Agents(Arc<Inner>);

struct Inner {
    shared: Shared,
    agents: Mutex<Vec<Agent>>,
    /// With the lock of `agents`: somebody may have gone.
    look: Condvar,
    /// Written once, when `Agents` is dropped; read by all threads of the agents.
    is_over: Arc<AtomicBool>,
}

/// An address space that submits.
struct Agent {
    opener: Arc<Opener>,
    engines: Vec<Engine>,
    /// Leaves the shared state when it is dropped: after its engines have ended.
    member: Member,
}

/// A thread that executes.
struct Engine {
    device: usize,
    thread: JoinHandle<()>,
}

impl Agent {
    /// Whether no process has the address space, and the engines have ended. Nothing waits for an engine: one of its
    /// accesses may be a page fault that a user process must handle, and does not (userfaultfd(2)).
    fn is_over(&self) -> bool {
        !self.opener.space().is_some_and(AddressSpace::is_alive)
            && self.engines.iter().all(|engine| engine.thread.is_finished())
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // With the lock: the looking thread is not between its check and its wait.
        let _agents = self.0.agents();
        self.0.is_over.store(true, Ordering::Relaxed);
        self.look_soon();
    }
}

impl Agents {
    /// No agents yet, and a thread that looks after them.
    pub(crate) fn new(shared: Shared) -> Agents {
        let is_over = Arc::new(AtomicBool::new(false));
        let inner = Arc::new(Inner { shared, agents: Mutex::default(), look: Condvar::new(), is_over });
        let looks = Arc::clone(&inner);
        // Without the thread, what dead processes leave stays until the next one asks; so a failure is no end.
        let _ = thread::Builder::new().name("agents".to_owned()).spawn(move || looks.look_after());
        Agents(inner)
    }

    /// Somebody may have gone.
    pub(crate) fn look_soon(&self) {
        self.0.look.notify_one();
    }

    /// What the driver does with a descriptor that a thread has written. Tries that a full queue costs are taken from
    /// `retries`.
    pub(crate) fn submit(
        &self,
        client: &Client,
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
        let member = self.0.member(client)?;
        let mut words = descriptor.to_words();
        while member.written(client.at, &mut words, thread) != Submission::Accepted {
            *retries = retries.checked_sub(1).ok_or(libc::EAGAIN)?;
            thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }
}

impl Inner {
    fn agents(&self) -> MutexGuard<'_, Vec<Agent>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member for an address space, with an engine for the device.
    fn member(&self, client: &Client) -> Result<Member, i32> {
        let space = client.opener.space().ok_or(libc::EPERM)?;
        let process = client.opener.process();
        let mut agents = self.agents();
        let known = agents.iter().position(|agent| Arc::ptr_eq(&agent.opener, &client.opener));
        let agent = match known {
            Some(known) => &mut agents[known],
            None => {
                let member = self.shared.join(process).map_err(|_| libc::ENOMEM)?;
                agents.push(Agent { opener: Arc::clone(&client.opener), engines: Vec::new(), member });
                agents.last_mut().expect("it was just put there")
            }
        };
        if !agent.engines.iter().any(|engine| engine.device == client.at.device) {
            let engine = self.engine(&agent.member, client.at.device, space).map_err(|error| {
                let advice = limit(&error).map(|advice| format!("; {advice}")).unwrap_or_default();
                eprintln!("memferry: cannot execute what process {process} writes: {error}{advice}");
                // What it says to a writer is that trying again is of no use, as EAGAIN would not.
                libc::ENOMEM
            })?;
            agent.engines.push(engine);
        }
        self.look.notify_one();
        Ok(agent.member.clone())
    }

    /// Starts the engine of an address space for a device.
    fn engine(&self, member: &Member, device: usize, space: &AddressSpace) -> io::Result<Engine> {
        let memory = memory_of(space);
        let mut engine = member.engine(device);
        match self.shared.trace() {
            Ok(None) => {}
            Ok(Some(trace)) => engine.trace(trace, without_trace),
            Err(error) => without_trace(error),
        }
        let (is_over, space) = (Arc::clone(&self.is_over), space.clone());
        let work = move || {
            // The configuration is the driver's, which has checked it.
            let _ = engine.run(&memory, || is_over.load(Ordering::Relaxed) || !space.is_alive());
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(work)?;
        Ok(Engine { device, thread })
    }

    /// Forgets address spaces that are gone, until all is over; when somebody may have gone, processes that execute for
    /// themselves as well, which the shared state looks after by itself only now and then.
    fn look_after(&self) {
        let mut agents = self.agents();
        while !self.is_over.load(Ordering::Relaxed) {
            agents.retain(|agent| !agent.is_over());
            let time = if agents.is_empty() { Duration::MAX } else { LOOK };
            let waited = self.look.wait_timeout(agents, time).unwrap_or_else(PoisonError::into_inner);
            agents = waited.0;
            if !waited.1.timed_out() {
                self.shared.look_after();
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
    // SAFETY: `Openers::of` refuses this process. `Queues::write` takes descriptors from threads with this address space
    // only: a wrong descriptor harms the program that wrote it.
    unsafe { space.memory() }
}
