//! Sends a recording of the guest's machine to the host over a serial line.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use memferry::internals::Recording;

/// Writes the recording of the machine at `root`, named `name`, to the serial line `line` as one line of JSON.
pub(crate) fn send(root: &Path, name: &str, line: &str) -> io::Result<()> {
    let recording = Recording::of(root).map_err(io::Error::other)?.with_name(name);
    let mut text = serde_json::to_vec(&recording).map_err(io::Error::other)?;
    text.push(b'\n');
    let mut line = File::options().write(true).open(line)?;
    // SAFETY: the descriptor is open for as long as `line` lives, and `mode` is a live plain struct that the first call
    // fills before the others read it.
    unsafe {
        let mut mode: libc::termios = std::mem::zeroed();
        if libc::tcgetattr(line.as_raw_fd(), &mut mode) == 0 {
            libc::cfmakeraw(&mut mode);
            libc::tcsetattr(line.as_raw_fd(), libc::TCSANOW, &mode);
        }
    }
    line.write_all(&text)?;
    // SAFETY: as above; no memory is involved.
    unsafe { libc::tcdrain(line.as_raw_fd()) };
    Ok(())
}
