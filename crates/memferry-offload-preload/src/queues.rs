//! The shared queues of this process, by which calls reach devices.
//!
//! ```text
//! library loaded            discovered, opened            (functions of libc that allocate are allowed here)
//! child of fork, first use  opened again                  open(2), fcntl(2) and mmap(2) only, memory from the arena
//! ```
//!
//! Dedicated queues are left out: one process at a time can open them, and programs fork.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use memferry_dsa::internals::fork::{self, PerProcess};
use memferry_dsa::internals::portal::WorkQueueInfo;
use memferry_dsa::system::{QueueFilter, SystemState};
use memferry_dsa::{
    Backoff, Completion, CompletionRecord, Descriptor, DevicePortal, Opcode, OpenOptions, Portal, QueueMode,
    SleepState, Wait, submit_with_backoff,
};

use crate::checked::Checked;
use crate::{arena, start, sys};

/// Errors of a device after which its queue gets no more work.
const FAILURES_MAX: u32 = 8;
/// Pauses while a queue is full; the next queue, or the CPU, then gets the part.
const RETRIES_MAX: u32 = 3;
/// Size of a slice of a wait, after which other threads may run.
const SLICE: Duration = Duration::from_millis(1);
/// The sleep that reads the limit of sleeps, once.
const FIRST_SLEEP: Duration = Duration::from_micros(50);
/// Slices between two looks at the state of the device.
const SLICES_PER_LOOK: u32 = 200;
/// Slices without a completion after which the process ends: 30 s, as in `ClientOptions::timeout`.
const SLICES_MAX: u32 = 30_000;

/// More than an open queue takes of this library's memory: paths, and less than 1 KiB of state.
const QUEUE_BYTES: usize = 4 << 10;

/// A queue to open.
struct Place {
    path: PathBuf,
    info: WorkQueueInfo,
    /// Files that say `disabled` or `halted` once the device has stopped.
    states: [CString; 2],
}

/// The queues to open, found by [`discover`], which writes it once.
static PLACES: AtomicPtr<Vec<Place>> = AtomicPtr::new(std::ptr::null_mut());
/// The queues of this process.
static QUEUES: PerProcess<Queues> = PerProcess::new();
/// The generation that could not open any queue.
static FAILED: AtomicU32 = AtomicU32::new(0);

/// The open queues of a process. At least one.
pub(crate) struct Queues {
    queues: Vec<Queue>,
    next: AtomicUsize,
    /// The smallest limit of the queues.
    pub(crate) transfer_bytes_max: usize,
    /// Whether the queues are on several nodes.
    pub(crate) has_nodes: bool,
}

/// An open queue.
pub(crate) struct Queue {
    portal: Arc<DevicePortal<Checked>>,
    states: [CString; 2],
    failures: AtomicU32,
    is_lost: AtomicBool,
}

/// Finds the shared queues that this process can use, and opens them. Only for the constructor: it uses functions of libc
/// that allocate.
///
/// # Errors
/// A sentence that says why there is none.
pub(crate) fn discover() -> Result<&'static Queues, String> {
    let state = SystemState::discover().map_err(|error| error.to_string())?;
    let filter = QueueFilter { mode: Some(QueueMode::Shared), ..QueueFilter::default() };
    let diagnosis = state.diagnose(&filter);
    let mut places = Vec::new();
    for (device, queue) in &diagnosis.usable {
        let (Some(file), Ok(info)) = (&queue.file, queue.info(device)) else { continue };
        let states = [
            format!("/sys/bus/dsa/devices/{}/state", queue.id),
            format!("/sys/bus/dsa/devices/{}/state", device.id),
        ];
        let states = states.map(|path| CString::new(path).unwrap_or_default());
        places.push(Place { path: file.path.clone().into(), info, states });
    }
    if places.is_empty() {
        let why = diagnosis.diagnostics.first().map(ToString::to_string);
        return Err(why.unwrap_or_else(|| "no shared work queue is enabled".to_owned()));
    }
    // ORDERING: Release pairs with the Acquire in `places`: the places are complete.
    PLACES.store(Box::into_raw(Box::new(places)), Ordering::Release);
    // The first sleep reads a file of sysfs by libc: not in a call, where another thread may fork or cancel this one.
    let _ = Wait::Umwait(SleepState::Light).wait(&CompletionRecord::new(), FIRST_SLEEP);
    open()
}

/// Whether a device was found when the library was loaded.
#[inline]
pub(crate) fn are_there() -> bool {
    !PLACES.load(Ordering::Relaxed).is_null()
}

/// The queues of this process, which a child of fork opens here. `None` without a device.
#[inline]
pub(crate) fn queues() -> Option<&'static Queues> {
    QUEUES.get().or_else(reopen)
}

#[cold]
fn reopen() -> Option<&'static Queues> {
    let generation = fork::generation();
    if !are_there() || FAILED.load(Ordering::Relaxed) == generation {
        return None;
    }
    // A child of fork without memory makes its copies by the CPU.
    if !arena::reserve(places().len() * QUEUE_BYTES) {
        FAILED.store(generation, Ordering::Relaxed);
        return None;
    }
    open().ok()
}

fn places() -> &'static [Place] {
    // SAFETY: null, or from `into_raw` in `discover`, and never freed.
    // ORDERING: Acquire pairs with the Release in `discover`: the places are complete.
    unsafe { PLACES.load(Ordering::Acquire).as_ref() }.map_or(&[], Vec::as_slice)
}

fn open() -> Result<&'static Queues, String> {
    let opened = QUEUES.get_or_try_init(|| {
        // The probe of batches is left out: no batch is submitted.
        let options = || OpenOptions { batch_probe_timeout: None, ..OpenOptions::default() };
        let (mut queues, mut why) = (Vec::new(), String::new());
        for place in places() {
            match DevicePortal::open_on(Checked::default(), &place.path, place.info.clone(), options()) {
                Ok(portal) => queues.push(Queue {
                    portal,
                    states: place.states.clone(),
                    failures: AtomicU32::new(0),
                    is_lost: AtomicBool::new(false),
                }),
                Err(error) => why = error.to_string(),
            }
        }
        Queues::new(queues).ok_or(why)
    });
    if opened.is_err() {
        FAILED.store(fork::generation(), Ordering::Relaxed);
    }
    opened
}

impl Queues {
    fn new(queues: Vec<Queue>) -> Option<Queues> {
        let transfer_bytes_max = queues.iter().map(|queue| queue.info().transfer_bytes_max).min()? as usize;
        let first = queues[0].info().node;
        let has_nodes = queues.iter().any(|queue| queue.info().node != first);
        Some(Queues { queues, next: AtomicUsize::new(0), transfer_bytes_max, has_nodes })
    }

    /// Number of queues.
    pub(crate) fn count(&self) -> usize {
        self.queues.len()
    }

    /// Submits to the first queue that takes the descriptor: first to those of `node`, each call from another one on.
    ///
    /// # Safety
    /// As [`Portal::submit`] if the answer is a queue.
    pub(crate) unsafe fn submit(&self, descriptor: &Descriptor, node: Option<u32>) -> Option<&Queue> {
        let Ok(operation) = descriptor.opcode() else { return None };
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.queues.len();
        for is_near in [true, false] {
            for turn in 0..count {
                let queue = &self.queues[start.wrapping_add(turn) % count];
                let is_queue_near = node.is_none() || queue.info().node == node;
                // SAFETY: passed on to the caller.
                if is_queue_near == is_near && unsafe { queue.submit(descriptor, operation) } {
                    return Some(queue);
                }
            }
        }
        None
    }
}

impl Queue {
    fn info(&self) -> &WorkQueueInfo {
        self.portal.work_queue()
    }

    /// # Safety
    /// As [`Portal::submit`] if the answer is true.
    pub(crate) unsafe fn submit(&self, descriptor: &Descriptor, operation: Opcode) -> bool {
        if self.is_lost.load(Ordering::Relaxed) || !self.info().operations.contains(operation) {
            return false;
        }
        // SAFETY: passed on to the caller.
        match unsafe { submit_with_backoff(&*self.portal, descriptor, Backoff::new(RETRIES_MAX)) } {
            Ok(_) => true,
            Err(memferry_dsa::BackoffError::Exhausted { .. }) => false,
            Err(_) => {
                self.is_lost.store(true, Ordering::Relaxed);
                false
            }
        }
    }

    /// Waits for a completion. `None`: the device has stopped, and writes no more.
    ///
    /// A device that is silent and has not stopped may still write to memory that the program gets back, so the process
    /// ends then.
    pub(crate) fn wait(&self, record: &CompletionRecord) -> Option<Completion> {
        for slice in 1..=SLICES_MAX {
            if let Ok(completion) = Wait::Umwait(SleepState::Light).wait(record, SLICE) {
                self.portal.completed(1);
                return Some(completion);
            }
            // Time during which this process was stopped is one slice.
            sys::yield_now();
            if slice % SLICES_PER_LOOK == 0 && self.has_stopped() {
                self.is_lost.store(true, Ordering::Relaxed);
                // The record may have been written just before.
                return record.poll();
            }
        }
        const SILENT: &[u8] =
            b"memferry offload: a device has not completed a copy for 30 s, and it may still write to \
            the memory of this program; ending the process. See the state and the errors of the device in \
            /sys/bus/dsa/devices. MEMFERRY_OFFLOAD=off runs the program without devices.\n";
        start::write_stderr(SILENT);
        std::process::abort()
    }

    /// Whether the driver says that the queue or its device executes nothing.
    fn has_stopped(&self) -> bool {
        self.states.iter().any(|path| {
            let mut text = [0; 16];
            let count = usize::try_from(sys::read_file(path, &mut text)).unwrap_or(0);
            matches!(text[..count.min(text.len())].trim_ascii(), b"disabled" | b"halted")
        })
    }

    /// The device has reported an error.
    pub(crate) fn note_failure(&self) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }
}
