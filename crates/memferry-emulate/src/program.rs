//! Examines a program before it is run: whether it exists, and whether the preload library will be loaded into it.
//!
//! A program without the dynamic linker runs without the library. It sees the devices, can configure them and can
//! submit with `write(2)`, but it cannot map queues. A note says so before the program starts.
//!
//! Source: ELF-64 object file format 1.5; ld.so(8), "secure-execution mode"; execve(2), "interpreter scripts".

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

use crate::error::Error;

/// Length of the file's start that may contain `#!` and an interpreter; BINPRM_BUF_SIZE of Linux.
const START_BYTES: usize = 256;
/// Most scripts that are interpreters of each other; the limit of Linux.
const SCRIPTS_MAX: usize = 5;
/// Most program headers that are read.
const HEADERS_MAX: u16 = 128;

/// ELF: the class of 64-bit files.
const CLASS_64: u8 = 2;
/// ELF: the machine x86-64.
const MACHINE_X86_64: u16 = 62;
/// ELF: the segment that names the dynamic linker.
const SEGMENT_INTERPRETER: u32 = 3;

/// Why a program runs without the preload library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The program has no dynamic linker.
    Static,
    /// The program has 32 bits, or is built for another machine.
    OtherMachine,
    /// The program is linked with another C library.
    OtherLibrary(
        /// The dynamic linker.
        PathBuf,
    ),
    /// The program is setuid or setgid, so the dynamic linker loads only trusted libraries.
    Privileged,
}

/// A program that can be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// The file that the kernel executes in the end: the interpreter of a script, for example. `None` if it cannot be read.
    pub executed: Option<PathBuf>,
    /// Why the library will not be loaded, and the file that is the reason.
    pub obstacle: Option<(PathBuf, Obstacle)>,
    /// The machine that an ELF file is built for.
    pub machine: Option<u16>,
}

impl Program {
    /// Finds a program as a shell does, and examines it.
    ///
    /// # Errors
    /// The program does not exist, or cannot be run.
    pub fn find(name: &OsStr) -> Result<Program, Error> {
        let shown = || name.to_string_lossy().into_owned();
        let path = resolve(name).ok_or_else(|| Error::NoProgram { program: shown() })?;
        let check = |path: &Path| -> io::Result<()> {
            let found = fs::metadata(path)?;
            match (found.is_dir(), found.permissions().mode() & 0o111) {
                (true, _) => Err(io::ErrorKind::IsADirectory.into()),
                (false, 0) => Err(io::ErrorKind::PermissionDenied.into()),
                _ => Ok(()),
            }
        };
        check(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::NoProgram { program: shown() },
            _ => Error::CannotRun { program: shown(), source },
        })?;
        let obstacle = obstacle(&path, SCRIPTS_MAX);
        let machine = machine(&path);
        let executed = executed(&path, SCRIPTS_MAX);
        Ok(Program { path, executed, obstacle, machine })
    }

    /// Returns a note for the user if the library will not be loaded.
    pub(crate) fn note(&self) -> Option<String> {
        let (file, obstacle) = self.obstacle.as_ref()?;
        Some(obstacle.note(file))
    }

    /// Returns the file of a running program and a note for the user, if the library is not loaded into it.
    pub(crate) fn note_of_process(process: u32) -> Option<(PathBuf, String)> {
        let link = format!("/proc/{process}/exe");
        // Opened by the link: the path may lead to another file, or to none.
        let (_, obstacle) = obstacle(Path::new(&link), 0)?;
        let path = fs::read_link(link).ok()?;
        let note = obstacle.note(&path);
        Some((path, note))
    }
}

impl Obstacle {
    fn note(&self, file: &Path) -> String {
        format!(
            "{} {}, so it cannot map queues (ENODEV); it sees the devices, can configure them and can submit with \
            write(2); {}",
            file.display(),
            self.description(),
            self.advice()
        )
    }

    /// The obstacle, as the rest of a sentence.
    pub fn description(&self) -> String {
        match self {
            Obstacle::Static => "is linked statically".to_owned(),
            Obstacle::OtherMachine => "is no program for 64-bit x86".to_owned(),
            Obstacle::OtherLibrary(linker) => {
                format!("is linked with another C library ({})", linker.display())
            }
            Obstacle::Privileged => "changes its user or group when it starts (setuid)".to_owned(),
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            Obstacle::Static => "link it dynamically to map queues",
            Obstacle::OtherMachine => "use its 64-bit build to map queues",
            Obstacle::OtherLibrary(_) => "link it with the GNU C library to map queues",
            Obstacle::Privileged => "to map queues, run a copy without the bit, or run as its owner",
        }
    }
}

/// Resolves a name as a shell does: with a slash it is a path, otherwise it is searched in PATH.
fn resolve(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|candidate| {
        fs::metadata(candidate).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

fn machine(path: &Path) -> Option<u16> {
    let mut start = [0; 20];
    File::open(path).ok()?.read_exact(&mut start).ok()?;
    start.strip_prefix(b"\x7fELF").and(read_u16(&start, 18))
}

/// The file behind a chain of scripts.
fn executed(path: &Path, scripts_left: usize) -> Option<PathBuf> {
    let mut start = Vec::new();
    Read::take(File::open(path).ok()?, START_BYTES as u64).read_to_end(&mut start).ok()?;
    match start.strip_prefix(b"#!") {
        Some(line) => executed(&interpreter(line)?, scripts_left.checked_sub(1)?),
        None => Some(path.to_owned()),
    }
}

/// Returns the obstacle and its file. Also `None` if the file is executable but not readable.
fn obstacle(path: &Path, scripts_left: usize) -> Option<(PathBuf, Obstacle)> {
    let here = |obstacle| Some((path.to_owned(), obstacle));
    let file = File::open(path).ok()?;
    let mut start = Vec::new();
    Read::take(&file, START_BYTES as u64).read_to_end(&mut start).ok()?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let interpreter = interpreter(line)?;
        return obstacle(&interpreter, scripts_left.checked_sub(1)?);
    }
    let elf = start.strip_prefix(b"\x7fELF")?;
    if *elf.first()? != CLASS_64 || read_u16(&start, 18)? != MACHINE_X86_64 {
        return here(Obstacle::OtherMachine);
    }
    if changes_identity(&file) {
        return here(Obstacle::Privileged);
    }
    match dynamic_linker(&file, &start)? {
        None => here(Obstacle::Static),
        Some(linker) if linker.as_os_str().as_bytes().windows(4).any(|part| part == b"musl") => {
            here(Obstacle::OtherLibrary(linker))
        }
        Some(_) => None,
    }
}

/// Returns the interpreter that the first line of a script names, without `#!`. Resolves `/usr/bin/env NAME`.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first.to_owned());
    }
    // Skips options and assignments of env.
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    resolve(OsStr::from_bytes(name))
}

/// Whether the set-user-id or set-group-id bit has an effect. It has none if the file belongs to the caller, and none
/// in a user namespace, where the owner is unknown.
fn changes_identity(file: &File) -> bool {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010; // without the permission to execute, the bit means mandatory locking
    let Ok(found) = file.metadata() else { return false };
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let takes_user = found.mode() & SET_USER != 0 && found.uid() != user;
    let takes_group = found.mode() & SET_GROUP == SET_GROUP && found.gid() != group;
    user == 0 && (takes_user || takes_group)
}

/// Returns the dynamic linker that a program names, or `Some(None)`; `None` if the file is truncated.
fn dynamic_linker(file: &File, header: &[u8]) -> Option<Option<PathBuf>> {
    let table = read_u64(header, 32)?;
    let (size, count) = (read_u16(header, 54)?, read_u16(header, 56)?.min(HEADERS_MAX));
    for index in 0..u64::from(count) {
        let mut segment = [0; 56];
        file.read_exact_at(&mut segment, table.checked_add(index * u64::from(size))?).ok()?;
        if read_u32(&segment, 0)? != SEGMENT_INTERPRETER {
            continue;
        }
        let (offset, length) = (read_u64(&segment, 8)?, read_u64(&segment, 32)?);
        let mut path = vec![0; usize::try_from(length).ok()?.min(libc::PATH_MAX as usize)];
        file.read_exact_at(&mut path, offset).ok()?;
        path.retain(|byte| *byte != 0);
        return Some(Some(PathBuf::from(OsStr::from_bytes(&path))));
    }
    Some(None)
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A program that consists of headers.
    fn elf(class: u8, machine: u16, linker: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = class;
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        if let Some(linker) = linker {
            bytes[64] = 3;
            bytes[72..80].copy_from_slice(&120_u64.to_le_bytes());
            bytes[96..104].copy_from_slice(&(linker.len() as u64 + 1).to_le_bytes());
            bytes.extend_from_slice(linker.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn programs_without_the_library_are_recognised() {
        let directory = tempfile::tempdir().unwrap();
        let seen = |name: &str, bytes: &[u8]| {
            let path = file(directory.path(), name, bytes);
            Program::find(path.as_os_str()).unwrap().obstacle.map(|(_, obstacle)| obstacle)
        };
        let linker = "/lib64/ld-linux-x86-64.so.2";
        assert_eq!(seen("dynamic", &elf(2, 62, Some(linker))), None);
        assert_eq!(seen("static", &elf(2, 62, None)), Some(Obstacle::Static));
        assert_eq!(seen("small", &elf(1, 3, Some(linker))), Some(Obstacle::OtherMachine));
        assert_eq!(seen("arm", &elf(2, 183, Some(linker))), Some(Obstacle::OtherMachine));
        let musl = "/lib/ld-musl-x86_64.so.1";
        assert_eq!(seen("musl", &elf(2, 62, Some(musl))), Some(Obstacle::OtherLibrary(musl.into())));
        for broken in [&elf(2, 62, Some(linker))[..100], b"\x7fELF", b"#!", b"#!\n", b"", b"#!/nowhere x"] {
            assert_eq!(seen("broken", broken), None, "{broken:?}");
        }
    }

    #[test]
    fn scripts_count_as_their_interpreters() {
        let directory = tempfile::tempdir().unwrap();
        let interpreter = file(directory.path(), "static", &elf(2, 62, None));
        let script =
            file(directory.path(), "script", format!("#! {} -x\n", interpreter.display()).as_bytes());
        let outer = file(directory.path(), "outer", format!("#!{}", script.display()).as_bytes());
        let found = Program::find(outer.as_os_str()).unwrap();
        assert_eq!(found.executed.as_ref(), Some(&interpreter));
        assert_eq!(found.obstacle, Some((interpreter, Obstacle::Static)));
        assert!(found.note().unwrap().contains("write(2)"));
        let circle = directory.path().join("circle");
        file(directory.path(), "circle", format!("#!{}", circle.display()).as_bytes());
        assert_eq!(Program::find(circle.as_os_str()).unwrap().obstacle, None);
        let env = file(directory.path(), "env", b"#!/usr/bin/env -S A=1 sh\n");
        assert_eq!(Program::find(env.as_os_str()).unwrap().obstacle, None, "the shell is dynamic");
        assert_eq!(super::interpreter(b"/usr/bin/env -S A=1 sh"), resolve(OsStr::new("sh")));
    }

    #[test]
    fn programs_that_cannot_be_run() {
        let directory = tempfile::tempdir().unwrap();
        let code = |path: &Path| Program::find(path.as_os_str()).unwrap_err().exit_code();
        assert_eq!(code(Path::new("./nowhere/nothing")), 127);
        assert_eq!(code(Path::new("a-name-that-nobody-uses")), 127);
        assert_eq!(code(directory.path()), 126);
        let plain = directory.path().join("plain");
        fs::write(&plain, "").unwrap();
        assert_eq!(code(&plain), 126);
        assert_eq!(Program::find(OsStr::new("sh")).unwrap().note(), None);
    }
}
