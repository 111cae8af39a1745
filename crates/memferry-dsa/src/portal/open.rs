//! Opening a queue of Linux, by the best way in that this process has; and again after a fork.
//!
//! ```text
//! open the file; map its page
//!   mapped, and the CPU has the queue's instruction:  ENQCMD or MOVDIR64B
//!   else, if the kernel knows write(2):               write(2), and `write_reason` says why
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
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::credits::Credits;
use super::file::{self, Written};
use super::mapped::Mapping;
use super::openings::{Opening, Openings};
use super::options::{OpenOptions, SubmitMethod, WriteReason};
use super::states::StateFiles;
use super::{
    BatchProbe, Linux, OpenError, Platform, Portal, PortalCounters, PortalKind, QueueMode, Refused,
    Submission, SubmissionCounters, SubmitError, WorkQueueInfo, probe_batch,
};
use crate::descriptor::Descriptor;
use crate::operation::Opcode;

/// How often sysfs is read at most, however often [`Portal::is_gone`] is called. A look takes some microseconds.
const GONE_CHECK_MIN: Duration = Duration::from_millis(50);

/// A portal to a work queue of Linux.
///
/// Memory safety rests on the kernel and the platform alone, and on nothing that a caller says. A wrong path or
/// [`WorkQueueInfo`] costs descriptors, never memory: too large a `size` lets a dedicated queue lose descriptors, the
/// wrong `mode` or `operations` has all of them refused, a `transfer_bytes_max` that the queue does not have ends them
/// with an error. What is lost that way is waited for, and given up without giving its memory back. When a device is
/// [gone](Portal::is_gone), the attributes of the open queue tell.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `openings` | `open_on`, and a child's first submission | submitters, `is_gone` |
/// | `credits`, `cells` | submitters, `completed` | all |
/// | `gone_checked`, and `gone` of an opening | `is_gone` | all |
pub struct DevicePortal<P: Platform = Linux> {
    platform: P,
    path: PathBuf,
    info: WorkQueueInfo,
    options: OpenOptions,
    openings: Openings<Opened>,
    credits: Credits,
    cells: SubmissionCounters,
    batch: OnceLock<BatchProbe>,
    batch_refused: AtomicBool,
    gone_checked: AtomicU64, // milliseconds since `started`, plus 1; 0 never
    started: Instant,
}

/// A queue as one process has opened it. The files belong to that process; `close` is the only writer of `file`.
struct Opened {
    route: Route,
    file: AtomicI32, // -1: closed
    states: StateFiles,
    gone: AtomicBool, // its states have proved it
}

impl Opened {
    /// Closes the queue's file. No thread of this process submits by it.
    fn close(&self) {
        // ORDERING: Relaxed: the opener alone calls it, or the owner.
        let file = self.file.swap(-1, Ordering::Relaxed);
        if file >= 0 {
            // SAFETY: from `into_raw_fd` in `enter`, and taken out once.
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
        let portal = DevicePortal {
            platform,
            path: path.to_owned(),
            openings: Openings::new(),
            credits: Credits::new(info.size),
            cells: SubmissionCounters::default(),
            batch: OnceLock::new(),
            batch_refused: AtomicBool::new(false),
            gone_checked: AtomicU64::new(0),
            started: Instant::now(),
            info,
            options,
        };
        let generation = portal.platform.generation();
        let opening = portal.openings.get(generation, || portal.enter());
        opening.expect("no other thread knows the portal yet").outcome()?;
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
    pub fn write_reason(&self) -> Option<WriteReason> {
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
        self.openings.last()?.outcome().ok()
    }

    /// What this process has opened, as an answer to a submission; `None` while another thread is opening it.
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

    /// Opens the queue in a child, or once more.
    #[cold]
    fn reopen(&self, generation: u32) -> Result<Opened, OpenError> {
        // No thread of this process uses a parent's file. Closed, it does not keep the queue when the parent lets go.
        self.openings.of_others(generation).for_each(Opened::close);
        let opened = self.enter()?;
        self.cells.reopened.fetch_add(1, Ordering::Relaxed);
        Ok(opened)
    }

    /// Opens the file and finds a way in.
    fn enter(&self) -> Result<Opened, OpenError> {
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
        if !file::is_known(&self.platform, file.as_fd()) {
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

    /// Submits, and opens again if the kernel says that the file is another process'.
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
            // This process cannot be told from its parent, or the file was handed over. Once more, then never.
            let again = || {
                let mut opened = self.reopen(generation)?;
                // What the former file took may still be in a device, whatever becomes of this one's.
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

    /// Submits by what was opened.
    ///
    /// # Safety
    /// As [`Portal::submit`]; `opened` is of this generation.
    unsafe fn send(&self, opened: &Opened, descriptor: &Descriptor) -> Written {
        // SAFETY: passed on to the caller. Pages of this generation are mapped until the portal is dropped, `map` has
        // seen that the instruction is there, and files of this generation stay open until then.
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
}

// SAFETY: a device does what the specification says, and the platform brings it nothing but what is submitted here. `is_gone`
// answers by attributes of the open queue, which prove that (`StateFiles::prove_stopped`).
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
        let generation = self.platform.generation();
        let is_counted = self.info.mode == QueueMode::Dedicated;
        if is_counted && !self.credits.take(generation) {
            return self.cells.count(Ok(Submission::Retry));
        }
        // SAFETY: passed on to the caller.
        let answer = unsafe { self.offer(generation, descriptor) };
        if is_counted && answer != Ok(Submission::Accepted) {
            self.credits.release(generation, 1);
        }
        self.cells.count(answer)
    }

    fn completed(&self, count: u32) {
        if self.info.mode == QueueMode::Dedicated {
            self.credits.release(self.platform.generation(), count);
        }
    }

    fn is_gone(&self) -> bool {
        // What the parent has opened proves nothing about the queue that this process will open.
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
        if last != 0 && now - last.min(now) < GONE_CHECK_MIN.as_millis() as u64 {
            return false;
        }
        self.gone_checked.store(now, Ordering::Relaxed);
        let gone = opened.states.prove_stopped();
        opened.gone.fetch_or(gone, Ordering::Relaxed);
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
        for opened in self.openings.of(generation) {
            if let Route::Enqcmd(mapping) | Route::Movdir64b(mapping) = &opened.route {
                // SAFETY: it was mapped in this address space, and not been unmapped since; nobody submits any more.
                unsafe { self.platform.unmap(mapping.page()) };
            }
        }
    }
}
