//! Replication: copies one source to several targets, two at a time where a device supports dualcast.
//!
//! Dualcast reads the source once for two targets, whose addresses must be equal modulo 4096. Targets are paired by that
//! rule; the others are copied.
//!
//! Source: DSA specification 8.3 (Dualcast).

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::internals::request::Task;
use memferry_dsa::{Opcode, Request};

use super::request::{Owned, join};
use super::{CopyError, CopyOptions, Mover, Operation, RawRequest};
use crate::memory::{Binding, Mapping, MemoryError};
use crate::moment::Moment;
use crate::topology::NodeId;

/// The request for one target, or for two.
enum Part {
    Copy(*const u8, *mut u8, usize),
    Dualcast(Box<Task>),
}

impl Mover {
    /// Copies `source` to each of `targets`, all equally long.
    ///
    /// The report counts a dualcast once. If one target fails, the operation fails, and the content of all is undefined.
    pub fn replicate<S, T>(
        &self,
        source: S,
        targets: Vec<T>,
        options: CopyOptions,
    ) -> Operation<(S, Vec<T>), ()>
    where
        S: AsRef<[u8]> + Send + 'static,
        T: AsMut<[u8]> + Send + 'static,
    {
        let into_cache = |size| self.guidelines().into_cache(options.consumer, size);
        let plan = |(source, targets): &mut (S, Vec<T>)| {
            let source = (*source).as_ref();
            let mut targets: Vec<Option<&mut [u8]>> =
                targets.iter_mut().map(|target| Some(target.as_mut())).collect();
            for target in targets.iter().flatten() {
                if target.len() != source.len() {
                    let (source_bytes, target_bytes) = (source.len(), target.len());
                    return Err(CopyError::LengthMismatch { source_bytes, target_bytes });
                }
            }
            if source.is_empty() {
                return Ok(Vec::new());
            }
            let addresses: Vec<usize> =
                targets.iter().flatten().map(|target| target.as_ptr().addr()).collect();
            let pairs =
                if self.dualcasts(source.len(), options.waits) { pairs(&addresses) } else { Vec::new() };
            let mut parts = Vec::new();
            for (one, other) in pairs {
                if let (Some(one), Some(other)) = (targets[one].take(), targets[other].take()) {
                    let request = Request::dualcast(source, one, other);
                    // SAFETY: as for the copies below.
                    let mut task = unsafe { Task::new(&request) }?;
                    task.add_hints(into_cache(source.len()), options.block_on_fault);
                    parts.push(Part::Dualcast(Box::new(task)));
                }
            }
            let copy = |target: &mut [u8]| Part::Copy(source.as_ptr(), target.as_mut_ptr(), source.len());
            parts.extend(targets.into_iter().flatten().map(copy));
            Ok(parts)
        };
        Operation::new(Owned::begin((source, targets), plan, |parts, completion| {
            let parts = match parts {
                Ok(parts) => parts,
                Err(error) => return completion.complete(Err(error)),
            };
            let callbacks =
                join(parts.len(), move |result| completion.complete(result.map(|report| ((), report))));
            let raws = parts.into_iter().zip(callbacks).map(|(part, callback)| match part {
                Part::Dualcast(task) => {
                    RawRequest::of_task(*task, move |result| callback.call(result.map(|(_, report)| report)))
                }
                Part::Copy(source, target, size_bytes) => {
                    // SAFETY: the ranges belong to values that the joined completion keeps where they are until the last
                    // part is done, and leaks if one is lost. Targets are borrowed uniquely from values of their own, and
                    // each is in one part; so only the source is in several, which is read.
                    let copy = unsafe {
                        RawRequest::with_callback(source, target, size_bytes, callback, Moment::now())
                    };
                    let copy = copy.with_block_on_fault(options.block_on_fault);
                    copy.with_cache_control(into_cache(size_bytes))
                }
            });
            let raws = raws.map(|raw| raw.with_choice(options)).collect();
            self.start_all(raws, options);
        }))
    }

    /// Copies `source` to new memory on each of `nodes`. The memory is page-aligned, so dualcast applies to all of it.
    ///
    /// # Errors
    /// Those of [`Mapping::new`]: a node does not exist, or has no room. Nothing was copied.
    pub fn replicate_to<S>(
        &self,
        source: S,
        nodes: &[NodeId],
        options: CopyOptions,
    ) -> Result<Operation<(S, Vec<Mapping>), ()>, MemoryError>
    where
        S: AsRef<[u8]> + Send + 'static,
    {
        let size_bytes = source.as_ref().len();
        let mapping = |&node: &NodeId| Mapping::new(self.machine(), size_bytes, Binding::Bind(node));
        let targets = nodes.iter().map(mapping).collect::<Result<Vec<_>, _>>()?;
        Ok(self.replicate(source, targets, options))
    }

    /// Whether a device would execute dualcast, of at most as many bytes as a descriptor can have; copies have no limit. On
    /// a CPU, two copies are as fast, and can be split.
    fn dualcasts(&self, size_bytes: usize, waits: bool) -> bool {
        let fits = u32::try_from(size_bytes).is_ok();
        fits && self.guidelines().offloads(size_bytes, waits) && self.scheduler.accelerates(Opcode::Dualcast)
    }
}

/// The largest set of pairs that dualcast accepts, as indices of addresses.
fn pairs(addresses: &[usize]) -> Vec<(usize, usize)> {
    let in_page = |index: &usize| addresses[*index] % PAGE_BYTES as usize;
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_by_key(in_page);
    let alike = order.chunk_by(|one, other| in_page(one) == in_page(other));
    alike.flat_map(|group| group.chunks_exact(2).map(|pair| (pair[0], pair[1]))).collect()
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn targets_are_paired_by_page_offset() {
        assert_eq!(pairs(&[]), []);
        assert_eq!(pairs(&[0x1000]), []);
        assert_eq!(pairs(&[0x1000, 0x2040, 0x3000, 0x5040, 0x7000]), [(0, 2), (1, 3)]);
        assert_eq!(pairs(&[0x1000, 0x2001]), []);
    }
}
