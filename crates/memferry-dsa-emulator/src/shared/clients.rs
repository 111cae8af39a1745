//! The server's table of clients. A client whose process has ended is reaped: its counters are added to the sums, its
//! engines become free, its entries are skipped.
//!
//! Only the server has this table; clients see which client numbers are in use.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::layout::{CLIENTS_MAX, ClientMemory, ClientQueue, DEVICES_MAX};
use super::memory::{Mapping, Writers};
use super::shared_device::{ACQUIRED, wake_next_owner};
use super::{Client, ClientReport, QueueAt, Server};
use crate::config::QUEUES_MAX;
use crate::device::counters::{Counters, capped, get};
use crate::procfs::{self, Identity, Status};
use crate::queue::ring::ClientId;

/// Maximum number of clients of all users other than the server's: the server's user always finds a free number.
const OTHERS_MAX: usize = CLIENTS_MAX / 2;

/// An error of [`Server::join`]: the process cannot use the devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// All client numbers are in use.
    #[error("{0} processes use the emulated devices already; end some of them")]
    TooMany(usize),
    /// `/proc` has no process with this id.
    #[error("/proc has no process {0}: mount the /proc of this process id namespace")]
    NoProcess(u32),
    /// The operating system refuses memory or a file descriptor.
    #[error("cannot make the queues of process {0}: {1}")]
    System(u32, #[source] io::Error),
}

/// All clients, as the server sees them; behind the lock `ServerState::clients`.
pub(super) struct Clients {
    pub(super) live: BTreeMap<ClientId, LiveClient>,
    /// The reports of the clients that have left last.
    pub(super) gone: VecDeque<ClientReport>,
    /// The sums of the counters of clients that have left, by device.
    pub(super) retired: Box<[Counters]>,
    last: ClientId,
    registrations: u64,
}

/// A client that has joined and not left.
pub(super) struct LiveClient {
    pub(super) process: u32,
    pub(super) program: String,
    pub(super) own: Mapping<ClientMemory>,
    user: u32,
    identity: Identity,
    /// Readable when the process has ended; `None` if no file descriptor was left.
    end: Option<OwnedFd>,
    /// Whether the process executes its own descriptors.
    executes_itself: bool,
    registration: u64,
}

/// A request to join.
pub(super) struct JoinRequest {
    pub(super) process: u32,
    pub(super) user: u32,
    /// Whether the process executes its own descriptors.
    pub(super) executes_itself: bool,
}

/// The result of joining.
pub(super) struct Admission {
    pub(super) id: ClientId,
    pub(super) own: File,
    pub(super) registration: u64,
}

impl LiveClient {
    pub(super) fn queue(&self, at: QueueAt) -> &ClientQueue {
        &self.own.get().devices[at.device].queues[at.queue].0
    }

    /// Whether its process has ended, is a zombie, or runs another program, or whether its id was reused.
    fn is_gone(&self) -> bool {
        if self.end.as_ref().is_some_and(is_readable) {
            return true;
        }
        match Identity::of_process(self.process) {
            Ok(None) => true,
            Ok(Some(now)) => self.identity.is_other(now) || self.end.is_none() && is_zombie(self.process),
            Err(_) => false, // unknown
        }
    }
}

impl Clients {
    pub(super) fn new() -> Clients {
        Clients {
            live: BTreeMap::new(),
            gone: VecDeque::new(),
            retired: (0..DEVICES_MAX).map(|_| Counters::default()).collect(),
            last: 0,
            registrations: 0,
        }
    }

    /// File descriptors that become readable when a client's process ends; `None` if that of a client is missing.
    pub(super) fn ends(&self) -> Option<Vec<RawFd>> {
        let own = self.live.values().filter(|client| client.executes_itself);
        own.map(|client| client.end.as_ref().map(AsRawFd::as_raw_fd)).collect()
    }
}

impl Server {
    /// Joins for a process, whose memory the descriptors name: the calling process, or one for which the caller
    /// executes descriptors. Only this process maps the memory of the client's entries.
    ///
    /// # Errors
    /// [`JoinError`]: nothing has changed.
    pub fn join(&self, process: u32) -> Result<Client, JoinError> {
        let executes_itself = process == std::process::id();
        let user = match executes_itself {
            true => self.user(),
            false => {
                let status = Status::of(process).map_err(|error| JoinError::System(process, error))?;
                status.ok_or(JoinError::NoProcess(process))?.user
            }
        };
        let joined = self.admit(&JoinRequest { process, user, executes_itself })?;
        let own = Mapping::open(&joined.own, Writers::All).map_err(|error| {
            self.leave(joined.id, joined.registration);
            JoinError::System(process, error)
        })?;
        let home = Some((self.clone(), joined.registration));
        Ok(Client::new(self.devices(), own, joined.id, process, home))
    }

    pub(super) fn clients(&self) -> MutexGuard<'_, Clients> {
        self.0.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a client and gives it a number.
    pub(super) fn admit(&self, joining: &JoinRequest) -> Result<Admission, JoinError> {
        let &JoinRequest { process, user, executes_itself } = joining;
        let failed = |error| JoinError::System(process, error);
        let identity = Identity::of_process(process).map_err(failed)?.ok_or(JoinError::NoProcess(process))?;
        let (own, file) = Mapping::<ClientMemory>::create(c"memferry-own", Writers::All).map_err(failed)?;
        let mut clients = self.clients();
        let others = clients.live.values().filter(|client| client.user != self.user()).count();
        if user != self.user() && others >= OTHERS_MAX {
            return Err(JoinError::TooMany(others));
        }
        // The number that was free for longest: entries of its former client may still be in a ring.
        let first = usize::from(clients.last);
        let numbers = (first + 1..CLIENTS_MAX).chain(1..=first).map(|id| id as ClientId);
        let mut free = numbers.filter(|id| !clients.live.contains_key(id)).peekable();
        // A hostile client may have forged marks for all numbers. They match no seal in the new client's memory.
        let any = *free.peek().ok_or(JoinError::TooMany(CLIENTS_MAX - 1))?;
        let has_entries = self.clients_with_entries();
        let id = free.find(|id| !has_entries[usize::from(*id)]).unwrap_or(any);
        clients.last = id;
        clients.registrations += 1;
        let registration = clients.registrations;
        let program = procfs::name(process);
        let end = open_end(process);
        let live = LiveClient { process, program, own, user, identity, end, executes_itself, registration };
        clients.live.insert(id, live);
        // ORDERING: Release pairs with the Acquire in `Devices::is_live`. The client learns its number only after this.
        self.devices().board().live[usize::from(id)].store(1, Ordering::Release);
        Ok(Admission { id, own: file, registration })
    }

    /// Reaps the clients whose processes have ended or run another program now; returns their number. A client for
    /// which another process executes stays until that process drops it.
    pub fn reap(&self) -> usize {
        self.reap_matching(|client| client.executes_itself && client.is_gone())
    }

    /// Reaps former clients with the same process id: in most cases the program of the process before `execve(2)`.
    pub(super) fn reap_predecessors(&self, process: u32) -> usize {
        self.reap_matching(|client| client.executes_itself && client.process == process)
    }

    /// The processes that use devices.
    pub fn processes(&self) -> Vec<u32> {
        self.clients().live.values().map(|client| client.process).collect()
    }

    /// Removes a client of this process.
    pub(super) fn leave(&self, id: ClientId, registration: u64) {
        let mut clients = self.clients();
        // The client may have been reaped before, and its number reused.
        if clients.live.get(&id).is_some_and(|client| client.registration == registration) {
            self.reap_client(&mut clients, id);
        }
    }

    fn reap_matching(&self, matches: impl Fn(&LiveClient) -> bool) -> usize {
        let mut clients = self.clients();
        let found: Vec<ClientId> =
            clients.live.iter().filter(|(_, client)| matches(client)).map(|(id, _)| *id).collect();
        found.iter().for_each(|id| self.reap_client(&mut clients, *id));
        found.len()
    }

    fn reap_client(&self, clients: &mut Clients, id: ClientId) {
        let Some(client) = clients.live.remove(&id) else { return };
        let report = self.client_report(id, &client);
        for device in (0..DEVICES_MAX).filter(|device| self.devices().was_configured(*device)) {
            let (mine, order) = (&client.own.get().devices[device], self.devices().device_order(device));
            let retired = &clients.retired[device];
            retired.add(&mine.counters);
            for (queue, mine) in order.queues.iter().zip(&mine.queues) {
                let (dispatched, executed) = (capped(&mine.0.dispatched), capped(&mine.0.executed));
                let left = queue.ring.entries_of(id) as u64;
                retired.aborted.fetch_add(dispatched.saturating_sub(executed) + left, Ordering::Relaxed);
                // ORDERING: Release pairs with the Acquire of `retired` in `queue_report`.
                queue.counts.0.retired.fetch_add(dispatched, Ordering::Release);
            }
            let engines = order.times.0.engines.iter();
            for engine in engines.filter(|engine| get(engine) == ACQUIRED | u64::from(id)) {
                // ORDERING: Release pairs with the Acquire in `SharedDevice::acquire_engine`, as in `release_engine`.
                engine.store(self.devices().now_ns(), Ordering::Release);
            }
        }
        if !report.queues.is_empty() {
            if clients.gone.len() == CLIENTS_MAX {
                clients.gone.pop_front();
            }
            clients.gone.push_back(report);
        }
        // ORDERING: Release pairs with the Acquire in `Devices::is_live`: the client's counters and engines above are
        // settled before others skip its entries.
        self.devices().board().live[usize::from(id)].store(0, Ordering::Release);
        for device in 0..DEVICES_MAX {
            (0..QUEUES_MAX).for_each(|queue| wake_next_owner(self.devices(), device, queue, 0));
        }
    }

    fn clients_with_entries(&self) -> Vec<bool> {
        let mut has_entries = vec![false; CLIENTS_MAX];
        for device in (0..DEVICES_MAX).filter(|device| self.devices().was_configured(*device)) {
            let queues = &self.devices().device_order(device).queues;
            for owner in queues.iter().flat_map(|queue| queue.ring.owners()) {
                if let Some(has) = has_entries.get_mut(usize::from(owner)) {
                    *has = true; // a forged mark may have any number
                }
            }
        }
        has_entries
    }
}

/// Opens a file descriptor that becomes readable when all threads of a process have ended. It does not while the first
/// thread is a zombie and others run.
///
/// Source: pidfd_open(2), Linux 5.3.
fn open_end(process: u32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes numbers; the file descriptor is new, and has no other owner.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_pidfd_open, process, 0) as i32;
        (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor))
    }
}

/// Whether all threads of a process have ended, which `/proc` still lists.
fn is_zombie(process: u32) -> bool {
    match open_end(process) {
        Some(end) => is_readable(&end),
        None => io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH),
    }
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: poll gets one pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{DeviceSetup, Options};
    use crate::{Capabilities, OPERATIONS};

    /// A client that forged entries of all clients, even in queues that do not exist, once prevented all others from
    /// joining, also after it had ended.
    #[test]
    fn forged_entries_prevent_no_client_from_joining() {
        let state = Server::create(&Options::default()).unwrap();
        let (operations, capabilities) = (OPERATIONS, Capabilities::ALL);
        let engine_groups = [Some(0), None, None, None];
        state.enable_device(0, &DeviceSetup { number: 0, operations, capabilities, engine_groups });
        let id = || state.join(std::process::id()).map(|client| client.pasid());
        let all = || 1..CLIENTS_MAX as ClientId;
        for device in [1, 0] {
            for (queue, half) in [all().step_by(2).collect::<Vec<_>>(), all().skip(1).step_by(2).collect()]
                .into_iter()
                .enumerate()
            {
                state.devices().device_order(device).queues[queue].ring.forge(half.into_iter());
            }
            assert!(id().is_ok(), "device {device}");
        }
    }
}
