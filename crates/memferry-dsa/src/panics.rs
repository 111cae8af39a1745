//! Containment of panics in callbacks, on threads that other threads depend on.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a callback; returns `None` if it panics. The panic hook reports the panic.
///
/// The destructor of the panic's payload may panic as well, and would unwind from the place that contains panics. That
/// second panic is caught, too, and its payload leaked, since its destructor could be a third one.
///
/// ```
/// assert_eq!(memferry_dsa::internals::panics::contain(|| 7), Some(7));
/// ```
pub fn contain<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(second);
            }
            None
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn panicking_payloads_are_contained() {
        assert_eq!(contain(|| 7), Some(7));
        for depth in 0..3 {
            assert_eq!(contain(|| panic_any(Bomb(depth))), None::<()>, "{depth}");
        }
    }
}
