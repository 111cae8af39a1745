//! The shares of processes that keep a device busy at the same time, under `memferry emulate` with a timing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memferry_dsa::{CompletionRecord, Descriptor, Status};
use serde::{Deserialize, Serialize};

use super::page::{Page, PageError};

/// Latencies of one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessLoad {
    /// Times from acceptance of a descriptor until its completion was seen, in the order of submission.
    pub latencies_ns: Vec<u64>,
    /// Submissions that the queue did not accept, because it was at its threshold.
    pub retries: u64,
}

/// Runs commands that each call [`contend`], and starts their copies at the same time. Returns the latencies of each with
/// its process id.
///
/// # Errors
/// A command cannot be run, or prints something else. All processes are ended.
pub fn together(commands: impl IntoIterator<Item = Command>) -> io::Result<Vec<(ProcessLoad, u32)>> {
    let mut running = Vec::new();
    for mut command in commands {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running(command.spawn()?);
        let mut output = BufReader::new(process.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        if line != READY {
            return Err(io::Error::other(format!(
                "{command:?} did not report that it is ready to share a device"
            )));
        }
        running.push((process, output));
    }
    for (process, _) in &mut running {
        process.0.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?.write_all(b"\n")?;
    }
    let load = |(process, mut output): (Running, BufReader<_>)| {
        let mut text = String::new();
        output.read_to_string(&mut text)?;
        Ok((serde_json::from_str(&text)?, process.0.id()))
    };
    running.into_iter().map(load).collect()
}

/// Output of a process that is ready to start.
const READY: &str = "ready\n";

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // No effect on a process that has exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The work of a process that [`together`] runs: [`load`], synchronised by standard input and output.
///
/// # Errors
/// [`SharingError`]
///
/// # Panics
/// As [`load`].
pub fn contend(queue: &Path, count: usize, depth: usize, size_bytes: u32) -> Result<(), SharingError> {
    let mut out = io::stdout();
    out.write_all(READY.as_bytes())?;
    out.flush()?;
    io::stdin().read_line(&mut String::new())?;
    let load = load(queue, count, depth, size_bytes)?;
    Ok(serde_json::to_writer(out, &load).map_err(io::Error::from)?)
}

/// A shared device that cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharingError {
    /// The queue cannot be used.
    #[error(transparent)]
    Queue(#[from] PageError),
    /// The comparing process is gone.
    #[error("cannot connect to the comparing process: {0}")]
    Pipe(#[from] io::Error),
    /// The device has lost a descriptor, or completed it with an error.
    #[error("a copy of {size_bytes} bytes completed with {status:?} instead of success")]
    Copy {
        /// Size of the copy.
        size_bytes: u32,
        /// Status of the completion; `None`: no completion within a minute.
        status: Option<Status>,
    },
}

/// A slot for one copy in flight.
struct Lane {
    target: Vec<u8>,
    record: CompletionRecord,
    since: Instant,
    latency_ns: Option<u64>, // None while in flight
}

/// Copies `count` times `size_bytes` through the shared queue with the file `queue`, up to `depth` at a time.
///
/// # Errors
/// [`SharingError`]
///
/// # Panics
/// If `depth` is zero.
pub fn load(queue: &Path, count: usize, depth: usize, size_bytes: u32) -> Result<ProcessLoad, SharingError> {
    let page = Page::map(queue)?;
    let source = vec![1u8; size_bytes as usize];
    let lane = |_| Lane {
        target: vec![2u8; size_bytes as usize],
        record: CompletionRecord::new(),
        since: Instant::now(),
        latency_ns: None,
    };
    // Leaked for the case that a copy does not complete: the device may still write then.
    let lanes: &'static mut [Lane] = (0..depth).map(lane).collect::<Vec<_>>().leak();
    let source: &'static [u8] = source.leak();
    let mut load = ProcessLoad { latencies_ns: Vec::with_capacity(count), retries: 0 };
    for number in 0..count + depth {
        let lane = number % depth;
        if number >= depth {
            load.latencies_ns.push(lanes[lane].wait(size_bytes)?);
        }
        if number < count {
            let Lane { target, record, latency_ns, .. } = &mut lanes[lane];
            *latency_ns = None;
            record.reset();
            let copy =
                Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size_bytes).with_completion(record);
            // SAFETY: no other code uses the target, and all memory that the copy names is never freed.
            while !unsafe { page.enqcmd(&copy) } {
                load.retries += 1;
                // Earlier copies may complete meanwhile.
                lanes.iter_mut().try_for_each(|lane| lane.poll(size_bytes).map(|_| ()))?;
                std::thread::yield_now();
            }
            lanes[lane].since = Instant::now();
        }
    }
    Ok(load)
}

impl Lane {
    /// The latency of its copy, once it has completed.
    fn poll(&mut self, size_bytes: u32) -> Result<Option<u64>, SharingError> {
        if self.latency_ns.is_none()
            && let Some(completion) = self.record.poll()
        {
            if completion.status != Status::Success {
                return Err(SharingError::Copy { size_bytes, status: Some(completion.status) });
            }
            self.latency_ns = Some(self.since.elapsed().as_nanos() as u64);
        }
        Ok(self.latency_ns)
    }

    fn wait(&mut self, size_bytes: u32) -> Result<u64, SharingError> {
        loop {
            if let Some(latency_ns) = self.poll(size_bytes)? {
                return Ok(latency_ns);
            }
            if self.since.elapsed() > Duration::from_secs(60) {
                return Err(SharingError::Copy { size_bytes, status: None });
            }
            std::thread::yield_now();
        }
    }
}
