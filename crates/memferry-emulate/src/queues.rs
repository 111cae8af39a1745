//! The queues: their open files, and the shared state through which all processes use them.
//!
//! A queue is opened for direct I/O, so the kernel refuses to map it shared (ENODEV). The preload library maps it
//! privately and without rights, and catches the stores. So a program without the library gets an error, and its stores
//! are never lost in a page.
//!
//! The state follows the driver: a bound queue is enabled in it, and an unbound queue is closed, drained and disabled.
//! The attributes of the driver that change by themselves come from the state.
//!
//! Source: Linux `drivers/dma/idxd/cdev.c`.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry_dsa::system::{Device, DeviceId, Queue, QueueId, SystemState};
use memferry_dsa::{Opcode, OperationSet, QueueMode};
use memferry_dsa_emulator::FakeDriver;
use memferry_dsa_emulator::shared::{
    DeviceSetup, Listener, Options as SharedOptions, QueueAt, Server as Shared,
};
use memferry_dsa_emulator::{Capabilities, OPERATIONS, QUEUES_MAX};

use crate::error::Error;
use crate::executor::{Executors, without_trace};
use crate::namespace::PRIVATE;
use crate::notes::Notes;
use crate::opener::{Opener, Openers};
use crate::options::Options;
use crate::summary::summary;

/// Smallest inode number of a queue's file. Other files have smaller numbers.
const NUMBER_MIN: u64 = 1 << 32;
/// How long disabling waits for descriptors in flight, before it drops them: their process may be stopped.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Interval of the checks whether a queue is drained.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The queues of all devices. Shared by the threads of the file system; each mutable field has its own lock.
pub(crate) struct Queues {
    driver: Arc<FakeDriver>,
    devices: Vec<DeviceId>,
    shared: Shared,
    executors: Executors,
    openers: Openers,
    /// Serves other processes until it is dropped.
    listening: Option<Listener>,
    /// `None`: no program has the preload library, and no program gets a note.
    notes: Option<Notes>,
    /// The number of open files of each queue.
    open_counts: Mutex<HashMap<QueueId, u32>>,
    /// The queues that are enabled in the shared state. The lock also serialises changes of the state.
    enabled: Mutex<HashMap<QueueId, QueueMode>>,
}

/// An open file of a queue.
pub(crate) struct QueueFile {
    pub(crate) queue: QueueId,
    pub(crate) at: QueueAt,
    pub(crate) mode: QueueMode,
    /// The address space that opened it, which its descriptors refer to.
    pub(crate) opener: Arc<Opener>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    /// Creates the shared state, with the queues that the driver has enabled, and serves it in the private `/dev`.
    pub(crate) fn new(
        driver: &Arc<FakeDriver>,
        devices: &[DeviceId],
        options: &Options,
    ) -> Result<Queues, Error> {
        let failed = |source| Error::System { what: "create the shared memory of the devices", source };
        let trace = options.trace.as_deref().map(std::path::absolute).transpose().map_err(failed)?;
        let shared = SharedOptions {
            fault_plan: options.fault_plan.clone(),
            timing: options.timing,
            patches: options.patch,
            trace,
        };
        let mut queues = Queues::with_state(Shared::create(&shared).map_err(failed)?, driver, devices);
        let listening = queues.shared.listen(&Path::new(PRIVATE).join("devices"), without_trace);
        queues.listening = Some(listening.map_err(failed)?);
        queues.notes = options.preload.then(Notes::default);
        Ok(queues)
    }

    /// Enables the queues of the driver in a new shared state, without serving it to other processes.
    pub(crate) fn with_state(shared: Shared, driver: &Arc<FakeDriver>, devices: &[DeviceId]) -> Queues {
        let queues = Queues {
            driver: Arc::clone(driver),
            devices: devices.to_vec(),
            executors: Executors::new(shared.clone()),
            openers: Openers::default(),
            shared,
            listening: None,
            notes: None,
            open_counts: Mutex::default(),
            enabled: Mutex::default(),
        };
        queues.synchronize();
        queues
    }

    /// Returns the inode number of a queue's file.
    pub(crate) fn file_number(queue: QueueId) -> u64 {
        NUMBER_MIN | u64::from(queue.device.0) << 8 | u64::from(queue.index)
    }

    /// Records the files of the queues in the shared state. They must be served below `/dev/dsa` by now.
    pub(crate) fn register_files(&self) -> io::Result<()> {
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

    /// Applies the state of the driver to the shared state. Takes up to some seconds if descriptors are in flight.
    pub(crate) fn synchronize(&self) {
        // Reading the emulated driver's own files does not fail.
        let Ok(state) = SystemState::read(&*self.driver) else { return };
        let mut enabled = lock(&self.enabled);
        for (index, id) in self.devices.iter().enumerate() {
            let Some(device) = state.device(*id) else { continue };
            let at = |queue: &Queue| QueueAt::new(index, queue.id.index as usize);
            let is_on = |queue: &Queue| device.is_enabled() && queue.is_enabled() && queue.file.is_some();
            let gone = |queue: &&Queue| !is_on(queue) && enabled.contains_key(&queue.id);
            let closed: Vec<QueueId> = device.queues.iter().filter(gone).map(|queue| queue.id).collect();
            // An abort drops the descriptors of all queues of the device; the others are enabled again below.
            let is_aborted = self.disable(index, &closed);
            let is_removed = |queue: &QueueId| closed.contains(queue) || is_aborted && queue.device == *id;
            enabled.retain(|queue, _| !is_removed(queue));
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

    /// Closes queues of a device, drains them and disables them. If that takes too long, it aborts the device, which
    /// drops its descriptors, disables all its queues and returns true.
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
            std::thread::sleep(DRAIN_POLL_INTERVAL);
        }
        // Their process is stopped, or has corrupted its memory.
        left.iter().for_each(|at| self.shared.discard_queue(*at));
        is_aborted
    }

    /// Updates an attribute that changes by itself, before the driver shows it.
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
    /// `ENXIO`: it is not enabled; `EBUSY`: it is dedicated and has a user; those of [`Openers::for_thread`].
    pub(crate) fn open(&self, queue: QueueId, thread: u32) -> Result<Arc<QueueFile>, i32> {
        let at = self.at(queue).ok_or(libc::ENXIO)?;
        let mode = *lock(&self.enabled).get(&queue).ok_or(libc::ENXIO)?;
        let opener = self.openers.for_thread(thread)?;
        let mut counts = lock(&self.open_counts);
        let count = counts.entry(queue).or_default();
        if mode == QueueMode::Dedicated && *count > 0 {
            return Err(libc::EBUSY);
        }
        *count += 1;
        self.show_clients(queue, *count);
        drop(counts);
        if let Some(notes) = self.notes.as_ref().filter(|_| opener.is_first_use()) {
            notes.opened(queue, opener.process());
        }
        Ok(Arc::new(QueueFile { queue, at, mode, opener }))
    }

    /// Closes a file: its last descriptor and its last mapping are gone.
    pub(crate) fn close(&self, file: &QueueFile) {
        let mut counts = lock(&self.open_counts);
        let count = counts.entry(file.queue).or_default();
        *count = count.saturating_sub(1);
        self.show_clients(file.queue, *count);
        self.executors.check_soon();
    }

    fn show_clients(&self, queue: QueueId, count: u32) {
        let path = format!("sys/bus/dsa/devices/{}/{queue}/clients", queue.device);
        self.driver.put(&path, &count.to_string());
    }

    /// `write(2)`: submits descriptors for the process that wrote them, and returns the number of submitted bytes.
    ///
    /// # Errors
    /// Nothing was submitted. `EPERM`: the thread has another address space than the opener, or this process may not
    /// access that space; `EINVAL`: a batch, which the driver refuses, or an unaligned completion record; `EAGAIN`: the
    /// queue is full; `ENXIO`: the queue is no longer enabled; `ENOMEM`: no engine thread can be started.
    pub(crate) fn write(&self, file: &QueueFile, thread: u32, bytes: &[u8]) -> Result<usize, i32> {
        if !file.is_opener(thread) {
            return Err(libc::EPERM);
        }
        if lock(&self.enabled).get(&file.queue) != Some(&file.mode) {
            return Err(libc::ENXIO);
        }
        // All descriptors of a call share the retries, because a thread of the file system waits for them.
        let mut retries = self.retries(file.queue);
        let mut taken = 0;
        for bytes in bytes.as_chunks().0 {
            match self.executors.submit(file, thread, bytes, &mut retries) {
                Ok(()) => taken += bytes.len(),
                Err(errno) if taken == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(taken)
    }

    /// Returns how often the driver retries, from the queue's attribute.
    fn retries(&self, queue: QueueId) -> u32 {
        use memferry_dsa::internals::system::Files;
        let path = format!("sys/bus/dsa/devices/{}/{queue}/enqcmds_retries", queue.device);
        let bytes = self.driver.read(&path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(0)
    }

    /// Whether the device of a queue has an error that no completion record reports.
    pub(crate) fn has_error(&self, file: &QueueFile) -> bool {
        self.shared.error_words(file.at.device)[0] & 1 == 1
    }

    /// Writes the rest of the trace.
    pub(crate) fn finish_trace(&self) {
        if let Err(error) = self.shared.write_trace() {
            without_trace(error);
        }
    }

    /// Returns the summary of `--stats`.
    pub(crate) fn summary(&self) -> String {
        summary(&self.devices, &self.shared)
    }
}

impl QueueFile {
    /// Whether a thread has the address space that the file was opened from.
    pub(crate) fn is_opener(&self, thread: u32) -> bool {
        self.opener.has_thread(thread)
    }
}

/// The properties of the device. It has more operations than Linux shows.
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

/// Adds Batch. Linux hides it from users on devices of version 1.0, but a program with a mapped portal can submit it.
fn with_batch(operations: OperationSet) -> OperationSet {
    let mut words = operations.to_words();
    words[0] |= 1 << Opcode::Batch as u64;
    OperationSet::from_words(words)
}
