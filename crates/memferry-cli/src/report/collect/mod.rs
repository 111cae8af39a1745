//! `memferry report --collect FILE`: what is worth measuring on a machine, unattended, as one file for `--add` elsewhere.
//!
//! ```text
//! steps ─▶ one process of this program each ─▶ FILE.unfinished/   its output, and the state of each step
//!                                                      │ after the last step
//!                                                      ▼
//!                                               Collection ─▶ FILE ─▶ `--add` ─▶ results/
//! ```

mod add;
mod collection;
mod run;
mod steps;

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use memferry_bench::calibrate::{SamplingPlan, StorageProbe};
use memferry_dsa::system::{QueueFilter, SystemState};

use self::collection::Collection;
use self::run::{NO_TIME, Run};
use self::steps::{Gives, Needs, STEPS, Step};
use crate::error::usage;
use crate::output::{count, not_written, write_file};
use crate::topology;

pub(super) use self::add::add;

/// The other things that `report` does. They conflict with `--collect`, so that clap does not ask for it beside them.
const OTHERS: [&str; 3] = ["out", "figure", "add"];

/// Options of `--collect`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Measure this machine unattended, and write all records, its topology and its calibration to one file for --add. An
    /// interrupted run continues where it stopped.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "machine", "results", "figure"])]
    pub(super) collect: Option<PathBuf>,
    /// Minutes that --collect may take.
    #[arg(long, value_name = "N", default_value_t = 60, requires = "collect", conflicts_with_all = OTHERS, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Only these steps of --collect, such as calibrate or submit; may be repeated.
    #[arg(long = "only", value_name = "STEP", requires = "collect", conflicts_with_all = OTHERS)]
    only: Vec<String>,
    /// Also measure the storage of this directory, as calibrate does: a file of 256 MiB is written there and removed; may be
    /// repeated.
    #[arg(long, value_name = "DIR", requires = "collect", conflicts_with_all = OTHERS)]
    storage: Vec<PathBuf>,
    /// Small and short: shows that --collect works; its numbers are not accurate.
    #[arg(long, requires = "collect", conflicts_with_all = OTHERS)]
    quick: bool,
    /// Begin again, also if an interrupted --collect could continue.
    #[arg(long, requires = "collect", conflicts_with_all = OTHERS)]
    restart: bool,
}

/// Times the fair share of the remaining time that a step may take: most need less.
const SHARES_OF_A_STEP: u32 = 3;

pub(super) fn collect(options: &Options, file: &Path, out: &mut dyn Write) -> Result<()> {
    let begun = Instant::now();
    let limit = Duration::from_secs(options.minutes * 60);
    let steps = chosen(&options.only)?;
    let storage = storage(&options.storage, &steps)?;
    let directory = unfinished(file);
    if options.restart && directory.exists() {
        // An unfinished run of another process is not removed under its feet.
        let _lock = lock(&directory)?;
        fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    if !directory.exists() {
        fs::create_dir(&directory).with_context(|| not_written("collection", "--collect", file))?;
    }
    let probed = write_file(&directory.join("probe"), b"probe");
    probed.with_context(|| not_written("collection", "--collect", file))?;
    let mut run = Run::begin(&directory, lock(&directory)?, options.quick, storage)?;
    let left: Vec<&Step> = steps.into_iter().filter(|step| !run.is_done(step)).collect();
    let lacks = Lacks::here()?;
    for (position, step) in left.iter().enumerate() {
        let remaining = limit.saturating_sub(begun.elapsed());
        let share = remaining / (left.len() - position) as u32 * SHARES_OF_A_STEP;
        let why = lacks.reason(step.needs).or_else(|| remaining.is_zero().then(|| NO_TIME.to_owned()));
        match why {
            Some(why) => run.skip(step, &why)?,
            None => writeln!(out, "{}", run.run(step, share.min(remaining))?)?,
        }
        out.flush()?;
    }
    run.state.print_skipped(out)?;
    let change = run.change()?;
    let collection = Collection::of(&run, change)?;
    let text = serde_json::to_string_pretty(&collection)? + "\n";
    write_file(file, text.as_bytes()).with_context(|| not_written("collection", "--collect", file))?;
    if let Some(change) = &collection.change {
        writeln!(out, "note: {change}")?;
    }
    writeln!(
        out,
        "written to {}, with {}; look at it before you give it away: it names the host, the user's number and the \
         directories of --storage",
        file.display(),
        count(collection.records_count(), "record")
    )?;
    match run.unfinished() {
        names if names.is_empty() => {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("{} can be removed", directory.display()))?;
        }
        names => writeln!(
            out,
            "not finished: {}; the same command continues there, with more time if you set --minutes, and {} can be \
             removed otherwise",
            names.join(", "),
            directory.display()
        )?,
    }
    Ok(())
}

/// Directories that can be measured. Their paths are absolute, because the steps run in another directory.
fn storage(directories: &[PathBuf], steps: &[&Step]) -> Result<Vec<PathBuf>> {
    if !directories.is_empty() && steps.iter().all(|step| step.gives != Gives::Profile) {
        return Err(usage("--storage is for the step calibrate, which --only leaves out".to_owned()));
    }
    // One that cannot be measured would cost the whole calibration later.
    let measurable = directories.iter().map(|directory| {
        StorageProbe::new(directory, SamplingPlan::QUICK)?;
        Ok(fs::canonicalize(directory)?)
    });
    measurable.collect()
}

/// The steps with these names; all of them if there is no name.
fn chosen(names: &[String]) -> Result<Vec<&'static Step>> {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        return Err(usage(format!("there is no step {unknown}; --only takes one of {}", known.join(", "))));
    }
    Ok(STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)).collect())
}

/// The directory of a run that writes `file` in the end.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".unfinished");
    PathBuf::from(name)
}

/// Keeps other runs out of the directory until it is dropped.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("another memferry report --collect uses {}; wait for its end", directory.display())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// What the machine lacks for some of the steps, in words.
struct Lacks {
    device: Option<String>,
    nodes: Option<String>,
}

impl Lacks {
    fn here() -> Result<Lacks> {
        let state = SystemState::discover()?;
        let diagnosis = state.diagnose(&QueueFilter::default());
        let device = diagnosis.usable.is_empty().then(|| {
            let reasons: Vec<String> = diagnosis.diagnostics.iter().map(ToString::to_string).collect();
            format!("no queue of a DSA can be used: {}", reasons.join("; "))
        });
        let memories = topology::open(None)?
            .nodes()
            .iter()
            .filter(|node| node.memory_bytes.is_some_and(|bytes| bytes > 0))
            .count();
        let nodes = (memories < 2).then(|| "the machine has one node with memory".to_owned());
        Ok(Lacks { device, nodes })
    }

    fn reason(&self, needs: Needs) -> Option<String> {
        match needs {
            Needs::Nothing => None,
            Needs::Device => self.device.clone(),
            Needs::Nodes => self.nodes.clone(),
        }
    }
}
