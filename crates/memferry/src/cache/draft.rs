//! Drafts: private near copies of data that changes, written back to new memory at home.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::mutable::CacheMut;
use super::{AccessError, RegionOwner};
use crate::memory::{Binding, Block, Mapping, MemoryError};
use crate::mover::{CopyError, CopyOptions};
use crate::sync::lock;
use crate::topology::{Machine, NodeId};

/// A kind of owner that can be allocated for the next version of a value.
pub trait NewOnNode: RegionOwner + AsMut<[u8]> + Sized {
    /// Allocates `size_bytes` of any content, on `node` if it is given and this kind of memory can be placed.
    ///
    /// # Errors
    /// [`MemoryError`]; nothing stays allocated.
    fn new_on_node(machine: &Machine, node: Option<NodeId>, size_bytes: usize) -> Result<Self, MemoryError>;
}

/// Bound to the node, or to any node if it is unknown. All pages are populated before the first write.
impl NewOnNode for Mapping {
    fn new_on_node(
        machine: &Machine,
        node: Option<NodeId>,
        size_bytes: usize,
    ) -> Result<Mapping, MemoryError> {
        Mapping::new(machine, size_bytes, node.map_or(Binding::Any, Binding::Bind))
    }
}

/// Not bound: pages lie on the node of the thread that first writes them, one of the mover's.
impl NewOnNode for Vec<u8> {
    fn new_on_node(_: &Machine, _: Option<NodeId>, size_bytes: usize) -> Result<Vec<u8>, MemoryError> {
        Ok(vec![0; size_bytes])
    }
}

/// A private copy of one version in near memory. Dropping it without [`write_back`](Draft::write_back) discards it.
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
    /// Copies the draft to new memory, at home if `T` can be [placed](NewOnNode), and publishes it as the next version.
    ///
    /// Returns the version. Waits for the copy, and for copies of the old version like [`CacheMut::mutate`].
    ///
    /// # Errors
    /// [`WriteBackError`], with the draft in it unless it is lost. Nothing was published.
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

/// The error of making a draft.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The cache has no budget on the node.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The node is full, and no entry can be evicted.
    #[error(
        "node {node} has no room for {size_bytes} bytes; drop entries there, or change the value with `mutate`"
    )]
    NoRoom {
        /// The node.
        node: NodeId,
        /// Size of the draft.
        size_bytes: usize,
    },
    /// The copy failed.
    #[error("the copy of the draft failed; try again, or change the value with `mutate`")]
    Copy(#[source] CopyError),
}

/// The error of writing a draft back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteBackError<T = Vec<u8>> {
    /// Another version was published meanwhile.
    #[error("the draft was made from version {}, which is no longer the current one; make another", draft.version)]
    Outdated {
        /// The unchanged draft.
        draft: Draft<T>,
    },
    /// Memory for the next version is not available.
    #[error("no memory at home for the draft; free some there, and write it back again")]
    Memory {
        /// The unchanged draft.
        draft: Draft<T>,
        /// The error of the allocation.
        source: Box<MemoryError>,
    },
    /// The copy failed.
    #[error("the copy of the draft to its home failed; write it back again")]
    Copy {
        /// The unchanged draft.
        draft: Draft<T>,
        /// The error of the copy.
        source: CopyError,
    },
    /// The device of the copy is lost and may still use the draft's memory, which was leaked.
    #[error("the draft was lost with the device that copied it back; make another draft")]
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
