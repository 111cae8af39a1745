//! The server: it creates the memory, configures the devices, and keeps the table of clients.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use memferry_dsa::internals::affinity;

use super::clients::Clients;
use super::layout::{MAGIC, VERSION};
use super::maintenance::StallWatch;
use super::memory::{Mapping, Writers};
use super::trace::Channels;
use super::{Devices, Options};
use crate::monotonic::monotonic_ns;

/// The server of devices that processes share.
///
/// Clients in this process [`join`](Self::join); processes [connect](super::Devices::connect) once it
/// [listens](Self::listen).
#[derive(Clone)]
pub struct Server(pub(super) Arc<ServerState>);

/// The state of a server. `devices`, `files`, `options`, `trace` and `user` never change; the rest is behind locks.
pub(super) struct ServerState {
    pub(super) devices: Devices,
    /// The files of board and order, for clients.
    pub(super) files: [File; 2],
    options: Options,
    trace: io::Result<Option<Channels>>,
    user: u32,
    pub(super) clients: Mutex<Clients>,
    pub(super) stalls: Mutex<StallWatch>,
}

impl Server {
    /// Creates the memory for devices; none is enabled yet. The clocks start now, and engines run on the CPUs that this
    /// thread may use.
    ///
    /// # Errors
    /// Errors of `memfd_create(2)`, `ftruncate(2)`, `mmap(2)` and `fcntl(2)`, F_ADD_SEALS.
    pub fn create(options: &Options) -> io::Result<Server> {
        let (board, board_file) = Mapping::create(c"memferry-board", Writers::Creator)?;
        let (order, order_file) = Mapping::create(c"memferry-order", Writers::All)?;
        let devices = Devices::new(board, order);
        let header = &devices.board().header;
        options.write(header);
        // Unknown on machines with more CPUs than a `cpu_set_t` has.
        for cpu in affinity::allowed().unwrap_or_default() {
            header.cpus[cpu as usize / 64].fetch_or(1 << (cpu % 64), Ordering::Relaxed);
        }
        header.epoch_ns.store(monotonic_ns(), Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Relaxed);
        Ok(Server(Arc::new(ServerState {
            devices,
            files: [board_file, order_file],
            options: options.clone(),
            trace: options.open_trace().map(|trace| trace.map(Channels::new)),
            user: user(),
            clients: Mutex::new(Clients::new()),
            stalls: Mutex::default(),
        })))
    }

    /// The options for all processes.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// The trace, if there is one, for [`ClientEngine::trace`](super::ClientEngine::trace).
    ///
    /// # Errors
    /// The file could not be opened (`ENXIO`: it is a pipe without a reader), or no file descriptor is left.
    pub fn trace(&self) -> io::Result<Option<File>> {
        self.channels()?.map(|channels| channels.trace().try_clone()).transpose()
    }

    /// The channels to the trace, if there is one.
    ///
    /// # Errors
    /// The file could not be opened.
    pub(super) fn channels(&self) -> io::Result<Option<&Channels>> {
        match &self.0.trace {
            Ok(channels) => Ok(channels.as_ref()),
            Err(error) => Err(error.raw_os_error().map_or(error.kind().into(), io::Error::from_raw_os_error)),
        }
    }

    /// The devices, as clients see them.
    pub fn devices(&self) -> &Devices {
        &self.0.devices
    }

    /// The server's user.
    pub(super) fn user(&self) -> u32 {
        self.0.user
    }
}

#[allow(unsafe_code)]
fn user() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}
