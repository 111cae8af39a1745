//! Closed-loop load: submitters that keep so many submissions of so many descriptors under way.
//!
//! ```text
//! for each repetition:   as long as `depth` submissions are under way, wait for the oldest
//!                        submit a descriptor, or a batch of them
//! ```
//!
//! The same [`Load`] runs on an emulated device in virtual time (`emulated`) and, in threads, on queues of a machine
//! or on the submitting core itself (`threads`).
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024), section 4.1; Fürst, "Data Movement in Heterogeneous Memories with Intel Data
//! Streaming Accelerator" (2024), section 3.1.

mod emulated;
#[allow(unsafe_code)]
mod queue;
mod threads;
mod work;

pub use emulated::{TOUCH_NS, emulated};
use memferry_dsa::Status;
use memferry_dsa::portal::{BackoffError, SubmitError};
use memferry_dsa_emulator::ConfigError;
pub use threads::{Iterations, Lane, Placed, Way, threads};
pub use work::{Work, prepare};

/// Most submissions that one submitter has under way: far more than a device has entries.
pub const DEPTH_MAX: usize = 1 << 16;

/// What one submitter does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// The operation.
    pub work: Work,
    /// Size of one descriptor's data.
    pub size_bytes: u32,
    /// Descriptors of a submission; 1 is not a batch.
    pub batch: u32,
    /// Submissions under way, up to [`DEPTH_MAX`]; 1 waits for each.
    pub depth: usize,
    /// Submissions in all.
    pub repetitions: usize,
    /// What the pages of the target are like.
    pub pages: Pages,
}

/// What pages are like when a device comes to them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pages {
    /// There.
    Touched,
    /// Absent at each submission; the device asks the operating system for them and waits.
    AbsentBlock,
    /// Absent at each submission; software touches the page at which the device stopped, and submits the rest.
    AbsentResume,
}

impl Load {
    /// Bytes of one submission.
    pub fn submission_bytes(&self) -> u64 {
        u64::from(self.size_bytes) * u64::from(self.batch)
    }

    /// # Errors
    /// [`Failed::Load`]: a load that nobody can run.
    fn check(&self) -> Result<(), Failed> {
        let counts =
            [u64::from(self.size_bytes), self.batch.into(), self.depth as u64, self.repetitions as u64];
        if counts.contains(&0) {
            return Err(Failed::Load("sizes and counts begin at 1".to_owned()));
        }
        if self.depth > DEPTH_MAX {
            return Err(Failed::Load(format!("a submitter has {DEPTH_MAX} submissions under way at most")));
        }
        self.work.check(self.size_bytes).map_err(Failed::Load)?;
        let is_plain = self.work == Work::Copy && self.batch == 1;
        if self.pages != Pages::Touched && !is_plain {
            return Err(Failed::Load("absent pages are for copies that are no batches".to_owned()));
        }
        Ok(())
    }
}

/// What one submitter saw of one run.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Seen {
    /// From the common start until its last submission was complete.
    pub elapsed_ns: f64,
    /// What of it the submitter was busy making room for descriptors and records, where that is known.
    pub allocating_ns: Option<f64>,
    /// Writing descriptors.
    pub preparing_ns: Option<f64>,
    /// Submitting them.
    pub submitting_ns: Option<f64>,
    /// Page faults after which software has resumed.
    pub faults_count: u64,
}

/// Why a load was not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// Nobody can run it.
    #[error("{0}")]
    Load(String),
    /// No device can be like that.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device takes no descriptors.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The device takes no descriptors for a long time.
    #[error(transparent)]
    BackoffError(#[from] BackoffError),
    /// The device has forgotten a descriptor.
    #[error("the device does not complete what it was given")]
    Silent,
    /// The device refuses what is correct.
    #[error("a descriptor that is correct ended with {0}")]
    Status(Status),
}
