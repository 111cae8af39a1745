//! The files of the driver, served through FUSE with the semantics of sysfs.
//!
//! A read shows the attribute as it was when its first byte was read; a write is one store, validated by the driver,
//! whatever its offset. Only what can change by itself (queues, links to drivers) is looked up anew each time.
//!
//! Source: Linux `fs/sysfs/file.c` and `fs/kernfs/file.c`; `drivers/dma/idxd/cdev.c` for queues.

mod filesystem;
mod requests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};
use memferry_dsa::system::{DeviceId, Files};
use memferry_dsa_emulator::FakeDriver;

use crate::layout::{Layout, Node};
use crate::namespace::Inside;
use crate::queues::{Client, Queues};

/// How long the kernel may remember what does not change.
const FOREVER: Duration = Duration::from_secs(1 << 20);
/// sysfs answers E2BIG beyond a page, and says that every attribute has the size of one.
const ATTRIBUTE_BYTES: u64 = 4096;

/// The file system.
pub(crate) struct Server {
    driver: Arc<FakeDriver>,
    devices: Vec<DeviceId>,
    links: Vec<(String, String)>,
    queues: Arc<Queues>,
    inside: Inside,
    /// Who owns queues: the user in the namespace.
    names: RwLock<Names>,
    owners: Mutex<HashMap<u64, Owner>>,
    handles: Mutex<HashMap<u64, Handle>>,
    handle_next: AtomicU64,
    start: SystemTime,
}

/// Paths and the numbers that the kernel knows them by, which are never used for another path.
struct Names {
    layout: Layout,
    numbers: HashMap<String, u64>,
    paths: HashMap<u64, String>,
}

/// What `chmod` and `chown` made of a file.
#[derive(Clone, Copy)]
struct Owner {
    mode: u16,
    user: u32,
    group: u32,
}

/// An open file.
enum Handle {
    /// With the text that a read from the start found.
    Attribute {
        path: String,
        text: Vec<u8>,
    },
    Text(String),
    Queue(Arc<Client>),
}

/// What is written to.
enum Target {
    Attribute(String),
    Queue(Arc<Client>),
}

impl Names {
    /// The number of a path; queues have numbers that the preload library can tell from their file.
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
    /// Serves the driver's files. `links` are those that `/dev/char` has without us.
    pub(crate) fn new(
        driver: Arc<FakeDriver>,
        devices: &[DeviceId],
        links: Vec<(String, String)>,
        queues: Arc<Queues>,
        inside: Inside,
    ) -> Server {
        let layout = Layout::new(&driver, devices, &links);
        let mut names = Names { layout, numbers: HashMap::new(), paths: HashMap::new() };
        names.number("");
        Server {
            driver,
            devices: devices.to_vec(),
            links,
            queues,
            inside,
            names: RwLock::new(names),
            owners: Mutex::default(),
            handles: Mutex::default(),
            handle_next: AtomicU64::new(1),
            start: SystemTime::now(),
        }
    }

    fn names(&self) -> RwLockReadGuard<'_, Names> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, handle: Handle) -> FileHandle {
        let number = self.handle_next.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(number, handle);
        FileHandle(number)
    }

    fn attributes(&self, number: u64, node: &Node) -> FileAttr {
        let (kind, mode, size) = match node {
            Node::Directory(_) => (FileType::Directory, 0o755, 0),
            Node::Attribute { mode, .. } => (FileType::RegularFile, *mode as u16, ATTRIBUTE_BYTES),
            Node::Text(_) => (FileType::RegularFile, 0o444, ATTRIBUTE_BYTES),
            Node::Link(target) => (FileType::Symlink, 0o777, target.len() as u64),
            // With the size of a portal, since some libraries compare it with what they map. Reading it fails, so
            // that a store to a mapping that is not caught ends in SIGBUS.
            Node::Queue(_) => (FileType::RegularFile, 0o600, ATTRIBUTE_BYTES),
        };
        let (user, group) = match node {
            Node::Queue(_) => (self.inside.user, self.inside.group),
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

    /// How long the kernel may remember a path. Queues, and the links between objects and drivers, come and go.
    fn memory_of(path: &str, node: &Node) -> Duration {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let comes_and_goes = match node {
            Node::Link(_) => parent != "bus/devices" && !matches!(name, "subsystem" | "module"),
            Node::Queue(_) => true,
            Node::Directory(_) | Node::Attribute { .. } | Node::Text(_) => false,
        };
        if comes_and_goes || name.contains('!') { Duration::ZERO } else { FOREVER }
    }

    /// The layout and the shared state follow the driver after a write.
    fn follow(&self) {
        // First, and without the lock: it may wait for a process that waits for a file.
        self.queues.follow();
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        names.layout = Layout::new(&self.driver, &self.devices, &self.links);
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
        // Also after an error: it may have changed the status of the device's last command.
        if path.ends_with("bind") {
            self.follow();
        }
        answer.map_err(Errno::from)
    }

    /// What is shown changes by itself.
    fn show(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.queues.refresh(path);
        self.driver.read(path).map_err(Errno::from)
    }

    /// Whose open file of a queue it is, if it is one.
    fn client(&self, handle: FileHandle) -> Option<Arc<Client>> {
        match self.handles().get(&handle.0) {
            Some(Handle::Queue(client)) => Some(Arc::clone(client)),
            _ => None,
        }
    }
}
