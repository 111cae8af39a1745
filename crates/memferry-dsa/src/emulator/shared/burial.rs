//! What becomes of a process that is gone: its counters are added to the sums, its engines are free, its entries are
//! skipped, and last its place is free.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::State;
use super::common::{TAKEN, pass_on};
use super::layout::{DEVICES_MAX, Life, Place};
use crate::emulator::config::QUEUES_MAX;
use crate::emulator::counters::get;
use crate::emulator::ring::ClientId;

impl State {
    /// Removes all that the process `process` has left. It is gone, or has become another program.
    pub fn bury(&self, process: u32) {
        self.bury_those(|_, whose| whose == process);
    }

    /// Removes all that processes have left that are gone, or run another program by now; the number of processes.
    /// Those for whom others execute are left to these: see [`bury`](Self::bury).
    pub fn reap(&self) -> usize {
        self.bury_those(|place, process| place.executes_for(process) && is_gone(place, process))
    }

    /// Removes what the calling process has left that was here before under the same number: its own program before
    /// `execve(2)`, in most cases. To be called before the process joins.
    pub fn bury_predecessors(&self) -> usize {
        let me = std::process::id();
        self.bury_those(|place, process| process == me && place.executes_for(me))
    }

    /// Processes that use devices.
    pub fn processes(&self) -> Vec<u32> {
        self.file().places.iter().filter_map(|place| place.process(Life::Live)).collect()
    }

    fn bury_those(&self, is_his: impl Fn(&Place, u32) -> bool) -> usize {
        let numbered = (0..).zip(&self.file().places);
        let his = numbered
            .filter(|(_, place)| place.process(Life::Live).is_some_and(|process| is_his(place, process)));
        let count = his.filter(|(id, _)| self.bury_client(*id)).count();
        self.free_the_buried();
        count
    }

    /// Removes what a client has left; false if it is done or being done already.
    pub(super) fn bury_client(&self, id: ClientId) -> bool {
        let place = &self.file().places[usize::from(id)];
        let Some(process) = place.process(Life::Live) else { return false };
        if !place.turn(process, Life::Live, Life::Dying) {
            return false;
        }
        for (device, mine) in self.file().clients[usize::from(id)].devices.iter().enumerate() {
            let state = self.device(device);
            if state.generation.load(Ordering::Acquire) == 0 {
                continue; // never configured
            }
            state.retired.add(&mine.counters);
            mine.counters.clear();
            for (queue, mine) in state.queues.iter().zip(&mine.queues) {
                let (taken, ended) = (get(&mine.taken), get(&mine.ended));
                state.retired.aborted.fetch_add(taken.saturating_sub(ended), Ordering::Relaxed);
                let left = queue.ring.entries_of(id) as u64;
                mine.accepted.store(taken + left, Ordering::Relaxed);
                mine.taken.store(0, Ordering::Relaxed);
                mine.ended.store(0, Ordering::Relaxed);
                mine.settled.store(0, Ordering::Relaxed);
                queue.counts.0.retired.fetch_add(taken, Ordering::Release);
            }
            let engines = state.times.0.engines.iter();
            for engine in engines.filter(|engine| get(engine) == TAKEN | u64::from(id)) {
                engine.store(self.now_ns(), Ordering::Release);
            }
        }
        place.turn(process, Life::Dying, Life::Dead);
        for device in 0..DEVICES_MAX {
            (0..QUEUES_MAX).for_each(|queue| pass_on(self, device, queue, 0));
        }
        true
    }

    /// Frees the places of those who are dead and have no entry left. Entries behind those of the living stay for now:
    /// whoever takes the one before skips them.
    pub(super) fn free_the_buried(&self) {
        for (id, place) in (0..).zip(&self.file().places) {
            let Some(process) = place.process(Life::Dead) else { continue };
            let mut rings =
                self.file().devices.iter().flat_map(|device| &device.queues).map(|queue| &queue.ring);
            if !rings.any(|ring| ring.entries_of(id) > 0) {
                place.executor.store(0, Ordering::Relaxed);
                Identity { started: 0, stack: 0 }.write(place);
                place.turn(process, Life::Dead, Life::Free);
            }
        }
    }
}

impl Place {
    /// Whether the process executes what it submits itself.
    fn executes_for(&self, process: u32) -> bool {
        self.executor.load(Ordering::Relaxed) == u64::from(process)
    }
}

/// Whether a client's process has ended or runs another program; also if it only waits for its parent, or if its id is
/// another's by now.
fn is_gone(place: &Place, process: u32) -> bool {
    match Identity::of(process) {
        None => return true,
        Some(now) if Identity::read(place).is_other(now) => return true,
        Some(_) => {}
    }
    // SAFETY: pidfd_open takes numbers; poll gets one pollfd; the descriptor is closed once.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_pidfd_open, process, 0) as i32;
        if descriptor < 0 {
            return io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        }
        // Readable when all threads are gone. A zombie leader with threads that run is not.
        let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let is_gone = libc::poll(&mut poll, 1, 0) == 1;
        libc::close(descriptor);
        is_gone
    }
}

/// What tells a process, and its program, from others under the same number. 0 is not known.
#[derive(Clone, Copy)]
pub(super) struct Identity {
    started: u64, // in the kernel's units since boot
    stack: u64,   // where the program's stack begins, which is drawn anew for each
}

impl Identity {
    /// That of a running process.
    ///
    /// Source: proc_pid_stat(5), fields 22 and 28; the latter is 0 for those who may not trace the process. The second
    /// field is a name in parentheses that may contain anything.
    pub(super) fn of(process: u32) -> Option<Identity> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        let field = |number: usize| after_name.split_whitespace().nth(number - 3)?.parse().ok();
        Some(Identity { started: field(22)?, stack: field(28)? })
    }

    pub(super) fn write(self, place: &Place) {
        place.started.store(self.started, Ordering::Relaxed);
        place.stack.store(self.stack, Ordering::Relaxed);
    }

    fn read(place: &Place) -> Identity {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Identity { started: get(&place.started), stack: get(&place.stack) }
    }

    /// Whether both are known and differ.
    fn is_other(self, now: Identity) -> bool {
        let differ = |one: u64, other: u64| one != 0 && other != 0 && one != other;
        differ(self.started, now.started) || differ(self.stack, now.stack)
    }
}
