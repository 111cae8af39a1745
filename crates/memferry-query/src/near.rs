//! Columns of a row group, from the near copy if it is ready and from home if not.
//!
//! A column is some Arrow buffers (values, offsets, validity, string data). Each is a region of the cache; a near array
//! is the home array in which ready copies replace buffers. Copies are bytewise equal, so offsets and string views stay
//! valid whichever buffers are replaced.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use memferry::cache::{Access, Cache, Entry, Region, RegionOwner};
use memferry::mover::Route;
use memferry::topology::NodeId;

use crate::buffers::{rebuild, visit};
use crate::tiers::{Pin, Pins};

/// Buffers smaller than this stay at home: copying a page costs more than reading it there.
const NEAR_BYTES_MIN: usize = 4096;

/// An Arrow buffer as owner of a region.
struct HomeBuffer(Buffer);

// SAFETY: an Arrow buffer's bytes do not move while a clone of it lives, and Arrow never writes a buffer that is shared
// or foreign. The region holds this clone and lends it to no other code, so the bytes are stable and never written.
unsafe impl RegionOwner for HomeBuffer {
    fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// The regions of a column's buffers in the order of [`visit`]; `None` for those that stay at home.
#[derive(Debug)]
pub(crate) struct ColumnRegions {
    regions: Vec<Option<Region>>,
    size_bytes: u64,
}

impl ColumnRegions {
    pub(crate) fn register(cache: &Cache, home: NodeId, array: &ArrayRef) -> Self {
        let mut regions = vec![];
        let mut size_bytes = 0;
        visit(&array.to_data(), &mut |buffer| {
            let worth_it = buffer.len() >= NEAR_BYTES_MIN;
            size_bytes += if worth_it { buffer.len() as u64 } else { 0 };
            regions.push(worth_it.then(|| cache.register_on(HomeBuffer(buffer.clone()), Some(home))));
        });
        Self { regions, size_bytes }
    }

    /// Size of a near copy of the column.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes of these that are ready or in flight on `near`. The lookup does not count as an access.
    pub(crate) fn near_bytes(&self, cache: &Cache, near: NodeId) -> u64 {
        let regions = self.regions.iter().flatten();
        // A node without a budget has no copies.
        regions.map(|region| cache.near_bytes(region, near).unwrap_or(0) as u64).sum()
    }
}

/// A column of one row group while a scan uses it.
#[derive(Debug)]
pub(crate) struct NearColumn {
    home: ArrayRef,
    /// One for each buffer, as in [`ColumnRegions`].
    entries: Vec<Option<Entry>>,
    size_bytes: u64,
    /// The last result of [`read`](Self::read).
    current: ArrayRef,
    current_near_bytes: u64,
    /// The last result of [`read_leaving`](Self::read_leaving).
    leaving: ArrayRef,
    leaving_near_bytes: u64,
}

impl NearColumn {
    /// The home array, without a copy and without an access to the cache.
    pub(crate) fn at_home(home: &ArrayRef) -> Self {
        Self::new(home, vec![], 0)
    }

    /// Starts missing copies, by `route` or by the mover's choice.
    pub(crate) fn prefetch(
        cache: &Cache,
        near: NodeId,
        route: Option<Route>,
        regions: &ColumnRegions,
        home: &ArrayRef,
    ) -> Self {
        let access = Access { route, ..Access::near(near) };
        Self::with(regions, home, |region| cache.access(region, 0..region.len(), access).ok())
    }

    /// Uses existing copies and starts none.
    pub(crate) fn peek(cache: &Cache, near: NodeId, regions: &ColumnRegions, home: &ArrayRef) -> Self {
        Self::with(regions, home, |region| {
            cache.access_weak(region, 0..region.len(), Access::near(near)).ok().flatten()
        })
    }

    fn with(regions: &ColumnRegions, home: &ArrayRef, access: impl Fn(&Region) -> Option<Entry>) -> Self {
        let entries = regions.regions.iter().map(|region| region.as_ref().and_then(&access)).collect();
        Self::new(home, entries, regions.size_bytes)
    }

    fn new(home: &ArrayRef, entries: Vec<Option<Entry>>, size_bytes: u64) -> Self {
        Self {
            home: Arc::clone(home),
            entries,
            size_bytes,
            current: Arc::clone(home),
            current_near_bytes: 0,
            leaving: Arc::clone(home),
            leaving_near_bytes: 0,
        }
    }

    /// Bytes that can be near.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Entries held, for the report of their engines.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// Waits until all copies are ready or `deadline` has passed.
    pub(crate) async fn wait(&self, deadline: tokio::time::Instant) {
        for entry in self.entries() {
            if tokio::time::timeout_at(deadline, entry.ready()).await.is_err() {
                return;
            }
        }
    }

    /// The column at home.
    pub(crate) fn home(&self) -> &ArrayRef {
        &self.home
    }

    /// Whether filtered rows still refer to its buffers: strings behind views, dictionaries.
    pub(crate) fn outlives_filter(&self) -> bool {
        keeps_buffers(self.home.data_type())
    }

    /// The column from the copies that are ready now, and the number of its near bytes.
    pub(crate) fn read(&mut self) -> (ArrayRef, u64) {
        if self.current_near_bytes < self.size_bytes {
            let arrived = self.arrived();
            if arrived.bytes > self.current_near_bytes {
                self.current = self.assemble(&arrived, None);
                self.current_near_bytes = arrived.bytes;
            }
        }
        (Arc::clone(&self.current), self.current_near_bytes)
    }

    /// As [`read`](Self::read) for a consumer that keeps referring to the column: near while `pins` allow it, home beyond.
    pub(crate) fn read_leaving(&mut self, pins: &Arc<Pins>) -> (ArrayRef, u64) {
        if self.leaving_near_bytes < self.size_bytes {
            let arrived = self.arrived();
            if arrived.bytes > self.leaving_near_bytes
                && let Some(pin) = pins.try_pin(arrived.bytes)
            {
                self.leaving = self.assemble(&arrived, Some(Arc::new(pin)));
                self.leaving_near_bytes = arrived.bytes;
            }
        }
        (Arc::clone(&self.leaving), self.leaving_near_bytes)
    }

    /// The ready copies at this moment.
    fn arrived(&self) -> Arrived {
        let entries: Vec<Option<Entry>> =
            self.entries.iter().map(|entry| entry.clone().filter(Entry::is_ready)).collect();
        let bytes = entries.iter().flatten().map(|entry| entry.len() as u64).sum();
        Arrived { entries, bytes }
    }

    fn assemble(&self, arrived: &Arrived, pin: Option<Arc<Pin>>) -> ArrayRef {
        let mut entries = arrived.entries.iter();
        make_array(rebuild(&self.home.to_data(), &mut |home| match entries.next() {
            Some(Some(entry)) => near_buffer(entry.clone(), pin.clone()),
            _ => home.clone(),
        }))
    }
}

/// Ready copies at one moment, one place per buffer.
struct Arrived {
    entries: Vec<Option<Entry>>,
    bytes: u64,
}

fn keeps_buffers(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView | DataType::Dictionary(..) => true,
        DataType::Struct(fields) => fields.iter().any(|field| keeps_buffers(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => keeps_buffers(field.data_type()),
        _ => false,
    }
}

/// Holds a near copy as long as Arrow refers to it.
struct NearBytes {
    _entry: Entry,
    _pin: Option<Arc<Pin>>,
}

// Arrow requires this of owners of foreign memory. The owner is only dropped.
impl std::panic::RefUnwindSafe for NearBytes {}

fn near_buffer(entry: Entry, pin: Option<Arc<Pin>>) -> Buffer {
    let bytes = entry.as_slice();
    let (address, len) = (NonNull::from(bytes).cast::<u8>(), bytes.len());
    // SAFETY: the entry is ready, which is final: its bytes stay where they are and are not written while a clone of the
    // entry lives, and the buffer owns one. `len` bytes from `address` are that slice.
    unsafe { Buffer::from_custom_allocation(address, len, Arc::new(NearBytes { _entry: entry, _pin: pin })) }
}

/// How long a scan may wait for late columns.
pub(crate) fn deadline(wait_max: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + wait_max
}
