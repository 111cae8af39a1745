//! Chores that run beside the steps of `ci`, one after the other, in processes of their own.
//!
//! What a chore prints goes to a file and is shown as a whole, between two steps: output of chores that run at the same
//! time would be mixed up.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::shell::Failure;

/// A name, and arguments of `cargo xtask`.
pub(crate) type Chore = (&'static str, &'static [&'static str]);

/// A chore that ended.
pub(crate) struct Ended {
    pub(crate) name: &'static str,
    pub(crate) output: String,
    pub(crate) outcome: Result<(), Failure>,
    pub(crate) elapsed: Duration,
}

/// Starts the chores; each is in the channel as soon as it has ended.
///
/// `program` is this program. Their output is kept in `directory`.
pub(crate) fn start(
    program: &Path,
    directory: &Path,
    variables: Vec<(&'static str, std::ffi::OsString)>,
    chores: &'static [Chore],
) -> Receiver<Ended> {
    let (sender, receiver) = channel();
    let (program, directory) = (program.to_owned(), directory.to_owned());
    thread::spawn(move || {
        for (name, arguments) in chores {
            let started = Instant::now();
            let file = directory.join(format!("{}.log", arguments[0]));
            let outcome = run(Command::new(&program).args(*arguments).envs(variables.clone()), name, &file);
            let output = std::fs::read(&file).unwrap_or_default();
            let output = String::from_utf8_lossy(&output).into_owned();
            let ended = Ended { name, output, outcome, elapsed: started.elapsed() };
            if sender.send(ended).is_err() {
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
    let status = status.map_err(|error| Failure(format!("{name} cannot be run: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure(format!("{name} failed ({status}), see above"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHORES: &[Chore] =
        &[("good", &["-c", "echo one; echo two >&2"]), ("bad", &["-c", "echo $WHY; exit 3"])];

    #[test]
    fn output_is_whole_and_failures_are_told() {
        let directory = std::env::temp_dir().join(format!("memferry-beside-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let ended = start(Path::new("/bin/sh"), &directory, vec![("WHY", "three".into())], CHORES);
        let ended: Vec<Ended> = ended.iter().collect();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((ended[0].name, &*ended[0].output), ("good", "one\ntwo\n"));
        assert!(ended[0].outcome.is_ok());
        assert_eq!((ended[1].name, &*ended[1].output), ("bad", "three\n"));
        let why = ended[1].outcome.as_ref().unwrap_err().to_string();
        assert!(why.contains("bad failed") && why.contains('3'), "{why}");
    }

    #[test]
    fn a_program_that_is_missing_is_a_failure() {
        let ended = start(Path::new("/nowhere/xtask"), &std::env::temp_dir(), vec![], CHORES);
        assert!(ended.iter().all(|ended| ended.outcome.is_err_and(|why| why.0.contains("cannot be run"))));
    }
}
