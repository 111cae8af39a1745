//! Executes a program with a preload library in place of this process.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use memferry_emulate::Program;

use crate::library::{Library, install_library};
use crate::{Error, confinement, privileges};

/// The variable of the dynamic linker.
const PRELOAD: &str = "LD_PRELOAD";

/// The parts in which the commands differ.
pub(crate) struct Start {
    pub(crate) library: &'static Library,
    /// The variable that turns the library off.
    pub(crate) off: &'static str,
    /// The consequence for a program that cannot load the library, as the end of a sentence.
    pub(crate) loss: &'static str,
    /// More rules for AppArmor, as the end of a sentence.
    pub(crate) rules: &'static str,
}

impl Start {
    /// Returns only if the program cannot be executed. The variables belong to the library.
    pub(crate) fn execute(
        &self,
        program: &OsStr,
        arguments: &[OsString],
        variables: Vec<(&'static str, Option<OsString>)>,
    ) -> Error {
        match self.prepare(program, arguments, variables) {
            Ok((program, mut command)) => Error::Execute { program: program.path, source: command.exec() },
            Err(error) => error,
        }
    }

    /// Executes a program without the library. Returns only if that fails.
    pub(crate) fn execute_plainly(&self, name: &OsStr, arguments: &[OsString]) -> Error {
        match Program::find(name) {
            Ok(program) => {
                let source = Command::new(&program.path).arg0(name).args(arguments).exec();
                Error::Execute { program: program.path, source }
            }
            Err(error) => error.into(),
        }
    }

    fn prepare(
        &self,
        name: &OsStr,
        arguments: &[OsString],
        variables: Vec<(&'static str, Option<OsString>)>,
    ) -> Result<(Program, Command), Error> {
        let program = Program::find(name)?;
        let mut command = Command::new(&program.path);
        command.arg0(name).args(arguments);
        if std::env::var_os(self.off).is_some_and(|value| value == "off") {
            return Ok((program, command));
        }
        let says = |note: String| eprintln!("memferry {}: {note}", self.library.command);
        if let Some(note) = self.note(&program) {
            says(note);
            return Ok((program, command));
        }
        let library = install_library(self.library)?;
        // Of a script, or of its interpreter.
        let files = [Some(&program.path), program.executed.as_ref()];
        let confined = files.into_iter().flatten().find_map(|file| Some((file, confinement::profile(file)?)));
        if let Some((file, profile)) = confined {
            says(self.confinement_note(file, &profile, &library));
        }
        command.env(PRELOAD, preloads(library.as_os_str(), std::env::var_os(PRELOAD).as_deref()));
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok((program, command))
    }

    /// The sentence about a program that cannot load the library.
    fn note(&self, program: &Program) -> Option<String> {
        let (file, reason) = match (&program.obstacle, &program.executed) {
            (Some((file, obstacle)), _) => (file, obstacle.description()),
            (None, Some(file)) if privileges::are_changed(file) => {
                (file, "changes its user, group or capabilities when it starts".to_owned())
            }
            _ => return None,
        };
        Some(format!("{} {reason}, {}", file.display(), self.loss))
    }

    /// The sentence about a program whose AppArmor profile may forbid the library. The rules are not known here, so the
    /// library is preloaded; the dynamic linker reports a failure and goes on without it.
    fn confinement_note(&self, program: &Path, profile: &str, library: &Path) -> String {
        let pattern = library.with_file_name("*.so");
        format!(
            "the AppArmor profile {profile} confines {}; if ld.so reports that the library cannot be preloaded, add the \
             rule `{} mr,` to the profile{}",
            program.display(),
            pattern.display(),
            self.rules
        )
    }
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
    use crate::library::OFFLOAD;

    const START: Start = Start { library: &OFFLOAD, off: "MEMFERRY_OFFLOAD", loss: "", rules: ", and more" };

    #[test]
    fn other_libraries_stay() {
        let of = |present: Option<&str>| preloads("/run/x.so".as_ref(), present.map(OsStr::new));
        assert_eq!([of(None), of(Some(""))], ["/run/x.so", "/run/x.so"]);
        assert_eq!(of(Some("/a.so /b.so")), "/run/x.so:/a.so /b.so");
        assert_eq!(of(Some("/a.so:/run/x.so")), "/a.so:/run/x.so");
    }

    #[test]
    fn a_confined_program_is_told_the_rule() {
        let note =
            START.confinement_note(Path::new("/usr/sbin/x"), "servers", Path::new("/run/memferry/lib-1.so"));
        assert!(note.starts_with("the AppArmor profile servers confines /usr/sbin/x;"), "{note}");
        assert!(note.ends_with("`/run/memferry/*.so mr,` to the profile, and more"), "{note}");
    }
}
