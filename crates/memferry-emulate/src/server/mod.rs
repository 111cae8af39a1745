//! The files of the driver, served through FUSE with the semantics of sysfs.
//!
//! A read shows the attribute as it was when its first byte was read. A write is one store, at any offset, which the
//! driver validates. The kernel caches all look-ups except those that can change by themselves (queues, links to
//! drivers).
//!
//! Source: Linux `fs/sysfs/file.c` and `fs/kernfs/file.c`; `drivers/dma/idxd/cdev.c` for queues.

mod filesystem;
mod requests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};
use memferry_dsa::internals::system::Files;
use memferry_dsa::system::DeviceId;
use memferry_dsa_emulator::FakeDriver;

use crate::layout::{Layout, Node};
use crate::namespace::InnerUser;
use crate::queues::{QueueFile, Queues};

/// Cache time of entries that do not change.
const FOREVER: Duration = Duration::from_secs(1 << 20);
/// Size of an attribute: sysfs reports one page for each, and answers E2BIG to larger stores.
const ATTRIBUTE_BYTES: u64 = 4096;

/// The file system. Shared by the threads that answer requests; each mutable field has its own lock.
pub(crate) struct Server {
    driver: Arc<FakeDriver>,
    devices: Vec<DeviceId>,
    links: Vec<(String, String)>,
    queues: Arc<Queues>,
    /// The owner of the queues.
    inner: InnerUser,
    inodes: RwLock<Inodes>,
    /// Changes by `chmod` and `chown`, by inode number.
    owners: Mutex<HashMap<u64, Owner>>,
    handles: Mutex<HashMap<u64, Handle>>,
    handle_next: AtomicU64,
    start: SystemTime,
}

/// The inode numbers of paths. A number is never used for another path.
struct Inodes {
    layout: Layout,
    numbers: HashMap<String, u64>,
    paths: HashMap<u64, String>,
}

/// Mode and owner of a file after `chmod` or `chown`.
#[derive(Clone, Copy)]
struct Owner {
    mode: u16,
    user: u32,
    group: u32,
}

/// An open file.
enum Handle {
    /// With the text at the last read from the start.
    Attribute {
        path: String,
        text: Vec<u8>,
    },
    /// The whole content of a file that does not change.
    Fixed(Vec<u8>),
    Queue(Arc<QueueFile>),
}

/// The reason of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reader {
    /// read(2).
    Call,
    /// An access of this thread to a private mapping. The kernel refuses shared mappings.
    Page { thread: u32 },
}

/// The target of a write.
enum WriteTarget {
    Attribute(String),
    Queue(Arc<QueueFile>),
}

impl Inodes {
    /// Returns the number of a path. The numbers of queues are those that the shared state has for the preload library.
    fn number(&mut self, path: &str) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = match self.layout.node(path) {
            _ if path.is_empty() => INodeNo::ROOT.0,
            Some(Node::Queue(queue)) => Queues::file_number(*queue),
            _ => self.numbers.len() as u64 + 2,
        };
        self.numbers.insert(path.to_owned(), number);
        self.paths.insert(number, path.to_owned());
        number
    }

    fn path(&self, number: INodeNo) -> Result<&str, Errno> {
        self.paths.get(&number.0).map(String::as_str).ok_or(Errno::ENOENT)
    }

    fn node(&self, number: INodeNo) -> Result<&Node, Errno> {
        self.layout.node(self.path(number)?).ok_or(Errno::ENOENT)
    }
}

impl Server {
    /// Serves the driver's files. `links` are the entries of the real `/dev/char`.
    pub(crate) fn new(
        driver: Arc<FakeDriver>,
        devices: &[DeviceId],
        links: Vec<(String, String)>,
        queues: Arc<Queues>,
        inner: InnerUser,
    ) -> Server {
        let layout = Layout::new(&driver, devices, &links);
        let mut inodes = Inodes { layout, numbers: HashMap::new(), paths: HashMap::new() };
        inodes.number("");
        Server {
            driver,
            devices: devices.to_vec(),
            links,
            queues,
            inner,
            inodes: RwLock::new(inodes),
            owners: Mutex::default(),
            handles: Mutex::default(),
            handle_next: AtomicU64::new(1),
            start: SystemTime::now(),
        }
    }

    fn inodes(&self) -> RwLockReadGuard<'_, Inodes> {
        self.inodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_handle(&self, handle: Handle) -> FileHandle {
        let number = self.handle_next.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(number, handle);
        FileHandle(number)
    }

    fn attributes(&self, number: u64, node: &Node) -> FileAttr {
        let (kind, mode, size) = match node {
            Node::Directory(_) => (FileType::Directory, 0o755, 0),
            Node::Attribute { mode, .. } => (FileType::RegularFile, *mode as u16, ATTRIBUTE_BYTES),
            Node::Text(_) => (FileType::RegularFile, 0o444, ATTRIBUTE_BYTES),
            Node::Bytes(bytes) => (FileType::RegularFile, 0o444, bytes.len() as u64),
            Node::Link(target) => (FileType::Symlink, 0o777, target.len() as u64),
            // The size of a portal, because some libraries compare it with the size that they map.
            Node::Queue(_) => (FileType::RegularFile, 0o600, ATTRIBUTE_BYTES),
        };
        let (user, group) = match node {
            Node::Queue(_) => (self.inner.user, self.inner.group),
            _ => (0, 0),
        };
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = owners.get(&number).copied().unwrap_or(Owner { mode, user, group });
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: 0,
            atime: self.start,
            mtime: self.start,
            ctime: self.start,
            crtime: self.start,
            kind,
            perm: owner.mode,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: owner.user,
            gid: owner.group,
            rdev: 0,
            blksize: ATTRIBUTE_BYTES as u32,
            flags: 0,
        }
    }

    /// How long the kernel may cache a path. Queues, and links between objects and drivers, come and go.
    fn cache_time(path: &str, node: &Node) -> Duration {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let comes_and_goes = match node {
            Node::Link(_) => parent != "bus/devices" && !matches!(name, "subsystem" | "module"),
            Node::Queue(_) => true,
            Node::Directory(_) | Node::Attribute { .. } | Node::Text(_) | Node::Bytes(_) => false,
        };
        if comes_and_goes || name.contains('!') { Duration::ZERO } else { FOREVER }
    }

    /// Updates the tree and the shared state after a change of the driver.
    fn synchronize(&self) {
        // Before the lock is taken: it may wait for a process that waits for a file.
        self.queues.synchronize();
        let mut inodes = self.inodes.write().unwrap_or_else(PoisonError::into_inner);
        inodes.layout = Layout::new(&self.driver, &self.devices, &self.links);
    }

    fn store(&self, path: &str, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() as u64 > ATTRIBUTE_BYTES {
            return Err(Errno::E2BIG);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
        let answer = self.driver.write(path, text);
        // Also after an error, which may have changed the status of the device's last command.
        if path.ends_with("bind") {
            self.synchronize();
        }
        answer.map_err(Errno::from)
    }

    /// Reads an attribute, after an update if it changes by itself.
    fn show(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.queues.refresh(path);
        self.driver.read(path).map_err(Errno::from)
    }

    /// Returns the open queue of a handle, if it is one.
    fn queue_file(&self, handle: FileHandle) -> Option<Arc<QueueFile>> {
        match self.handles().get(&handle.0) {
            Some(Handle::Queue(file)) => Some(Arc::clone(file)),
            _ => None,
        }
    }
}
