//! The devices as a client sees them: the server's board, and the order that all clients write.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{Board, CPUS_MAX, DEVICES_MAX, DeviceBoard, DeviceOrder, MAGIC, Order, VERSION};
use super::memory::{Mapping, Writers};
use super::{QueueAt, options};
use crate::arc_ref::ArcRef;
use crate::config::{DeviceCosts, FaultPlan};
use crate::monotonic::monotonic_ns;

/// The memory of devices that processes share; cheap to clone.
#[derive(Clone)]
pub struct Devices {
    board: Arc<Mapping<Board>>,
    order: Arc<Mapping<Order>>,
}

impl Devices {
    pub(super) fn new(board: Mapping<Board>, order: Mapping<Order>) -> Devices {
        Devices { board: Arc::new(board), order: Arc::new(order) }
    }

    /// Maps the files from a server.
    ///
    /// # Errors
    /// Errors of `mmap(2)`; `InvalidData`: a server of another version.
    pub(super) fn open(board: &File, order: &File) -> io::Result<Devices> {
        let devices =
            Devices::new(Mapping::open(board, Writers::Creator)?, Mapping::open(order, Writers::All)?);
        let header = &devices.board().header;
        let is_ours = header.magic.load(Ordering::Relaxed) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION;
        if is_ours { Ok(devices) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Whether call sites are patched after their first trap.
    pub fn patches(&self) -> bool {
        self.board().header.keeps_traps.load(Ordering::Relaxed) == 0
    }

    /// Whether descriptors are traced.
    pub fn traces(&self) -> bool {
        self.board().header.traces.load(Ordering::Relaxed) != 0
    }

    /// The CPUs of engines; empty if unknown. They do not depend on the CPU affinity of the program, which does not
    /// restrict a device.
    pub fn cpus(&self) -> Vec<u32> {
        let words = &self.board().header.cpus;
        let is_in = |cpu: &u32| words[*cpu as usize / 64].load(Ordering::Relaxed) >> (cpu % 64) & 1 == 1;
        (0..CPUS_MAX as u32).filter(is_in).collect()
    }

    /// The queue of a file, by `st_dev` and `st_ino`.
    pub fn queue_of(&self, file_device: u64, inode: u64) -> Option<QueueAt> {
        (0..DEVICES_MAX).find_map(|device| {
            let mut numbered = self.device(device).portals.iter().enumerate();
            let (queue, _) = numbered.find(|(_, portal)| {
                // ORDERING: Acquire pairs with the Release of `inode` in `set_portal`: `device` is set.
                inode != 0
                    && portal.inode.load(Ordering::Acquire) == inode
                    && portal.device.load(Ordering::Relaxed) == file_device
            })?;
            Some(QueueAt { device, queue })
        })
    }

    pub(super) fn fault_plan(&self) -> FaultPlan {
        options::fault_plan_of(std::array::from_fn(|index| {
            self.board().header.fault_plan[index].load(Ordering::Relaxed)
        }))
    }

    pub(super) fn timing(&self) -> Option<DeviceCosts> {
        let words = std::array::from_fn(|index| self.board().header.timing[index].load(Ordering::Relaxed));
        (words != [0; 9]).then(|| options::timing_of(words))
    }

    pub(super) fn order_words(&self) -> &[AtomicU64] {
        self.order.words()
    }

    #[inline]
    pub(super) fn board(&self) -> &Board {
        self.board.get()
    }

    #[inline]
    pub(super) fn order(&self) -> &Order {
        self.order.get()
    }

    #[inline]
    pub(super) fn device(&self, device: usize) -> &DeviceBoard {
        &self.board().devices[device]
    }

    #[inline]
    pub(super) fn device_order(&self, device: usize) -> &DeviceOrder {
        &self.order().devices[device]
    }

    /// A reference to a part of the board.
    pub(super) fn hold_board<T: Send + Sync + 'static>(&self, part: impl FnOnce(&Board) -> &T) -> ArcRef<T> {
        ArcRef::part_of(Arc::clone(&self.board), |mapping| part(mapping.get()))
    }

    /// A reference to a part of the order.
    pub(super) fn hold_order<T: Send + Sync + 'static>(&self, part: impl FnOnce(&Order) -> &T) -> ArcRef<T> {
        ArcRef::part_of(Arc::clone(&self.order), |mapping| part(mapping.get()))
    }

    /// Whether a device was ever configured.
    pub(super) fn was_configured(&self, device: usize) -> bool {
        // ORDERING: Acquire pairs with the Release of `generation` in `reconfigure`: the first configuration is
        // visible.
        self.device(device).generation.load(Ordering::Acquire) != 0
    }

    /// Whether a client with this number has joined and not left.
    pub(super) fn is_live(&self, client: usize) -> bool {
        // ORDERING: Acquire pairs with the Releases of `live` in `admit` and `reap_client`: a client that has left
        // executes nothing any more.
        self.board().live.get(client).is_some_and(|live| live.load(Ordering::Acquire) == 1)
    }

    /// The time at which the clocks started.
    pub(super) fn epoch_ns(&self) -> u64 {
        self.board().header.epoch_ns.load(Ordering::Relaxed)
    }

    /// The time on the clock of stamps and of devices with a timing.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.epoch_ns())
    }

    /// The queue's name in Linux.
    pub(super) fn queue_name(&self, device: usize, queue: usize) -> String {
        format!("wq{}.{queue}", self.device_number(device))
    }

    /// The device's number in Linux.
    pub(super) fn device_number(&self, device: usize) -> u32 {
        self.device(device).number.load(Ordering::Relaxed)
    }
}
