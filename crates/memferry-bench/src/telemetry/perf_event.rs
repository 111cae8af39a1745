//! The system call perf_event_open(2).
//!
//! Source: Linux `include/uapi/linux/perf_event.h`; perf_event_open(2).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use super::kernel::{Counter, Reading};
use super::pmu::Encoding;

/// `struct perf_event_attr` up to `config2`.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    kind: u32,
    size_bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    /// `disabled`, `inherit`, the `exclude_*` and others, a bit each.
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
}

/// `PERF_ATTR_SIZE_VER1`, the first size with `config2`.
const ATTRIBUTES_BYTES: usize = 72;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_BYTES);

/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`.
const READ_FORMAT: u64 = 1 | 2;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// An open counter.
#[derive(Debug)]
pub(super) struct PerfCounter(File);

impl PerfCounter {
    /// Opens a counter of a CPU, which counts at once and whatever runs: PMUs of devices cannot exclude anything.
    pub(super) fn open(event: &Encoding, cpu: u32) -> io::Result<PerfCounter> {
        let cpu = libc::c_int::try_from(cpu).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let [config, config1, config2] = event.config;
        let mut attributes = Attributes {
            kind: event.kind,
            size_bytes: ATTRIBUTES_BYTES as u32,
            config,
            config1,
            config2,
            read_format: READ_FORMAT,
            ..Attributes::default()
        };
        let all_processes: libc::pid_t = -1;
        let no_group: libc::c_int = -1;
        // SAFETY: `attributes` is a `perf_event_attr` of the size that it names and outlives the call. The kernel reads it, and
        // writes the field `size` at most.
        let file = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw mut attributes,
                all_processes,
                cpu,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = RawFd::try_from(file).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        // SAFETY: the kernel has just returned this descriptor, so that it is open and nobody else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(PerfCounter(File::from(file)))
    }
}

impl Counter for PerfCounter {
    fn read(&self) -> io::Result<Reading> {
        let mut bytes = [0; 24];
        // An event in an error state reads as the end of the file.
        (&self.0).read_exact(&mut bytes)?;
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_ne_bytes(word)
        };
        Ok(Reading { value: word(0), enabled_ns: word(1), running_ns: word(2) })
    }
}

#[cfg(test)]
mod tests {
    use memferry_testing::{Needs, skip};

    use super::*;

    /// `PERF_TYPE_SOFTWARE` with `PERF_COUNT_SW_CPU_CLOCK`, which every kernel with perf has: the layout is right if its times
    /// and its count are.
    #[test]
    fn the_clock_of_a_cpu_counts_nanoseconds() {
        let clock = Encoding { kind: 1, config: [0; 3] };
        let counter = match PerfCounter::open(&clock, 0) {
            Ok(counter) => counter,
            Err(error) => return skip(Needs::Kernel("perf_event_open on a CPU"), error.to_string()),
        };
        let start = counter.read().unwrap();
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let end = counter.read().unwrap();
        let elapsed_ns = began.elapsed().as_nanos() as f64;
        let (counted_ns, share) = end.since(start).unwrap();
        assert_eq!(share, 1.0);
        assert!((19e6..2.0 * elapsed_ns).contains(&counted_ns), "{counted_ns} of {elapsed_ns}");
    }

    #[test]
    fn an_unknown_pmu_is_an_error() {
        let nothing = Encoding { kind: u32::MAX, config: [0; 3] };
        assert!(PerfCounter::open(&nothing, 0).is_err());
        let clock = Encoding { kind: 1, config: [0; 3] };
        assert!(PerfCounter::open(&clock, u32::MAX).is_err());
    }
}
