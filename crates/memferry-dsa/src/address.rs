//! Addresses as the device sees them.

use std::fmt;

/// Bytes in a page of the device's address translation.
pub const PAGE_BYTES: u64 = 4096;

/// A virtual address as the device sees it.
///
/// Made from a pointer it exposes the pointer's provenance, so that the emulator can turn it back into one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on, modulo 2^64: descriptors are arbitrary bytes, so their sums may wrap.
    pub fn offset(self, bytes: u64) -> Address {
        Address(self.0.wrapping_add(bytes))
    }

    /// The first address of the page that this one lies in.
    pub fn page(self) -> Address {
        Address(self.0 & !(PAGE_BYTES - 1))
    }

    /// Whether the address is a multiple of `bytes`, a power of two.
    pub fn is_aligned_to(self, bytes: u64) -> bool {
        self.0 & (bytes - 1) == 0
    }
}

impl From<u64> for Address {
    fn from(address: u64) -> Address {
        Address(address)
    }
}

impl<T> From<*const T> for Address {
    fn from(pointer: *const T) -> Address {
        Address(pointer.expose_provenance() as u64)
    }
}

impl<T> From<*mut T> for Address {
    fn from(pointer: *mut T) -> Address {
        Address(pointer.expose_provenance() as u64)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
