//! How lines come from clients into the file: each engine sends them over a socket of its own, and the server, which alone
//! has the file, appends those that are whole.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::emulator::shared::Options;

/// Longer than any line: that of a descriptor has some 900 bytes.
const LINE_BYTES_MAX: usize = 4096;
/// Most channels: an engine for each device of each client.
const CHANNELS_MAX: usize = 1024;

/// The server's ends.
#[derive(Default)]
pub(in crate::emulator::shared) struct Channels(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Once the first channel was asked for.
    file: Option<File>,
    channels: Vec<File>,
}

impl Channels {
    /// Makes a channel; the client's end, to which it writes a line at a time.
    ///
    /// # Errors
    /// Those of [`Options::open_trace`] and `socketpair(2)`; `NotFound`: there is no trace.
    pub(in crate::emulator::shared) fn open(&self, options: &Options) -> io::Result<OwnedFd> {
        let mut inner = self.lock();
        if inner.file.is_none() {
            inner.file = Some(options.open_trace()?.ok_or(ErrorKind::NotFound)?);
        }
        if inner.channels.len() >= CHANNELS_MAX {
            return Err(io::Error::other("too many engines write to the trace"));
        }
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: it writes two numbers; the descriptors are new, and nobody else's.
        let [mine, theirs] = unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) < 0 {
                return Err(io::Error::last_os_error());
            }
            ends.map(|end| OwnedFd::from_raw_fd(end))
        };
        // SAFETY: it takes numbers.
        if unsafe { libc::fcntl(mine.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        inner.channels.push(mine.into());
        Ok(theirs)
    }

    /// The descriptors to wait for.
    pub(in crate::emulator::shared) fn descriptors(&self) -> Vec<i32> {
        self.lock().channels.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Appends what has come; the error that ended the trace.
    pub(in crate::emulator::shared) fn drain(&self) -> io::Result<()> {
        let mut inner = self.lock();
        let Inner { file: Some(file), channels } = &mut *inner else { return Ok(()) };
        let mut failed = None;
        channels.retain_mut(|channel| {
            // One byte more than a line, to tell what is longer.
            let mut line = [0; LINE_BYTES_MAX + 1];
            loop {
                match channel.read(&mut line) {
                    Ok(0) => return false,
                    Ok(count) if !is_line(&line[..count]) => {}
                    Ok(count) => {
                        if let Err(error) = file.write_all(&line[..count]) {
                            failed = Some(error);
                            return false;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return error.kind() == ErrorKind::WouldBlock,
                }
            }
        });
        match failed {
            Some(error) => {
                channels.clear();
                Err(error)
            }
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether somebody has sent one line of text, and nothing else.
fn is_line(bytes: &[u8]) -> bool {
    let is_text = |text: &[u8]| text.starts_with(b"{") && text.iter().all(|byte| *byte >= b' ');
    bytes.len() <= LINE_BYTES_MAX && bytes.strip_suffix(b"\n").is_some_and(is_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_arrive_and_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options = Options { trace: Some(file.path().to_owned()), ..Options::default() };
        let channels = Channels::default();
        assert_eq!(channels.open(&Options::default()).unwrap_err().kind(), ErrorKind::NotFound);
        let mut ends: Vec<File> = (0..3).map(|_| channels.open(&options).unwrap().into()).collect();
        for bytes in [&b"{1}\n"[..], b"{2}", b"{3}\n{4}\n", b"\n", b"{\x1b[2J}\n", &[b'{'; 5000]] {
            ends[0].write_all(bytes).unwrap();
        }
        ends[1].write_all(b"{5}\n").unwrap();
        ends.pop();
        assert!(ends[0].set_len(0).is_err(), "a client cannot cut the file");
        channels.drain().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"{1}\n{5}\n");
        assert_eq!(channels.descriptors().len(), 2);
        drop(ends);
        channels.drain().unwrap();
        assert_eq!(channels.descriptors().len(), 0);
    }
}
