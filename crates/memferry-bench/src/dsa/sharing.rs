//! What each of several processes gets that keep a device busy at the same time, under `memferry emulate` with a timing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memferry_dsa::{CompletionRecord, Descriptor, Status};
use serde::{Deserialize, Serialize};

use super::page::{NoPage, Page};

/// What a process saw.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// From the time at which the queue took a descriptor until its record was seen, in the order of submission.
    pub latencies_ns: Vec<u64>,
    /// Submissions that the queue did not take, because it was at its threshold.
    pub retries: u64,
}

/// Runs commands that each call [`contend`], and lets them begin at the same time, when all of them are there; what each
/// got, with its process number.
///
/// # Errors
/// A command cannot be run, or prints something else. None of them is left behind.
pub fn together(commands: impl IntoIterator<Item = Command>) -> io::Result<Vec<(Load, u32)>> {
    let mut running = Vec::new();
    for mut command in commands {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running(command.spawn()?);
        let mut output = BufReader::new(process.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        if line != READY {
            return Err(io::Error::other(format!("{command:?} is not ready to share a device")));
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

/// What a process prints that waits for the others.
const READY: &str = "ready\n";

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing happens to one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of the processes that [`together`] runs: [`load`], with what both say to each other by standard input and output.
///
/// # Errors
/// [`Failed`]
///
/// # Panics
/// As [`load`].
pub fn contend(queue: &Path, count: usize, depth: usize, size_bytes: u32) -> Result<(), Failed> {
    let mut out = io::stdout();
    out.write_all(READY.as_bytes())?;
    out.flush()?;
    io::stdin().read_line(&mut String::new())?;
    let load = load(queue, count, depth, size_bytes)?;
    Ok(serde_json::to_writer(out, &load).map_err(io::Error::from)?)
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// The queue cannot be used.
    #[error(transparent)]
    Queue(#[from] NoPage),
    /// Nobody listens.
    #[error("cannot speak with who compares the processes: {0}")]
    Pipe(#[from] io::Error),
    /// The device has forgotten a descriptor, or refuses it.
    #[error("a copy of {size_bytes} bytes ended with {status:?} instead of success")]
    Copy {
        /// What should have been copied.
        size_bytes: u32,
        /// How it ended; `None`: not within a minute.
        status: Option<Status>,
    },
}

/// A copy under way.
struct Lane {
    target: Vec<u8>,
    record: CompletionRecord,
    since: Instant,
    took_ns: Option<u64>, // None while it has not ended
}

/// Copies `count` times `size_bytes` through the shared queue with the file `queue`, up to `depth` at a time.
///
/// # Errors
/// [`Failed`]
///
/// # Panics
/// If `depth` is zero.
pub fn load(queue: &Path, count: usize, depth: usize, size_bytes: u32) -> Result<Load, Failed> {
    let page = Page::map(queue)?;
    let source = vec![1u8; size_bytes as usize];
    let lane = |_| Lane {
        target: vec![2u8; size_bytes as usize],
        record: CompletionRecord::new(),
        since: Instant::now(),
        took_ns: None,
    };
    // Leaked if a copy does not end: the device may still write then.
    let lanes: &'static mut [Lane] = (0..depth).map(lane).collect::<Vec<_>>().leak();
    let source: &'static [u8] = source.leak();
    let mut load = Load { latencies_ns: Vec::with_capacity(count), retries: 0 };
    for number in 0..count + depth {
        let lane = number % depth;
        if number >= depth {
            load.latencies_ns.push(lanes[lane].wait(size_bytes)?);
        }
        if number < count {
            let Lane { target, record, took_ns, .. } = &mut lanes[lane];
            *took_ns = None;
            record.reset();
            let copy =
                Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size_bytes).with_completion(record);
            // SAFETY: nobody else uses the target, and all that the copy names is never freed.
            while !unsafe { page.enqcmd(&copy) } {
                load.retries += 1;
                // Those before may end meanwhile.
                lanes.iter_mut().try_for_each(|lane| lane.look(size_bytes).map(|_| ()))?;
                std::thread::yield_now();
            }
            lanes[lane].since = Instant::now();
        }
    }
    Ok(load)
}

impl Lane {
    /// How long its copy took, once it has ended.
    fn look(&mut self, size_bytes: u32) -> Result<Option<u64>, Failed> {
        if self.took_ns.is_none()
            && let Some(completion) = self.record.poll()
        {
            if completion.status != Status::Success {
                return Err(Failed::Copy { size_bytes, status: Some(completion.status) });
            }
            self.took_ns = Some(self.since.elapsed().as_nanos() as u64);
        }
        Ok(self.took_ns)
    }

    fn wait(&mut self, size_bytes: u32) -> Result<u64, Failed> {
        loop {
            if let Some(took_ns) = self.look(size_bytes)? {
                return Ok(took_ns);
            }
            if self.since.elapsed() > Duration::from_secs(60) {
                return Err(Failed::Copy { size_bytes, status: None });
            }
            std::thread::yield_now();
        }
    }
}
