//! Channels of the trace: each engine sends its lines over a socket of its own. Only the server has the file, and
//! appends complete lines.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::shared::DEVICES_MAX;

/// Maximum length of a line; the line of a descriptor has about 900 bytes.
const LINE_BYTES_MAX: usize = 4096;
/// Maximum number of channels.
const CHANNELS_MAX: usize = 1024;
/// Maximum number of channels of a process: an engine for each device, before and after `execve(2)`.
const PROCESS_MAX: usize = 2 * DEVICES_MAX;

/// The trace and the server's ends of its channels. Opening a channel does not wait for writes to the trace.
pub(in crate::shared) struct Channels {
    list: Mutex<Vec<Channel>>,
    trace: File,
    /// Held while lines are written.
    writes: Mutex<()>,
}

/// The server's end of a channel, and the process with the other end.
#[derive(Clone)]
struct Channel {
    end: Arc<File>,
    process: u32,
}

impl Channels {
    /// No channels yet.
    pub(in crate::shared) fn new(trace: File) -> Channels {
        Channels { list: Mutex::default(), trace, writes: Mutex::default() }
    }

    /// The file of the trace.
    pub(in crate::shared) fn trace(&self) -> &File {
        &self.trace
    }

    /// Opens a channel; returns the end of the process, which writes one line at a time.
    ///
    /// # Errors
    /// Errors of `socketpair(2)`; the process, or all processes, have too many channels.
    pub(in crate::shared) fn open(&self, process: u32) -> io::Result<OwnedFd> {
        let mut list = lock(&self.list);
        let its = list.iter().filter(|channel| channel.process == process).count();
        if list.len() >= CHANNELS_MAX || its >= PROCESS_MAX {
            return Err(io::Error::other("too many engines write to the trace"));
        }
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: socketpair writes two numbers; the file descriptors are new and have no other owner.
        let [mine, theirs] = unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) < 0 {
                return Err(io::Error::last_os_error());
            }
            ends.map(|end| OwnedFd::from_raw_fd(end))
        };
        // SAFETY: fcntl takes numbers here.
        if unsafe { libc::fcntl(mine.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        list.push(Channel { end: Arc::new(mine.into()), process });
        Ok(theirs)
    }

    /// The file descriptors to poll.
    pub(in crate::shared) fn descriptors(&self) -> Vec<i32> {
        lock(&self.list).iter().map(|channel| channel.end.as_raw_fd()).collect()
    }

    /// Appends received lines to the trace, up to `lines_max` of each channel.
    ///
    /// # Errors
    /// The error of the write that ends the trace.
    pub(in crate::shared) fn drain(&self, lines_max: usize) -> io::Result<()> {
        let _writes = lock(&self.writes);
        let list = lock(&self.list).clone();
        for Channel { end, .. } in list {
            match forward(&end, &self.trace, lines_max) {
                Ok(true) => {}
                Ok(false) => lock(&self.list).retain(|other| !Arc::ptr_eq(&other.end, &end)),
                Err(error) => {
                    lock(&self.list).clear();
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Appends lines of a channel; returns whether the channel is still open. The error is that of the trace.
fn forward(mut channel: &File, mut trace: &File, lines_max: usize) -> io::Result<bool> {
    // One byte more than a line, to detect longer ones.
    let mut line = [0; LINE_BYTES_MAX + 1];
    for _ in 0..lines_max {
        match channel.read(&mut line) {
            Ok(0) => return Ok(false),
            Ok(count) if !is_line(&line[..count]) => {}
            Ok(count) => trace.write_all(&line[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Ok(error.kind() == ErrorKind::WouldBlock),
        }
    }
    Ok(true)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the bytes are exactly one line of text.
fn is_line(bytes: &[u8]) -> bool {
    let is_text = |text: &[u8]| text.starts_with(b"{") && text.iter().all(|byte| *byte >= b' ');
    bytes.len() <= LINE_BYTES_MAX && bytes.strip_suffix(b"\n").is_some_and(is_text)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_complete_lines_are_appended() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let channels = Channels::new(file.reopen().unwrap());
        let mut ends: Vec<File> = (0..3).map(|_| channels.open(1).unwrap().into()).collect();
        for bytes in [&b"{1}\n"[..], b"{2}", b"{3}\n{4}\n", b"\n", b"{\x1b[2J}\n", &[b'{'; 5000]] {
            ends[0].write_all(bytes).unwrap();
        }
        ends[1].write_all(b"{5}\n").unwrap();
        ends.pop();
        assert!(ends[0].set_len(0).is_err(), "a client cannot truncate the file");
        channels.drain(100).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"{1}\n{5}\n");
        assert_eq!(channels.descriptors().len(), 2);
        drop(ends);
        channels.drain(100).unwrap();
        assert_eq!(channels.descriptors().len(), 0);
    }

    /// One process once took all channels.
    #[test]
    fn a_process_leaves_channels_for_others() {
        let channels = Channels::new(tempfile::tempfile().unwrap());
        let ends: Vec<_> = std::iter::from_fn(|| channels.open(1).ok()).take(CHANNELS_MAX).collect();
        assert!(ends.len() >= DEVICES_MAX, "an engine for each device");
        assert!(channels.open(2).is_ok());
    }

    /// One client once occupied the trace's thread while it sent, and the lines of others waited.
    #[test]
    fn clients_take_turns() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let channels = Channels::new(file.reopen().unwrap());
        let [mut busy, mut other] = [1, 2].map(|process| File::from(channels.open(process).unwrap()));
        (0..20).for_each(|_| busy.write_all(b"{1}\n").unwrap());
        other.write_all(b"{2}\n").unwrap();
        channels.drain(3).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"{1}\n{1}\n{1}\n{2}\n");
        channels.drain(100).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap().len(), 21 * 4);
    }

    /// A trace with a slow reader once blocked the thread that answers all requests.
    #[test]
    fn a_slow_reader_blocks_no_client() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let mut pipe = File::from(OwnedFd::from(pipe));
        // SAFETY: fcntl takes numbers here.
        let room = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) } as usize;
        pipe.write_all(&vec![0; room]).unwrap();
        let channels = Channels::new(pipe);
        File::from(channels.open(1).unwrap()).write_all(b"{1}\n").unwrap();
        let (tells, told) = mpsc::channel();
        thread::scope(|scope| {
            let drains = scope.spawn(|| channels.drain(1).unwrap());
            while channels.writes.try_lock().is_ok() {
                thread::yield_now();
            }
            scope.spawn(|| tells.send(channels.open(2).is_ok()).unwrap());
            let opened = told.recv_timeout(Duration::from_secs(10));
            assert!(!drains.is_finished(), "the pipe was full");
            reader.read_exact(&mut vec![0; room + 4]).unwrap();
            assert_eq!(opened, Ok(true));
        });
    }
}
