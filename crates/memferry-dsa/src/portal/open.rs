//! Portals to queues of Linux: opened by the best method that this process has, and reopened after a fork.
//!
//! ```text
//! open the file; map its page
//!   mapped, and the CPU has the queue's instruction:  ENQCMD or MOVDIR64B
//!   else, if the kernel has write(2) for the file:    write(2), and `write_reason` says why
//!
//! submit in another generation than that of the opening:  the same again, in the child
//! ```
//!
//! A child cannot use its parent's opening. The mapping is not inherited: its address may hold anything, so the child
//! neither writes to it nor unmaps it. The file is shared, and the kernel refuses writes of other processes than its
//! opener: the child closes its copy, so that the parent's close closes the queue. The parent's descriptors in flight
//! do not count in the child.

#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::credits::Credits;
use super::mapped::Mapping;
use super::openings::{Opening, Openings};
use super::options::{OpenOptions, SubmitMethod, WriteReason};
use super::states::StateFiles;
use super::write::{self, Written};
use super::{
    Linux, OpenError, Platform, Portal, PortalCounters, PortalKind, QueueMode, Refused, Submission,
    SubmissionCounters, SubmitError, WorkQueueInfo, executes_batches,
};
use crate::descriptor::Descriptor;
use crate::operation::Opcode;

/// The least time between two reads of sysfs in [`Portal::is_gone`]. A read takes some microseconds.
const GONE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A portal to a work queue of Linux.
///
/// ```no_run
/// use memferry_dsa::system::{QueueFilter, SystemState};
/// use memferry_dsa::{DevicePortal, OpenOptions, SubmitMethod};
///
/// let state = SystemState::discover()?;
/// let (device, queue) = state.diagnose(&QueueFilter::default()).usable[0];
/// let file = queue.file.as_ref().expect("a usable queue has a file");
/// let options = OpenOptions { method: SubmitMethod::Mapped, ..OpenOptions::default() };
/// let portal = DevicePortal::open(file.path.as_ref(), queue.info(device)?, options)?;
/// println!("{} is open", portal.path().display());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Memory safety depends on the kernel and the platform only, not on the caller's arguments. A wrong path or
/// [`WorkQueueInfo`] costs descriptors, never memory: with too large a `size` a dedicated queue loses descriptors, with
/// the wrong `mode` or `operations` all of them are refused, with too large a `transfer_bytes_max` they complete with an
/// error. Waiters of a lost descriptor time out, and its memory is not given back. The attributes of the open queue say
/// whether the device is [gone](Portal::is_gone).
///
/// | field | written by | read by |
/// |---|---|---|
/// | `openings` | `open_on`, and a child's first submission | submitters, `is_gone` |
/// | `credits` | `submit`, `completed` | `submit`, `counters` |
/// | `counters` | `submit`, `reopen` | `counters` |
/// | `executes_batches` | `open_on` | `supports_batch` |
/// | `batch_refused` | `submit` | `supports_batch` |
/// | `gone_checked`, and `gone` of an opening | `is_gone` | `submit`, `is_gone` |
pub struct DevicePortal<P: Platform = Linux> {
    platform: P,
    path: PathBuf,
    info: WorkQueueInfo,
    options: OpenOptions,
    openings: Openings<Opened>,
    credits: Credits,
    counters: SubmissionCounters,
    executes_batches: bool, // found by a probe
    batch_refused: AtomicBool,
    gone_checked: AtomicU64, // milliseconds since `started`, plus 1; 0: never
    started: Instant,
}

/// A queue as one process has opened it.
///
/// The files belong to that process. `close` is the only writer of `file`, `is_gone` the only writer of `gone`.
struct Opened {
    route: Route,
    file: AtomicI32, // -1: closed
    states: StateFiles,
    gone: AtomicBool, // `states` has proved it
}

impl Opened {
    /// Closes the queue's file, by which no thread of this process submits.
    fn close(&self) {
        // Relaxed: only the opener or the owner calls this.
        let file = self.file.swap(-1, Ordering::Relaxed);
        if file >= 0 {
            // SAFETY: from `into_raw_fd` in `open_file`, and taken out once.
            drop(unsafe { OwnedFd::from_raw_fd(file) });
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.close();
    }
}

enum Route {
    Enqcmd(Mapping),
    Movdir64b(Mapping),
    Write { file: RawFd, why: WriteReason },
}

impl DevicePortal<Linux> {
    /// Opens the queue whose file is at `path`, `/dev/dsa/wq0.1` for queue 1 of device 0.
    ///
    /// `info` is the description of the queue in sysfs ([`Queue::info`](crate::system::Queue::info)); its mode decides
    /// between ENQCMD and MOVDIR64B.
    ///
    /// # Errors
    /// [`OpenError`]: the cause and a remedy.
    pub fn open(
        path: &Path,
        info: WorkQueueInfo,
        options: OpenOptions,
    ) -> Result<Arc<DevicePortal>, OpenError> {
        DevicePortal::open_with(Linux, path, info, options)
    }
}

impl<P: Platform> DevicePortal<P> {
    /// [`open`](DevicePortal::open) on another platform than Linux.
    ///
    /// # Errors
    /// As [`open`](DevicePortal::open).
    #[cfg(feature = "internals")]
    pub fn open_on(
        platform: P,
        path: &Path,
        info: WorkQueueInfo,
        options: OpenOptions,
    ) -> Result<Arc<DevicePortal<P>>, OpenError> {
        DevicePortal::open_with(platform, path, info, options)
    }

    fn open_with(
        platform: P,
        path: &Path,
        info: WorkQueueInfo,
        options: OpenOptions,
    ) -> Result<Arc<DevicePortal<P>>, OpenError> {
        platform.watch_forks().map_err(|error| OpenError::ForkUnnoticed(error.kind(), path.to_owned()))?;
        let mut portal = DevicePortal {
            platform,
            path: path.to_owned(),
            openings: Openings::new(),
            credits: Credits::new(info.size),
            counters: SubmissionCounters::default(),
            executes_batches: false,
            batch_refused: AtomicBool::new(false),
            gone_checked: AtomicU64::new(0),
            started: Instant::now(),
            info,
            options,
        };
        let generation = portal.platform.generation();
        let opening = portal.openings.get(generation, || portal.open_file());
        opening.expect("no other thread has the portal yet").outcome()?;
        if let Some(timeout) = portal.options.batch_probe_timeout
            && portal.kind() != PortalKind::Write
            && !portal.info.operations.contains(Opcode::Batch)
            && portal.info.batch_max >= 2
        {
            portal.executes_batches = executes_batches(&portal, timeout);
        }
        Ok(Arc::new(portal))
    }

    /// The queue's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The reason to submit by `write(2)`; `None` if the page is mapped.
    pub fn write_reason(&self) -> Option<WriteReason> {
        match self.last_opened()?.route {
            Route::Write { why, .. } => Some(why),
            Route::Enqcmd(_) | Route::Movdir64b(_) => None,
        }
    }

    /// The newest opening: of this process or, in a fork that has not submitted yet, of its parent.
    fn last_opened(&self) -> Option<&Opened> {
        self.openings.last()?.outcome().ok()
    }

    /// The opening that a submission uses; `None` while another thread is opening.
    fn opened<'o>(
        &self,
        opening: Option<&'o Opening<Opened>>,
    ) -> Result<Option<(&'o Opening<Opened>, &'o Opened)>, SubmitError> {
        let Some(opening) = opening else { return Ok(None) };
        match opening.outcome() {
            Ok(opened) => Ok(Some((opening, opened))),
            Err(error) => Err(SubmitError::NotReopened(Box::new(error))),
        }
    }

    /// Opens the queue in a child, or again in the same process.
    #[cold]
    fn reopen(&self, generation: u32) -> Result<Opened, OpenError> {
        // No thread of this process uses a parent's file. An open copy would keep the queue open after the parent's close.
        self.openings.of_others(generation).for_each(Opened::close);
        let opened = self.open_file()?;
        self.counters.reopened.fetch_add(1, Ordering::Relaxed);
        Ok(opened)
    }

    /// Opens the file and chooses the route.
    fn open_file(&self) -> Result<Opened, OpenError> {
        let file = self.platform.open(&self.path).map_err(|error| OpenError::from_io(&self.path, &error))?;
        let route = self.route(&file)?;
        let states = self.platform.states(&file);
        Ok(Opened { route, states, file: AtomicI32::new(file.into_raw_fd()), gone: AtomicBool::new(false) })
    }

    fn route(&self, file: &File) -> Result<Route, OpenError> {
        let why = match self.options.method {
            SubmitMethod::Write => WriteReason::Requested,
            SubmitMethod::Any | SubmitMethod::Mapped => match self.map(file) {
                Ok(route) => return Ok(route),
                Err(why) if self.options.method == SubmitMethod::Mapped => {
                    return Err(OpenError::NotMapped { path: self.path.clone(), why });
                }
                Err(why) => why,
            },
        };
        if !write::is_known(&self.platform, file.as_fd()) {
            return Err(OpenError::NoWrite(self.path.clone()));
        }
        Ok(Route::Write { file: file.as_raw_fd(), why })
    }

    fn map(&self, file: &File) -> Result<Route, WriteReason> {
        let features = self.platform.features();
        let (has, route): (bool, fn(Mapping) -> Route) = match self.info.mode {
            QueueMode::Shared => (features.enqcmd, Route::Enqcmd),
            QueueMode::Dedicated => (features.movdir64b, Route::Movdir64b),
        };
        if !has {
            return Err(WriteReason::NoInstruction(self.info.mode));
        }
        match self.platform.map(file) {
            Ok(page) => Ok(route(Mapping::new(page, self.options.slots))),
            Err(error) => Err(WriteReason::MapRefused(error.raw_os_error().unwrap_or(0))),
        }
    }

    /// Submits, and reopens the queue if the kernel says that the file belongs to another process.
    ///
    /// # Safety
    /// As [`Portal::submit`].
    unsafe fn offer(&self, generation: u32, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let opening = self.openings.get(generation, || self.reopen(generation));
        let Some((opening, opened)) = self.opened(opening)? else { return Ok(Submission::Retry) };
        if opened.gone.load(Ordering::Relaxed) {
            return Err(SubmitError::Gone);
        }
        // SAFETY: passed on to the caller.
        let mut written = unsafe { self.send(opened, descriptor) };
        if matches!(written, Written::WrongProcess) {
            // The fork was not detected, or the file came from another process. Reopen once, then fail for good.
            let again = || {
                let mut opened = self.reopen(generation)?;
                // Descriptors of the former file may still be in flight, whatever the state of the reopened queue.
                opened.states = StateFiles::default();
                Ok(opened)
            };
            let opening = self.openings.replace(opening, again);
            let Some((opening, opened)) = self.opened(opening)? else { return Ok(Submission::Retry) };
            // SAFETY: passed on to the caller.
            written = unsafe { self.send(opened, descriptor) };
            if matches!(written, Written::WrongProcess) {
                let error = OpenError::Other { path: self.path.clone(), errno: libc::EPERM };
                self.openings.replace(opening, || Err(error.clone()));
                return Err(SubmitError::NotReopened(Box::new(error)));
            }
        }
        match written {
            Written::Answer(answer) => Ok(answer),
            Written::Error(error) => {
                if error == SubmitError::Refused(Refused::Batch) {
                    self.batch_refused.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
            Written::WrongProcess => unreachable!("handled above"),
        }
    }

    /// Submits by the route of an opening.
    ///
    /// # Safety
    /// As [`Portal::submit`]; `opened` is of this generation.
    unsafe fn send(&self, opened: &Opened, descriptor: &Descriptor) -> Written {
        // SAFETY: passed on to the caller. Pages of this generation are mapped until the portal is dropped, `map` has
        // checked that the CPU has the instruction, and files of this generation stay open until then.
        unsafe {
            match &opened.route {
                Route::Enqcmd(page) => Written::Answer(page.enqcmd(&self.platform, descriptor)),
                Route::Movdir64b(page) => {
                    page.movdir64b(&self.platform, descriptor);
                    Written::Answer(Submission::Accepted)
                }
                Route::Write { file, .. } => write::write(&self.platform, *file, descriptor),
            }
        }
    }
}

// SAFETY: a device does what the specification says, and the platform passes it only the descriptors submitted here.
// `is_gone` answers by attributes of the open queue, which prove that (`StateFiles::prove_stopped`).
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
            _ => advertised || self.executes_batches,
        }
    }

    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let generation = self.platform.generation();
        let is_counted = self.info.mode == QueueMode::Dedicated;
        if is_counted && !self.credits.take(generation) {
            return self.counters.count(Ok(Submission::Retry));
        }
        // SAFETY: passed on to the caller.
        let answer = unsafe { self.offer(generation, descriptor) };
        if is_counted && answer != Ok(Submission::Accepted) {
            self.credits.release(generation, 1);
        }
        self.counters.count(answer)
    }

    fn completed(&self, count: u32) {
        if self.info.mode == QueueMode::Dedicated {
            self.credits.release(self.platform.generation(), count);
        }
    }

    fn is_gone(&self) -> bool {
        // The parent's opening proves nothing about the queue that this process will open.
        let generation = self.platform.generation();
        let Some(opened) = self.openings.last_of(generation).and_then(|opening| opening.outcome().ok())
        else {
            return false;
        };
        if opened.gone.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.started.elapsed().as_millis() as u64 + 1;
        let last = self.gone_checked.load(Ordering::Relaxed);
        if last != 0 && now - last.min(now) < GONE_CHECK_INTERVAL.as_millis() as u64 {
            return false;
        }
        self.gone_checked.store(now, Ordering::Relaxed);
        let gone = opened.states.prove_stopped();
        opened.gone.fetch_or(gone, Ordering::Relaxed);
        gone
    }

    fn counters(&self) -> PortalCounters {
        self.counters.snapshot(self.credits.taken(self.platform.generation()))
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
        for opened in self.openings.of(generation) {
            if let Route::Enqcmd(mapping) | Route::Movdir64b(mapping) = &opened.route {
                // SAFETY: it was mapped in this address space and has not been unmapped since; no thread submits any more.
                unsafe { self.platform.unmap(mapping.page()) };
            }
        }
    }
}
