//! A client's side of the socket.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::memory::{Access, Mapping};
use super::super::{Client, Devices};
use super::{ANSWER_BYTES_MAX, NO, Request, YES, receive, send};

/// A server that does not answer for so long never will; it does within a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// Devices of a server in another process.
#[derive(Clone)]
pub struct Connected {
    devices: Devices,
    path: PathBuf,
}

/// The server gives nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is none.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// It says why.
    #[error("{0}")]
    Refused(String),
    /// It, or what it gives, is of another version.
    #[error(
        "what answers there is of another version of memferry: use the command and the library of one build"
    )]
    NotOurs,
    /// The operating system does not let this process take what it gives.
    #[error("cannot map what the emulation shares: {0}")]
    Map(#[source] io::Error),
}

impl ConnectError {
    /// Whether there is nothing at all.
    pub fn is_nobody(&self) -> bool {
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
    /// Looks at the devices of the server that listens there.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn connect(path: &Path) -> Result<Connected, ConnectError> {
        let (_, files) = ask(path, Request::Look)?;
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

    /// Joins for the calling process. What was there before under its number is void.
    ///
    /// # Errors
    /// [`ConnectError`]
    ///
    /// # Safety
    /// A child that `fork` makes, and that has not become another program, neither uses nor drops the client: it does not
    /// inherit the memory, since it may become another user.
    #[allow(unsafe_code)]
    pub unsafe fn join(&self) -> Result<Client, ConnectError> {
        let (id, mut files) = ask(&self.path, Request::Join)?;
        let own = files.pop().ok_or(ConnectError::NotOurs)?;
        let own = Mapping::open(&File::from(own), Access::All).map_err(ConnectError::mapping)?;
        // SAFETY: passed on.
        unsafe { own.keep_from_children() }.map_err(ConnectError::Map)?;
        Ok(Client::new(&self.devices, own, id, std::process::id(), None))
    }

    /// What an engine's lines of the trace are written to, if there is a trace.
    ///
    /// # Errors
    /// [`ConnectError`]
    pub fn open_trace(&self) -> Result<Option<File>, ConnectError> {
        if !self.devices.traces() {
            return Ok(None);
        }
        let (_, mut files) = ask(&self.path, Request::Trace)?;
        let file = files.pop().ok_or(ConnectError::NotOurs)?;
        Ok(Some(file.into()))
    }
}

fn two(files: Vec<OwnedFd>) -> Result<[OwnedFd; 2], ConnectError> {
    files.try_into().map_err(|_| ConnectError::NotOurs)
}

/// Asks the server; the number and the files that it answers. One that has too much to do hangs up, and is asked again.
fn ask(path: &Path, request: Request) -> Result<(u16, Vec<OwnedFd>), ConnectError> {
    const PAUSE: Duration = Duration::from_millis(20);
    let start = Instant::now();
    let (bytes, files) = loop {
        match ask_once(path, request) {
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

fn ask_once(path: &Path, request: Request) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    send(&socket, &[request.to_byte()], &[])?;
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let (count, files) = receive(&socket, &mut bytes)?;
    bytes.truncate(count);
    if count == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok((bytes, files)) }
}

/// Whether the server has hung up, or a signal of the program has come between.
fn is_busy(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | Interrupted | UnexpectedEof)
}

fn is_no_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}
