//! The client's side of the socket.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::memory::{Mapping, Writers};
use super::super::{Client, Devices};
use super::{ANSWER_BYTES_MAX, NO, Request, YES, receive, send};

/// The time-out of an answer; a working server answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// The devices of a server in another process.
#[derive(Clone)]
pub struct Connected {
    devices: Devices,
    path: PathBuf,
}

/// An error of a connection to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket does not answer.
    #[error("cannot connect to the emulation: {0}")]
    Connect(#[source] io::Error),
    /// The server refuses, with this reason.
    #[error("{0}")]
    Refused(String),
    /// The server, or its memory, is of another version.
    #[error("the emulation is of another version of memferry: use the command and the library of one build")]
    NotOurs,
    /// The operating system refuses to map the server's memory.
    #[error("cannot map the memory of the emulation: {0}")]
    Map(#[source] io::Error),
}

impl ConnectError {
    /// Whether no socket exists at the path.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ConnectError::Connect(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    fn mapping(error: io::Error) -> ConnectError {
        match error.kind() {
            ErrorKind::InvalidData => ConnectError::NotOurs,
            _ => ConnectError::Map(error),
        }
    }
}

impl Devices {
    /// Connects to the server that listens at a path.
    ///
    /// # Errors
    /// [`ConnectError`]: no server answers, or it is of another version.
    pub fn connect(path: &Path) -> Result<Connected, ConnectError> {
        let (_, files) = request(path, Request::Look)?;
        let [board, order] = two(files)?;
        let devices = Devices::open(&board.into(), &order.into()).map_err(ConnectError::mapping)?;
        Ok(Connected { devices, path: path.to_owned() })
    }
}

impl Connected {
    /// The devices.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Joins for the calling process. Former clients with the same process id are reaped.
    ///
    /// # Errors
    /// [`ConnectError`]: nothing has changed.
    ///
    /// # Safety
    /// A child of `fork` that has not executed another program neither uses nor drops the client: it does not inherit
    /// the memory, since it may become another user.
    #[allow(unsafe_code)]
    pub unsafe fn join(&self) -> Result<Client, ConnectError> {
        let (id, mut files) = request(&self.path, Request::Join)?;
        let own = files.pop().ok_or(ConnectError::NotOurs)?;
        let own = Mapping::open(&File::from(own), Writers::All).map_err(ConnectError::mapping)?;
        // SAFETY: the caller keeps the same contract.
        unsafe { own.keep_from_children() }.map_err(ConnectError::Map)?;
        Ok(Client::new(&self.devices, own, id, std::process::id(), None))
    }

    /// The file for an engine's lines of the trace, if there is a trace.
    ///
    /// # Errors
    /// [`ConnectError`]: the server refuses a channel.
    pub fn open_trace(&self) -> Result<Option<File>, ConnectError> {
        if !self.devices.traces() {
            return Ok(None);
        }
        let (_, mut files) = request(&self.path, Request::Trace)?;
        let file = files.pop().ok_or(ConnectError::NotOurs)?;
        Ok(Some(file.into()))
    }
}

fn two(files: Vec<OwnedFd>) -> Result<[OwnedFd; 2], ConnectError> {
    files.try_into().map_err(|_| ConnectError::NotOurs)
}

/// Sends a request; returns the number and the files of the answer. A busy server closes the connection; then this
/// tries again.
fn request(path: &Path, request: Request) -> Result<(u16, Vec<OwnedFd>), ConnectError> {
    const PAUSE: Duration = Duration::from_millis(20);
    let start = Instant::now();
    let (bytes, files) = loop {
        match request_once(path, request) {
            Ok(answer) => break answer,
            Err(error) if is_no_socket(path) && error.kind() == ErrorKind::ConnectionRefused => {
                return Err(ConnectError::NotOurs); // something else has this name
            }
            Err(error) if is_busy(&error) && start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(error) => return Err(ConnectError::Connect(error)),
        }
    };
    match bytes.split_first_chunk() {
        Some((YES, [low, high])) => Ok((u16::from_le_bytes([*low, *high]), files)),
        Some((NO, why)) => Err(ConnectError::Refused(String::from_utf8_lossy(why).into_owned())),
        _ => Err(ConnectError::NotOurs),
    }
}

fn request_once(path: &Path, request: Request) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    send(&socket, &[request as u8], &[])?;
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let (count, files) = receive(&socket, &mut bytes)?;
    bytes.truncate(count);
    if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok((bytes, files)) }
}

/// Whether the server has closed the connection, or a signal has interrupted the request.
fn is_busy(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | Interrupted | UnexpectedEof)
}

fn is_no_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}
