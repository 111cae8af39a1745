//! Openers: the address spaces that queues are opened from.
//!
//! The driver keeps the address space (`mm_struct`) of each open file, and refuses submissions from threads with
//! another one. Here the address space is opened while the opening thread waits for the answer, see [`AddressSpace`].
//! Linux does not tell whether two address spaces are the same. So a thread is compared by its process: the number, the
//! start time and the start of the stack, as long as any process has the address space. `execve(2)` and the exit of a
//! process release it.
//!
//! One case is not recognised: `execve(2)` starts a program at the same stack address, without randomised addresses,
//! while a child made with CLONE_VM keeps the memory of the program before. It then submits for that memory, which was
//! its own.
//!
//! Source: `idxd_cdev_open` and `idxd_cdev_write` in Linux' `drivers/dma/idxd/cdev.c`.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memferry_dsa_emulator::AddressSpace;
use memferry_dsa_emulator::procfs::{Identity, Status};

use crate::system;

/// The address spaces that have queues open, by process.
#[derive(Default)]
pub(crate) struct Openers(Mutex<HashMap<u32, Weak<Opener>>>);

/// Most address spaces of one user, other than the user of this process. Each takes three file descriptors of this
/// process.
const USERS_MAX: usize = 256;

/// An address space.
pub(crate) struct Opener {
    identity: Identity,
    user: u32,
    is_used: AtomicBool,
    /// `None` if this process may not trace it.
    space: Option<AddressSpace>,
}

impl Openers {
    /// Returns the address space of a thread. The thread must wait for the answer to its request during this call.
    ///
    /// # Errors
    /// `ESRCH`: the thread does not exist; `EPERM`: it belongs to this process, which only executes for others;
    /// `EMFILE`: too many processes of the user have queues open; `ENFILE`: no file descriptors are left.
    pub(crate) fn for_thread(&self, thread: u32) -> Result<Arc<Opener>, i32> {
        if system::is_own(thread) {
            return Err(libc::EPERM);
        }
        let no_descriptors = |error: io::Error| {
            eprintln!("memferry: cannot open the memory of thread {thread}: {error}; raise `ulimit -n`");
            libc::ENFILE
        };
        let identity = Identity::of_thread(thread).map_err(no_descriptors)?.ok_or(libc::ESRCH)?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, opener| opener.strong_count() > 0);
        let opener = known.get(&identity.process).and_then(Weak::upgrade);
        if let Some(opener) = opener.filter(|opener| opener.is_same(identity)) {
            return Ok(opener);
        }
        let user = Status::of(thread).map_err(no_descriptors)?.ok_or(libc::ESRCH)?.user;
        let count = known.values().filter_map(Weak::upgrade).filter(|opener| opener.user == user).count();
        if user != nix::unistd::getuid().as_raw() && count >= USERS_MAX {
            eprintln!(
                "memferry: {count} processes of user {user} have queues open, which is the limit; end some of them"
            );
            return Err(libc::EMFILE);
        }
        let space = match AddressSpace::of_thread(thread) {
            Ok(space) => Some(space),
            Err(error) if is_limit(&error) => return Err(no_descriptors(error)),
            Err(error) => {
                eprintln!(
                    "memferry: process {} cannot submit with write(2): cannot open its memory: {error}; run memferry as \
                    root, and without `sysctl kernel.yama.ptrace_scope=3`",
                    identity.process
                );
                None
            }
        };
        let opener = Arc::new(Opener { identity, user, is_used: AtomicBool::new(false), space });
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

    /// Returns true on the first call.
    pub(crate) fn is_first_use(&self) -> bool {
        !self.is_used.swap(true, Ordering::Relaxed)
    }

    /// Its memory, if this process may access it.
    pub(crate) fn space(&self) -> Option<&AddressSpace> {
        self.space.as_ref()
    }

    /// Whether a thread has this address space: a thread of the process, or of a process made with CLONE_VM. Also false
    /// if the kernel does not tell.
    pub(crate) fn has_thread(&self, thread: u32) -> bool {
        let Ok(Some(now)) = Identity::of_thread(thread) else { return false };
        if now.process == self.identity.process {
            return self.is_same(now);
        }
        let process = Identity::of_thread(self.identity.process);
        system::share_memory(thread, self.identity.process)
            && matches!(process, Ok(Some(now)) if self.is_same(now))
    }

    fn is_same(&self, now: Identity) -> bool {
        now == self.identity && self.space.as_ref().is_none_or(AddressSpace::is_alive)
    }
}
