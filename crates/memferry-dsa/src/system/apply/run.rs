//! The execution of a plan.

use std::fmt;
use std::io;

use serde::{Serialize, Serializer};

use super::explain::explain;
use super::plan::{Action, Plan, Step};
use crate::system::capability::hexadecimal;
use crate::system::discover::DEVICES;
use crate::system::files::{Directory, Files};
use crate::system::status::CommandStatus;

/// The first error of a plan, and the steps finished before it.
#[derive(Debug, Serialize)]
pub struct ApplyError {
    /// The step that failed.
    pub step: Step,
    /// The error of the write; without an error number if the write succeeded but the object is not in the expected state.
    #[serde(serialize_with = "text")]
    pub cause: io::Error,
    /// The status of the device's last command, if that is an error.
    pub status: Option<CommandStatus>,
    /// The remedy.
    pub advice: String,
    /// The finished steps, in order. They are not undone.
    pub done: Vec<Step>,
    /// The number of steps of the plan.
    pub steps_count: usize,
}

fn text<S: Serializer>(cause: &io::Error, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(cause)
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.cause)?;
        if let Some(status) = self.status {
            write!(f, "; {} says: {status}", self.step.device)?;
        }
        write!(f, "\n  {}\n  {}", self.advice, self.what_was_done())
    }
}

impl std::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl ApplyError {
    /// A sentence about the finished steps.
    pub fn what_was_done(&self) -> String {
        if self.done.is_empty() {
            return "nothing was changed".to_owned();
        }
        let of = |action: Action| {
            let steps = self.done.iter().filter(move |step| step.action == action);
            steps.map(|step| step.object.as_str()).collect::<Vec<_>>()
        };
        let mut set: Vec<String> = (self.done.iter())
            .filter(|step| matches!(step.action, Action::Reset | Action::Set))
            .map(|step| step.device.to_string())
            .collect();
        set.dedup();
        set.sort_unstable();
        set.dedup();
        let mut words =
            vec![format!("{} of {} writes were done and stay", self.done.len(), self.steps_count)];
        for (objects, what) in [(of(Action::Disable), "disabled"), (of(Action::Enable), "enabled")] {
            if !objects.is_empty() {
                words.push(format!("{what}: {}", objects.join(", ")));
            }
        }
        if !set.is_empty() {
            words.push(format!("settings written: those of {}", set.join(", ")));
        }
        words.join("; ")
    }
}

impl Plan {
    /// Executes the steps in order on this machine. Returns the names of the enabled devices and queues.
    ///
    /// udev makes the files of enabled queues (`/dev/dsa/wq0.0`), possibly a moment later.
    ///
    /// # Errors
    /// The first failed step. Later steps were not tried, earlier ones are not undone.
    pub fn apply(&self) -> Result<Vec<String>, Box<ApplyError>> {
        self.execute(&Directory::system())
    }

    /// [`apply`](Plan::apply) to other files.
    ///
    /// # Errors
    /// As [`apply`](Plan::apply).
    #[cfg(feature = "internals")]
    pub fn apply_to(&self, files: &dyn Files) -> Result<Vec<String>, Box<ApplyError>> {
        self.execute(files)
    }

    fn execute(&self, files: &dyn Files) -> Result<Vec<String>, Box<ApplyError>> {
        let mut enabled = Vec::new();
        for (index, step) in self.steps().iter().enumerate() {
            let done = files.write(&step.path, &step.value).and_then(|()| effect(files, step));
            done.map_err(|cause| self.failed(files, index, cause))?;
            if step.action == Action::Enable {
                enabled.push(step.object.clone());
            }
        }
        Ok(enabled)
    }

    fn failed(&self, files: &dyn Files, index: usize, cause: io::Error) -> ApplyError {
        let step = self.steps()[index].clone();
        // Only enabling and disabling issue commands; for other steps the status is that of an earlier command.
        let commands = matches!(step.action, Action::Enable | Action::Disable);
        let status = if commands { status(files, &step) } else { None };
        let advice = explain(&step, &cause, status);
        let done = self.steps()[..index].to_vec();
        ApplyError { step, cause, status, advice, done, steps_count: self.steps().len() }
    }
}

fn read(files: &dyn Files, path: &str) -> Option<String> {
    let bytes = files.read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Checks the state after a step: some kernels accept the write and fail nevertheless.
fn effect(files: &dyn Files, step: &Step) -> io::Result<()> {
    let expected = match step.action {
        Action::Enable => "enabled",
        Action::Disable => "disabled",
        Action::Reset | Action::Set | Action::ClearStatus => return Ok(()),
    };
    match read(files, &step.state_path()) {
        Some(found) if found != expected => {
            Err(io::Error::other(format!("the state should be {expected} and is {found}")))
        }
        _ => Ok(()),
    }
}

fn status(files: &dyn Files, step: &Step) -> Option<CommandStatus> {
    let text = read(files, &format!("{DEVICES}/{}/cmd_status", step.device))?;
    let status = CommandStatus(u32::try_from(hexadecimal(&text)?).ok()?);
    status.is_error().then_some(status)
}
