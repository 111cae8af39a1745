//! Panics of foreign code, on threads that others depend on.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code; `None` if it panics, which the panic hook has reported.
///
/// The payload of a panic is foreign as well: its destructor may panic, which would unwind from the very place that
/// contains panics. Such a second panic ends here, too, and its payload is leaked: a third one could follow.
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
    fn payloads_that_panic_end_here() {
        assert_eq!(contain(|| 7), Some(7));
        for depth in 0..3 {
            assert_eq!(contain(|| panic_any(Bomb(depth))), None::<()>, "{depth}");
        }
    }
}
