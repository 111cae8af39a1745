//! Closed-loop load: submitters that each keep a number of submissions in flight.
//!
//! ```text
//! for each repetition:   while `depth` submissions are in flight, wait for the oldest
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
pub(super) mod queue;
mod threads;
mod work;

pub use emulated::{TOUCH_NS, emulated};
use memferry_dsa::{BackoffError, Status, SubmitError};
use memferry_dsa_emulator::ConfigError;
pub use threads::{Executor, Iterations, Lane, Placed, threads};
pub use work::{LoadOperation, prepare};

/// Maximum of submissions in flight per submitter: far more than a device has entries.
pub const DEPTH_MAX: usize = 1 << 16;

/// The work of one submitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// The operation.
    pub work: LoadOperation,
    /// Size of one descriptor's data.
    pub size_bytes: u32,
    /// Descriptors of a submission; 1 is not a batch.
    pub batch: u32,
    /// Submissions in flight, up to [`DEPTH_MAX`]; 1 waits for each.
    pub depth: usize,
    /// Submissions in all.
    pub repetitions: usize,
    /// State of the target's pages.
    pub pages: PageState,
}

/// State of pages when a device accesses them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PageState {
    /// Present.
    Touched,
    /// Absent at each submission; the device asks the operating system for them and waits.
    AbsentBlock,
    /// Absent at each submission; software touches the page at which the device stopped, and submits the rest.
    AbsentResume,
}

impl Load {
    /// # Errors
    /// [`LoadError::Load`]: the load is impossible.
    fn check(&self) -> Result<(), LoadError> {
        let counts =
            [u64::from(self.size_bytes), self.batch.into(), self.depth as u64, self.repetitions as u64];
        if counts.contains(&0) {
            return Err(LoadError::Load("sizes and counts begin at 1".to_owned()));
        }
        if self.depth > DEPTH_MAX {
            return Err(LoadError::Load(format!(
                "a submitter has at most {DEPTH_MAX} submissions in flight"
            )));
        }
        self.work.check(self.size_bytes).map_err(LoadError::Load)?;
        let is_plain = self.work == LoadOperation::Copy && self.batch == 1;
        if self.pages != PageState::Touched && !is_plain {
            return Err(LoadError::Load("absent pages are for single copies, not for batches".to_owned()));
        }
        Ok(())
    }
}

/// Times of one submitter in one run.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct SubmitterTimes {
    /// From the common start until the completion of its last submission.
    pub elapsed_ns: f64,
    /// Part in which the submitter allocated descriptors and records, if known.
    pub allocating_ns: Option<f64>,
    /// Part in which it wrote descriptors, if known.
    pub preparing_ns: Option<f64>,
    /// Part in which it submitted them, if known.
    pub submitting_ns: Option<f64>,
    /// Page faults after which software resumed the copy.
    pub faults_count: u64,
}

/// A load that cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The load is impossible.
    #[error("{0}")]
    Load(String),
    /// The configuration of the device is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device refuses descriptors.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The device has accepted no descriptors for a long time.
    #[error(transparent)]
    BackoffError(#[from] BackoffError),
    /// The device has lost a descriptor.
    #[error("the device does not complete its descriptors")]
    Silent,
    /// The device completes a correct descriptor with an error.
    #[error("a correct descriptor completed with {0}")]
    Status(Status),
}
