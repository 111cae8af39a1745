//! Runs an unmodified program whose large calls of memcpy, memmove, memset and memcmp a DSA shares with the CPU: the
//! library behind `memferry offload`.
//!
//! ```text
//! memferry offload ── exec ──▶ PROGRAM ── preloads libmemferry_offload.so ──▶ memferry-offload-preload
//! ```
//!
//! ```no_run
//! use memferry_offload::{Options, execute};
//!
//! let mut options = Options::new("sort");
//! options.arguments = vec!["big.txt".into()];
//! eprintln!("{}", execute(&options)); // returns only if the program cannot be run
//! ```
//!
//! The program takes the place of the calling process, so it keeps the process id, the terminal and the signals. Programs that it
//! starts load the library, too.
//!
//! Source: ld.so(8), `LD_PRELOAD`.

#![deny(unsafe_code)]

mod confinement;
mod library;
#[allow(unsafe_code)]
mod mounts;
#[allow(unsafe_code)]
mod privileges;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memferry_emulate::Program;

pub use library::install;

/// The variable of the dynamic linker.
const PRELOAD: &str = "LD_PRELOAD";

/// The options of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The program: a path, or a name in PATH.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Calls of this size and more are shared with a device; by default the library measures which are worth it.
    pub threshold_bytes: Option<usize>,
    /// The share of the device in percent, 1 to 100; by default it is adapted to the rates of device and CPU.
    pub share_percent: Option<u32>,
    /// The summary at the exit of a process.
    pub summary: Summary,
}

/// The place of the summary.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Summary {
    /// No summary.
    None,
    /// Standard error, of the first process only.
    #[default]
    Stderr,
    /// A file, to which each process appends a line of JSON.
    File(PathBuf),
}

/// A program that is not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program does not exist or cannot be run.
    #[error(transparent)]
    Program(#[from] memferry_emulate::Error),
    /// The kernel refuses to execute the program.
    #[error("cannot run {}: {source}", program.display())]
    Execute {
        /// The program.
        program: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The library cannot be written to any directory.
    #[error(
        "cannot write the preload library to {}: {source}; set XDG_RUNTIME_DIR to a directory that you own, on a file \
         system that is mounted without noexec",
        directory.display()
    )]
    Library {
        /// The last directory that was tried.
        directory: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// The exit status of the command: as of a shell, or 125.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Program(error) => error.exit_code(),
            Error::Execute { .. } => 126,
            Error::Library { .. } => 125,
        }
    }
}

impl Options {
    /// Options for a program without arguments: everything is measured, and the summary is printed.
    pub fn new(program: impl Into<OsString>) -> Options {
        Options {
            program: program.into(),
            arguments: Vec::new(),
            threshold_bytes: None,
            share_percent: None,
            summary: Summary::default(),
        }
    }

    /// The variables of the library.
    fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let number = |number: Option<usize>| number.map(|number| number.to_string().into());
        let summary = match &self.summary {
            Summary::None => "none".into(),
            Summary::Stderr => "stderr".into(),
            // Processes of the program may have other working directories.
            Summary::File(path) => {
                std::path::absolute(path).unwrap_or_else(|_| path.clone()).into_os_string()
            }
        };
        vec![
            ("MEMFERRY_OFFLOAD_THRESHOLD", number(self.threshold_bytes)),
            ("MEMFERRY_OFFLOAD_SHARE", number(self.share_percent.map(|share| share as usize))),
            ("MEMFERRY_OFFLOAD_SUMMARY", Some(summary)),
            ("MEMFERRY_OFFLOAD_ROOT", Some(std::process::id().to_string().into())),
        ]
    }
}

/// Executes the program in place of this process. Returns only if that fails.
///
/// A program that cannot load the library gets a note and runs without it: static and 32-bit programs, programs of another C
/// library, and programs that change their user or group. With `MEMFERRY_OFFLOAD=off` every program runs without it.
pub fn execute(options: &Options) -> Error {
    match prepare(options) {
        Ok((program, mut command)) => Error::Execute { program: program.path, source: command.exec() },
        Err(error) => error,
    }
}

fn prepare(options: &Options) -> Result<(Program, Command), Error> {
    let program = Program::find(&options.program)?;
    let mut command = Command::new(&program.path);
    command.arg0(&options.program).args(&options.arguments);
    if std::env::var_os("MEMFERRY_OFFLOAD").is_some_and(|value| value == "off") {
        return Ok((program, command));
    }
    if let Some(note) = note(&program) {
        eprintln!("memferry offload: {note}");
        return Ok((program, command));
    }
    let library = install()?;
    // Of a script, or of its interpreter.
    let files = [Some(&program.path), program.executed.as_ref()];
    let confined = files.into_iter().flatten().find_map(|file| Some((file, confinement::profile(file)?)));
    if let Some((file, profile)) = confined {
        eprintln!("memferry offload: {}", confinement_note(file, &profile, &library));
    }
    command.env(PRELOAD, preloads(library.as_os_str(), std::env::var_os(PRELOAD).as_deref()));
    for (name, value) in options.environment() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ok((program, command))
}

/// The sentence about a program that cannot load the library.
fn note(program: &Program) -> Option<String> {
    let (file, reason) = match (&program.obstacle, &program.executed) {
        (Some((file, obstacle)), _) => (file, obstacle.description()),
        (None, Some(file)) if privileges::are_changed(file) => {
            (file, "changes its user, group or capabilities when it starts".to_owned())
        }
        _ => return None,
    };
    Some(format!("{} {reason}, so its copies cannot be offloaded; it runs without that", file.display()))
}

/// The sentence about a program whose AppArmor profile may forbid the library. The rules are not known here, so the library
/// is preloaded; the dynamic linker reports a failure and goes on without it.
fn confinement_note(program: &Path, profile: &str, library: &Path) -> String {
    let pattern = library.with_file_name("*.so");
    format!(
        "the AppArmor profile {profile} confines {}; if ld.so reports that the library cannot be preloaded, add the rule \
         `{} mr,` to the profile, and for a DSA `/dev/dsa/* rw,` and `/sys/bus/dsa/** r,`",
        program.display(),
        pattern.display()
    )
}

/// The value of LD_PRELOAD: our library first, because it must be found before others that end the search.
fn preloads(library: &OsStr, present: Option<&OsStr>) -> OsString {
    let mut value = library.to_owned();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        let text = present.to_string_lossy();
        if text.split([':', ' ']).any(|path| path == library) {
            return present.to_owned();
        }
        value.push(":");
        value.push(present);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_libraries_stay() {
        let of = |present: Option<&str>| preloads("/run/x.so".as_ref(), present.map(OsStr::new));
        assert_eq!([of(None), of(Some(""))], ["/run/x.so", "/run/x.so"]);
        assert_eq!(of(Some("/a.so /b.so")), "/run/x.so:/a.so /b.so");
        assert_eq!(of(Some("/a.so:/run/x.so")), "/a.so:/run/x.so");
    }

    #[test]
    fn a_confined_program_is_told_the_rule() {
        let note = confinement_note(Path::new("/usr/sbin/x"), "servers", Path::new("/run/memferry/lib-1.so"));
        assert!(note.starts_with("the AppArmor profile servers confines /usr/sbin/x;"), "{note}");
        assert!(note.contains("`/run/memferry/*.so mr,`"), "{note}");
    }

    #[test]
    fn options_become_variables() {
        let options = Options {
            threshold_bytes: Some(65536),
            share_percent: Some(50),
            summary: Summary::File("/tmp/x".into()),
            ..Options::new("true")
        };
        let variables = options.environment();
        let value = |name| variables.iter().find(|(found, _)| *found == name).unwrap().1.clone().unwrap();
        assert_eq!(value("MEMFERRY_OFFLOAD_THRESHOLD"), "65536");
        assert_eq!(value("MEMFERRY_OFFLOAD_SHARE"), "50");
        assert_eq!(value("MEMFERRY_OFFLOAD_SUMMARY"), "/tmp/x");
        assert!(Options::new("true").environment().contains(&("MEMFERRY_OFFLOAD_THRESHOLD", None)));
    }

    #[test]
    fn missing_programs_have_the_status_of_a_shell() {
        let code = |program: &str| execute(&Options::new(program)).exit_code();
        assert_eq!((code("a-name-that-nobody-uses"), code("/")), (127, 126));
    }
}
