//! Options of a server for all processes. They are on the board, except for paths.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::layout::Header;
use crate::config::{DeviceCosts, FaultPlan};

/// Options of an emulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The injected misbehaviour of the devices.
    pub fault_plan: FaultPlan,
    /// The modelled durations; `None`: as fast as this machine executes.
    pub timing: Option<DeviceCosts>,
    /// Whether call sites are patched after their first trap.
    pub patches: bool,
    /// The file to which the server appends the trace of descriptors.
    pub trace: Option<PathBuf>,
}

impl Default for Options {
    /// No misbehaviour, no timing, no trace.
    fn default() -> Options {
        Options { fault_plan: FaultPlan::none(), timing: None, patches: true, trace: None }
    }
}

impl Options {
    /// Opens the trace, if there is one. The server does so once, before it has clients: later, another user could have
    /// replaced the file.
    ///
    /// # Errors
    /// Errors of `open(2)`; `ENXIO`: the file is a pipe without a reader.
    pub(super) fn open_trace(&self) -> io::Result<Option<File>> {
        let Some(path) = &self.trace else { return Ok(None) };
        // A pipe without a reader is an error here; without the flag, `open` would wait for a reader.
        let flags = libc::O_NONBLOCK;
        let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)?;
        // Without O_NONBLOCK, writes wait for a slow reader. SAFETY: fcntl takes numbers here.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Some(file))
    }

    pub(super) fn write(&self, header: &Header) {
        header.keeps_traps.store((!self.patches).into(), Ordering::Relaxed);
        header.traces.store(self.trace.is_some().into(), Ordering::Relaxed);
        let fault_plan = header.fault_plan.iter().zip(fault_plan_words(&self.fault_plan));
        fault_plan.for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        let timing = header.timing.iter().zip(self.timing.as_ref().map_or([0; 9], timing_words));
        timing.for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }
}

/// A type of a field that the board has as a word.
trait Word: Into<u64> {
    fn from_word(word: u64) -> Self;
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Word for $type {
            fn from_word(word: u64) -> $type {
                word as $type
            }
        })*
    };
}

numbers!(u16, u32, u64);

impl Word for bool {
    fn from_word(word: u64) -> bool {
        word != 0
    }
}

/// Converts a struct to words and back. It lists all fields, so that a new field does not compile until it has a word.
macro_rules! as_words {
    ($type:ident, $count:literal, $to_words:ident, $from_words:ident: $($field:ident),*) => {
        fn $to_words(value: &$type) -> [u64; $count] {
            let $type { $($field),* } = *value;
            [$($field.into()),*]
        }

        pub(super) fn $from_words([$($field),*]: [u64; $count]) -> $type {
            $type { $($field: Word::from_word($field)),* }
        }
    };
}

as_words!(FaultPlan, 12, fault_plan_words, fault_plan_of:
    seed, delay_steps_max, reorder, page_faults_per_mille, retries_per_mille, backwards_per_mille,
    rounded_differences_per_mille, spread_batches_per_mille, work_ahead_per_mille, hardware_errors_per_mille,
    lost_records_per_mille, piece_bytes_max);

as_words!(DeviceCosts, 9, timing_words, timing_of:
    submit_shared_ns, submit_dedicated_ns, dispatch_ns, occupancy_ns, latency_ns, batch_fetch_ns, batch_member_ns,
    bytes_per_second, page_request_ns);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Server;

    #[test]
    fn clients_read_the_options_of_the_server() {
        let directory = tempfile::tempdir().unwrap();
        for options in [
            Options::default(),
            Options {
                fault_plan: FaultPlan::from_seed(0x1234_5678_9abc_def0),
                timing: Some(DeviceCosts::sapphire_rapids()),
                patches: false,
                trace: Some(directory.path().join("a trace\u{e4}.jsonl")),
            },
        ] {
            let state = Server::create(&options).unwrap();
            let devices = state.devices();
            assert_eq!((devices.fault_plan(), devices.timing()), (options.fault_plan, options.timing));
            assert_eq!((devices.patches(), devices.traces()), (options.patches, options.trace.is_some()));
        }
    }

    /// Opening a pipe for writing waits for a reader, and a program would wait with it.
    #[test]
    fn a_trace_to_a_pipe() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let options = Options { trace: Some(path.clone()), ..Options::default() };
        assert_eq!(options.open_trace().unwrap_err().raw_os_error(), Some(libc::ENXIO));
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let trace = options.open_trace().unwrap().unwrap();
        // SAFETY: fcntl takes numbers here.
        let flags = unsafe { libc::fcntl(trace.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & (libc::O_NONBLOCK | libc::O_APPEND), libc::O_APPEND, "a full pipe is waited for");
        drop(reader);
        assert!(Options::default().open_trace().unwrap().is_none());
    }
}
