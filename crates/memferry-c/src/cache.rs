//! The cache, in the form of the thesis: access by address and size, policies and memory of the caller.
//!
//! Addresses become regions: explicit ones (`mf_cache_register`), otherwise one for each accessed (address, size), which
//! `Invalidate`, `Flush` and `Clear` end. Unlike in the thesis, overlapping ranges are invalidated together, and budgets
//! bound the memory.
//!
//! Source: A. C. Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", TU Dresden 2024,
//! chapter 4.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry::cache::{Access, Cache, Entry, Location, Region, RegionOwner, Request, View, Why};
use memferry::memory::{Pool, PoolMemory};
use memferry::mover::{Consumer, Mover};
use memferry::topology::NodeId;

use crate::error::{Error, mf_status};
use crate::handles::{Object, insert, remove, reserve};
use crate::machine::{MF_NO_NODE, check_out, mf_node, put};
use crate::mover::mf_mover;
use crate::operation::{MF_BLOCK_ON_FAULT, MF_INTO_CACHE, mf_route_value, route};
use crate::thread::{Call, call, in_policy};

/// A cache. 0 is none. Free it with `mf_cache_free`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_cache {
    /// The handle.
    pub id: u64,
}

/// Registered bytes. 0 is none. Free it with `mf_region_free`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_region {
    /// The handle.
    pub id: u64,
}

/// A held range of a cache: `CacheData` in the thesis. 0 is none. Free it with `mf_entry_free`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_entry {
    /// The handle.
    pub id: u64,
}

/// The arguments of a policy. Unknown nodes are `MF_NO_NODE`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_policy_request {
    /// The node of the source.
    pub source_node: mf_node,
    /// The node whose CPUs will read.
    pub requester: mf_node,
    /// Size of the range.
    pub size: usize,
}

/// Returns the node of a copy, which must have a budget, or `MF_NO_NODE` for no copy. Called on the accessing thread, also
/// on hits. It must neither call the library nor throw.
pub type mf_placement_policy =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, request: *const mf_policy_request) -> mf_node>;

/// Returns the engines of a copy, a value of `mf_route`. Called like a placement policy, though not on all hits.
pub type mf_copy_policy = Option<
    unsafe extern "C-unwind" fn(context: *mut c_void, request: *const mf_policy_request) -> mf_route_value,
>;

/// Allocates memory on a node, or returns NULL. It must neither call the library nor throw.
pub type mf_allocate =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, node: mf_node, size: usize) -> *mut c_void>;

/// Frees memory of `mf_allocate`, on any thread. It must neither call the library nor throw.
pub type mf_deallocate =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, memory: *mut c_void, size: usize)>;

/// Memory for near copies on a node.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_budget {
    /// The node.
    pub node: mf_node,
    /// Bytes, at least a page.
    pub bytes: usize,
}

/// Flag of an access: return an entry that is there, and start nothing. Otherwise the entry is `{0}`.
pub const MF_ACCESS_WEAK: u32 = 64;
/// Flag of a cache or an entry: `mf_entry_wait_on_completion` looks once and returns `MF_PENDING`.
pub const MF_WAIT_WEAK: u32 = 128;
/// Flag of an access: `requester` is given.
pub const MF_REQUESTER: u32 = 256;
/// Flag of an access: `near_node` is given, in place of the placement policy.
pub const MF_NEAR_NODE: u32 = 512;

/// Flag of a cache without a placement policy: copy to the nearest node with a budget that serves the reader faster than
/// the source. If source and requester are unknown, nothing is copied.
pub const MF_NEAREST_FASTER: u32 = 1024;

const CACHE_FLAGS: u32 = MF_BLOCK_ON_FAULT | MF_INTO_CACHE | MF_WAIT_WEAK;
const ACCESS_FLAGS: u32 = CACHE_FLAGS | MF_ACCESS_WEAK | MF_REQUESTER | MF_NEAR_NODE;

/// Options of a cache. At least one budget.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_cache_options {
    /// The nodes of near copies.
    pub budgets: *const mf_budget,
    /// Number of budgets.
    pub budgets_count: usize,
    /// Flags that accesses and entries inherit: `MF_BLOCK_ON_FAULT`, `MF_INTO_CACHE`, `MF_WAIT_WEAK`. And
    /// `MF_NEAREST_FASTER`.
    pub flags: u32,
    /// The placement policy; NULL for the lowest node with a budget, or `MF_NEAREST_FASTER`. Hits are fastest with NULL and
    /// without that flag.
    pub placement: mf_placement_policy,
    /// The copy policy; NULL for the route of the mover.
    pub copy_policy: mf_copy_policy,
    /// The memory of near copies; NULL for the library's own. Both or none. Called once for each budget.
    pub allocate: mf_allocate,
    /// The counterpart of `allocate`, called after the last use of the memory.
    pub deallocate: mf_deallocate,
    /// Passed to all callbacks. Valid until `mf_cache_free` and, with `deallocate`, its last call.
    pub context: *mut c_void,
}

/// Options of an access. All zero: those of the cache.
#[derive(Copy, Clone, Debug, Default)]
#[repr(C)]
pub struct mf_access {
    /// Flags, such as `MF_ACCESS_WEAK`, in addition to those of the cache.
    pub flags: u32,
    /// The node whose CPUs will read, with `MF_REQUESTER`.
    pub requester: mf_node,
    /// The node of the copy, with `MF_NEAR_NODE`.
    pub near_node: mf_node,
    /// A value of `mf_route`, in place of the copy policy.
    pub route: mf_route_value,
}

/// Where bytes are, and why.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum mf_place {
    /// In the near copy.
    MF_NEAR = 0,
    /// At the source, until the copy in flight is ready.
    MF_SOURCE_IN_FLIGHT = 1,
    /// At the source: the copy failed.
    MF_SOURCE_FAILED = 2,
    /// At the source: the budget is in use.
    MF_SOURCE_NO_ROOM = 3,
    /// At the source: the placement policy named no node.
    MF_SOURCE_NOT_PLACED = 4,
    /// At the source: the range has no bytes.
    MF_SOURCE_EMPTY = 5,
}

/// The location of an entry's bytes.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_location {
    /// The bytes. Readable until the entry is freed.
    pub data: *const c_void,
    /// Their number.
    pub size: usize,
    /// Where they are.
    pub place: mf_place,
    /// The node of a near copy, else `MF_NO_NODE`.
    pub node: mf_node,
}

/// Counters of a cache.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_cache_stats {
    /// Accesses.
    pub accesses: u64,
    /// Accesses that found a ready copy.
    pub hits_ready: u64,
    /// Accesses that found a copy in flight.
    pub hits_in_flight: u64,
    /// Accesses that started a copy.
    pub misses: u64,
    /// Accesses that found no room.
    pub no_room: u64,
    /// Evicted entries.
    pub evictions: u64,
    /// Failed copies.
    pub failed: u64,
    /// Bytes in use, of all budgets.
    pub used_bytes: u64,
}

/// Bytes that belong to the caller.
struct Foreign {
    start: *const u8,
    size: usize,
}

// SAFETY: the bytes do not belong to a thread.
unsafe impl Send for Foreign {}
// SAFETY: as above; they are only read.
unsafe impl Sync for Foreign {}
// SAFETY: the callers of `mf_cache_register` and `mf_cache_access` keep the bytes readable and unchanged while entries and
// copies in flight read them, which `mf_region_free` and `mf_cache_invalidate` wait for.
unsafe impl RegionOwner for Foreign {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts(self.start, self.size) }
    }
}

/// A cache with its regions by address.
struct CCache {
    cache: Cache,
    flags: u32,
    copy_policy: Option<Policy<mf_copy_policy>>,
    /// Not held while anything waits or a callback runs.
    regions: Mutex<Regions>,
    /// Number of registered regions, which refer to this. Changed by calls that protect the cache.
    registered_count: AtomicUsize,
}

/// Ranges of addresses with their regions.
#[derive(Default)]
struct Regions {
    /// By first address; they do not overlap.
    registered: BTreeMap<usize, Arc<Region>>,
    /// By first address and size. Calls in progress share the region. A region that a copy may read is listed, so that
    /// calls which wait for its copies find it: see [`CCache::retire`].
    implicit: BTreeMap<(usize, usize), Arc<Region>>,
}

/// A callback and its context.
struct Policy<F>(F, *mut c_void);

// SAFETY: the caller passes a function and a context for any accessing thread.
unsafe impl<F: Send> Send for Policy<F> {}
// SAFETY: as above.
unsafe impl<F: Sync> Sync for Policy<F> {}

/// The caller's memory.
struct Memory {
    allocate: unsafe extern "C-unwind" fn(*mut c_void, mf_node, usize) -> *mut c_void,
    deallocate: unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, usize),
    context: *mut c_void,
}

// SAFETY: as for `Policy`.
unsafe impl Send for Memory {}
// SAFETY: as for `Policy`.
unsafe impl Sync for Memory {}
// SAFETY: `mf_cache_init` requires functions with the contract of malloc and free.
unsafe impl PoolMemory for Memory {
    fn allocate(&self, node: NodeId, size_bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the function and context of the caller.
        NonNull::new(in_policy(|| unsafe { (self.allocate)(self.context, node.0, size_bytes) }).cast())
    }

    unsafe fn free(&self, start: NonNull<u8>, size_bytes: usize) {
        // SAFETY: as above, for memory of `allocate` that nobody uses any more.
        in_policy(|| unsafe { (self.deallocate)(self.context, start.as_ptr().cast(), size_bytes) });
    }
}

impl Object for CCache {
    const KIND: u64 = 5;
    const NAME: &'static str = "cache";
}

/// A registered region.
pub(crate) struct CRegion {
    region: Region,
    /// Its first address.
    start: usize,
    /// Lives as long as this: `registered_count` counts it.
    cache: &'static CCache,
    cache_handle: u64,
}

impl CRegion {
    /// Borrows bytes of a chunk that is near. `None`: [`view`](CRegion::view) decides.
    #[inline(always)]
    pub(crate) fn hit(&self, cache: mf_cache, range: Range<usize>) -> Option<View<'_>> {
        if cache.id != self.cache_handle {
            return None;
        }
        self.cache.cache.hit(&self.region, range)
    }

    /// Borrows bytes.
    pub(crate) fn view(
        &self,
        cache: mf_cache,
        range: Range<usize>,
        options: &mf_access,
    ) -> Result<View<'_>, Error> {
        if cache.id != self.cache_handle {
            return Err(not_of_this_cache(cache));
        }
        if options.flags & (MF_ACCESS_WEAK | MF_WAIT_WEAK) != 0 {
            return Err(Error::argument("a view is neither weak nor waited for; use mf_cache_access"));
        }
        let access = self.cache.access(options, &self.region, range.len())?;
        Ok(self.cache.cache.view(&self.region, range, access)?)
    }
}

#[cold]
fn not_of_this_cache(cache: mf_cache) -> Error {
    let text =
        format!("{:#x} is not the cache of the region; pass the one that it was registered with", cache.id);
    Error::new(mf_status::MF_INVALID_HANDLE, text)
}

impl Object for CRegion {
    const KIND: u64 = 6;
    const NAME: &'static str = "region";
}

/// An entry with its flags.
struct CEntry {
    entry: Entry,
    is_wait_weak: bool,
}

impl Object for CEntry {
    const KIND: u64 = 7;
    const NAME: &'static str = "entry";
}

impl Policy<mf_placement_policy> {
    /// The node that the caller's policy names.
    fn place(&self, request: &Request<'_>) -> Option<NodeId> {
        let Policy(Some(policy), context) = self else { return None };
        let asked = policy_request(request.source_node, request.requester, request.size_bytes);
        // SAFETY: the function and context of the caller.
        let node = in_policy(|| unsafe { policy(*context, &asked) });
        (node != MF_NO_NODE).then_some(NodeId(node))
    }
}

fn policy_request(source: Option<NodeId>, requester: Option<NodeId>, size: usize) -> mf_policy_request {
    let number = |node: Option<NodeId>| node.map_or(MF_NO_NODE, |node| node.0);
    mf_policy_request { source_node: number(source), requester: number(requester), size }
}

impl CCache {
    fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The options of an access in Rust.
    fn access(&self, options: &mf_access, region: &Region, size: usize) -> Result<Access, Error> {
        if options.flags & !ACCESS_FLAGS != 0 {
            return Err(unknown_flags(options.flags & !ACCESS_FLAGS));
        }
        let flags = self.flags | options.flags;
        let node = |flag, node| (options.flags & flag != 0).then_some(NodeId(node));
        let requester = node(MF_REQUESTER, options.requester);
        let chosen = match (&self.copy_policy, options.route) {
            (Some(Policy(Some(policy), context)), 0) => {
                let asked = policy_request(region.home(), requester, size);
                // SAFETY: the function and context of the caller.
                in_policy(|| unsafe { policy(*context, &asked) })
            }
            (_, route) => route,
        };
        let near = node(MF_NEAR_NODE, options.near_node);
        Ok(Access {
            near,
            requester,
            route: route(chosen)?,
            consumer: if flags & MF_INTO_CACHE != 0 { Consumer::CoresSoon } else { Consumer::Unknown },
            block_on_fault: flags & MF_BLOCK_ON_FAULT != 0,
        })
    }

    /// The region that has these addresses, and the range in it. Makes one if there is none.
    fn region_at(&self, start: usize, size: usize) -> (Arc<Region>, Range<usize>) {
        let mut regions = self.regions();
        if let Some((first, region)) = regions.registered.range(..=start).next_back()
            && start - first + size <= region.len()
        {
            return (region.clone(), start - first..start - first + size);
        }
        let region = regions.implicit.entry((start, size)).or_insert_with(|| {
            Arc::new(self.cache.register(Foreign { start: ptr::with_exposed_provenance(start), size }))
        });
        (region.clone(), 0..size)
    }

    /// Removes the entries of parts of regions, and waits for copies from them. `keys` are those of the implicit regions.
    fn remove(
        &self,
        parts: Vec<(Arc<Region>, Range<usize>)>,
        keys: Vec<(usize, usize)>,
    ) -> Result<(), Error> {
        for (region, part) in parts {
            self.cache.invalidate(&region, part)?;
            region.drain();
        }
        self.retire(keys);
        Ok(())
    }

    /// Removes those implicit regions of `keys` that no call uses, and that have no near bytes.
    ///
    /// Then no copy of them is in flight: either its bytes count as near, or a call removed the entry, and uses the region
    /// until it has waited for the copy.
    fn retire(&self, keys: Vec<(usize, usize)>) {
        let usages = self.cache.stats().nodes;
        let mut regions = self.regions();
        for key in keys {
            let Some(region) = regions.implicit.get_mut(&key).and_then(Arc::get_mut) else { continue };
            if usages
                .iter()
                .all(|usage| self.cache.near_bytes(region, usage.node).is_ok_and(|bytes| bytes == 0))
            {
                regions.implicit.remove(&key);
            }
        }
    }
}

fn unknown_flags(flags: u32) -> Error {
    Error::argument(format!("flags {flags:#x} are not known here; set unused bits to 0"))
}

/// The addresses of the caller's data.
fn addresses(data: *const c_void, size: usize) -> Result<Range<usize>, Error> {
    if data.is_null() {
        return Err(Error::argument("data is NULL; pass the address of the data"));
    }
    let start = data.expose_provenance();
    match start.checked_add(size) {
        Some(end) if size <= isize::MAX as usize => Ok(start..end),
        _ => Err(Error::argument(format!("{size} bytes from {data:p} end behind the address space"))),
    }
}

fn overlaps(one: &Range<usize>, start: usize, size: usize) -> bool {
    start < one.end && one.start < start + size
}

/// Makes a cache: `Cache::Init`. The mover makes its copies.
///
/// # Safety
/// `options` is NULL or valid with its arrays; its callbacks accept `context` on any thread; `allocate` and `deallocate`
/// behave as malloc and free; `cache` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cache_init(
    mover: mf_mover,
    options: *const mf_cache_options,
    cache: *mut mf_cache,
) -> mf_status {
    call(|call| {
        let mover = call.get::<Mover>(mover.id)?;
        check_out(cache, "cache")?;
        // SAFETY: promised by the caller.
        let options = unsafe { options.as_ref() };
        let options = options.ok_or_else(|| Error::argument("options is NULL; pass at least one budget"))?;
        const INIT_FLAGS: u32 = CACHE_FLAGS | MF_NEAREST_FASTER;
        if options.flags & !INIT_FLAGS != 0 {
            return Err(unknown_flags(options.flags & !INIT_FLAGS));
        }
        if options.budgets.is_null() && options.budgets_count > 0 {
            return Err(Error::argument("budgets is NULL; pass an array"));
        }
        let memory: Option<Arc<dyn PoolMemory>> = match (options.allocate, options.deallocate) {
            (Some(allocate), Some(deallocate)) => {
                Some(Arc::new(Memory { allocate, deallocate, context: options.context }))
            }
            (None, None) => None,
            _ => return Err(Error::argument("one of allocate and deallocate is NULL; pass both or none")),
        };
        let mut builder = Cache::builder(mover.clone());
        for index in 0..options.budgets_count {
            // SAFETY: promised by the caller.
            let mf_budget { node, bytes } = unsafe { *options.budgets.add(index) };
            builder = match &memory {
                None => builder.budget(NodeId(node), bytes),
                Some(memory) => {
                    let machine = mover.machine().clone();
                    builder.pool(Pool::with_memory(machine, NodeId(node), bytes, memory.clone())?)
                }
            };
        }
        builder = match (options.placement, options.flags & MF_NEAREST_FASTER != 0) {
            (None, false) => builder,
            (None, true) => builder.placement(|machine, request| request.nearest_faster(machine)),
            (Some(_), false) => {
                let policy = Policy(options.placement, options.context);
                builder.placement(move |_, request| policy.place(request))
            }
            (Some(_), true) => {
                return Err(Error::argument(
                    "MF_NEAREST_FASTER is a placement policy; set placement to NULL",
                ));
            }
        };
        let built = builder.build()?;
        let made = CCache {
            cache: built,
            flags: options.flags,
            copy_policy: options.copy_policy.map(|policy| Policy(Some(policy), options.context)),
            regions: Mutex::default(),
            registered_count: AtomicUsize::new(0),
        };
        let id = insert(made)?;
        // SAFETY: promised by the caller.
        unsafe { put(cache, "cache", mf_cache { id }) }
    })
}

/// Frees a cache. Waits for its copies, after which it no longer reads memory of the caller.
///
/// Held entries stay readable. `MF_BUSY` while it has registered regions or another thread uses it. Not in a completion
/// callback.
#[unsafe(no_mangle)]
pub extern "C" fn mf_cache_free(cache: mf_cache) -> mf_status {
    call(|call| {
        call.may_block()?;
        // The last access to `cache` comes after the copies.
        let CCache { cache: _cache, regions, .. } = *remove::<CCache>(cache.id, |cache| {
            // ORDERING: Relaxed: calls that changed it have cleared their pins, which `remove` saw with Acquire.
            (cache.registered_count.load(Ordering::Relaxed) > 0).then(has_regions)
        })?;
        let regions = regions.into_inner().unwrap_or_else(PoisonError::into_inner);
        regions.implicit.values().for_each(|region| region.drain());
        Ok(())
    })
}

#[cold]
fn has_regions() -> Error {
    Error::new(mf_status::MF_BUSY, "the cache has registered regions; free them with mf_region_free first")
}

/// Registers `size` bytes, mostly accessed in chunks of `chunk_size` (0: as a whole). Hits on chunks take no lock.
///
/// `node` is the node of the bytes, or `MF_NO_NODE`. The bytes stay readable and unchanged until `mf_region_free`, except
/// between `mf_cache_invalidate` and the next access. Registered ranges do not overlap.
///
/// # Safety
/// `data` is NULL or valid for reads of `size` bytes as described, `region` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cache_register(
    cache: mf_cache,
    data: *const c_void,
    size: usize,
    chunk_size: usize,
    node: mf_node,
    region: *mut mf_region,
) -> mf_status {
    call(|call| {
        let cache_handle = cache.id;
        let cache = call.get::<CCache>(cache_handle)?;
        check_out(region, "region")?;
        let handle = reserve()?;
        let range = addresses(data, size)?;
        let home = (node != MF_NO_NODE).then_some(NodeId(node));
        if let Some(home) = home {
            cache.cache.machine().node(home)?;
        }
        let mut regions = cache.regions();
        let before = regions.registered.range(..range.end).next_back();
        if let Some((&start, other)) = before
            && (overlaps(&range, start, other.len()) || start == range.start)
        {
            let text = format!(
                "a region of {} bytes at {start:#x} overlaps; free it first, or register both as one",
                other.len()
            );
            return Err(Error::argument(text));
        }
        let made = cache.cache.register_chunked(Foreign { start: data.cast(), size }, home, chunk_size);
        regions.registered.insert(range.start, Arc::new(made.clone()));
        cache.registered_count.fetch_add(1, Ordering::Relaxed);
        drop(regions);
        // SAFETY: the cache is not freed while `registered_count` counts the region.
        let cache = unsafe { &*ptr::from_ref(cache) };
        let id = handle.fill(CRegion { region: made, start: range.start, cache, cache_handle });
        // SAFETY: promised by the caller.
        unsafe { put(region, "region", mf_region { id }) }
    })
}

/// Ends a region. Waits for its copies, after which the library no longer reads its bytes.
///
/// Near copies in held entries stay readable; entries that read from the source do not. `MF_BUSY` while a thread has a view
/// of it. Not in a completion callback.
#[unsafe(no_mangle)]
pub extern "C" fn mf_region_free(region: mf_region) -> mf_status {
    call(|call| {
        call.may_block()?;
        let CRegion { region, start, cache_handle, .. } = *remove::<CRegion>(region.id, |_| None)?;
        // Until here the count has kept the cache; from here on this call does.
        let cache = call.get::<CCache>(cache_handle)?;
        cache.regions().registered.remove(&start);
        cache.registered_count.fetch_sub(1, Ordering::Relaxed);
        region.drain();
        Ok(())
    })
}

/// Returns the bytes at `data` in the fastest memory that has them, and starts a copy if there is none: `Cache::Access`.
///
/// Never waits for a copy. A range of a registered region is looked up there. For other addresses, the pair of address and
/// size is registered, until it is invalidated or the cache is flushed or cleared. NULL options are all zero. With
/// `MF_ACCESS_WEAK` and nothing there, the entry is `{0}`.
///
/// # Safety
/// `data` is valid for reads of `size` bytes, and unchanged, until it is invalidated or the cache is freed. `options` is
/// NULL or valid, `entry` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cache_access(
    cache: mf_cache,
    data: *const c_void,
    size: usize,
    options: *const mf_access,
    entry: *mut mf_entry,
) -> mf_status {
    call(|call| {
        let cache = call.get::<CCache>(cache.id)?;
        check_out(entry, "entry")?;
        // SAFETY: promised by the caller.
        let options = unsafe { options.as_ref() }.copied().unwrap_or_default();
        let addresses = addresses(data, size)?;
        let (region, range) = cache.region_at(addresses.start, size);
        let access = cache.access(&options, &region, size)?;
        let found = if options.flags & MF_ACCESS_WEAK != 0 {
            cache.cache.access_weak(&region, range, access)?
        } else {
            Some(cache.cache.access(&region, range, access)?)
        };
        let is_wait_weak = (cache.flags | options.flags) & MF_WAIT_WEAK != 0;
        let id = found.map_or(Ok(0), |entry| insert(CEntry { entry, is_wait_weak }))?;
        // SAFETY: promised by the caller.
        unsafe { put(entry, "entry", mf_entry { id }) }
    })
}

/// Removes all entries that overlap the range, and waits for copies from it: `Cache::Invalidate`. Not in a completion
/// callback.
///
/// To change bytes: free the entries that read from the source, invalidate, change. Held near copies keep the old bytes.
///
/// # Safety
/// None: the bytes are not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cache_invalidate(cache: mf_cache, data: *const c_void, size: usize) -> mf_status {
    call(|call| {
        call.may_block()?;
        let cache = call.get::<CCache>(cache.id)?;
        let range = addresses(data, size)?;
        let regions = cache.regions();
        let is_hit = |start: usize, region: &Region| overlaps(&range, start, region.len());
        let mut changed = Vec::new();
        let mut keys = Vec::new();
        for (&start, region) in regions.registered.range(..range.end) {
            if is_hit(start, region) {
                let from = range.start.saturating_sub(start);
                let part = from..(range.end - start).min(region.len());
                changed.push((region.clone(), part));
            }
        }
        for (&(start, size), region) in regions.implicit.range(..(range.end, 0)) {
            if is_hit(start, region) {
                changed.push((region.clone(), 0..size));
                keys.push((start, size));
            }
        }
        drop(regions);
        cache.remove(changed, keys)
    })
}

/// Removes all entries that nobody holds: `Cache::Flush`.
#[unsafe(no_mangle)]
pub extern "C" fn mf_cache_flush(cache: mf_cache) -> mf_status {
    call(|call| {
        let cache = call.get::<CCache>(cache.id)?;
        cache.cache.flush();
        let keys = cache.regions().implicit.keys().copied().collect();
        cache.retire(keys);
        Ok(())
    })
}

/// Removes all entries and waits for copies in flight: `Cache::Clear`. Held entries stay readable. Not in a completion
/// callback.
#[unsafe(no_mangle)]
pub extern "C" fn mf_cache_clear(cache: mf_cache) -> mf_status {
    call(|call| {
        call.may_block()?;
        let cache = call.get::<CCache>(cache.id)?;
        let regions = cache.regions();
        let keys = regions.implicit.keys().copied().collect();
        let all = regions.implicit.values().chain(regions.registered.values());
        let all = all.map(|region| (region.clone(), 0..region.len())).collect();
        drop(regions);
        cache.remove(all, keys)
    })
}

/// Writes the counters of a cache.
///
/// # Safety
/// `stats` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cache_get_stats(cache: mf_cache, stats: *mut mf_cache_stats) -> mf_status {
    call(|call| {
        let counted = call.get::<CCache>(cache.id)?.cache.stats();
        let counted = mf_cache_stats {
            accesses: counted.accesses,
            hits_ready: counted.hits_ready,
            hits_in_flight: counted.hits_in_flight,
            misses: counted.misses,
            no_room: counted.no_room,
            evictions: counted.evictions,
            failed: counted.failed,
            used_bytes: counted.nodes.iter().map(|usage| usage.used_bytes as u64).sum(),
        };
        // SAFETY: promised by the caller.
        unsafe { put(stats, "stats", counted) }
    })
}

fn entry(call: &Call, entry: mf_entry) -> Result<&CEntry, Error> {
    call.get::<CEntry>(entry.id)
}

/// Waits until the copy is ready or has failed: `CacheData::WaitOnCompletion`. Where the bytes are then says
/// `mf_entry_get_data_location`; they are readable without waiting, too.
///
/// With `MF_WAIT_WEAK`, in the options of the cache or of the access, it returns `MF_PENDING` instead of waiting. Not in a
/// completion callback, unless weak.
#[unsafe(no_mangle)]
pub extern "C" fn mf_entry_wait_on_completion(entry: mf_entry) -> mf_status {
    let mut is_pending = false;
    let status = call(|call| {
        let entry = self::entry(call, entry)?;
        if entry.is_wait_weak {
            is_pending = entry.entry.try_wait().is_none();
        } else {
            call.may_block()?;
            entry.entry.wait();
        }
        Ok(())
    });
    if is_pending { mf_status::MF_PENDING } else { status }
}

/// Writes where the bytes are now: `CacheData::GetDataLocation`. They are always readable.
///
/// # Safety
/// `location` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_entry_get_data_location(
    entry: mf_entry,
    location: *mut mf_location,
) -> mf_status {
    call(|call| {
        let entry = &self::entry(call, entry)?.entry;
        // The place first: afterwards the bytes can only become nearer.
        let (place, bytes) = (entry.location(), entry.as_slice());
        // SAFETY: promised by the caller.
        unsafe { put(location, "location", mf_location::of(place, bytes)) }
    })
}

impl mf_location {
    pub(crate) fn of(location: Location, bytes: &[u8]) -> mf_location {
        let (place, node) = match location {
            Location::Near(node) => (mf_place::MF_NEAR, node.0),
            Location::Source(why) => (mf_place::of(why), MF_NO_NODE),
        };
        mf_location { data: bytes.as_ptr().cast(), size: bytes.len(), place, node }
    }
}

impl mf_place {
    fn of(why: Why) -> mf_place {
        match why {
            Why::InFlight => mf_place::MF_SOURCE_IN_FLIGHT,
            Why::NoRoom => mf_place::MF_SOURCE_NO_ROOM,
            Why::NotPlaced => mf_place::MF_SOURCE_NOT_PLACED,
            Why::Empty => mf_place::MF_SOURCE_EMPTY,
            _ => mf_place::MF_SOURCE_FAILED,
        }
    }
}

/// Makes another handle of an entry: the copy constructor of `CacheData`.
///
/// # Safety
/// `copy` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_entry_clone(entry: mf_entry, copy: *mut mf_entry) -> mf_status {
    call(|call| {
        check_out(copy, "copy")?;
        let CEntry { entry, is_wait_weak } = self::entry(call, entry)?;
        let id = insert(CEntry { entry: entry.clone(), is_wait_weak: *is_wait_weak })?;
        // SAFETY: promised by the caller.
        unsafe { put(copy, "copy", mf_entry { id }) }
    })
}

/// Frees an entry. Its bytes must no longer be read through it. A copy in flight goes on.
#[unsafe(no_mangle)]
pub extern "C" fn mf_entry_free(entry: mf_entry) -> mf_status {
    call(|_| remove::<CEntry>(entry.id, |_| None).map(drop))
}
