//! The terminal of this process, given to a guest: raw, so that the guest's terminal interprets what is typed.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ctrl-], as in telnet and machinectl.
const ESCAPE: u8 = 0x1d;
/// Number of escapes in a row, and the time for them.
const ESCAPES: usize = 3;
const ESCAPES_TIME: Duration = Duration::from_secs(1);

/// Standard input in raw mode; restored when dropped.
pub(crate) struct RawTerminal {
    before: libc::termios,
}

impl RawTerminal {
    pub(crate) fn new() -> io::Result<RawTerminal> {
        // SAFETY: `before` is a live plain struct, for which zeros are valid; the first call fills it.
        unsafe {
            let mut before: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(libc::STDIN_FILENO, &mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut raw = before;
            libc::cfmakeraw(&mut raw);
            if libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(RawTerminal { before })
        }
    }

    /// Rows and columns.
    pub(crate) fn size(&self) -> (u16, u16) {
        // SAFETY: `size` is a live plain struct, for which zeros are valid.
        let size = unsafe {
            let mut size: libc::winsize = std::mem::zeroed();
            libc::ioctl(libc::STDIN_FILENO, libc::TIOCGWINSZ, &mut size);
            size
        };
        match (size.ws_row, size.ws_col) {
            (0, _) | (_, 0) => (24, 80),
            size => size,
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // SAFETY: `before` is live. If it fails the terminal is gone.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &self.before) };
    }
}

/// Reads what is typed, and sets a flag on Ctrl-] three times within a second.
pub(crate) struct Typed<R> {
    from: R,
    escapes: Vec<Instant>,
    is_escaped: Arc<AtomicBool>,
}

impl<R: Read> Typed<R> {
    pub(crate) fn new(from: R, is_escaped: Arc<AtomicBool>) -> Typed<R> {
        Typed { from, escapes: Vec::new(), is_escaped }
    }

    fn look(&mut self, bytes: &[u8], now: Instant) {
        for &byte in bytes {
            if byte == ESCAPE {
                self.escapes.retain(|&time| now - time < ESCAPES_TIME);
                self.escapes.push(now);
            } else {
                self.escapes.clear();
            }
            if self.escapes.len() >= ESCAPES {
                // No order with other memory is needed: the flag is all that the other thread reads.
                self.is_escaped.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl<R: Read> Read for Typed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        self.look(&buffer[..length], Instant::now());
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_escapes_in_a_second_end_the_guest() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let is_escaped = |events: &[(&[u8], Instant)]| {
            let flag = Arc::new(AtomicBool::new(false));
            let mut typed = Typed::new(io::empty(), Arc::clone(&flag));
            events.iter().for_each(|(bytes, now)| typed.look(bytes, *now));
            flag.load(Ordering::Relaxed)
        };
        assert!(is_escaped(&[(b"\x1d", start), (b"\x1d\x1d", after(500))]));
        assert!(!is_escaped(&[(b"\x1d\x1d", start), (b"\x1d", after(1500))]));
        assert!(!is_escaped(&[(b"\x1d\x1da\x1d", start)]));
        assert!(!is_escaped(&[(b"ls\n", start)]));
    }

    #[test]
    fn typed_bytes_pass() {
        let mut text = String::new();
        Typed::new(&b"ls\x1d\n"[..], Arc::default()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "ls\x1d\n");
    }
}
