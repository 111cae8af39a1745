//! Calls of cargo and other programs. Each command line is printed before it runs.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long the output of a program may stay open after its end.
const LEFT_MAX: Duration = Duration::from_secs(5);

/// The reason why a chore failed, as a sentence.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<memferry_guest::Error> for Failure {
    fn from(error: memferry_guest::Error) -> Failure {
        Failure(error.to_string())
    }
}

/// A call of a program, by default in the root of the workspace.
pub(crate) struct Call {
    command: Command,
    line: String,
}

/// The cargo that started this program, with `arguments`.
pub(crate) fn cargo<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Call {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Call::new(Command::new(program), "cargo").args(arguments)
}

/// The cargo of nightly Rust, in the root of the workspace.
///
/// The stable cargo that runs this program sets variables for its children; those are removed.
pub(crate) fn nightly() -> Command {
    let mut command = Command::new("cargo");
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
        command.env_remove(variable);
    }
    remove_package(&mut command);
    command.current_dir(root()).arg("+nightly");
    command
}

/// Removes the variables of this package, which cargo sets for this program. ring's build script depends on them: a cargo that
/// inherits them would compile ring, and all that depends on it, again after each cargo that a shell has started.
fn remove_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let is_of_package =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_of_package) {
            command.env_remove(name);
        }
    }
}

/// Another program.
pub(crate) fn program(name: &str) -> Call {
    Call::new(Command::new(name), name)
}

/// A program that `cargo xtask setup` has installed with cargo.
pub(crate) fn tool(name: &str) -> Result<Call, Failure> {
    let file = cache("tools")?.join("bin").join(name);
    if file.is_file() {
        return Ok(Call::new(Command::new(file), name));
    }
    Err(Failure(format!("{name} is not installed; run `cargo xtask setup`")))
}

/// Whether `name` is a program in PATH, or the path of one.
pub(crate) fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

impl Call {
    fn new(mut command: Command, line: &str) -> Call {
        remove_package(&mut command);
        command.current_dir(root());
        Call { command, line: line.to_owned() }
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        for argument in arguments {
            self.line = format!("{} {}", self.line, argument.as_ref().to_string_lossy());
            self.command.arg(argument);
        }
        self
    }

    pub(crate) fn arg(self, argument: &str) -> Self {
        self.args([argument])
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.line = format!("{name}={:?} {}", value.as_ref(), self.line);
        self.command.env(name, value);
        self
    }

    /// Sets the working directory.
    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs the program to its end; it inherits the output streams.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        eprintln!("$ {}", self.line);
        let status = self.command.status().map_err(|error| self.cannot_run(&error))?;
        if status.success() { Ok(()) } else { Err(Failure(format!("`{}` failed ({status})", self.line))) }
    }

    /// Runs the program to its end and shows its output. If it fails, or leaves programs that hold its output, the error contains
    /// the end of the output.
    ///
    /// Both streams go to the standard error of this program, in their order.
    pub(crate) fn run_and_quote(mut self) -> Result<(), Failure> {
        eprintln!("$ {}", self.line);
        let (reader, writer) = std::io::pipe().map_err(|error| self.cannot_run(&error))?;
        let streams = writer.try_clone().map(|copy| (copy, writer));
        let (stdout, stderr) = streams.map_err(|error| self.cannot_run(&error))?;
        let child = self.command.stdout(stdout).stderr(stderr).spawn();
        let mut child = child.map_err(|error| self.cannot_run(&error))?;
        // The pipe ends when the last writer closes it; the command holds two.
        drop(self.command);
        let end = Arc::new(Mutex::new(End::default()));
        let seen = Arc::clone(&end);
        let shown = thread::spawn(move || {
            for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                // A closed standard error is no reason to stop the program.
                let _ = writeln!(std::io::stderr(), "{line}");
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let status =
            child.wait().map_err(|error| Failure(format!("cannot wait for `{}`: {error}", self.line)))?;
        // A program that it has left running holds the pipe, too.
        let deadline = Instant::now() + LEFT_MAX;
        while !shown.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let how = match (status.success(), shown.is_finished()) {
            (true, true) => return Ok(()),
            (_, true) => format!("failed ({status})"),
            (_, false) => {
                format!("ended ({status}) and left programs that hold its output; find them with `ps`")
            }
        };
        let end = end.lock().unwrap_or_else(PoisonError::into_inner).text();
        Err(Failure(format!("`{}` {how}; the end of its output:\n{end}", self.line)))
    }

    /// Runs the program to its end and returns its standard output.
    pub(crate) fn output(mut self) -> Result<String, Failure> {
        eprintln!("$ {}", self.line);
        let output =
            self.command.stderr(Stdio::inherit()).output().map_err(|error| self.cannot_run(&error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            Err(Failure(format!("`{}` failed ({}):\n{text}", self.line, output.status)))
        }
    }

    fn cannot_run(&self, error: &std::io::Error) -> Failure {
        Failure(format!("cannot run `{}`: {error}", self.line))
    }
}

/// The last lines of an output.
#[derive(Default)]
pub(crate) struct End(VecDeque<String>);

impl End {
    const LINES: usize = 60;

    /// The last lines of a whole text.
    pub(crate) fn of(text: &str) -> End {
        let mut end = End::default();
        text.lines().for_each(|line| end.push(line.to_owned()));
        end
    }

    fn push(&mut self, line: String) {
        if self.0.len() == End::LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// The lines, indented.
    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|line| format!("    {line}\n")).collect()
    }
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    // cargo sets the variable for `cargo xtask`; a binary that runs by itself uses the compile-time value.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(xtask);
    root.pop();
    root
}

/// The target directory of cargo.
pub(crate) fn target_directory() -> PathBuf {
    // A relative CARGO_TARGET_DIR is relative to the caller's directory. Joined to the root it is at worst another
    // directory, never a wrong result.
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The directory `$XDG_CACHE_HOME/memferry/NAME`, for files that outlive target directories and checkouts.
pub(crate) fn cache(name: &str) -> Result<PathBuf, Failure> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let base = base
        .ok_or_else(|| Failure(format!("no directory for the {name} cache: set XDG_CACHE_HOME or HOME")))?;
    let directory = base.join("memferry").join(name);
    let failed = |error| Failure(format!("cannot make {}: {error}", directory.display()));
    std::fs::create_dir_all(&directory).map_err(failed)?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_quotes_the_end_of_both_streams() {
        let script = "for i in $(seq 100); do echo line $i; done; echo reason >&2; exit 3";
        let why = program("sh").args(["-c", script]).run_and_quote().unwrap_err().to_string();
        assert!(why.contains("exit status: 3"), "{why}");
        assert!(why.ends_with("    line 100\n    reason\n") && !why.contains("line 41\n"), "{why}");
        assert!(program("sh").args(["-c", "echo fine"]).run_and_quote().is_ok());
    }

    #[test]
    fn programs_that_are_left_are_not_waited_for() {
        let script = "sleep 30 & echo $!; exit 3";
        let why = program("sh").args(["-c", script]).run_and_quote().unwrap_err().to_string();
        assert!(why.contains("exit status: 3") && why.contains("left programs"), "{why}");
        let left = why.lines().last().unwrap().trim();
        assert!(
            Command::new("kill").arg(left).status().unwrap().success(),
            "the program that it left has ended: {why}"
        );
    }
}
