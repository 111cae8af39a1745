//! Programs of the host that a guest needs.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// Program, and the package of Debian and Ubuntu that has it.
const NEEDS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    // Kernels and their modules are packed with these.
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    // The libraries of the guest's first process.
    ("ldd", "libc-bin"),
];

/// Checks that all programs are installed.
///
/// # Errors
/// [`Error::NotInstalled`] names all missing programs and the command that installs them.
pub(crate) fn check_tools() -> Result<(), Error> {
    match missing(is_installed) {
        missing if missing.is_empty() => Ok(()),
        missing => {
            let (programs, packages) = missing.into_iter().unzip();
            Err(Error::NotInstalled { programs, packages })
        }
    }
}

fn missing(is_installed: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
    NEEDS.iter().copied().filter(|(program, _)| !is_installed(program)).collect()
}

/// Whether `name` is a program in PATH.
pub(crate) fn is_installed(name: &str) -> bool {
    path_of(name, &[]).is_some()
}

/// The path of a program in PATH, or else in `directories`.
pub(crate) fn path_of(name: &str, directories: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = directories.iter().map(PathBuf::from);
    let mut paths = std::env::split_paths(&path).chain(others).map(|directory| directory.join(name));
    paths.find(|path| path.is_file())
}

/// The directory `$XDG_CACHE_HOME/memferry/numa`, which has kernels and the files of running guests.
pub(crate) fn cache() -> Result<PathBuf, Error> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let base = base.ok_or_else(|| {
        Error::Kernel("no directory for the guest's kernel: set XDG_CACHE_HOME or HOME".to_owned())
    })?;
    let directory = base.join("memferry/numa");
    let failed = |error| Error::Kernel(format!("cannot make {}: {error}", directory.display()));
    fs::create_dir_all(&directory).map_err(failed)?;
    Ok(directory)
}

/// A call of a program. Its command line is printed before it runs.
pub struct Call {
    command: Command,
    line: String,
}

impl Call {
    /// A call without arguments.
    pub fn new(program: &str) -> Call {
        Call { command: Command::new(program), line: program.to_owned() }
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        for argument in arguments {
            self.line = format!("{} {}", self.line, argument.as_ref().to_string_lossy());
            self.command.arg(argument);
        }
        self
    }

    /// Sets the working directory.
    pub fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs the program to its end. Its output goes to standard error, because standard output is that of the guest's
    /// program.
    ///
    /// # Errors
    /// The program cannot be run, or fails.
    pub fn run(mut self) -> Result<(), Error> {
        eprintln!("$ {}", self.line);
        let output = self.command.stdout(io::stderr()).stdin(Stdio::null()).status();
        let status = output.map_err(|error| Error::Kernel(format!("cannot run `{}`: {error}", self.line)))?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Kernel(format!("`{}` failed ({status})", self.line)))
        }
    }

    /// Runs the program to its end and returns its standard output.
    ///
    /// # Errors
    /// The program cannot be run, or fails.
    pub fn output(mut self) -> Result<String, Error> {
        eprintln!("$ {}", self.line);
        let output = self.command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| Error::Kernel(format!("cannot run `{}`: {error}", self.line)))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(Error::Kernel(format!("`{}` failed ({})", self.line, output.status)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_missing_programs_are_named_at_once() {
        assert_eq!(missing(|_| true), []);
        let (programs, packages) = missing(|name| name == "xz" || name == "ldd").into_iter().unzip();
        let text = Error::NotInstalled { programs, packages }.to_string();
        assert!(text.contains("qemu-system-x86_64 and zstd, not found"), "{text}");
        assert!(text.ends_with("--no-install-recommends qemu-system-x86 zstd`"), "{text}");
    }

    #[test]
    fn calls_report_failures() {
        assert_eq!(Call::new("echo").args(["a", "b"]).output().unwrap(), "a b\n");
        let error = Call::new("false").directory(Path::new("/")).run().unwrap_err().to_string();
        assert!(error.starts_with("`false` failed"), "{error}");
        let error = Call::new("/nowhere/program").run().unwrap_err().to_string();
        assert!(error.contains("cannot run `/nowhere/program`"), "{error}");
    }
}
