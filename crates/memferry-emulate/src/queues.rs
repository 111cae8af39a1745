//! Queues: who has them open, what is in them, and the shared state by which processes use them together.
//!
//! The state follows the driver: what is bound is enabled in it, what is unbound takes nothing more and is drained
//! first. What the driver shows of a queue that changes by itself comes from the state.
//!
//! Source: Linux `drivers/dma/idxd/cdev.c`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::FopenFlags;
use memferry_dsa::portal::QueueMode;
use memferry_dsa::system::{Device, DeviceId, Queue, QueueId, SystemState};
use memferry_dsa::{Opcode, OperationSet};
use memferry_dsa_emulator::FakeDriver;
use memferry_dsa_emulator::shared::{
    DeviceSetup, Listener, Options as SharedOptions, QueueAt, Server as Shared,
};
use memferry_dsa_emulator::{Capabilities, OPERATIONS, QUEUES_MAX};

use crate::agent::{Agents, without_trace};
use crate::error::Error;
use crate::namespace::PRIVATE;
use crate::opener::{Opener, Openers};
use crate::options::Options;
use crate::summary::summary;
use crate::system;

/// First number of the files of queues, beyond those of all others.
const NUMBERS: u64 = 1 << 32;
/// How long disabling waits for descriptors in progress; then they are dropped. A process can be stopped for ever.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// How often draining is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// The queues of all devices.
pub(crate) struct Queues {
    driver: Arc<FakeDriver>,
    devices: Vec<DeviceId>,
    shared: Shared,
    agents: Agents,
    openers: Openers,
    /// Serves other processes until this is dropped.
    listening: Option<Listener>,
    is_direct: AtomicBool,
    /// Open files of each queue.
    open: Mutex<HashMap<QueueId, u32>>,
    /// What is enabled in the shared state.
    enabled: Mutex<HashMap<QueueId, QueueMode>>,
}

/// An open file of a queue.
pub(crate) struct Client {
    pub(crate) queue: QueueId,
    pub(crate) at: QueueAt,
    pub(crate) mode: QueueMode,
    /// Who opened it: the address space that its descriptors are about.
    pub(crate) opener: Arc<Opener>,
    /// Pages of it that the kernel has asked for.
    reads: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    /// Makes the shared state, with what the driver has enabled, and serves it in the private `/dev`.
    pub(crate) fn new(
        driver: &Arc<FakeDriver>,
        devices: &[DeviceId],
        options: &Options,
    ) -> Result<Queues, Error> {
        let failed = |source| Error::System { what: "make the memory that processes share", source };
        let trace = options.trace.as_deref().map(std::path::absolute).transpose().map_err(failed)?;
        let shared = SharedOptions {
            fault_plan: options.fault_plan.clone(),
            timing: options.timing,
            patches: options.patch,
            trace,
        };
        let mut queues = Queues::over(Shared::create(&shared).map_err(failed)?, driver, devices);
        let listening = queues.shared.listen(&Path::new(PRIVATE).join("devices"), without_trace);
        queues.listening = Some(listening.map_err(failed)?);
        Ok(queues)
    }

    /// Brings a new shared state to what the driver has enabled; nobody else is served.
    pub(crate) fn over(shared: Shared, driver: &Arc<FakeDriver>, devices: &[DeviceId]) -> Queues {
        let queues = Queues {
            driver: Arc::clone(driver),
            devices: devices.to_vec(),
            agents: Agents::new(shared.clone()),
            openers: Openers::default(),
            shared,
            listening: None,
            is_direct: AtomicBool::new(false),
            open: Mutex::default(),
            enabled: Mutex::default(),
        };
        queues.follow();
        queues
    }

    /// The number of a queue's file.
    pub(crate) fn file_number(queue: QueueId) -> u64 {
        NUMBERS | u64::from(queue.device.0) << 8 | u64::from(queue.index)
    }

    /// Says in the shared state which files are the queues': once they are served below `/dev/dsa`.
    pub(crate) fn name_files(&self) -> io::Result<()> {
        let device = fs::metadata("/dev/dsa")?.dev();
        for (index, id) in self.devices.iter().enumerate() {
            for queue in 0..memferry_dsa_emulator::QUEUES_MAX {
                if let Some(at) = QueueAt::new(index, queue) {
                    self.shared.set_portal(at, device, Self::file_number(id.queue(queue as u32)));
                }
            }
        }
        Ok(())
    }

    /// Whether the kernel can map files whose writes it hands on as they are.
    pub(crate) fn set_direct(&self, is_direct: bool) {
        self.is_direct.store(is_direct, Ordering::Relaxed);
    }

    /// How a queue is opened. Older kernels refuse to map a file without a page cache.
    pub(crate) fn open_flags(&self) -> FopenFlags {
        match self.is_direct.load(Ordering::Relaxed) {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        }
    }

    /// Brings the shared state to what the driver says. Takes up to some seconds if processes have work in progress.
    pub(crate) fn follow(&self) {
        // The driver always makes sense to its own reader.
        let Ok(state) = SystemState::read(&*self.driver) else { return };
        let mut enabled = lock(&self.enabled);
        for (index, id) in self.devices.iter().enumerate() {
            let Some(device) = state.device(*id) else { continue };
            let at = |queue: &Queue| QueueAt::new(index, queue.id.index as usize);
            let is_on = |queue: &Queue| device.is_enabled() && queue.is_enabled() && queue.file.is_some();
            let gone = |queue: &&Queue| !is_on(queue) && enabled.contains_key(&queue.id);
            let closed: Vec<QueueId> = device.queues.iter().filter(gone).map(|queue| queue.id).collect();
            // What a device drops, it drops of all its queues: these start anew then.
            let is_aborted = self.disable(index, &closed);
            let is_taken = |queue: &QueueId| closed.contains(queue) || is_aborted && queue.device == *id;
            enabled.retain(|queue, _| !is_taken(queue));
            if device.is_enabled() && !device.queues.iter().any(|queue| enabled.contains_key(&queue.id)) {
                self.shared.enable_device(index, &setup(device));
            }
            for queue in device.queues.iter().filter(|queue| is_on(queue)) {
                if enabled.contains_key(&queue.id) {
                    continue;
                }
                let Ok(mut info) = queue.info(device) else { continue };
                info.operations = with_batch(info.operations);
                let group = queue.group.map_or(0, |group| group as usize);
                if let Some(at) = at(queue)
                    && self.shared.enable_queue(at, group, &info).is_ok()
                {
                    enabled.insert(queue.id, info.mode);
                }
            }
        }
    }

    /// Takes queues of a device away: they take no more, and what they have is done. If that takes too long, what the
    /// device has is dropped, and all its queues are taken away; true then.
    fn disable(&self, device: usize, queues: &[QueueId]) -> bool {
        let mut left: Vec<QueueAt> =
            queues.iter().filter_map(|queue| QueueAt::new(device, queue.index as usize)).collect();
        left.iter().for_each(|at| self.shared.close_queue(*at));
        let start = Instant::now();
        let mut is_aborted = false;
        while !left.is_empty() && start.elapsed() < 2 * DRAIN_MAX {
            left.retain(|at| !self.shared.disable_queue(*at));
            if left.is_empty() {
                break;
            }
            if start.elapsed() > DRAIN_MAX && !std::mem::replace(&mut is_aborted, true) {
                self.shared.abort_device(device);
                left = (0..QUEUES_MAX).filter_map(|queue| QueueAt::new(device, queue)).collect();
            }
            std::thread::sleep(DRAIN_LOOK);
        }
        // A process that is stopped, or that has told nonsense.
        left.iter().for_each(|at| self.shared.discard_queue(*at));
        is_aborted
    }

    /// Puts what changes by itself where the driver shows it from.
    pub(crate) fn refresh(&self, path: &str) {
        let Some((object, attribute)) = path.rsplit_once('/') else { return };
        let name = object.rsplit('/').next().unwrap_or("");
        match attribute {
            "occupancy" => {
                let at = name.parse().ok().and_then(|queue: QueueId| self.at(queue));
                let occupancy = at.map_or(0, |at| self.shared.queue_report(at).occupancy);
                self.driver.put(path, &occupancy.to_string());
            }
            "errors" => {
                let index = self.devices.iter().position(|device| device.to_string() == name);
                let words = index.map_or([0; 4], |index| self.shared.error_words(index));
                let halves = words.iter().rev().flat_map(|word| [(word >> 32) as u32, *word as u32]);
                let halves: Vec<String> = halves.map(|half| format!("{half:08x}")).collect();
                self.driver.put(path, &halves.join(","));
            }
            _ => {}
        }
    }

    fn at(&self, queue: QueueId) -> Option<QueueAt> {
        let device = self.devices.iter().position(|device| *device == queue.device)?;
        QueueAt::new(device, queue.index as usize)
    }

    /// Opens a queue for the process that a thread belongs to.
    ///
    /// # Errors
    /// `ENXIO`: it is not enabled; `EBUSY`: it is dedicated and has a user; those of [`Openers::of`].
    pub(crate) fn open(&self, queue: QueueId, thread: u32) -> Result<Arc<Client>, i32> {
        let at = self.at(queue).ok_or(libc::ENXIO)?;
        let mode = *lock(&self.enabled).get(&queue).ok_or(libc::ENXIO)?;
        let opener = self.openers.of(thread)?;
        let mut open = lock(&self.open);
        let count = open.entry(queue).or_default();
        if mode == QueueMode::Dedicated && *count > 0 {
            return Err(libc::EBUSY);
        }
        *count += 1;
        self.show_clients(queue, *count);
        Ok(Arc::new(Client { queue, at, mode, opener, reads: AtomicU32::new(0) }))
    }

    /// The last descriptor and the last mapping of an open file are gone.
    pub(crate) fn close(&self, client: &Client) {
        let mut open = lock(&self.open);
        let count = open.entry(client.queue).or_default();
        *count = count.saturating_sub(1);
        self.show_clients(client.queue, *count);
        self.agents.look_soon();
    }

    fn show_clients(&self, queue: QueueId, count: u32) {
        let path = format!("sys/bus/dsa/devices/{}/{queue}/clients", queue.device);
        self.driver.put(&path, &count.to_string());
    }

    /// `write(2)`: submits descriptors for the process that wrote them; how many bytes were taken.
    ///
    /// # Errors
    /// Nothing was submitted: `EPERM`: the thread has another address space than the one that opened the file, or one
    /// that nobody may look into; `EINVAL`: a batch, which the driver does not let through, or a completion record that
    /// is not aligned; `EAGAIN`: the queue is full; `ENXIO`: it is not enabled any more; `ENOMEM`: there is no thread to
    /// execute them.
    pub(crate) fn write(&self, client: &Client, thread: u32, bytes: &[u8]) -> Result<usize, i32> {
        if !client.is_openers(thread) {
            return Err(libc::EPERM);
        }
        if lock(&self.enabled).get(&client.queue) != Some(&client.mode) {
            return Err(libc::ENXIO);
        }
        // All descriptors of a call share them: a thread of the file system waits meanwhile.
        let mut retries = self.retries(client.queue);
        let mut taken = 0;
        for bytes in bytes.as_chunks().0 {
            match self.agents.submit(client, thread, bytes, &mut retries) {
                Ok(()) => taken += bytes.len(),
                Err(errno) if taken == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    /// How often the driver tries, from the queue's attribute.
    fn retries(&self, queue: QueueId) -> u32 {
        use memferry_dsa::system::Files;
        let path = format!("sys/bus/dsa/devices/{}/{queue}/enqcmds_retries", queue.device);
        let bytes = self.driver.read(&path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(0)
    }

    /// Whether the device of a queue has an error that no completion record told.
    pub(crate) fn has_error(&self, client: &Client) -> bool {
        self.shared.error_words(client.at.device)[0] & 1 == 1
    }

    /// Writes the rest of the trace.
    pub(crate) fn finish_trace(&self) {
        if let Err(error) = self.shared.write_trace() {
            without_trace(error);
        }
    }

    /// What the devices have done.
    pub(crate) fn summary(&self) -> String {
        summary(&self.devices, &self.shared)
    }
}

impl Client {
    /// Whether a thread has the address space that the file was opened from.
    pub(crate) fn is_openers(&self, thread: u32) -> bool {
        self.opener.is(thread)
    }

    /// A thread gets no page of the queue, which is for stores that the preload library catches. Without the library a
    /// store asks twice and ends in SIGBUS. `MAP_POPULATE` asks for ever, since Linux tries again what it has waited for,
    /// and lets nothing but SIGKILL through meanwhile. Engines of this process ask as well, for
    /// descriptors that name the queue's page: they take the refusal.
    pub(crate) fn refuse_page(&self, thread: u32) {
        const READS_MAX: u32 = 100;
        // 0 is a thread that is not visible here; kill(2) takes it for the whole process group.
        let Some(pid) = system::Pid::try_from(thread).ok().filter(|pid| *pid > 0 && !system::is_own(thread))
        else {
            return;
        };
        if self.reads.fetch_add(1, Ordering::Relaxed) >= READS_MAX && self.is_openers(thread) {
            let queue = self.queue;
            eprintln!(
                "memferry: thread {thread} maps {queue} without the preload library, which cannot work: killed"
            );
            // It may have ended.
            let _ = system::kill(pid, libc::SIGKILL);
        }
    }
}

/// What the device has, which is more than Linux shows.
fn setup(device: &Device) -> DeviceSetup {
    let engine = |index: u32| {
        let engine = device.engines.iter().find(|engine| engine.id.index == index);
        engine.and_then(|engine| engine.group).map(|group| group as usize)
    };
    DeviceSetup {
        number: device.id.0,
        operations: device.operations.map_or(OPERATIONS, with_batch),
        capabilities: device
            .capabilities
            .map_or(Capabilities::ALL, |capabilities| Capabilities::from_bits(capabilities.0)),
        engine_groups: [0, 1, 2, 3].map(engine),
    }
}

/// Linux hides Batch from users on devices of version 1.0; who has a portal mapped can submit one all the same.
fn with_batch(operations: OperationSet) -> OperationSet {
    let mut words = operations.to_words();
    words[0] |= 1 << Opcode::Batch as u64;
    OperationSet::from_words(words)
}
