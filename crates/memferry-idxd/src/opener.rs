//! Openers: the address spaces that queues are opened from.
//!
//! The driver keeps the address space (`mm_struct`) with each open file, and refuses submissions from threads with another
//! one. Here it is bound while the opening thread waits for the answer, see [`AddressSpace`]. Linux does not tell whether
//! two address spaces are the same, so a thread is compared by its process: its number, its start time and the start of
//! its stack, as long as any process has the address space. `execve(2)` and the end of a process release it.
//!
//! One case is mistaken: a program that `execve(2)` starts at the same stack address, without randomised addresses, while
//! a child made with CLONE_VM keeps the memory of the program before. It then submits for that memory, which was its own.
//!
//! Source: `idxd_cdev_open` and `idxd_cdev_write` in Linux' `drivers/dma/idxd/cdev.c`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memferry_dsa::emulator::AddressSpace;

use crate::system;

/// The address spaces that queues are open from.
#[derive(Default)]
pub(crate) struct Openers(Mutex<HashMap<u32, Weak<Opener>>>); // by process

/// An address space.
pub(crate) struct Opener {
    identity: Identity,
    /// `None` if this process may not trace it.
    space: Option<AddressSpace>,
}

impl Openers {
    /// The address space of a thread that waits for the answer to a request meanwhile.
    ///
    /// # Errors
    /// `ESRCH`: there is no such thread; `EPERM`: the thread is one of this process, which only executes for others;
    /// `ENFILE`: there are no file descriptors left.
    pub(crate) fn of(&self, thread: u32) -> Result<Arc<Opener>, i32> {
        if system::is_own(thread) {
            return Err(libc::EPERM);
        }
        let identity = Identity::of(thread).ok_or(libc::ESRCH)?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, opener| opener.strong_count() > 0);
        let opener = known.get(&identity.process).and_then(Weak::upgrade);
        if let Some(opener) = opener.filter(|opener| opener.is_now(identity)) {
            return Ok(opener);
        }
        let space = match AddressSpace::of_thread(thread) {
            Ok(space) => Some(space),
            Err(error) if is_limit(&error) => {
                eprintln!(
                    "memferry: cannot open the memory of process {}: {error}; raise `ulimit -n`",
                    identity.process
                );
                return Err(libc::ENFILE);
            }
            Err(error) => {
                eprintln!(
                    "memferry: process {} cannot submit with write(2): cannot open its memory: {error}; run memferry as \
                    root, and without `sysctl kernel.yama.ptrace_scope=3`",
                    identity.process
                );
                None
            }
        };
        let opener = Arc::new(Opener { identity, space });
        known.insert(identity.process, Arc::downgrade(&opener));
        Ok(opener)
    }
}

fn is_limit(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

impl Opener {
    /// Its process.
    pub(crate) fn process(&self) -> u32 {
        self.identity.process
    }

    /// The memory, if this process may access it.
    pub(crate) fn space(&self) -> Option<&AddressSpace> {
        self.space.as_ref()
    }

    /// Whether a thread has this address space: a thread of the process, or of another process made with CLONE_VM.
    pub(crate) fn is(&self, thread: u32) -> bool {
        let Some(now) = Identity::of(thread) else { return false };
        if now.process == self.identity.process {
            return self.is_now(now);
        }
        let process = Identity::of(self.identity.process);
        system::share_memory(thread, self.identity.process) && process.is_some_and(|now| self.is_now(now))
    }

    fn is_now(&self, now: Identity) -> bool {
        now == self.identity && self.space.as_ref().is_none_or(AddressSpace::is_alive)
    }
}

/// The identity of a process and the program that it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    process: u32,
    started: u64, // in the kernel's units since boot
    stack: u64,   // the start of the program's stack, which Linux randomises for each program
}

impl Identity {
    /// That of the process of a thread.
    ///
    /// Source: proc_pid_status(5); proc_pid_stat(5), fields 22 and 28. A first thread that has ended has no stack.
    fn of(thread: u32) -> Option<Identity> {
        let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        let field =
            |task: u32, number: usize| system::stat(task)?.split_whitespace().nth(number - 3)?.parse().ok();
        Some(Identity { process, started: field(process, 22)?, stack: field(thread, 28)? })
    }
}
