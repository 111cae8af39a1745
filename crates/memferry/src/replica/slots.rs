//! Two slots on a medium: the order of writes and flushes that keeps one of them intact.
//!
//! Facts that hold whenever the machine may be reset, for what the medium has durably:
//!
//! 1. The newest slot has its header and its data; they are not written, except with the same bytes.
//! 2. If the header of the other slot has a higher version, its data is complete: a header is written only after its data
//!    was flushed, and erased before other data is written below it.
//!
//! Reads see what was written, not what is durable. A process that was killed, or a failed flush, leaves bytes that the
//! kernel shows and the medium may not have (Linux marks pages clean after a failed flush). So [`Slots::open`] writes
//! both headers once more and flushes, before anything else is written.

use std::io;
use std::path::{Path, PathBuf};

use crc_fast::Digest;

use super::error::ReplicaError;
use super::format::{self, Bytes, CHECKSUM, DATA_OFFSET, Found, Header, Layout};

/// Durable bytes with a cache before them. The real one is a file.
pub(super) trait Medium {
    fn size_bytes(&self) -> io::Result<u64>;

    /// Reads what was written last, whether or not it is durable.
    fn read(&self, offset: u64, target: &mut [u8]) -> io::Result<()>;

    /// Writes bytes, and calls `meanwhile` once, which may take as long. Until the next flush a reset may leave any part of
    /// the bytes durable.
    fn write(&mut self, offset: u64, bytes: &[u8], meanwhile: &mut dyn FnMut()) -> io::Result<()>;

    /// Makes all earlier writes durable. After an error any part of them may be, and later flushes may leave out the
    /// others.
    fn flush(&mut self) -> io::Result<()>;

    /// Bytes to write at a time.
    fn piece_bytes(&self) -> usize;
}

/// Bytes that are read and checked at a time: in the cache when they are checked.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// The slots of a replica.
pub(super) struct Slots<M> {
    medium: M,
    path: PathBuf,
    layout: Layout,
    /// The slot of the newest version, and its header.
    newest: (usize, Header),
    /// A newer version that the medium has lost.
    damaged: Option<u64>,
    /// Whether the other slot may have the header of a newer version, which was not acknowledged.
    is_other_newer: bool,
}

impl<M: Medium> Slots<M> {
    /// Initialises a medium of zeros, with no version.
    pub(super) fn create(medium: M, path: &Path, id: u64, layout: Layout) -> Result<Slots<M>, ReplicaError> {
        let checksum = Digest::new(CHECKSUM).finalize();
        let capacity_bytes = layout.capacity_bytes;
        let header = Header { id, capacity_bytes, version: 0, size_bytes: 0, checksum };
        let newest = (0, header);
        let mut slots =
            Slots { medium, path: path.to_owned(), layout, newest, damaged: None, is_other_newer: false };
        slots.write_header(0, Some(header))?;
        slots.flush()?;
        Ok(slots)
    }

    /// Finds the newest version that is intact, and makes it durable.
    pub(super) fn open(medium: M, path: &Path) -> Result<Slots<M>, ReplicaError> {
        let size_bytes = medium.size_bytes().map_err(ReplicaError::system(path, "look up"))?;
        let not_a_replica = |why| ReplicaError::NotAReplica { path: path.to_owned(), why };
        let damaged = |what| ReplicaError::Damaged { path: path.to_owned(), what };
        if size_bytes < DATA_OFFSET {
            return Err(not_a_replica("it is too short for the headers"));
        }
        let mut found = [Found::Foreign; 2];
        for (slot, found) in found.iter_mut().enumerate() {
            let mut bytes: Bytes = [0; 64];
            let read = medium.read(format::header_offset(slot), &mut bytes);
            read.map_err(ReplicaError::system(path, "read"))?;
            *found = Header::parse(&bytes, slot);
        }
        let mut headers: Vec<(usize, Header)> = found
            .iter()
            .enumerate()
            .filter_map(
                |(slot, found)| if let Found::Header(header) = found { Some((slot, *header)) } else { None },
            )
            .collect();
        headers.sort_by_key(|(_, header)| std::cmp::Reverse(header.version));
        let Some(&(_, first)) = headers.first() else {
            return Err(match found {
                [Found::OtherFormat(format), _] | [_, Found::OtherFormat(format)] => {
                    ReplicaError::OtherFormat { path: path.to_owned(), format }
                }
                [Found::Zeros, Found::Zeros] => ReplicaError::Unfinished { path: path.to_owned() },
                [Found::Damaged, _] | [_, Found::Damaged] => {
                    damaged("no header is intact; restore the file from a backup")
                }
                _ => not_a_replica("it has no header of one"),
            });
        };
        if headers
            .iter()
            .any(|(_, header)| (header.id, header.capacity_bytes) != (first.id, first.capacity_bytes))
        {
            return Err(damaged("its headers are those of two replicas; restore the file from a backup"));
        }
        let layout = Layout::new(first.capacity_bytes)
            .ok_or_else(|| damaged("its capacity exceeds the size of files; restore it from a backup"))?;
        let mut slots = Slots {
            medium,
            path: path.to_owned(),
            layout,
            newest: headers[0],
            damaged: None,
            is_other_newer: false,
        };
        slots.check_size(size_bytes)?;
        slots.choose(&headers)?;
        slots.confirm(found)?;
        Ok(slots)
    }

    /// Chooses the newest of `headers`, newest first, whose data is intact.
    fn choose(&mut self, headers: &[(usize, Header)]) -> Result<(), ReplicaError> {
        let mut buffer = Vec::new();
        for &(slot, header) in headers {
            // "No version" is not the answer if there was one.
            let is_answer = header.version > 0 || self.damaged.is_none();
            if is_answer && self.is_intact(slot, header, &mut buffer)? {
                self.newest = (slot, header);
                return Ok(());
            }
            self.damaged = self.damaged.or(Some(header.version));
        }
        Err(ReplicaError::Damaged {
            path: self.path.clone(),
            what: "no version matches its checksum; restore the file from a backup",
        })
    }

    fn is_intact(&self, slot: usize, header: Header, buffer: &mut Vec<u8>) -> Result<bool, ReplicaError> {
        let mut digest = Digest::new(CHECKSUM);
        let mut offset = self.layout.data_offset(slot);
        let end = offset + header.size_bytes;
        while offset < end {
            let len = (end - offset).min(PIECE_BYTES as u64) as usize;
            buffer.resize(len.max(buffer.len()), 0);
            let piece = &mut buffer[..len];
            self.medium.read(offset, piece).map_err(ReplicaError::system(&self.path, "read"))?;
            digest.update(piece);
            offset += len as u64;
        }
        Ok(digest.finalize() == header.checksum)
    }

    /// Makes durable what was read: the newest header as it is, the other one if it is intact, otherwise erased.
    fn confirm(&mut self, found: [Found; 2]) -> Result<(), ReplicaError> {
        let (newest, header) = self.newest;
        let other = match found[1 - newest] {
            // Of a slot that had no version yet: it must not become the answer if the newest header is damaged later.
            Found::Header(other) if other.version == 0 && header.version > 0 => None,
            Found::Header(other) => Some(other),
            _ => None,
        };
        self.write_header(newest, Some(header))?;
        self.write_header(1 - newest, other)?;
        self.flush()
    }

    /// Writes a version to the older slot, which becomes the newest one. Returns its number.
    pub(super) fn write(&mut self, parts: &[&[u8]]) -> Result<u64, ReplicaError> {
        let size_bytes = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.len() as u64));
        let size_bytes = size_bytes.unwrap_or(u64::MAX);
        let capacity_bytes = self.layout.capacity_bytes;
        if size_bytes > capacity_bytes {
            return Err(ReplicaError::TooLong { path: self.path.clone(), size_bytes, capacity_bytes });
        }
        let (newest, before) = self.newest;
        let target = 1 - newest;
        if self.is_other_newer {
            self.write_header(target, None)?;
            self.flush()?;
            self.is_other_newer = false;
        }
        let mut digest = Digest::new(CHECKSUM);
        let mut offset = self.layout.data_offset(target);
        let piece_bytes = self.medium.piece_bytes();
        for piece in parts.iter().flat_map(|part| part.chunks(piece_bytes)) {
            let written = self.medium.write(offset, piece, &mut || digest.update(piece));
            written.map_err(ReplicaError::system(&self.path, "write"))?;
            offset += piece.len() as u64;
        }
        self.flush()?;
        let version = before.version.max(self.damaged.unwrap_or(0)) + 1;
        let header = Header { version, size_bytes, checksum: digest.finalize(), ..before };
        self.is_other_newer = true;
        self.write_header(target, Some(header))?;
        self.flush()?;
        (self.newest, self.damaged, self.is_other_newer) = ((target, header), None, false);
        if before.version == 0 {
            // As in `confirm`. The version is durable whether or not this succeeds.
            let _ = self.write_header(newest, None);
        }
        Ok(version)
    }

    /// Reads the newest version, whose size `target` has, and checks it.
    pub(super) fn restore_into(&self, target: &mut [u8]) -> Result<(), ReplicaError> {
        let (slot, header) = self.newest;
        let mut digest = Digest::new(CHECKSUM);
        let mut offset = self.layout.data_offset(slot);
        for piece in target.chunks_mut(PIECE_BYTES) {
            self.medium.read(offset, piece).map_err(ReplicaError::system(&self.path, "read"))?;
            digest.update(piece);
            offset += piece.len() as u64;
        }
        if digest.finalize() == header.checksum {
            return Ok(());
        }
        let what =
            "the newest version was changed since the file was opened; open it again for the one before";
        Err(ReplicaError::Damaged { path: self.path.clone(), what })
    }

    /// Writes a header, or erases it. Not durable before a flush.
    fn write_header(&mut self, slot: usize, header: Option<Header>) -> Result<(), ReplicaError> {
        let bytes = header.map_or([0; 64], |header| header.to_bytes(slot));
        let written = self.medium.write(format::header_offset(slot), &bytes, &mut || ());
        written.map_err(ReplicaError::system(&self.path, "write"))
    }

    fn flush(&mut self) -> Result<(), ReplicaError> {
        self.medium.flush().map_err(ReplicaError::system(&self.path, "flush"))?;
        let size_bytes = self.medium.size_bytes().map_err(ReplicaError::system(&self.path, "look up"))?;
        self.check_size(size_bytes)
    }

    fn check_size(&self, size_bytes: u64) -> Result<(), ReplicaError> {
        let expected_bytes = self.layout.total_bytes();
        if size_bytes < expected_bytes {
            return Err(ReplicaError::Truncated { path: self.path.clone(), size_bytes, expected_bytes });
        }
        Ok(())
    }

    pub(super) fn newest(&self) -> &Header {
        &self.newest.1
    }

    pub(super) fn damaged(&self) -> Option<u64> {
        self.damaged
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.layout.capacity_bytes
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.layout.total_bytes()
    }

    pub(super) fn medium(&mut self) -> &mut M {
        &mut self.medium
    }
}
