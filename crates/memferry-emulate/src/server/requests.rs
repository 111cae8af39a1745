//! The answers to requests, independent of the transport. `filesystem` connects them to FUSE; `fuzz` calls them.

use std::ffi::OsStr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, OpenAccMode, OpenFlags, PollEvents,
    WriteFlags,
};
use memferry_dsa_emulator::shared::IS_OPENERS;

use super::{Handle, Owner, Reader, Server, WriteTarget};
use crate::layout::Node;
use crate::system;

/// Size of a portal, and of the page that stands for it.
const PAGE_BYTES: usize = 4096;

/// Attributes, and how long the kernel may cache them.
pub(crate) type Attributes = (Duration, FileAttr);

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) number: INodeNo,
    pub(crate) kind: FileType,
    pub(crate) name: String,
    /// The offset of the next entry.
    pub(crate) next: u64,
}

impl Server {
    pub(crate) fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<Attributes, Errno> {
        let mut inodes = self.inodes.write().unwrap_or_else(PoisonError::into_inner);
        let path = match (inodes.path(parent)?, name.to_str()) {
            (_, None) => return Err(Errno::ENOENT),
            ("", Some(name)) => name.to_owned(),
            (parent, Some(name)) => format!("{parent}/{name}"),
        };
        if path.is_empty() || inodes.layout.node(&path).is_none() {
            return Err(Errno::ENOENT);
        }
        let number = inodes.number(&path);
        let node = inodes.layout.node(&path).ok_or(Errno::ENOENT)?;
        Ok((Self::cache_time(&path, node), self.attributes(number, node)))
    }

    pub(crate) fn attributes_of(&self, file: INodeNo) -> Result<Attributes, Errno> {
        let inodes = self.inodes();
        let (path, node) = (inodes.path(file)?, inodes.node(file)?);
        Ok((Self::cache_time(path, node), self.attributes(file.0, node)))
    }

    /// `chmod` and `chown`; `None` leaves a value unchanged.
    pub(crate) fn set_owner(
        &self,
        file: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> Result<Attributes, Errno> {
        let (_, now) = self.attributes_of(file)?;
        if mode.is_some() || user.is_some() || group.is_some() {
            let owner = Owner {
                mode: mode.map_or(now.perm, |mode| (mode & 0o7777) as u16),
                user: user.unwrap_or(now.uid),
                group: group.unwrap_or(now.gid),
            };
            self.owners.lock().unwrap_or_else(PoisonError::into_inner).insert(file.0, owner);
        }
        self.attributes_of(file)
    }

    pub(crate) fn target_of(&self, link: INodeNo) -> Result<String, Errno> {
        match self.inodes().node(link)? {
            Node::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn open(
        &self,
        file: INodeNo,
        flags: OpenFlags,
        thread: u32,
    ) -> Result<(FileHandle, FopenFlags), Errno> {
        let node = self.inodes().node(file)?.clone();
        let access = flags.acc_mode();
        // sysfs checks modes for root as well.
        let may = |bits: u32, mode: u32| if mode & bits == 0 { Err(Errno::EACCES) } else { Ok(()) };
        let check = |mode: u32| -> Result<(), Errno> {
            if access != OpenAccMode::O_WRONLY {
                may(0o444, mode)?;
            }
            if access != OpenAccMode::O_RDONLY {
                may(0o222, mode)?;
            }
            Ok(())
        };
        match node {
            Node::Directory(_) => Err(Errno::EISDIR),
            Node::Link(_) => Err(Errno::ELOOP),
            Node::Attribute { path, mode } => {
                check(mode)?;
                Ok((
                    self.add_handle(Handle::Attribute { path, text: Vec::new() }),
                    FopenFlags::FOPEN_DIRECT_IO,
                ))
            }
            Node::Text(text) => {
                check(0o444)?;
                let content = format!("{text}\n").into_bytes();
                Ok((self.add_handle(Handle::Fixed(content)), FopenFlags::FOPEN_DIRECT_IO))
            }
            Node::Bytes(content) => {
                check(0o444)?;
                Ok((self.add_handle(Handle::Fixed(content)), FopenFlags::FOPEN_DIRECT_IO))
            }
            Node::Queue(queue) => {
                let file = self.queues.open(queue, thread).map_err(Errno::from_i32)?;
                Ok((self.add_handle(Handle::Queue(file)), FopenFlags::FOPEN_DIRECT_IO))
            }
        }
    }

    pub(crate) fn read_handle(
        &self,
        handle: FileHandle,
        offset: u64,
        size: u32,
        reader: Reader,
    ) -> Result<Vec<u8>, Errno> {
        let part = |bytes: &[u8]| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            bytes[start..bytes.len().min(start.saturating_add(size as usize))].to_vec()
        };
        let path = match self.handles().get(&handle.0) {
            None => return Err(Errno::EBADF),
            // A private mapping is memory of the program: on silicon a store replaces the page by a copy. Linux would
            // request a refused page for ever with MAP_POPULATE. A thread of this process is an engine, whose
            // descriptor names the page and gets a page fault.
            Some(Handle::Queue(_)) => match reader {
                Reader::Page { thread } if !system::is_own(thread) => return Ok(part(&[0; PAGE_BYTES])),
                Reader::Page { .. } | Reader::Call => return Err(Errno::EIO),
            },
            Some(Handle::Fixed(content)) => return Ok(part(content)),
            Some(Handle::Attribute { text, .. }) if offset > 0 => return Ok(part(text)),
            Some(Handle::Attribute { path, .. }) => path.clone(),
        };
        let bytes = self.show(&path)?;
        if let Some(Handle::Attribute { text, .. }) = self.handles().get_mut(&handle.0) {
            text.clone_from(&bytes);
        }
        Ok(part(&bytes))
    }

    /// Stores to an attribute or submits to a queue; returns the number of accepted bytes.
    pub(crate) fn write_handle(
        &self,
        handle: FileHandle,
        bytes: &[u8],
        flags: WriteFlags,
        thread: u32,
    ) -> Result<usize, Errno> {
        let target = match self.handles().get(&handle.0) {
            None => return Err(Errno::EBADF),
            Some(Handle::Fixed(_)) => return Err(Errno::EACCES),
            Some(Handle::Attribute { path, .. }) => WriteTarget::Attribute(path.clone()),
            // Pages of a mapping: not descriptors.
            Some(Handle::Queue(_)) if flags.contains(WriteFlags::FUSE_WRITE_CACHE) => return Err(Errno::EIO),
            Some(Handle::Queue(file)) => WriteTarget::Queue(Arc::clone(file)),
        };
        match target {
            WriteTarget::Attribute(path) => self.store(&path, bytes).map(|()| bytes.len()),
            WriteTarget::Queue(file) => self.queues.write(&file, thread, bytes).map_err(Errno::from_i32),
        }
    }

    pub(crate) fn close(&self, handle: FileHandle) {
        let closed = self.handles().remove(&handle.0);
        if let Some(Handle::Queue(file)) = closed {
            self.queues.close(&file);
        }
    }

    /// Returns the entries of a directory from an offset on: 0, or `next` of an entry.
    pub(crate) fn list(&self, directory: INodeNo, offset: u64) -> Result<Vec<Entry>, Errno> {
        let mut inodes = self.inodes.write().unwrap_or_else(PoisonError::into_inner);
        let path = inodes.path(directory)?.to_owned();
        let Some(entries) = inodes.layout.names(&path).map(<[String]>::to_vec) else {
            return Err(Errno::ENOTDIR);
        };
        let dots = [".", ".."].map(|name| (directory, FileType::Directory, name.to_owned()));
        let real = entries.into_iter().map(|name| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let kind = match inodes.layout.node(&path) {
                Some(Node::Directory(_)) => FileType::Directory,
                Some(Node::Link(_)) => FileType::Symlink,
                _ => FileType::RegularFile,
            };
            (INodeNo(inodes.number(&path)), kind, name)
        });
        let entry = |(next, (number, kind, name))| Entry { number, kind, name, next };
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok((1..).zip(dots.into_iter().chain(real)).skip(skipped).map(entry).collect())
    }

    /// `ioctl(2)`: queues have one command, `IS_OPENERS`.
    pub(crate) fn queue_ioctl(&self, handle: FileHandle, command: u32, thread: u32) -> Result<(), Errno> {
        match self.queue_file(handle).filter(|_| command == IS_OPENERS) {
            Some(file) if file.is_opener(thread) => Ok(()),
            Some(_) => Err(Errno::EPERM),
            None => Err(Errno::ENOTTY),
        }
    }

    /// Returns the events that are ready. A queue is readable while its device has an error that no completion record
    /// reports.
    pub(crate) fn ready(&self, handle: FileHandle, events: PollEvents) -> PollEvents {
        match self.handles().get(&handle.0) {
            Some(Handle::Queue(file)) if self.queues.has_error(file) => events & PollEvents::POLLIN,
            Some(Handle::Queue(_)) => PollEvents::empty(),
            _ => events & (PollEvents::POLLIN | PollEvents::POLLOUT),
        }
    }
}
