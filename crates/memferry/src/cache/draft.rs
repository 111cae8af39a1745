//! Private copies of data that changes: made near, changed there, and written back to new memory at home.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::mutable::CacheMut;
use super::{AccessError, RegionOwner};
use crate::memory::{Binding, Block, Mapping, MemoryError};
use crate::mover::{CopyError, CopyOptions};
use crate::sync::lock;
use crate::topology::{Machine, NodeId};

/// An owner of bytes of which another one can be made: what the next version of a value is written to.
pub trait NewOnNode: RegionOwner + AsMut<[u8]> + Sized {
    /// `size_bytes` of any content, on `node` if that is known and the kind of memory can be placed.
    ///
    /// # Errors
    /// [`MemoryError`]; nothing stays allocated.
    fn new_on_node(machine: &Machine, node: Option<NodeId>, size_bytes: usize) -> Result<Self, MemoryError>;
}

/// Bound to the node; where it is unknown, wherever there is room. All pages are there before the first byte is written.
impl NewOnNode for Mapping {
    fn new_on_node(
        machine: &Machine,
        node: Option<NodeId>,
        size_bytes: usize,
    ) -> Result<Mapping, MemoryError> {
        Mapping::new(machine, size_bytes, node.map_or(Binding::Any, Binding::Bind))
    }
}

/// Cannot be placed: new pages come to lie on the node of the thread that first writes them, one of the mover's.
impl NewOnNode for Vec<u8> {
    fn new_on_node(_: &Machine, _: Option<NodeId>, size_bytes: usize) -> Result<Vec<u8>, MemoryError> {
        Ok(vec![0; size_bytes])
    }
}

/// A private copy of one version in near memory. Dropped without [`write_back`](Draft::write_back), it never was.
pub struct Draft<T = Vec<u8>> {
    of: CacheMut<T>,
    block: Block,
    version: u64,
}

impl<T> Draft<T> {
    pub(super) fn new(of: CacheMut<T>, block: Block, version: u64) -> Draft<T> {
        Draft { of, block, version }
    }

    /// The version it was copied from.
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl<T: NewOnNode> Draft<T> {
    /// Copies it to new memory, at home if `T` can be [placed](NewOnNode), and publishes that as the next version, whose
    /// number it returns; then as [`CacheMut::mutate`]. Waits for the copy.
    ///
    /// # Errors
    /// [`WriteBackError`], with the draft in it unless that is lost. Nothing was published.
    pub fn write_back(self) -> Result<u64, WriteBackError<T>> {
        let Draft { of, block, version } = self;
        let draft = |of, block| Draft { of, block, version };
        if of.version() != version {
            return Err(WriteBackError::Outdated { draft: draft(of, block) });
        }
        let (cache, home) = (&of.inner.cache.shared, of.inner.home);
        let target = match T::new_on_node(&cache.machine, home, block.len()) {
            Ok(target) => target,
            Err(source) => {
                let (draft, source) = (draft(of, block), Box::new(source));
                return Err(WriteBackError::Memory { draft, source });
            }
        };
        let options =
            CopyOptions { source_node: Some(block.node()), target_node: home, ..CopyOptions::default() };
        let (block, value) = match cache.mover.copy(block, target, options).wait() {
            Ok((block, value, _)) => (block, value),
            Err(error) => {
                let source = error.error;
                return Err(match error.buffers {
                    Some((block, _)) => WriteBackError::Copy { draft: draft(of, block), source },
                    None => WriteBackError::Lost(source),
                });
            }
        };
        let writer = lock(of.writer());
        if of.version() != version {
            drop(writer);
            return Err(WriteBackError::Outdated { draft: draft(of, block) });
        }
        let published = of.publish(value);
        drop(writer);
        let version = published.version;
        of.retire(published);
        Ok(version)
    }
}

impl<T> Deref for Draft<T> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_slice()
    }
}

impl<T> DerefMut for Draft<T> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.as_mut_slice()
    }
}

impl<T> fmt::Debug for Draft<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("version", &self.version)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

/// Why there is no draft.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The cache has no budget on the node.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The node is full, and nothing can leave.
    #[error(
        "node {node} has no room for {size_bytes} bytes; let go of entries there, or change the value at home"
    )]
    NoRoom {
        /// The node.
        node: NodeId,
        /// What was needed.
        size_bytes: usize,
    },
    /// The bytes could not be copied.
    #[error("the draft could not be copied; try again, or change the value at home")]
    Copy(#[source] CopyError),
}

/// Why a draft did not become a version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteBackError<T = Vec<u8>> {
    /// Somebody else was faster.
    #[error("the draft was made from version {}, which is no longer the current one; make another", draft.version)]
    Outdated {
        /// Unchanged.
        draft: Draft<T>,
    },
    /// There is no memory for the next version.
    #[error("there is no memory at home for the draft; make room there, and write it back again")]
    Memory {
        /// Unchanged.
        draft: Draft<T>,
        /// What is missing.
        source: Box<MemoryError>,
    },
    /// The bytes could not be copied, this time.
    #[error("the draft could not be copied back; write it back again")]
    Copy {
        /// Unchanged.
        draft: Draft<T>,
        /// Why not.
        source: CopyError,
    },
    /// The device that copied them is lost and may still use the draft's memory, which was leaked.
    #[error("the draft was lost with the device that copied it back; make another")]
    Lost(#[source] CopyError),
}

impl<T> WriteBackError<T> {
    /// The draft with all changes, unless it is lost.
    pub fn into_draft(self) -> Option<Draft<T>> {
        match self {
            WriteBackError::Outdated { draft }
            | WriteBackError::Memory { draft, .. }
            | WriteBackError::Copy { draft, .. } => Some(draft),
            WriteBackError::Lost(_) => None,
        }
    }
}
