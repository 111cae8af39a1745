//! Opening a queue of Linux, by the best way in that this process has; and again after a fork.
//!
//! ```text
//! open the file; map its page
//!   mapped, and the CPU has the queue's instruction:  ENQCMD or MOVDIR64B
//!   else, if the kernel knows write(2):               write(2), and `why_write` says why
//!
//! submit, in another generation than it was opened in:  the same again, in the child
//! ```
//!
//! What a parent has opened is of no use in its child. The mapping is not there: that address may be anything, so
//! the child neither writes to it nor unmaps it. The file is shared, and the kernel refuses writes by others than
//! its opener: the child closes its copy, so that the parent's closing closes the queue. Nothing that the parent
//! has in flight counts in the child.

#![allow(unsafe_code)]

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use super::credits::Credits;
use super::file::{self, Written};
use super::mapped::Mapping;
use super::options::{OpenOptions, Way, WhyWrite, state_files};
use super::{
    BatchProbe, Cells, Linux, OpenError, Platform, Portal, PortalCounters, PortalKind, QueueMode, Refused,
    Submission, SubmitError, WorkQueueInfo, probe_batch,
};
use crate::descriptor::Descriptor;
use crate::operation::Opcode;

/// How often sysfs is read at most, however often [`Portal::is_gone`] is called. A look takes some microseconds.
const GONE_CHECK_MIN: Duration = Duration::from_millis(50);

/// A portal to a work queue of Linux.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `current` | `open_on`, and a child's first submission under `store` | submitters |
/// | `store` | the same | the same |
/// | `credits`, `cells` | submitters, `settled` | all |
/// | `gone`, `gone_checked` | `is_gone` | all |
pub struct DevicePortal<P: Platform = Linux> {
    platform: P,
    path: PathBuf,
    info: WorkQueueInfo,
    options: OpenOptions,
    current: AtomicPtr<Opened>, // null: opening failed; else one of the store's
    store: Mutex<Store>,
    credits: Credits,
    cells: Cells,
    batch: OnceLock<BatchProbe>,
    batch_refused: AtomicBool,
    gone: AtomicBool,
    gone_checked: AtomicU64, // milliseconds since `started`, plus 1; 0 never
    started: Instant,
    state_files: Vec<PathBuf>,
}

/// What was opened, here and in the processes that this one was forked from.
struct Store {
    /// All of them, because a submitter may be looking at any that was the current one. From `Box::into_raw`.
    opened: Vec<NonNull<Opened>>,
    /// The files of this process, with the generations that opened them.
    files: Vec<(u32, File)>,
    /// The last failure, and the generation it belongs to.
    failed: Option<(u32, OpenError)>,
}

// SAFETY: the pointers own what they point to, as boxes would; `Opened` may be shared and sent.
unsafe impl Send for Store {}

struct Opened {
    generation: u32,
    route: Route,
}

enum Route {
    Enqcmd(Mapping),
    Movdir64b(Mapping),
    Write { file: RawFd, why: WhyWrite },
}

impl DevicePortal<Linux> {
    /// Opens the queue whose file is at `path`, `/dev/dsa/wq0.1` for queue 1 of device 0.
    ///
    /// `info` says what sysfs says of the queue; its mode decides how descriptors are submitted.
    ///
    /// # Errors
    /// [`OpenError`]: why not, and what to do.
    pub fn open(
        path: &Path,
        info: WorkQueueInfo,
        options: OpenOptions,
    ) -> Result<Arc<DevicePortal>, OpenError> {
        DevicePortal::open_on(Linux, path, info, options)
    }
}

impl<P: Platform> DevicePortal<P> {
    /// [`open`](DevicePortal::open) on another platform than Linux.
    ///
    /// # Errors
    /// As [`open`](DevicePortal::open).
    pub fn open_on(
        platform: P,
        path: &Path,
        info: WorkQueueInfo,
        options: OpenOptions,
    ) -> Result<Arc<DevicePortal<P>>, OpenError> {
        platform.watch_forks().map_err(|error| OpenError::ForkUnnoticed(error.kind(), path.to_owned()))?;
        let mut state_files = options.state_files.clone().unwrap_or_else(|| state_files(&info.name));
        state_files.retain(|file| file.exists());
        let portal = DevicePortal {
            platform,
            path: path.to_owned(),
            current: AtomicPtr::new(ptr::null_mut()),
            store: Mutex::new(Store { opened: Vec::new(), files: Vec::new(), failed: None }),
            credits: Credits::new(info.size),
            cells: Cells::default(),
            batch: OnceLock::new(),
            batch_refused: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            gone_checked: AtomicU64::new(0),
            started: Instant::now(),
            state_files,
            info,
            options,
        };
        let generation = portal.platform.generation();
        {
            let mut store = portal.store.try_lock().expect("nobody else knows the portal yet");
            portal.enter(&mut store, generation)?;
        }
        if let Some(timeout) = portal.options.batch_probe_timeout
            && portal.kind() != PortalKind::Write
            && !portal.info.operations.contains(Opcode::Batch)
            && portal.info.batch_max >= 2
        {
            let answer = probe_batch(&portal, timeout);
            portal.batch.get_or_init(|| answer);
        }
        Ok(Arc::new(portal))
    }

    /// The queue's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why descriptors are submitted by `write(2)`, if they are.
    pub fn why_write(&self) -> Option<WhyWrite> {
        match self.last_opened()?.route {
            Route::Write { why, .. } => Some(why),
            Route::Enqcmd(_) | Route::Movdir64b(_) => None,
        }
    }

    /// What the device answered when it was asked for batches, if it was.
    pub fn batch_probe(&self) -> Option<&BatchProbe> {
        self.batch.get()
    }

    /// What the current or, in a fork that has not submitted yet, the parent's process has opened.
    fn last_opened(&self) -> Option<&Opened> {
        // ORDERING: Acquire pairs with the Release in `enter`.
        // SAFETY: null, or from `enter`, which keeps it until the portal is dropped.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// What this process has opened; `None` while another thread is opening it.
    fn opened(&self, generation: u32) -> Result<Option<&Opened>, SubmitError> {
        match self.last_opened() {
            Some(opened) if opened.generation == generation => Ok(Some(opened)),
            _ => self.reopen(generation),
        }
    }

    /// Opens the queue in this process.
    #[cold]
    fn reopen(&self, generation: u32) -> Result<Option<&Opened>, SubmitError> {
        // Not `lock`: a thread that held it while another one forked does not exist in the child.
        let mut store = match self.store.try_lock() {
            Ok(store) => store,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        if let Some(opened) = self.last_opened()
            && opened.generation == generation
        {
            return Ok(Some(opened));
        }
        if let Some((failed_in, error)) = &store.failed
            && *failed_in == generation
        {
            return Err(SubmitError::NotReopened(Box::new(error.clone())));
        }
        match self.enter(&mut store, generation) {
            Ok(opened) => {
                self.cells.reopened.fetch_add(1, Ordering::Relaxed);
                Ok(Some(opened))
            }
            Err(error) => {
                store.failed = Some((generation, error.clone()));
                Err(SubmitError::NotReopened(Box::new(error)))
            }
        }
    }

    /// Opens the file, finds a way in, and makes it the current one.
    fn enter(&self, store: &mut Store, generation: u32) -> Result<&Opened, OpenError> {
        // Those of a parent are closed: no thread of this process uses them. One of this generation stays open, since
        // another thread may be writing to it.
        store.files.retain(|(opened_in, _)| *opened_in == generation);
        let file = self.platform.open(&self.path).map_err(|error| OpenError::from_io(&self.path, &error))?;
        let route = self.route(&file)?;
        let opened = NonNull::from(Box::leak(Box::new(Opened { generation, route })));
        store.opened.push(opened);
        store.files.push((generation, file));
        // ORDERING: Release pairs with the Acquire in `last_opened`.
        self.current.store(opened.as_ptr(), Ordering::Release);
        // SAFETY: it was just made, and the store keeps it until the portal is dropped.
        Ok(unsafe { opened.as_ref() })
    }

    fn route(&self, file: &File) -> Result<Route, OpenError> {
        let why = match self.options.way {
            Way::Write => WhyWrite::Wanted,
            Way::Any | Way::Mapped => match self.map(file) {
                Ok(route) => return Ok(route),
                Err(why) if self.options.way == Way::Mapped => {
                    return Err(OpenError::NotMapped { path: self.path.clone(), why });
                }
                Err(why) => why,
            },
        };
        if !file::is_known(&self.platform, file.as_fd()) {
            return Err(OpenError::NoWrite(self.path.clone()));
        }
        Ok(Route::Write { file: file.as_raw_fd(), why })
    }

    fn map(&self, file: &File) -> Result<Route, WhyWrite> {
        let features = self.platform.features();
        let (has, route): (bool, fn(Mapping) -> Route) = match self.info.mode {
            QueueMode::Shared => (features.enqcmd, Route::Enqcmd),
            QueueMode::Dedicated => (features.movdir64b, Route::Movdir64b),
        };
        if !has {
            return Err(WhyWrite::NoInstruction(self.info.mode));
        }
        match self.platform.map(file) {
            Ok(page) => Ok(route(Mapping::new(page, self.options.slots))),
            Err(error) => Err(WhyWrite::MapRefused(error.raw_os_error().unwrap_or(0))),
        }
    }

    /// Submits, and opens again if the kernel says that the file is another process'.
    ///
    /// # Safety
    /// As [`Portal::submit`].
    unsafe fn offer(&self, generation: u32, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let Some(opened) = self.opened(generation)? else { return Ok(Submission::Retry) };
        // SAFETY: passed on to the caller.
        let written = match unsafe { self.send(opened, descriptor) } {
            Written::WrongProcess => {
                // This process cannot be told from its parent, or the file was handed over. Once more, then never.
                // ORDERING: Relaxed: null publishes nothing.
                let this = ptr::from_ref(opened).cast_mut();
                let _ = self.current.compare_exchange(
                    this,
                    ptr::null_mut(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                let Some(opened) = self.opened(generation)? else { return Ok(Submission::Retry) };
                // SAFETY: passed on to the caller.
                unsafe { self.send(opened, descriptor) }
            }
            written => written,
        };
        match written {
            Written::Answer(answer) => Ok(answer),
            Written::Error(error) => {
                if error == SubmitError::Refused(Refused::Batch) {
                    self.batch_refused.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
            Written::WrongProcess => {
                let error = OpenError::Other { path: self.path.clone(), errno: libc::EPERM };
                if let Ok(mut store) = self.store.try_lock() {
                    store.failed = Some((generation, error.clone()));
                    self.current.store(ptr::null_mut(), Ordering::Relaxed);
                }
                Err(SubmitError::NotReopened(Box::new(error)))
            }
        }
    }

    /// Submits by what was opened.
    ///
    /// # Safety
    /// As [`Portal::submit`]; `opened` is of this generation.
    unsafe fn send(&self, opened: &Opened, descriptor: &Descriptor) -> Written {
        // SAFETY: passed on to the caller. Pages of this generation are mapped until the portal is dropped, `map` has
        // seen that the instruction is there, and the store keeps the files of this generation open.
        unsafe {
            match &opened.route {
                Route::Enqcmd(page) => Written::Answer(page.enqcmd(&self.platform, descriptor)),
                Route::Movdir64b(page) => {
                    page.movdir64b(&self.platform, descriptor);
                    Written::Answer(Submission::Accepted)
                }
                Route::Write { file, .. } => file::write(&self.platform, *file, descriptor),
            }
        }
    }

    /// Whether a state file says that the queue does not work, or has vanished.
    fn looks_gone(&self) -> bool {
        self.state_files.iter().any(|file| match fs::read_to_string(file) {
            Ok(state) => state.trim() != "enabled",
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        })
    }
}

// SAFETY: a device does what the specification says, and the platform brings it nothing but what is submitted here. A
// queue is disabled, which is what `is_gone` answers by, after the driver has drained or aborted it.
unsafe impl<P: Platform> Portal for DevicePortal<P> {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.info
    }

    fn kind(&self) -> PortalKind {
        match self.last_opened().map(|opened| &opened.route) {
            Some(Route::Enqcmd(_)) => PortalKind::Enqcmd,
            Some(Route::Movdir64b(_)) => PortalKind::Movdir64b,
            Some(Route::Write { .. }) | None => PortalKind::Write,
        }
    }

    fn supports_batch(&self) -> bool {
        let advertised = self.info.operations.contains(Opcode::Batch);
        match self.kind() {
            PortalKind::Write => advertised && !self.batch_refused.load(Ordering::Relaxed),
            _ => advertised || self.batch.get() == Some(&BatchProbe::Works),
        }
    }

    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        if self.gone.load(Ordering::Relaxed) {
            return self.cells.count(Err(SubmitError::Gone));
        }
        let generation = self.platform.generation();
        let is_counted = self.info.mode == QueueMode::Dedicated;
        if is_counted && !self.credits.take(generation) {
            return self.cells.count(Ok(Submission::Retry));
        }
        // SAFETY: passed on to the caller.
        let answer = unsafe { self.offer(generation, descriptor) };
        if is_counted && answer != Ok(Submission::Accepted) {
            self.credits.settle(generation, 1);
        }
        self.cells.count(answer)
    }

    fn settled(&self, count: u32) {
        if self.info.mode == QueueMode::Dedicated {
            self.credits.settle(self.platform.generation(), count);
        }
    }

    fn is_gone(&self) -> bool {
        if self.gone.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.started.elapsed().as_millis() as u64 + 1;
        let last = self.gone_checked.load(Ordering::Relaxed);
        if last != 0 && now - last.min(now) < GONE_CHECK_MIN.as_millis() as u64 {
            return false;
        }
        self.gone_checked.store(now, Ordering::Relaxed);
        let gone = self.looks_gone();
        if gone {
            self.gone.store(true, Ordering::Relaxed);
        }
        gone
    }

    fn counters(&self) -> PortalCounters {
        self.cells.snapshot(self.credits.taken(self.platform.generation()))
    }
}

impl<P: Platform> fmt::Debug for DevicePortal<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePortal")
            .field("path", &self.path)
            .field("kind", &self.kind())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl<P: Platform> Drop for DevicePortal<P> {
    fn drop(&mut self) {
        let generation = self.platform.generation();
        let store = self.store.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for opened in store.opened.drain(..) {
            // SAFETY: from `Box::leak` in `enter`, and nobody can be submitting any more.
            let opened = unsafe { Box::from_raw(opened.as_ptr()) };
            if let Route::Enqcmd(mapping) | Route::Movdir64b(mapping) = &opened.route
                && opened.generation == generation
            {
                // SAFETY: it was mapped in this address space, and not been unmapped since.
                unsafe { self.platform.unmap(mapping.page()) };
            }
        }
    }
}
