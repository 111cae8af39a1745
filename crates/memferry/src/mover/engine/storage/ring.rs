//! The ring: one thread that owns an io_uring.
//!
//! ```text
//!   backlog ──▶ submission queue ──▶ kernel ──▶ completion queue ──▶ Piece::advance ──▶ done, or submitted again
//!      ▲
//!      └── a push to a sleeping ring rings the bell: an eventfd that the ring polls like a file
//! ```
//!
//! The thread sleeps in `io_uring_enter` until a read completes or the bell rings. It never polls.
//!
//! Source: io_uring(7), io_uring_enter(2), io_uring_setup(2).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use slab::Slab;

use super::Shared;
use super::backlog::Next;
use super::job::{Call, Piece, Step};
use crate::mover::error::CopyError;

/// User data of the poll of the bell; pieces have their key in the slab.
const BELL: u64 = u64::MAX;
/// Buffered reads from this size on are made by the kernel's threads: a copy from the page cache takes long enough that the
/// ring's thread should submit other reads meanwhile.
const ASYNC_BYTES_MIN: usize = 64 << 10;

/// Wakes the ring's thread.
pub(super) struct Bell(File);

impl Bell {
    pub(super) fn ring(&self) {
        // An eventfd refuses a write only if its counter would overflow; then the thread has been woken long since.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }
}

/// An io_uring and its bell.
pub(super) struct Ring {
    ring: IoUring,
    bell: File,
    in_flight_max: usize,
}

/// A ring that serves a backlog. The ring is dropped before what is in flight.
struct Server {
    ring: IoUring,
    bell: File,
    /// Whether a poll of the bell is in flight.
    listens: bool,
    in_flight: InFlight,
    in_flight_max: usize,
}

/// Pieces with a call in the kernel, which may write to their targets. Empty when the thread ends, unless it panics or the
/// ring breaks.
struct InFlight {
    pieces: Slab<Piece>,
    shared: Arc<Shared>,
}

impl Ring {
    /// A ring for `in_flight_max` calls, and its bell.
    ///
    /// # Errors
    /// Those of io_uring_setup(2) and eventfd(2): EPERM and ENOSYS where io_uring is disabled.
    pub(super) fn new(in_flight_max: usize) -> io::Result<(Ring, Bell)> {
        // One more for the bell. The kernel limits a ring to 32768 entries.
        let entries = u32::try_from(in_flight_max + 1).unwrap_or(u32::MAX).min(32768);
        // A forked child must not see the ring of its parent. Completions need not interrupt the thread: it enters the
        // kernel anyway (Linux 5.19; older kernels refuse the flag).
        let build = |coop: bool| {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_clamp();
            if coop {
                builder.setup_coop_taskrun();
            }
            builder.build(entries)
        };
        let ring = build(true).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => build(false),
            _ => Err(error),
        })?;
        // SAFETY: the call takes numbers only.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nobody else has it.
        let bell = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let hand = Bell(bell.try_clone()?);
        let in_flight_max = in_flight_max.min(ring.params().sq_entries() as usize - 1);
        Ok((Ring { ring, bell, in_flight_max }, hand))
    }

    /// The ring's thread: serves the backlog until it is closed and empty.
    pub(super) fn run(self, shared: Arc<Shared>) {
        let Ring { ring, bell, in_flight_max } = self;
        let in_flight = InFlight { pieces: Slab::with_capacity(in_flight_max), shared };
        Server { ring, bell, listens: false, in_flight, in_flight_max }.run();
    }
}

impl Server {
    fn run(mut self) {
        let shared = self.in_flight.shared.clone();
        loop {
            let is_closed = self.fill(&shared);
            if is_closed && self.in_flight.pieces.is_empty() {
                return;
            }
            if !self.listens && !is_closed {
                self.listen();
            }
            // With room for more calls the thread sleeps only if the backlog is empty. Without room, a completion wakes it.
            let sleeps = is_closed || self.is_full() || shared.backlog.ring_sleeps();
            match self.ring.submit_and_wait(usize::from(sleeps)) {
                Ok(_) => {}
                // Interrupted, or short of memory for requests until others complete.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                // The ring is unusable, which no known kernel does: `InFlight::drop`.
                Err(_) => return,
            }
            if sleeps {
                shared.backlog.ring_woke();
            }
            self.reap(&shared);
        }
    }

    fn is_full(&self) -> bool {
        self.in_flight.pieces.len() >= self.in_flight_max
    }

    /// Takes pieces from the backlog up to the limit. Returns whether the backlog is closed and empty.
    fn fill(&mut self, shared: &Shared) -> bool {
        while !self.is_full() {
            match shared.backlog.next() {
                Next::Piece(piece) => self.begin(piece, shared),
                Next::Skip(job, count) => job.complete(count, &shared.counters),
                Next::Cancel(read) => shared.cancel(read),
                Next::Empty => return false,
                Next::Closed => return true,
            }
        }
        false
    }

    /// Starts a piece: from the page cache if that has all of it, else from the disk.
    fn begin(&mut self, mut piece: Piece, shared: &Shared) {
        if shared.options.page_cache && piece.is_cached() {
            // The disk works meanwhile. An error shows at the next call.
            let _ = self.ring.submit();
            if piece.read_cached(&shared.counters) {
                return piece.complete(Step::Done, &shared.counters);
            }
        }
        self.submit(piece);
    }

    /// Puts the next call of a piece into the submission queue, which has room for all calls in flight.
    fn submit(&mut self, piece: Piece) {
        let slot = self.in_flight.pieces.vacant_entry();
        let key = slot.key();
        let Call { file, is_direct, target, len, offset } = slot.insert(piece).call();
        let (file, len) =
            (types::Fd(file.as_raw_fd()), u32::try_from(len).expect("pieces have at most 1 GiB"));
        let entry = opcode::Read::new(file, target, len).offset(offset).build().user_data(key as u64);
        let is_async = !is_direct && len as usize >= ASYNC_BYTES_MIN;
        self.push(if is_async { entry.flags(squeue::Flags::ASYNC) } else { entry });
    }

    /// Polls the bell.
    fn listen(&mut self) {
        let events = u32::try_from(libc::POLLIN).expect("a flag");
        let entry = opcode::PollAdd::new(types::Fd(self.bell.as_raw_fd()), events).build();
        self.push(entry.user_data(BELL));
        self.listens = true;
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the poll of the bell has no memory. A call of a piece writes to its target. The piece stays in `in_flight`
        // until the completion of the call was seen. It keeps its job, so its file, whose descriptor stays open, and the
        // request, whose target stays writable (contract of `RawRequest::read`). If the thread ends before, by a panic or
        // a broken ring, `InFlight::drop` finishes the request with an error whose buffers are lost.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the submission queue has room for all calls in flight");
    }

    /// Takes the completions.
    fn reap(&mut self, shared: &Shared) {
        loop {
            // Not held during callbacks: its drop frees the entries for the kernel.
            let Some(completion) = self.ring.completion().next() else { return };
            if completion.user_data() == BELL {
                self.listens = false;
                // Resets the counter. It is empty if the poll failed.
                let _ = self.bell.read(&mut [0; 8]);
                continue;
            }
            let mut piece = self.in_flight.pieces.remove(completion.user_data() as usize);
            match piece.advance(completion.result(), shared.faults.as_deref(), &shared.counters) {
                Step::Again => self.submit(piece),
                step => piece.complete(step, &shared.counters),
            }
        }
    }
}

impl Drop for InFlight {
    /// Whatever is left, the kernel may still write to. Later reads go elsewhere; accepted ones are made here.
    fn drop(&mut self) {
        self.shared.backlog.close();
        for piece in self.pieces.drain() {
            piece.complete(Step::Failed(CopyError::DeviceLost), &self.shared.counters);
        }
        self.shared.work();
    }
}
