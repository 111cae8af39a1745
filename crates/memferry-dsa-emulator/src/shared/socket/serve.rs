//! The server's side of the socket.
//!
//! Connections are short: the server closes a connection that sends nothing for a second. It also limits the open
//! connections of each user, so that others are served at once.

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::super::Server;
use super::super::clients::JoinRequest;
use super::super::trace::Channels;
use super::{ANSWER_BYTES_MAX, NO, Request, YES, send};

/// The time-out of a request.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of a user's connections without a request yet.
const SILENT_MAX: usize = 16;
/// Maximum number of such connections of all users. Users other than the server's have at most half of them.
const CONNECTIONS_MAX: usize = 256;
/// Lines of a channel that are traced before the next channel: a client may send without end.
const DRAINED_MAX: usize = 64;
/// More lines than the buffer of a channel holds.
const SENT_MAX: usize = 1024;
/// The longest wait for a client's process to end if no file descriptor reports the end.
const LOOK: Duration = Duration::from_millis(50);

/// The threads of a listening server, which end when this is dropped.
pub struct Listener {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Wakes the two threads, which own the other ends.
    wakes: [UnixStream; 2],
}

/// A connection without a request yet.
struct Connection {
    socket: UnixStream,
    peer: Peer,
    since: Instant,
}

/// The process at the other end, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Peer {
    process: u32,
    user: u32,
}

impl Server {
    /// Serves processes of all users that connect to a socket at this path, in threads of its own. `trace_failed` gets
    /// the error that ends the trace.
    ///
    /// # Errors
    /// Errors of `bind(2)`, of `chmod(2)` and of starting a thread.
    pub fn listen(
        &self,
        path: &Path,
        mut trace_failed: impl FnMut(io::Error) + Send + 'static,
    ) -> io::Result<Listener> {
        let listener = UnixListener::bind(path)?;
        // Processes of all users connect, whatever the umask.
        std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        let (wakes, woken) = UnixStream::pair()?;
        let (wakes_trace, trace_woken) = UnixStream::pair()?;
        for socket in [&woken, &trace_woken, &wakes_trace] {
            socket.set_nonblocking(true)?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut listening = Listener {
            stop: Arc::clone(&stop),
            threads: Vec::new(),
            wakes: [wakes, wakes_trace.try_clone()?],
        };
        let (state, stops) = (self.clone(), Arc::clone(&stop));
        let mut server = Serving {
            state,
            listener,
            connections: Vec::new(),
            woken,
            wakes_trace,
            maintenance: Instant::now(),
        };
        let serve = move || {
            while !stops.load(Ordering::Relaxed) {
                server.serve_once();
            }
        };
        listening.threads.push(thread::Builder::new().name("clients".to_owned()).spawn(serve)?);
        let state = self.clone();
        let trace = move || {
            while !stop.load(Ordering::Relaxed) {
                let channels = state.channels().ok().flatten();
                let mut descriptors = channels.map_or(Vec::new(), Channels::descriptors);
                descriptors.push(trace_woken.as_raw_fd());
                let _ = poll(&descriptors, None);
                drop((&trace_woken).read(&mut [0; 64]));
                if let Err(error) = state.drain_trace(DRAINED_MAX) {
                    trace_failed(error);
                }
            }
        };
        listening.threads.push(thread::Builder::new().name("trace".to_owned()).spawn(trace)?);
        Ok(listening)
    }

    /// Writes the lines that clients have sent so far to the trace. The trace's thread does the same soon after.
    ///
    /// # Errors
    /// The trace cannot be written and has ended.
    pub fn write_trace(&self) -> io::Result<()> {
        self.drain_trace(SENT_MAX)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for socket in &mut self.wakes {
            let _ = socket.write(&[0]); // if it is full, the thread is awake
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic was printed
        }
    }
}

/// The state of the thread that answers.
struct Serving {
    state: Server,
    listener: UnixListener,
    connections: Vec<Connection>,
    woken: UnixStream,
    wakes_trace: UnixStream,
    /// The time of the next maintenance, if there are clients.
    maintenance: Instant,
}

impl Serving {
    /// Waits for requests, connections or the next maintenance, and handles them.
    fn serve_once(&mut self) {
        let mut descriptors = vec![self.listener.as_raw_fd(), self.woken.as_raw_fd()];
        descriptors.extend(self.connections.iter().map(|connection| connection.socket.as_raw_fd()));
        let (has_clients, ends) = {
            let clients = self.state.clients();
            (!clients.live.is_empty(), clients.ends())
        };
        let until_maintenance = self.maintenance.saturating_duration_since(Instant::now());
        let wait = [
            (!self.connections.is_empty() || ends.is_none()).then_some(LOOK),
            has_clients.then_some(until_maintenance),
        ];
        let first_end = descriptors.len();
        descriptors.extend(ends.iter().flatten());
        let readable = poll(&descriptors, wait.into_iter().flatten().min());
        let has_end = readable[first_end..].contains(&true);
        drop(self.woken.read(&mut [0; 64]));
        self.accept();
        let Serving { state, connections, wakes_trace, .. } = self;
        connections.retain_mut(|connection| {
            let mut byte = [0];
            match connection.socket.read(&mut byte) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.since.elapsed() < SILENCE_MAX
                }
                Ok(1) => {
                    if let Some(request) = Request::from_byte(byte[0]) {
                        state.answer(connection, request);
                        if request == Request::Trace {
                            let _ = wakes_trace.write(&[0]); // if it is full, the thread is awake
                        }
                    }
                    false
                }
                _ => false,
            }
        });
        let now = Instant::now();
        if has_clients && (has_end || ends.is_none() || now >= self.maintenance) {
            self.maintenance = now + self.state.maintain(now);
        }
    }

    /// Accepts pending connections, at most `CONNECTIONS_MAX`.
    fn accept(&mut self) {
        for _ in 0..CONNECTIONS_MAX {
            let Ok((socket, _)) = self.listener.accept() else { return };
            let Some(peer) = peer(&socket).filter(|_| socket.set_nonblocking(true).is_ok()) else { continue };
            if self.has_room_for(peer.user) {
                self.connections.push(Connection { socket, peer, since: Instant::now() });
            } // otherwise the connection is closed
        }
    }

    fn has_room_for(&self, user: u32) -> bool {
        let (own, all) = (self.state.user(), self.connections.len());
        let count = |user| self.connections.iter().filter(|connection| connection.peer.user == user).count();
        match user == own {
            true => all < CONNECTIONS_MAX,
            false => all - count(own) < CONNECTIONS_MAX / 2 && count(user) < SILENT_MAX,
        }
    }
}

impl Server {
    fn drain_trace(&self, lines_max: usize) -> io::Result<()> {
        // A client that requests a channel gets the error of a trace that could not be opened.
        self.channels().ok().flatten().map_or(Ok(()), |channels| channels.drain(lines_max))
    }

    fn open_channel(&self, process: u32) -> io::Result<OwnedFd> {
        if !self.processes().contains(&process) {
            return Err(io::Error::other("the process uses no device"));
        }
        self.channels()?.ok_or(io::ErrorKind::NotFound)?.open(process)
    }

    fn answer(&self, connection: &Connection, request: Request) {
        let Connection { socket, peer, .. } = connection;
        let yes = |number: u16, files: &[RawFd]| {
            let [low, high] = number.to_le_bytes();
            // The peer may have closed the connection.
            let _ = send(socket, &[YES[0], YES[1], low, high], files);
        };
        let no = |why: String| {
            let end = why.floor_char_boundary(ANSWER_BYTES_MAX - NO.len());
            let _ = send(socket, &[&NO[..], &why.as_bytes()[..end]].concat(), &[]);
        };
        match request {
            Request::Look => {
                // A program sends this request once, when it starts.
                self.reap_predecessors(peer.process);
                yes(0, &self.0.files.each_ref().map(AsRawFd::as_raw_fd));
            }
            Request::Join => {
                self.reap_predecessors(peer.process);
                let joining = JoinRequest { process: peer.process, user: peer.user, executes_itself: true };
                match self.admit(&joining) {
                    Ok(joined) => yes(joined.id, &[joined.own.as_raw_fd()]),
                    Err(error) => no(error.to_string()),
                }
            }
            Request::Trace => match self.open_channel(peer.process) {
                Ok(channel) => yes(0, &[channel.as_raw_fd()]),
                Err(error) => no(error.to_string()),
            },
        }
    }
}

/// The peer of a connection; `None` if its process is not visible in this process id namespace.
fn peer(socket: &UnixStream) -> Option<Peer> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: getsockopt writes at most one `ucred`, which consists of numbers.
    let (answer, found) = unsafe {
        let answer =
            libc::getsockopt(socket.as_raw_fd(), level, option, found.as_mut_ptr().cast(), &mut size);
        (answer, found.assume_init())
    };
    (answer == 0 && found.pid > 0).then_some(Peer { process: found.pid as u32, user: found.uid })
}

/// Waits until a file descriptor is readable, or the time is over. Returns which are.
fn poll(descriptors: &[RawFd], at_most: Option<Duration>) -> Vec<bool> {
    let mut polled: Vec<libc::pollfd> =
        descriptors.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // Rounded up: a time that ends too early would be waited for in a loop.
    let time = at_most.map_or(-1, |time| time.as_micros().div_ceil(1000) as i32);
    // SAFETY: the vector has the given number of elements.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time) };
    polled.iter().map(|polled| polled.revents != 0).collect()
}
