//! A program of this machine in a guest, on the folders of this machine.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::layout::{Layout, LayoutRegion};
use crate::pages::Pages;
use crate::persistent::PersistentMemory;
use crate::plan::{self, Plan, PlanProgram, PlanShare, Report};
use crate::qemu::{Accelerator, Boot, Folder, Qemu};
use crate::run::{Limits, Outcome, Run, Streams};
use crate::scratch::Scratch;
use crate::share::{self, Share};
use crate::signals::Signals;
use crate::terminal::{RawTerminal, Typed};
use crate::tools;

/// Memory of a guest, if nothing else is requested. Boots are faster with less.
const MEMORY_MIB: u64 = 4096;
/// The part of the available memory that a guest may have at most: the rest is for QEMU and other programs.
const AVAILABLE_PART: (u64, u64) = (7, 8);
/// Lines of the console that are shown when a guest fails.
const CONSOLE_LINES: usize = 20;

/// A guest and its program.
#[derive(Clone, Debug)]
pub struct BootOptions {
    /// The machine: name of a profile, or path of a JSON file.
    pub profile: String,
    /// Path of the program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Folders that the program may write to, or that lie below `/tmp` or `/run`.
    pub shares: Vec<Share>,
    /// Memory of the guest, about.
    pub memory_bytes: Option<u64>,
    /// The directory with the files of the persistent memory, which are made if they are missing. Without it the persistent
    /// memory begins empty and is gone at the end.
    pub persistent: Option<PathBuf>,
    /// Nodes that have no free memory, see [`Layout::check_full`].
    pub full: Vec<u32>,
    /// Whether the program gets the terminal of this process.
    pub is_interactive: bool,
    /// Time limit.
    pub timeout: Option<Duration>,
}

impl BootOptions {
    /// A program without arguments, on the machine of a profile.
    pub fn new(profile: impl Into<String>, program: impl Into<PathBuf>) -> BootOptions {
        BootOptions {
            profile: profile.into(),
            program: program.into(),
            arguments: Vec::new(),
            shares: Vec::new(),
            memory_bytes: None,
            persistent: None,
            full: Vec::new(),
            is_interactive: false,
            timeout: None,
        }
    }
}

/// The end of a guest.
#[derive(Debug)]
pub struct Booted {
    /// The status of the program; the signal of this process if that ended the guest.
    pub status: ExitStatus,
    /// Where the memory of the program lay; `None` if the guest did not end by itself.
    pub pages: Option<Pages>,
    /// The guest's machine.
    pub layout: Layout,
    /// How its instructions were executed.
    pub accelerator: Accelerator,
}

/// Boots a guest, runs a program in it, and waits for its end. Signals such as Ctrl-C end the guest.
///
/// The program finds the folders of this machine read-only, and its own `/tmp`, `/run`, `/proc`, `/sys` and `/dev`. It is root
/// in the guest; files are accessed with the rights of this process. Its output streams are those of this process. Its
/// standard input is empty, unless it has the terminal. `note` gets sentences for the user.
///
/// The calling program must call [`run_if_init`](crate::run_if_init) first in its `main`: it is process 1 of the guest.
///
/// # Errors
/// See [`Error`].
pub fn boot(options: &BootOptions, note: &mut dyn FnMut(&str)) -> Result<Booted, Error> {
    let layout = layout(options, available_mib(), note)?;
    layout.check_full(&options.full)?;
    check_persistent(options, &layout)?;
    let shares = share::check(&options.shares)?;
    let qemu = Qemu::find(true)?;
    let scratch = Scratch::new(&tools::cache()?)?;
    let kernel = Kernel::find(scratch.path())?;
    let directory = options.persistent.as_deref().unwrap_or(scratch.path());
    let persistent = PersistentMemory::open(&layout, &kernel, directory)?;
    note(&introduction(&layout, qemu.accelerator()));
    layout.regions.iter().enumerate().for_each(|(number, region)| note(&introduced(number, region, options)));
    let signals = Signals::note().map_err(|error| Error::Qemu(format!("cannot handle signals: {error}")))?;
    let terminal = match options.is_interactive {
        true => {
            note("the end of the shell or program ends the guest; Ctrl-] three times in a second kills it");
            Some(RawTerminal::new().map_err(Error::Terminal)?)
        }
        false => None,
    };
    let program = plan(options, &shares, terminal.as_ref().map(RawTerminal::size))?;
    let initramfs = scratch.path().join("initramfs");
    let mut image = Image::new();
    let plan = Plan {
        name: layout.profile.clone(),
        commands: Vec::new(),
        record: false,
        full: options.full.clone(),
        persistent: persistent.plan(&mut image)?,
        program: Some(PlanProgram { modules: image.modules(&kernel.folders)?, ..program }),
    };
    write_image(&initramfs, image, &plan)?;
    let report = scratch.path().join("report");
    let folders = folders(&shares);
    let boot = Boot::new(&kernel, &initramfs, Some(&report)).with_persistent(&persistent);
    let boot = Boot { folders: &folders, ..boot };

    let is_escaped = Arc::new(AtomicBool::new(false));
    let streams = streams(terminal.is_some(), &is_escaped)?;
    let stop = || signals.arrived().is_some() || is_escaped.load(Ordering::Relaxed);
    let mut console = VecDeque::new();
    let run = qemu.run_with(
        &layout,
        &boot,
        &Limits { whole: options.timeout, stop: &stop },
        Some(streams),
        &mut |line| {
            console.push_back(line.to_owned());
            if console.len() > CONSOLE_LINES {
                console.pop_front();
            }
        },
    );
    // Before anything is printed.
    drop(terminal);
    let run = run?;
    if run.is_out_of_memory {
        note("the guest's memory ran out, and its kernel killed a process; --memory gives it more");
    }
    let ended =
        if is_escaped.load(Ordering::Relaxed) { Ended::Escaped } else { Ended::of(signals.arrived()) };
    let read = || fs::read(&report).map_err(|error| format!("{}: {error}", report.display()));
    let outcome = result(run, ended, console.iter().map(String::as_str), read);
    if matches!(outcome, Err(Error::NotFinished(_))) {
        console.iter().for_each(|line| note(line));
    }
    let (status, pages) = outcome?;
    Ok(Booted { status, pages, layout, accelerator: qemu.accelerator().clone() })
}

/// Why the guest was ended from outside, if it was.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Escaped,
    Signal(i32),
    OutputClosed,
}

impl Ended {
    fn of(signal: Option<i32>) -> Ended {
        signal.map_or(Ended::OutputClosed, Ended::Signal)
    }
}

fn result<'a>(
    run: Run,
    ended: Ended,
    mut console: impl Iterator<Item = &'a str>,
    report: impl Fn() -> Result<Vec<u8>, String>,
) -> Result<(ExitStatus, Option<Pages>), Error> {
    match (run.outcome, ended) {
        (Outcome::AllOk, _) => {
            let wrong = |why: String| Error::NotFinished(format!("its report cannot be read: {why}"));
            let report: Report = report()
                .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()))
                .map_err(wrong)?;
            match report.failure {
                Some(why) => Err(Error::NotStarted(why)),
                None => Ok((ExitStatus::from_raw(report.status), Some(report.pages))),
            }
        }
        (Outcome::SomeFailed, _) => {
            let why = console.find_map(|line| line.strip_prefix(plan::FAILED));
            Err(Error::NotFinished(why.unwrap_or("its first process failed").to_owned()))
        }
        (Outcome::NotFinished(why), _) => Err(Error::NotFinished(why)),
        (Outcome::Stopped, Ended::Escaped) => Err(Error::NotFinished("Ctrl-] ended it".to_owned())),
        (Outcome::Stopped, Ended::Signal(signal)) => Ok((ExitStatus::from_raw(signal), None)),
        (Outcome::Stopped, Ended::OutputClosed) => Ok((ExitStatus::from_raw(libc::SIGPIPE), None)),
    }
}

/// The layout, with less memory than requested if this machine has less.
fn layout(
    options: &BootOptions,
    available_mib: Option<u64>,
    note: &mut dyn FnMut(&str),
) -> Result<Layout, Error> {
    let requested_mib = options.memory_bytes.map_or(MEMORY_MIB, |bytes| bytes >> 20);
    let layout = Layout::of_size(&options.profile, requested_mib)?;
    let Some(available_mib) = available_mib else { return Ok(layout) };
    let most_mib = available_mib * AVAILABLE_PART.0 / AVAILABLE_PART.1;
    if layout.memory_mib() <= most_mib {
        return Ok(layout);
    }
    let smaller = Layout::of_size(&options.profile, most_mib)?;
    let (wanted, got) = (layout.memory_mib(), smaller.memory_mib());
    note(&format!(
        "a guest of {wanted} MiB is too large for this machine, which has {available_mib} MiB available; it gets {got} MiB"
    ));
    if got > most_mib {
        note(
            "that is the least that its nodes need; if it uses all of it, this machine may run out of memory",
        );
    }
    Ok(smaller)
}

/// Memory that is available without swapping; `None` if the kernel does not say.
fn available_mib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib >> 10)
}

fn introduction(layout: &Layout, accelerator: &Accelerator) -> String {
    let scale = match layout.machine_mib {
        whole if whole > layout.memory_mib() => format!(" instead of {whole} MiB"),
        _ => String::new(),
    };
    let by = match accelerator {
        Accelerator::Kvm => "by KVM".to_owned(),
        Accelerator::Tcg { why: None } => "by software emulation (TCG)".to_owned(),
        Accelerator::Tcg { why: Some(why) } => {
            format!("by software emulation (TCG), because KVM does not work here ({why})")
        }
    };
    format!(
        "booting {}: {} nodes, {} CPUs, {} MiB of memory{scale}, {by}",
        layout.profile,
        layout.nodes.len(),
        layout.cpus_count(),
        layout.memory_mib()
    )
}

/// Whether the machine has what `options.persistent` keeps.
fn check_persistent(options: &BootOptions, layout: &Layout) -> Result<(), Error> {
    match &options.persistent {
        Some(directory) if layout.regions.is_empty() => {
            let (directory, profile) = (directory.display(), &layout.profile);
            Err(Error::PersistentMemory(format!(
                "{directory} cannot keep persistent memory: {profile} has none; made-up-fsdax-node has some"
            )))
        }
        _ => Ok(()),
    }
}

fn introduced(number: usize, region: &LayoutRegion, options: &BootOptions) -> String {
    let LayoutRegion { node, size_mib, machine_mib } = region;
    let scale = match machine_mib {
        whole if whole > size_mib => format!(" instead of {whole} MiB"),
        _ => String::new(),
    };
    let kept = match &options.persistent {
        Some(directory) => format!("kept in {}", directory.join(format!("pmem{number}")).display()),
        None => "gone at the end; --persistent keeps it".to_owned(),
    };
    let at = plan::PERSISTENT;
    format!(
        "{size_mib} MiB of persistent memory{scale} of node {node} at {at}{number}, ext4 with DAX, {kept}"
    )
}

/// The path of a program in the guest, and the file that must be made visible for it, if any.
fn place(path: &Path) -> io::Result<(PathBuf, Option<PathBuf>)> {
    let (absolute, real) = (std::path::absolute(path)?, path.canonicalize()?);
    let place = if share::is_replaced(&absolute) { real.clone() } else { absolute };
    Ok((place, Some(real).filter(|real| share::is_replaced(real))))
}

fn plan(options: &BootOptions, shares: &[Share], terminal: Option<(u16, u16)>) -> Result<PlanProgram, Error> {
    let failed = |what: &dyn std::fmt::Display| {
        let what = what.to_string();
        move |error: io::Error| Error::Image(format!("{what}: {error}"))
    };
    let (path, program) = place(&options.program).map_err(failed(&options.program.display()))?;
    let this = std::env::current_exe().map_err(failed(&"the path of this program"))?;
    let (init, own) = place(&this).map_err(failed(&this.display()))?;
    let directory = std::env::current_dir().map_err(failed(&"the working directory"))?;
    let below_own = Some(directory.clone()).filter(|directory| share::is_below_replaced(directory));
    let mut visible: Vec<OsString> =
        [program, own, below_own].into_iter().flatten().map(OsString::from).collect();
    // This program may run itself. A file that is visible once cannot be made visible again.
    visible.dedup();
    let variables = std::env::vars_os().filter(|(name, _)| name != "TMPDIR");
    Ok(PlanProgram {
        init: init.into(),
        path: path.into(),
        arguments: options.arguments.clone(),
        env: variables.collect(),
        directory: directory.into(),
        modules: Vec::new(),
        visible,
        shares: (shares.iter().enumerate())
            .map(|(number, share)| PlanShare {
                tag: tag(number),
                path: share.directory.clone().into(),
                is_read_only: share.is_read_only,
            })
            .collect(),
        terminal,
    })
}

fn tag(number: usize) -> String {
    format!("share{number}")
}

fn folders(shares: &[Share]) -> Vec<Folder> {
    let root = Folder { tag: plan::ROOT_TAG.to_owned(), path: PathBuf::from("/"), is_read_only: true };
    let shares = shares.iter().enumerate().map(|(number, share)| Folder {
        tag: tag(number),
        path: share.directory.clone(),
        is_read_only: share.is_read_only,
    });
    [root].into_iter().chain(shares).collect()
}

/// Writes the image, which has the modules: adds this program as process 1, and the plan.
fn write_image(file: &Path, mut image: Image, plan: &Plan) -> Result<(), Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Image(format!("{}: {error}", file.display()));
    if let Some(program) = &plan.program {
        image.program("init", Path::new(&program.init))?;
    }
    image.file(plan::PLAN, &serde_json::to_vec(plan).map_err(|error| failed(&error))?);
    fs::write(file, image.finish()).map_err(|error| failed(&error))
}

/// The streams of this process.
fn streams(is_interactive: bool, is_escaped: &Arc<AtomicBool>) -> Result<Streams, Error> {
    // Not through the locks of std: the caller may hold them.
    fn file(stream: impl AsFd) -> Result<Box<dyn Write + Send>, Error> {
        let duplicate = stream.as_fd().try_clone_to_owned();
        let duplicate =
            duplicate.map_err(|error| Error::Qemu(format!("cannot use the standard streams: {error}")))?;
        Ok(Box::new(File::from(duplicate)))
    }
    let input = is_interactive
        .then(|| -> Box<dyn io::Read + Send> { Box::new(Typed::new(io::stdin(), Arc::clone(is_escaped))) });
    Ok(Streams { input, output: file(io::stdout())?, error: file(io::stderr())? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::NodeBytes;

    fn notes_of(memory_bytes: Option<u64>, available_mib: Option<u64>) -> (u64, String) {
        let mut notes = String::new();
        let options = BootOptions { memory_bytes, ..BootOptions::new("skylake-8180-snc-on", "/bin/true") };
        let layout = layout(&options, available_mib, &mut |line| notes += line).unwrap();
        (layout.memory_mib(), notes)
    }

    #[test]
    fn memory_is_scaled_to_this_machine() {
        assert_eq!(notes_of(None, Some(32768)), (4096, String::new()));
        assert_eq!(notes_of(Some(2 << 30), None), (2048, String::new()));
        let (mib, notes) = notes_of(Some(64 << 30), Some(16384));
        assert!(mib <= 16384 * 7 / 8 && mib > 12000, "{mib}");
        assert!(
            notes.contains("65536 MiB is too large") && notes.contains(&format!("it gets {mib} MiB")),
            "{notes}"
        );
        let (mib, notes) = notes_of(None, Some(1024));
        assert!(mib == 4 * 384 && notes.contains("the least that its nodes need"), "{mib} {notes}");
    }

    #[test]
    fn the_introduction_says_what_is_scaled_and_who_executes() {
        let layout = Layout::of_size("made-up-two-tiers", 1024).unwrap();
        let text = introduction(&layout, &Accelerator::Tcg { why: Some("no".to_owned()) });
        assert!(text.contains("2 nodes, 2 CPUs, 1024 MiB of memory instead of 12288 MiB"), "{text}");
        assert!(text.ends_with("(TCG), because KVM does not work here (no)"), "{text}");
        let whole = Layout::of_size("made-up-two-tiers", u64::MAX).unwrap();
        assert!(introduction(&whole, &Accelerator::Kvm).ends_with("12288 MiB of memory, by KVM"));
    }

    #[test]
    fn persistent_memory_is_introduced() {
        let of = |profile: &str, persistent: Option<&str>| {
            let options =
                BootOptions { persistent: persistent.map(PathBuf::from), ..BootOptions::new(profile, "/x") };
            let layout = Layout::of_size(profile, 1024).unwrap();
            check_persistent(&options, &layout)?;
            Ok::<_, Error>(layout.regions.first().map(|region| introduced(0, region, &options)))
        };
        assert_eq!(of("made-up-cxl-node", None).unwrap(), None);
        let error = of("made-up-cxl-node", Some("/d")).unwrap_err().to_string();
        assert!(error.starts_with("/d cannot keep persistent memory: made-up-cxl-node has none"), "{error}");
        let text = of("made-up-fsdax-node", Some("/d")).unwrap().unwrap();
        assert!(
            text.starts_with("512 MiB of persistent memory instead of 16384 MiB of node 1 at /run/pmem0")
        );
        assert!(text.ends_with("kept in /d/pmem0"), "{text}");
        assert!(of("made-up-fsdax-node", None).unwrap().unwrap().ends_with("--persistent keeps it"));
    }

    #[test]
    fn ends_become_results() {
        let report = |failure: Option<&str>| {
            let pages = Pages { most: NodeBytes::from([(8, 4096)]), ..Pages::default() };
            let report = Report { status: 3 << 8, failure: failure.map(str::to_owned), pages };
            serde_json::to_vec(&report).unwrap()
        };
        let run = |outcome| Run { outcome, boot: None, whole: Duration::ZERO, is_out_of_memory: false };
        let console = ["guest: up", "guest: cannot follow the plan: no 9p"];
        let of = |outcome, ended, failure| {
            result(run(outcome), ended, console.into_iter(), || Ok(report(failure)))
        };
        let (status, pages) = of(Outcome::AllOk, Ended::OutputClosed, None).unwrap();
        assert_eq!((status.code(), pages.unwrap().most.get(&8)), (Some(3), Some(&4096)));
        let error = of(Outcome::AllOk, Ended::OutputClosed, Some("cannot run x")).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().as_str()), (126, "cannot run x"));
        let (status, pages) = of(Outcome::Stopped, Ended::Signal(2), None).unwrap();
        assert!(status.signal() == Some(2) && pages.is_none());
        assert_eq!(of(Outcome::Stopped, Ended::OutputClosed, None).unwrap().0.signal(), Some(libc::SIGPIPE));
        for (outcome, ended, words) in [
            (Outcome::Stopped, Ended::Escaped, "Ctrl-]"),
            (Outcome::SomeFailed, Ended::OutputClosed, "the guest did not finish: no 9p"),
            (Outcome::NotFinished("a panic".to_owned()), Ended::OutputClosed, "a panic"),
        ] {
            let error = of(outcome, ended, None).unwrap_err();
            assert!(error.exit_code() == 125 && error.to_string().contains(words), "{error}");
        }
        let cut =
            result(run(Outcome::AllOk), Ended::OutputClosed, [].into_iter(), || Ok(b"{\"status\":".to_vec()));
        assert!(cut.unwrap_err().to_string().contains("its report cannot be read"));
    }

    #[test]
    fn a_program_below_tmp_is_made_visible() {
        let (path, visible) = place(Path::new("/proc/self/exe")).unwrap();
        assert_eq!(path, std::env::current_exe().unwrap());
        assert_eq!(visible.is_some(), share::is_replaced(&path));
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let file = directory.path().join("program");
        fs::write(&file, "").unwrap();
        assert_eq!(place(&file).unwrap(), (file.clone(), Some(file)));
        assert!(place(Path::new("/nowhere")).is_err());
    }
}
