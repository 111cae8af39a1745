//! Signals that end a guest: Ctrl-C, a closed terminal, `kill`.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signal that arrived first; 0 for none.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

/// Notes signals instead of ending the process, as long as it lives.
pub(crate) struct Signals {
    before: Vec<(i32, libc::sigaction)>,
}

impl Signals {
    /// Handles the signals that the process does not ignore.
    pub(crate) fn note() -> io::Result<Signals> {
        ARRIVED.store(0, Ordering::Relaxed);
        let mut signals = Signals { before: Vec::new() };
        for signal in SIGNALS {
            // SAFETY: both are live plain structs, for which zeros are valid. The handler makes one atomic store, which is
            // async-signal-safe, and lives as long as the program.
            let (code, before) = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
                action.sa_flags = libc::SA_RESTART;
                (libc::sigaction(signal, &action, &mut before), before)
            };
            if code != 0 {
                return Err(io::Error::last_os_error());
            }
            signals.before.push((signal, before));
            if before.sa_sigaction == libc::SIG_IGN {
                // As under nohup.
                signals.restore(signal, &before);
            }
        }
        Ok(signals)
    }

    /// The signal that arrived.
    pub(crate) fn arrived(&self) -> Option<i32> {
        Some(ARRIVED.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
    }

    fn restore(&self, signal: i32, before: &libc::sigaction) {
        // SAFETY: `before` is live, and the kernel's own value for this signal.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            self.restore(*signal, before);
        }
    }
}

extern "C" fn on_signal(signal: i32) {
    // No order with other memory is needed: the number is all that the other thread reads. The first signal stays.
    let _ = ARRIVED.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: signals belong to the process, not to a thread.
    #[test]
    fn the_first_signal_is_noted_and_handlers_are_restored() {
        let raise = |signal| {
            // SAFETY: no memory is involved; the signal is handled or ignored.
            unsafe { libc::raise(signal) }
        };
        // SAFETY: as above.
        let before = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        let signals = Signals::note().unwrap();
        raise(libc::SIGHUP);
        assert_eq!(signals.arrived(), None);
        raise(libc::SIGTERM);
        raise(libc::SIGINT);
        assert_eq!(signals.arrived(), Some(libc::SIGTERM));
        drop(signals);
        // SAFETY: as above; the second call restores what the first returned.
        let restored = unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
        assert_eq!(restored, libc::SIG_DFL);
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGHUP, before) };
    }
}
