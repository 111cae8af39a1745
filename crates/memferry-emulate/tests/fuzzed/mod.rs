//! The body of a fuzz target: any requests to the driver's files, also ones that no kernel makes.
//!
//! The fuzz target `requests` calls [`requests`], and a test does with random bytes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{FileHandle, INodeNo, OpenFlags, PollEvents, WriteFlags};
use memferry_dsa_emulator::shared::{IS_OPENERS, Options as SharedOptions, Server as Shared};

use crate::namespace::InnerUser;
use crate::options::Options;
use crate::queues::Queues;
use crate::server::{Reader, Server};
use crate::setup::Machine;

/// Most requests of one run: each may reconfigure a device, which takes a millisecond.
const REQUESTS_MAX: usize = 200;
/// Values of attributes. The input selects one of them or contains a value of its own.
const VALUES: [&str; 16] = [
    "wq0.0",
    "wq0.1",
    "wq0.2",
    "dsa0",
    "user",
    "idxd",
    "0",
    "1",
    "64",
    "128",
    "dedicated",
    "shared",
    "none",
    "mdev",
    "4294967296",
    "-1",
];

/// Makes the requests that the bytes encode.
///
/// ```text
/// until the end: request 1, file or handle 3 or 9, thread 1, offset, size, flags or value
/// ```
///
/// Any bytes are valid; missing ones are zero. The requesting thread is unknown, a thread of this process (which may
/// not open queues), or the thread of a program started for it, whose memory the descriptors name.
///
/// # Panics
/// If the server panics or breaks the contract of an answer; also without memory for the shared state, or without
/// `cat`.
pub fn requests(data: &[u8]) {
    let machine = Machine::new(&Options::new("")).expect("the default configuration works");
    let driver = Arc::new(machine.driver);
    let state = Shared::create(&SharedOptions::default()).expect("room for the shared state");
    let queues = Arc::new(Queues::with_state(state, &driver, &machine.devices));
    let inner = InnerUser { user: 0, group: 0 };
    let server = Server::new(driver, &machine.devices, Vec::new(), queues, inner);
    let mut files = Vec::new();
    collect(&server, INodeNo::ROOT, &mut files);
    files.sort_by_key(|file| std::cmp::Reverse(*file)); // queues have the largest numbers, so small indices select them
    let mut run = Run { server, data, files, handles: vec![FileHandle(0)] };
    for _ in 0..REQUESTS_MAX {
        if run.data.is_empty() {
            break;
        }
        run.request();
    }
}

/// Collects a directory and all files below it.
fn collect(server: &Server, directory: INodeNo, files: &mut Vec<INodeNo>) {
    files.push(directory);
    let Ok(entries) = server.list(directory, 0) else { return };
    for entry in entries.iter().skip(2) {
        let (_, found) = server.look_up(directory, OsStr::new(&entry.name)).expect("it is listed");
        assert_eq!((found.ino, found.kind), (entry.number, entry.kind), "{}", entry.name);
        collect(server, found.ino, files);
    }
}

struct Run<'a> {
    server: Server,
    data: &'a [u8],
    files: Vec<INodeNo>,
    /// All handles that the server has returned, closed ones included.
    handles: Vec<FileHandle>,
}

impl<'a> Run<'a> {
    fn request(&mut self) {
        match self.byte() % 13 {
            0 => {
                let parent = self.file();
                let name = OsStr::from_bytes(self.value());
                if let Ok((_, found)) = self.server.look_up(parent, name) {
                    self.files.push(found.ino);
                }
            }
            1 => {
                let file = self.file();
                if let Ok((_, found)) = self.server.attributes_of(file) {
                    assert_eq!(found.ino, file);
                }
            }
            2 => {
                let (file, mode, owners) = (self.file(), self.number() as u32, self.number() as u32);
                let _ = self.server.set_owner(file, Some(mode), Some(owners), None);
            }
            3 => {
                let link = self.file();
                let _ = self.server.target_of(link);
            }
            4 | 5 => {
                let (file, flags, thread) = (self.file(), self.byte().into(), self.thread());
                if let Ok((handle, _)) = self.server.open(file, OpenFlags(flags), thread) {
                    assert!(!self.handles.contains(&handle), "a handle is handed out twice");
                    self.handles.push(handle);
                }
            }
            6 | 7 => {
                let (handle, thread) = (self.handle(), self.thread());
                let reader = if thread == u32::MAX { Reader::Call } else { Reader::Page { thread } };
                let (offset, size) = (self.number(), self.number() as u32);
                if let Ok(bytes) = self.server.read_handle(handle, offset, size, reader) {
                    assert!(bytes.len() <= size as usize);
                }
            }
            8 | 9 => {
                let (handle, thread, flags) = (self.handle(), self.thread(), self.byte());
                let value = self.value();
                let flags = WriteFlags::from_bits_truncate(flags.into());
                if let Ok(count) = self.server.write_handle(handle, value, flags, thread) {
                    assert!(count <= value.len());
                }
            }
            10 => {
                let handle = self.handle();
                self.server.close(handle);
            }
            11 => {
                let (directory, offset) = (self.file(), self.number());
                let entries = self.server.list(directory, offset).unwrap_or_default();
                assert!(entries.iter().map(|entry| entry.next).is_sorted());
                assert!(entries.first().is_none_or(|entry| entry.next > offset));
            }
            _ => {
                let (handle, thread, events) = (self.handle(), self.thread(), self.number() as u32);
                let command = if events & 1 == 0 { IS_OPENERS } else { events };
                let _ = self.server.queue_ioctl(handle, command, thread);
                let events = PollEvents::from_bits_truncate(events);
                assert!(events.contains(self.server.ready(handle, events)));
            }
        }
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, left) = self.data.split_at(count.min(self.data.len()));
        self.data = left;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// A number, mostly a small one.
    fn number(&mut self) -> u64 {
        let small = self.byte();
        if small < 0xf0 {
            return small.into();
        }
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    fn file(&mut self) -> INodeNo {
        match self.byte() {
            0xff => INodeNo(self.number()),
            high => {
                let number = usize::from(high) << 8 | usize::from(self.byte());
                self.files[number % self.files.len()]
            }
        }
    }

    fn handle(&mut self) -> FileHandle {
        match self.byte() {
            0xff => FileHandle(self.number()),
            number => self.handles[usize::from(number) % self.handles.len()],
        }
    }

    fn thread(&mut self) -> u32 {
        match self.byte() {
            0xff => u32::MAX,
            0xfe => 0,
            0xfd => std::process::id(),
            _ => program(),
        }
    }

    fn value(&mut self) -> &'a [u8] {
        match self.byte() {
            number @ 0..16 => VALUES[usize::from(number)].as_bytes(),
            descriptors @ 16..24 => self.take(64 * usize::from(descriptors - 15)),
            length => self.take(length.into()),
        }
    }
}

/// Returns the number of a program that waits for input. It exits with this process.
fn program() -> u32 {
    static PROGRAM: Mutex<Option<Child>> = Mutex::new(None);
    let mut program = PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
    let is_running = program.as_mut().is_some_and(|program| matches!(program.try_wait(), Ok(None)));
    if !is_running {
        let mut command = Command::new("cat");
        let started = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        *program = Some(started.expect("every system has cat"));
    }
    program.as_ref().map_or(0, Child::id)
}
