//! Messages from the guest to the host over a serial line.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memferry::internals::Recording;
use serde::Serialize;

/// Writes the recording of the machine at `root`, named `name`, to the serial line `line`.
pub(crate) fn send_machine(root: &Path, name: &str, line: &str) -> io::Result<()> {
    let recording = Recording::of(root).map_err(io::Error::other)?.with_name(name);
    send(&recording, line)
}

/// Writes a value to the serial line `line` as one line of JSON.
pub(crate) fn send(value: &impl Serialize, line: &str) -> io::Result<()> {
    let mut text = serde_json::to_vec(value).map_err(io::Error::other)?;
    text.push(b'\n');
    // Not as the terminal of this process.
    let mut line = File::options().write(true).custom_flags(libc::O_NOCTTY).open(line)?;
    make_raw(&line);
    line.write_all(&text)?;
    drain(&line);
    Ok(())
}

/// Makes a serial line pass bytes as they are.
pub(crate) fn make_raw(line: &File) {
    // SAFETY: the descriptor is open for as long as `line` lives, and `mode` is a live plain struct that the first call
    // fills before the others read it.
    unsafe {
        let mut mode: libc::termios = std::mem::zeroed();
        if libc::tcgetattr(line.as_raw_fd(), &mut mode) == 0 {
            libc::cfmakeraw(&mut mode);
            libc::tcsetattr(line.as_raw_fd(), libc::TCSANOW, &mode);
        }
    }
}

/// Waits until the line has sent all bytes.
pub(crate) fn drain(line: &File) {
    // SAFETY: the descriptor is open for as long as `line` lives; no memory is involved.
    unsafe { libc::tcdrain(line.as_raw_fd()) };
}
