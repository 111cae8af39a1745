//! The requests of the kernel, one by one.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use fuser::{
    Errno, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyPoll, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use memferry_dsa::emulator::shared::IS_OPENERS;

use super::{Handle, Owner, Server, Target};
use crate::layout::Node;

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Kernels without it cannot map a file whose writes are all handed on as they are.
        let can = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        self.queues.set_direct(can);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let found = names.path(parent).map(|parent| match (parent, name.to_str()) {
            (_, None) => String::new(),
            ("", Some(name)) => name.to_owned(),
            (parent, Some(name)) => format!("{parent}/{name}"),
        });
        let path = match found {
            Ok(path) if !path.is_empty() && names.layout.node(&path).is_some() => path,
            Ok(_) => return reply.error(Errno::ENOENT),
            Err(error) => return reply.error(error),
        };
        let number = names.number(&path);
        match names.layout.node(&path) {
            Some(node) => {
                reply.entry(&Self::memory_of(&path, node), &self.attributes(number, node), Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let names = self.names();
        match (names.path(ino), names.node(ino)) {
            (Ok(path), Ok(node)) => reply.attr(&Self::memory_of(path, node), &self.attributes(ino.0, node)),
            (Err(error), _) | (_, Err(error)) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        _size: Option<u64>, // opening with O_TRUNC means nothing to sysfs
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let names = self.names();
        let (path, node) = match (names.path(ino), names.node(ino)) {
            (Ok(path), Ok(node)) => (path, node),
            (Err(error), _) | (_, Err(error)) => return reply.error(error),
        };
        if mode.is_some() || user.is_some() || group.is_some() {
            let now = self.attributes(ino.0, node);
            let owner = Owner {
                mode: mode.map_or(now.perm, |mode| (mode & 0o7777) as u16),
                user: user.unwrap_or(now.uid),
                group: group.unwrap_or(now.gid),
            };
            self.owners.lock().unwrap_or_else(PoisonError::into_inner).insert(ino.0, owner);
        }
        reply.attr(&Self::memory_of(path, node), &self.attributes(ino.0, node));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.names().node(ino) {
            Ok(Node::Link(target)) => reply.data(target.as_bytes()),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_node(request, ino, flags) {
            Ok((handle, flags)) => reply.opened(handle, flags),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_handle(handle, offset, size, request.pid()) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _open_flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let answer = match self.handles().get(&handle.0) {
            None => Err(Errno::EBADF),
            Some(Handle::Text(_)) => Err(Errno::EACCES),
            Some(Handle::Attribute { path, .. }) => Ok(Target::Attribute(path.clone())),
            // Pages of a mapping that were stored to without being caught: no descriptors.
            Some(Handle::Queue(_)) if flags.contains(WriteFlags::FUSE_WRITE_CACHE) => Err(Errno::EIO),
            Some(Handle::Queue(client)) => {
                let client = Arc::clone(client);
                Ok(Target::Queue(client))
            }
        };
        let answer = answer.and_then(|target| match target {
            Target::Attribute(path) => self.store(&path, data).map(|()| data.len()),
            Target::Queue(client) => self.queues.write(&client, request.pid(), data).map_err(Errno::from_i32),
        });
        match answer {
            Ok(count) => reply.written(count as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let released = self.handles().remove(&handle.0);
        if let Some(Handle::Queue(client)) = released {
            self.queues.close(&client);
        }
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let directory = match names.path(ino) {
            Ok(path) => path.to_owned(),
            Err(error) => return reply.error(error),
        };
        let Some(entries) = names.layout.names(&directory).map(<[String]>::to_vec) else {
            return reply.error(Errno::ENOTDIR);
        };
        let dots = [".", ".."].map(|name| (ino.0, FileType::Directory, name.to_owned()));
        let real = entries.into_iter().map(|name| {
            let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
            let kind = match names.layout.node(&path) {
                Some(Node::Directory(_)) => FileType::Directory,
                Some(Node::Link(_)) => FileType::Symlink,
                _ => FileType::RegularFile,
            };
            (names.number(&path), kind, name)
        });
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (number, kind, name)) in dots.into_iter().chain(real).enumerate().skip(skipped) {
            if reply.add(INodeNo(number), index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn ioctl(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        _data: &[u8],
        _answer_bytes: u32,
        reply: ReplyIoctl,
    ) {
        match self.client(handle).filter(|_| command == IS_OPENERS) {
            Some(client) if client.is_openers(request.pid()) => reply.ioctl(0, &[]),
            Some(_) => reply.error(Errno::EPERM),
            None => reply.error(Errno::ENOTTY),
        }
    }

    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _notifier: PollNotifier,
        events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // A queue polls readable when the device reports an error, which it does nowhere else.
        match self.handles().get(&handle.0) {
            Some(Handle::Queue(client)) if self.queues.has_error(client) => {
                reply.poll(events & PollEvents::POLLIN)
            }
            Some(Handle::Queue(_)) => reply.poll(PollEvents::empty()),
            _ => reply.poll(events & (PollEvents::POLLIN | PollEvents::POLLOUT)),
        }
    }

    // Nothing can be made or removed in sysfs.

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EPERM);
    }
}
