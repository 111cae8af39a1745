//! The end of a process by a signal, after it has undone its changes of the machine.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// Ctrl-C, `kill`, a closed terminal.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The exit status of a process that a signal ended, as shells report it, is this more than the signal.
const STATUS_SIGNALLED: i32 = 128;

type Undo = Box<dyn FnOnce() + Send>;

/// Ends the process on a signal that would end it anyway, and undoes its changes first.
pub(super) struct Ending {
    undo: Arc<Mutex<Vec<Undo>>>,
}

impl Ending {
    /// Receives signals on a thread of its own, but for those that the process ignores, as under nohup. Threads that were started
    /// before still get them, so this comes first.
    pub(super) fn install() -> Result<Ending> {
        let failed = "cannot receive the signals that end this command";
        let ignored = ignored(&fs::read_to_string("/proc/self/status").context(failed)?);
        let signals: SigSet = SIGNALS.into_iter().filter(|signal| !ignored.contains(*signal)).collect();
        signals.thread_block().context(failed)?;
        let ending = Ending { undo: Arc::default() };
        let undo = Arc::clone(&ending.undo);
        let receive = move || {
            if let Ok(signal) = signals.wait() {
                let undo = std::mem::take(&mut *undo.lock().unwrap_or_else(PoisonError::into_inner));
                undo.into_iter().for_each(|undo| undo());
                std::process::exit(STATUS_SIGNALLED + signal as i32);
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(receive).context(failed)?;
        Ok(ending)
    }

    /// Undoes a change when a signal arrives.
    pub(super) fn undo(&self, undo: impl FnOnce() + Send + 'static) {
        self.undo.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(undo));
    }
}

/// The signals that a process ignores, from its file `status` in `/proc`.
fn ignored(status: &str) -> SigSet {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    SIGNALS.into_iter().filter(|&signal| mask >> (signal as i32 - 1) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits() {
        let ignored = ignored("Name:\tsleep\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n");
        assert_eq!(SIGNALS.map(|signal| ignored.contains(signal)), [false, false, true]);
    }
}
