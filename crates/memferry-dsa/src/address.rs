//! Virtual addresses in descriptors and completion records.

use std::fmt;

/// Bytes in a page of the device's address translation.
pub const PAGE_BYTES: u64 = 4096;

/// A virtual address in a descriptor or completion record.
///
/// The conversion from a pointer exposes its provenance, so that the emulator can convert the address back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// The address plus `bytes`, modulo 2^64: descriptors are arbitrary bytes, so sums may wrap.
    #[inline]
    pub fn offset(self, bytes: u64) -> Address {
        Address(self.0.wrapping_add(bytes))
    }

    /// The first address of the page.
    #[inline]
    pub fn page(self) -> Address {
        Address(self.0 & !(PAGE_BYTES - 1))
    }

    /// Whether the address is a multiple of `bytes`, a power of two.
    #[inline]
    pub fn is_aligned_to(self, bytes: u64) -> bool {
        self.0 & (bytes - 1) == 0
    }
}

impl From<u64> for Address {
    #[inline]
    fn from(address: u64) -> Address {
        Address(address)
    }
}

impl<T> From<*const T> for Address {
    #[inline]
    fn from(pointer: *const T) -> Address {
        Address(pointer.expose_provenance() as u64)
    }
}

impl<T> From<*mut T> for Address {
    #[inline]
    fn from(pointer: *mut T) -> Address {
        Address(pointer.expose_provenance() as u64)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
