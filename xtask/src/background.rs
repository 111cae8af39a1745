//! Chores that run in the background of `ci`, one after the other, in separate processes.
//!
//! The output of a chore goes to a file and is shown as a whole between two steps, so that outputs do not mix.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::shell::{End, Failure};

/// A name and the arguments for `cargo xtask`.
pub(crate) type Chore = (&'static str, &'static [&'static str]);

/// A finished chore.
pub(crate) struct Finished {
    pub(crate) name: &'static str,
    pub(crate) output: String,
    pub(crate) outcome: Result<(), Failure>,
    pub(crate) elapsed: Duration,
}

/// Starts the chores with `program`, which is xtask; their logs go to `directory`.
///
/// The channel receives each chore when it has finished.
pub(crate) fn start(
    program: &Path,
    directory: &Path,
    variables: Vec<(&'static str, std::ffi::OsString)>,
    chores: &'static [Chore],
) -> Receiver<Finished> {
    let (sender, receiver) = channel();
    let (program, directory) = (program.to_owned(), directory.to_owned());
    thread::spawn(move || {
        for (name, arguments) in chores {
            let started = Instant::now();
            let file = directory.join(format!("{}.log", arguments[0]));
            let outcome = run(Command::new(&program).args(*arguments).envs(variables.clone()), name, &file);
            let output = std::fs::read(&file).unwrap_or_default();
            let output = String::from_utf8_lossy(&output).into_owned();
            let finished = Finished { name, output, outcome, elapsed: started.elapsed() };
            if sender.send(finished).is_err() {
                return;
            }
        }
    });
    receiver
}

fn run(command: &mut Command, name: &str, file: &Path) -> Result<(), Failure> {
    let output = File::create(file).and_then(|output| Ok((output.try_clone()?, output)));
    let (stdout, stderr) =
        output.map_err(|error| Failure(format!("cannot write {}: {error}", file.display())))?;
    let status = command.stdin(std::process::Stdio::null()).stdout(stdout).stderr(stderr).status();
    let status = status.map_err(|error| Failure(format!("cannot run {name}: {error}")))?;
    if status.success() {
        return Ok(());
    }
    let end = End::of(&String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()));
    Err(Failure(format!("{name} failed ({status}); the end of its output:\n{}", end.text())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHORES: &[Chore] =
        &[("good", &["-c", "echo one; echo two >&2"]), ("bad", &["-c", "echo $WHY; exit 3"])];

    #[test]
    fn output_is_whole_and_failures_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let receiver = start(Path::new("/bin/sh"), directory.path(), vec![("WHY", "three".into())], CHORES);
        let chores: Vec<Finished> = receiver.iter().collect();
        assert_eq!((chores[0].name, &*chores[0].output), ("good", "one\ntwo\n"));
        assert!(chores[0].outcome.is_ok());
        assert_eq!((chores[1].name, &*chores[1].output), ("bad", "three\n"));
        let why = chores[1].outcome.as_ref().unwrap_err().to_string();
        assert!(why.contains("bad failed") && why.contains('3') && why.ends_with("    three\n"), "{why}");
    }

    #[test]
    fn a_missing_program_is_a_failure() {
        let chores = start(Path::new("/nowhere/xtask"), &std::env::temp_dir(), vec![], CHORES);
        assert!(chores.iter().all(|chore| chore.outcome.is_err_and(|why| why.0.contains("cannot run"))));
    }
}
