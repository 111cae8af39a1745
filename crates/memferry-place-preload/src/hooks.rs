//! The replaced functions. Each calls the next function of its name, and looks at large calls only.
//!
//! The kernel's heap of malloc is not seen by a replaced mmap: glibc maps memory by a function of its own. So malloc and
//! its relatives are replaced as well. A large allocation is placed after malloc has returned it, when only its first page
//! has been touched (by malloc, for the size).

use std::ffi::c_void;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{c_int, off_t, size_t};

use crate::files::{self, Mapped};
use crate::next::Next;
use crate::policy::{self, Kind, LIMIT, Range};
use crate::{ranges, sys};

type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, ...) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
type Malloc = unsafe extern "C" fn(size_t) -> *mut c_void;
type Calloc = unsafe extern "C" fn(size_t, size_t) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Aligned = unsafe extern "C" fn(size_t, size_t) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, size_t, size_t) -> c_int;
type UsableSize = unsafe extern "C" fn(*mut c_void) -> size_t;

static MMAP: Next = Next::new(c"mmap");
static MREMAP: Next = Next::new(c"mremap");
static MUNMAP: Next = Next::new(c"munmap");
static MALLOC: Next = Next::new(c"malloc");
static CALLOC: Next = Next::new(c"calloc");
static REALLOC: Next = Next::new(c"realloc");
static FREE: Next = Next::new(c"free");
static ALIGNED_ALLOC: Next = Next::new(c"aligned_alloc");
static MEMALIGN: Next = Next::new(c"memalign");
static POSIX_MEMALIGN: Next = Next::new(c"posix_memalign");
static MALLOC_USABLE_SIZE: Next = Next::new(c"malloc_usable_size");

unsafe extern "C" {
    // glibc's own allocator, for calls of the dynamic linker while it looks for the next one.
    fn __libc_malloc(bytes: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, bytes: size_t) -> *mut c_void;
    fn __libc_realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void;
    fn __libc_free(memory: *mut c_void);
    fn __libc_memalign(alignment: size_t, bytes: size_t) -> *mut c_void;
}

/// Looks up the next functions, before threads can look them up at the same time.
pub(crate) fn prepare() {
    for next in [&MALLOC, &CALLOC, &REALLOC, &FREE, &ALIGNED_ALLOC, &MEMALIGN, &POSIX_MEMALIGN] {
        let _ = next.address();
    }
    for next in [&MMAP, &MREMAP, &MUNMAP, &MALLOC_USABLE_SIZE] {
        let _ = next.address();
    }
}

#[inline]
fn is_large(bytes: usize) -> bool {
    bytes >= LIMIT.load(Ordering::Relaxed)
}

/// Places a new allocation and records it. errno stays.
#[cold]
fn allocated(memory: *mut c_void, bytes: usize, moves: bool) {
    if memory.is_null() {
        return;
    }
    let start = memory as usize;
    if policy::place(Kind::Heap, start, bytes, Range { moves, ..Range::default() })
        && ranges::may_be_start(start)
    {
        ranges::add(start, bytes);
    }
}

/// # Safety
/// As malloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn malloc(bytes: size_t) -> *mut c_void {
    // SAFETY: the symbol has this type; the rest is passed on.
    let memory = unsafe {
        match MALLOC.address() {
            Some(next) => transmute::<usize, Malloc>(next)(bytes),
            None => __libc_malloc(bytes),
        }
    };
    if is_large(bytes) {
        allocated(memory, bytes, false);
    }
    memory
}

/// # Safety
/// As calloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: the symbol has this type; the rest is passed on.
    let memory = unsafe {
        match CALLOC.address() {
            Some(next) => transmute::<usize, Calloc>(next)(count, bytes),
            None => __libc_calloc(count, bytes),
        }
    };
    // The product of an overflow has no memory.
    let all = count.saturating_mul(bytes);
    if is_large(all) {
        allocated(memory, all, false);
    }
    memory
}

/// # Safety
/// As realloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn realloc(memory: *mut c_void, bytes: size_t) -> *mut c_void {
    // SAFETY: the symbol has this type; the rest is passed on.
    let next = |memory, bytes| unsafe {
        match REALLOC.address() {
            Some(next) => transmute::<usize, Realloc>(next)(memory, bytes),
            None => __libc_realloc(memory, bytes),
        }
    };
    let placed = if memory.is_null() { None } else { take(memory as usize) };
    if placed.is_none() && !is_large(bytes) {
        return next(memory, bytes);
    }
    // glibc moves a mapping or copies, and the pages of a copy come before their policy: near this thread, which is wrong for
    // interleaved ones alone.
    if is_large(bytes)
        && !memory.is_null()
        && policy::interleaves_heap()
        && let Some(usable) = MALLOC_USABLE_SIZE.address()
    {
        // SAFETY: the caller's memory is of the next allocator, which also has this function.
        let old = unsafe { transmute::<usize, UsableSize>(usable)(memory) };
        // SAFETY: any size is allowed.
        let copy = unsafe { malloc(bytes) };
        if copy.is_null() {
            placed.into_iter().for_each(|bytes| ranges::add(memory as usize, bytes));
            return copy;
        }
        // SAFETY: two allocations of at least these sizes; the old one is the caller's to give.
        unsafe {
            ptr::copy_nonoverlapping(memory.cast::<u8>(), copy.cast::<u8>(), old.min(bytes));
            free(memory);
        }
        return copy;
    }
    // The kernel moves one mapping only, and the first page of an allocation has no policy: glibc would copy.
    if let Some(old) = placed {
        policy::join(memory as usize, old);
    }
    let moved = next(memory, bytes);
    match placed {
        // Failed: the old memory stays.
        Some(old) if moved.is_null() && bytes > 0 => allocated(memory, old, false),
        _ if is_large(bytes) => allocated(moved, bytes, false),
        _ => {}
    }
    moved
}

/// # Safety
/// As free(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn free(memory: *mut c_void) {
    if ranges::may_be_start(memory as usize)
        && let Some(bytes) = take(memory as usize)
    {
        ranges::sample(memory as usize, bytes);
    }
    // SAFETY: the symbol has this type; the rest is passed on.
    unsafe {
        match FREE.address() {
            Some(next) => transmute::<usize, Free>(next)(memory),
            None => __libc_free(memory),
        }
    }
}

/// Forgets a recorded range, if the library is set up.
fn take(start: usize) -> Option<usize> {
    let is_on = LIMIT.load(Ordering::Relaxed) != usize::MAX;
    if is_on && start != 0 && ranges::may_be_start(start) { ranges::take(start) } else { None }
}

/// # Safety
/// As aligned_alloc(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn aligned_alloc(alignment: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { aligned(&ALIGNED_ALLOC, alignment, bytes) }
}

/// # Safety
/// As memalign(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn memalign(alignment: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { aligned(&MEMALIGN, alignment, bytes) }
}

/// # Safety
/// As memalign(3).
unsafe fn aligned(next: &Next, alignment: size_t, bytes: size_t) -> *mut c_void {
    // SAFETY: the symbol has this type; the rest is passed on.
    let memory = unsafe {
        match next.address() {
            Some(next) => transmute::<usize, Aligned>(next)(alignment, bytes),
            None => __libc_memalign(alignment, bytes),
        }
    };
    if is_large(bytes) {
        allocated(memory, bytes, false);
    }
    memory
}

/// # Safety
/// As posix_memalign(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn posix_memalign(
    place: *mut *mut c_void,
    alignment: size_t,
    bytes: size_t,
) -> c_int {
    let Some(next) = POSIX_MEMALIGN.address() else {
        // SAFETY: the caller's alignment is a power of two.
        let memory = unsafe { __libc_memalign(alignment, bytes) };
        if memory.is_null() {
            return libc::ENOMEM;
        }
        // SAFETY: the caller's place for an address.
        unsafe { place.write(memory) };
        return 0;
    };
    // SAFETY: the symbol has this type; the rest is passed on.
    let answer = unsafe { transmute::<usize, PosixMemalign>(next)(place, alignment, bytes) };
    if answer == 0 && is_large(bytes) {
        // SAFETY: after a success it has the address.
        allocated(unsafe { place.read() }, bytes, false);
    }
    answer
}

/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's contract is that of mmap(2); without MAP_POPULATE it allows the same.
    let next = |flags| unsafe {
        match MMAP.address() {
            Some(next) => transmute::<usize, Mmap>(next)(address, bytes, protection, flags, file, offset),
            None => {
                let answer = sys::mmap(address as usize, bytes, protection, flags, file, offset as usize);
                sys::to_libc(answer) as *mut c_void
            }
        }
    };
    if flags & libc::MAP_ANONYMOUS == 0 {
        let mapped = next(flags);
        if mapped != libc::MAP_FAILED {
            // Devices are looked for in small mappings, too.
            files::place(Mapped { start: mapped as usize, bytes, protection, flags, file, offset });
        }
        return mapped;
    }
    // The stack of a thread is its own.
    if !is_large(bytes) || flags & (libc::MAP_STACK | libc::MAP_GROWSDOWN) != 0 {
        return next(flags);
    }
    // Pages that come with the mapping would come before their policy.
    let mapped = next(flags & !libc::MAP_POPULATE);
    if mapped == libc::MAP_FAILED {
        return mapped;
    }
    let start = mapped as usize;
    let is_locked = flags & libc::MAP_LOCKED != 0;
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let range = Range {
        is_hugetlb: flags & libc::MAP_HUGETLB != 0,
        moves: is_locked,
        is_fresh: is_private
            && !is_locked
            && protection & libc::PROT_WRITE != 0
            && flags & libc::MAP_HUGETLB == 0,
    };
    if policy::place(Kind::Anonymous, start, bytes, range) {
        ranges::add(start, bytes);
    }
    if flags & libc::MAP_POPULATE != 0 {
        let advice = match protection {
            it if it & libc::PROT_WRITE != 0 => Some(libc::MADV_POPULATE_WRITE),
            it if it & libc::PROT_READ != 0 => Some(libc::MADV_POPULATE_READ),
            _ => None,
        };
        // mmap(2) does not report a failure to populate either.
        // SAFETY: populating changes no content.
        let _ = advice.map(|advice| unsafe { sys::advise(start, bytes, advice) });
    }
    mapped
}

/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the two functions are the same on x86-64.
    unsafe { mmap(address, bytes, protection, flags, file, offset) }
}

/// # Safety
/// As munmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    if is_large(bytes)
        && let Some(placed) = take(address as usize)
    {
        ranges::sample(address as usize, placed.min(bytes));
    }
    // SAFETY: the symbol has this type; the rest is passed on.
    unsafe {
        match MUNMAP.address() {
            Some(next) => transmute::<usize, Munmap>(next)(address, bytes),
            None => sys::to_libc(sys::call(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0])) as c_int,
        }
    }
}

/// # Safety
/// As mremap(2). The caller passes the last argument only with MREMAP_FIXED; it is not used otherwise.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mremap(
    address: *mut c_void,
    bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let next = || {
        // SAFETY: the symbol has this type; the rest is passed on.
        unsafe {
            match MREMAP.address() {
                Some(next) => transmute::<usize, Mremap>(next)(address, bytes, new_bytes, flags, target),
                None => {
                    let arguments = [address as usize, bytes, new_bytes, flags as usize, target as usize, 0];
                    sys::to_libc(sys::call(libc::SYS_mremap, arguments)) as *mut c_void
                }
            }
        }
    };
    let placed = take(address as usize);
    let mut moved = next();
    let mut was_joined = false;
    // SAFETY: errno is this thread's.
    if moved == libc::MAP_FAILED && placed.is_some() && unsafe { *libc::__errno_location() } == libc::EFAULT {
        // Several mappings: the stripes.
        was_joined = policy::join(address as usize, bytes);
        moved = next();
    }
    let is_moved = moved != libc::MAP_FAILED;
    let (now, now_bytes) = if is_moved { (moved, new_bytes) } else { (address, bytes) };
    let mut is_placed = placed.is_some();
    if was_joined || is_moved && placed.is_none() && is_large(new_bytes) {
        let range = Range { moves: true, ..Range::default() };
        is_placed = policy::place(Kind::Anonymous, now as usize, now_bytes, range);
    }
    if is_placed && is_large(now_bytes) {
        ranges::add(now as usize, now_bytes);
    }
    moved
}
