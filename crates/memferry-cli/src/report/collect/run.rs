//! A run of the steps in its directory: what each has done, so that a later run of the same command can continue.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::steps::{Gives, PROFILE, STEPS, Step};
use crate::bench::rfc3339;
use crate::error::one_line;
use crate::output::write_file;

/// Between two looks whether a process has ended.
const LOOK: Duration = Duration::from_millis(50);

/// File of the state.
const STATE: &str = "state.json";

pub(super) struct Run {
    /// Keeps other runs out of the directory.
    lock: File,
    pub(super) directory: PathBuf,
    pub(super) state: State,
}

/// The state of a run, as it is on the disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) version: String,
    pub(super) commit: String,
    pub(super) quick: bool,
    /// Directories that the calibration measures, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    storage: Vec<PathBuf>,
    /// UTC, as in RFC 3339.
    pub(super) started: String,
    pub(super) steps: Vec<StepState>,
}

/// What a step has done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StepState {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    /// Of its last process.
    seconds: f64,
    /// Why it is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Done,
    /// It ended with an error.
    Failed,
    /// It took longer than its share of the time.
    Stopped,
    /// It did not begin.
    Skipped,
}

impl State {
    /// Prints the steps that did not begin, by the reason.
    pub(super) fn print_skipped(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for step in self.steps.iter().filter(|step| step.outcome == Outcome::Skipped) {
            let why = step.why.as_deref().unwrap_or_default();
            match reasons.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, names)) => names.push(&step.name),
                None => reasons.push((why, vec![&step.name])),
            }
        }
        reasons.iter().try_for_each(|(why, names)| writeln!(out, "{}: skipped: {why}", names.join(", ")))
    }
}

impl fmt::Display for StepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Stopped => "stopped",
            Outcome::Skipped => "skipped",
        };
        write!(f, "{}: {outcome} after {:.0} s", self.name, self.seconds)?;
        match &self.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

impl Run {
    /// Continues the run in this directory, or begins one.
    ///
    /// # Errors
    /// The run there is of another version or has other options, or cannot be read.
    pub(super) fn begin(directory: &Path, lock: File, quick: bool, storage: Vec<PathBuf>) -> Result<Run> {
        let path = directory.join(STATE);
        let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("MEMFERRY_COMMIT"));
        let state = if path.exists() {
            let read = || anyhow::Ok(serde_json::from_slice::<State>(&fs::read(&path)?)?);
            let state = read().with_context(|| {
                format!("{} cannot be continued; begin again with --restart", directory.display())
            })?;
            if (state.version.as_str(), state.commit.as_str(), state.quick) != (version, commit, quick) {
                let of = |quick| if quick { " with --quick" } else { "" };
                bail!(
                    "{} is an unfinished run of memferry {} ({}){}, and this is {version} ({commit}){}: finish it with \
                     that one, or begin again with --restart",
                    directory.display(),
                    state.version,
                    state.commit,
                    of(state.quick),
                    of(quick),
                );
            }
            if state.storage != storage {
                bail!(
                    "{} was begun with other directories of --storage; give the same ones, or begin again with --restart",
                    directory.display()
                );
            }
            state
        } else {
            State {
                version: version.to_owned(),
                commit: commit.to_owned(),
                quick,
                storage,
                started: rfc3339(SystemTime::now()),
                steps: Vec::new(),
            }
        };
        Ok(Run { lock, directory: directory.to_owned(), state })
    }

    pub(super) fn is_done(&self, step: &Step) -> bool {
        self.state.steps.iter().any(|state| state.name == step.name && state.outcome == Outcome::Done)
    }

    /// Names of the steps that another run could finish.
    pub(super) fn unfinished(&self) -> Vec<&str> {
        let has_more = |state: &&StepState| matches!(state.outcome, Outcome::Failed | Outcome::Stopped);
        let no_time = |state: &&StepState| state.why.as_deref() == Some(NO_TIME);
        self.state
            .steps
            .iter()
            .filter(|state| has_more(state) || no_time(state))
            .map(|it| it.name.as_str())
            .collect()
    }

    /// Notes that a step does not begin, and why.
    pub(super) fn skip(&mut self, step: &Step, why: &str) -> Result<()> {
        let (name, why) = (step.name.to_owned(), Some(why.to_owned()));
        self.note(StepState { name, outcome: Outcome::Skipped, seconds: 0.0, why }).map(drop)
    }

    /// Runs a step for at most `limit`. Its failure is a state, not an error: the other steps go on.
    pub(super) fn run(&mut self, step: &Step, limit: Duration) -> Result<&StepState> {
        let begun = Instant::now();
        let [output, errors] = ["output", "errors"].map(|name| self.directory.join(name));
        let ended = self.process(step, [&output, &errors], limit);
        let ended = ended.with_context(|| format!("cannot run the step {}", step.name))?;
        let (outcome, why) = match ended {
            None => (Outcome::Stopped, Some(format!("it did not end within {:.0} s", limit.as_secs_f64()))),
            Some(status) => match self.given(step, status, &output) {
                Ok(()) => (Outcome::Done, None),
                Err(why) => (Outcome::Failed, Some(failure(&errors).unwrap_or(why))),
            },
        };
        for file in [output, errors] {
            // The state does not need them, and the directory is removed in the end.
            let _ = fs::remove_file(file);
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.note(StepState { name: step.name.to_owned(), outcome, seconds, why })
    }

    /// The status of the step's process; `None` if it was stopped.
    fn process(
        &self,
        step: &Step,
        [output, errors]: [&Path; 2],
        limit: Duration,
    ) -> Result<Option<ExitStatus>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(step.arguments(self.state.quick)).current_dir(&self.directory);
        if step.gives == Gives::Profile {
            for directory in &self.state.storage {
                command.arg("--storage").arg(directory);
            }
        }
        // The process shares the lock: if this one is killed, the directory is in use until that one has ended.
        command.stdin(self.lock.try_clone()?);
        command.stdout(File::create(output)?).stderr(File::create(errors)?);
        if step.gives == Gives::Record && self.directory.join(PROFILE).exists() {
            command.env("MEMFERRY_CALIBRATION", PROFILE);
        }
        let deadline = Instant::now() + limit;
        let mut process = command.spawn()?;
        loop {
            if let Some(status) = process.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                process.kill()?;
                process.wait()?;
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }

    /// Keeps what a process has printed, or says why nothing was given.
    fn given(&self, step: &Step, status: ExitStatus, output: &Path) -> Result<(), String> {
        if step.gives != Gives::Output {
            return if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) };
        }
        // `doctor` has a status for what it finds.
        let text = fs::read(output).map_err(|error| error.to_string())?;
        serde_json::from_slice::<Value>(&text)
            .map_err(|_| format!("it printed no JSON and ended with {status}"))?;
        let kept = self.directory.join(format!("{}.json", step.name));
        write_file(&kept, &text).map_err(|error| format!("cannot write {}: {error}", kept.display()))
    }

    /// Replaces the state of a step, on the disk too.
    fn note(&mut self, state: StepState) -> Result<&StepState> {
        let name = state.name.clone();
        self.state.steps.retain(|old| old.name != name);
        self.state.steps.push(state);
        self.state.steps.sort_by_key(|state| STEPS.iter().position(|step| step.name == state.name));
        let path = self.directory.join(STATE);
        write_file(&path, serde_json::to_string_pretty(&self.state)?.as_bytes()).with_context(|| {
            format!("cannot write {}; make room there, and run this again", path.display())
        })?;
        Ok(self.state.steps.iter().find(|state| state.name == name).expect("it was added"))
    }

    /// What has changed on the machine since the first step, in words. The steps change nothing.
    pub(super) fn change(&self) -> Result<Option<String>> {
        let before = self.directory.join("topology.json");
        if !before.exists() {
            return Ok(None);
        }
        let mut command = Command::new(std::env::current_exe()?);
        let now = command.args(["topology", "--json"]).output().context("cannot run memferry topology")?;
        let before: Value = serde_json::from_slice(&fs::read(&before)?)?;
        let now: Value = serde_json::from_slice(&now.stdout).context("memferry topology printed no JSON")?;
        let parts = [("nodes", "the nodes or their CPUs"), ("dsa", "the devices or their queues")];
        let changed: Vec<&str> = parts
            .into_iter()
            .filter(|(part, _)| stable(&before[part]) != stable(&now[part]))
            .map(|(_, words)| words)
            .collect();
        Ok((!changed.is_empty()).then(|| format!("{} changed meanwhile", changed.join(" and "))))
    }
}

/// The part of a topology that only a change of the machine changes: not how much memory is free.
fn stable(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !name.contains("free") && !name.contains("clients"));
            kept.map(|(name, value)| (name.clone(), stable(value))).collect::<serde_json::Map<_, _>>().into()
        }
        Value::Array(values) => values.iter().map(stable).collect::<Vec<_>>().into(),
        other => other.clone(),
    }
}

/// The error that a process has printed.
fn failure(errors: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(errors).ok()?).into_owned();
    let error = text.lines().rev().find(|line| line.starts_with("error: ")).or(text.lines().last())?;
    Some(one_line(error.trim_start_matches("error: "))).filter(|error| !error.is_empty())
}

pub(super) const NO_TIME: &str = "no time was left";
