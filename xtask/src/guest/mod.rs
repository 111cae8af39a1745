//! `cargo xtask numa`: tests on a machine with the NUMA nodes of a profile, on any machine.
//!
//! ```text
//! profile ─▶ layout ─▶ QEMU's arguments ─▶ a guest, software emulation ─▶ exit status
//!               └────▶ /layout.json ──┐             ▲
//! tests, command, this program ─▶ image (initramfs) ┘  kernel: kept, or fetched with apt
//! ```
//!
//! Process 1 of the guest is this program ([`init`]). Numbers of nodes, CPUs, sizes, distances, rates and memory tiers
//! are what the guest's kernel makes of the firmware's tables; the memory itself is as fast as the host's, so that
//! nothing is to be measured here.

mod apt;
mod build;
mod image;
pub(crate) mod init;
mod kernel;
mod layout;
mod plan;
mod qemu;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::shell::{Failure, target_directory};
use crate::skips;
use build::TestBinary;
use image::Image;
use layout::Layout;
use plan::{Plan, PlanCommand};
use qemu::{Boot, End, Qemu, Run, Temporary};

/// A machine that `--all-machines` boots.
pub(crate) struct GuestMachine {
    pub(crate) profile: &'static str,
    /// Which tests run there; all of them, if none is named.
    filters: &'static [&'static str],
}

/// What depends on the shape of a machine: what is discovered, and where memory comes from.
const OF_ANY_SHAPE: &[&str] = &["topology", "numa_memory"];

/// The first is the default, and runs everything; the others run what depends on the shape of a machine.
pub(crate) const MACHINES: &[GuestMachine] = &[
    GuestMachine { profile: "xeon-max-9468-2s-flat", filters: &[] },
    GuestMachine { profile: "skylake-8180-snc-on", filters: OF_ANY_SHAPE },
    GuestMachine { profile: "skylake-8180-snc-off", filters: OF_ANY_SHAPE },
    GuestMachine { profile: "broadwell-2699v4-cod-off", filters: OF_ANY_SHAPE },
    GuestMachine { profile: "made-up-odd-nodes", filters: OF_ANY_SHAPE },
];

/// Guests at a time: each is one thread of QEMU's, and continuous integration has two CPUs.
const AT_A_TIME: usize = 2;
/// What a guest may take altogether, and one of its commands: several times what the slowest takes on two idle CPUs.
const GUEST_SECONDS: u64 = 360;
const COMMAND_SECONDS: u64 = 180;

pub(crate) const USAGE: &str = "\
cargo xtask numa [OPTION...] [FILTER...]
  FILTER             only tests with it in their name, or in that of their file; `topology` also shows the machine
  --machine PROFILE  boot the machine of this profile, a name or a JSON file
  --all-machines     boot every machine that continuous integration boots
  --package NAME     only tests of this package; may be repeated
  --record DIR       keep what the guest's kernel shows of the machine in DIR/PROFILE.json
  --timeout SECONDS  what a guest may take
";

#[derive(Debug, Default, PartialEq)]
struct Options {
    machine: Option<String>,
    all_machines: bool,
    packages: Vec<String>,
    record: Option<PathBuf>,
    timeout_seconds: Option<u64>,
    filters: Vec<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().cloned().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--machine" => options.machine = Some(value()?),
                "--all-machines" => options.all_machines = true,
                "--package" => options.packages.push(value()?),
                "--record" => options.record = Some(value()?.into()),
                "--timeout" => {
                    let seconds = value()?.parse().ok().filter(|&seconds| seconds > 0);
                    options.timeout_seconds = Some(seconds.ok_or("--timeout needs a number of seconds")?);
                }
                other if other.starts_with('-') => return Err(format!("there is no option {other}")),
                filter => options.filters.push(filter.to_owned()),
            }
        }
        if options.machine.is_some() && options.all_machines {
            return Err("--machine and --all-machines exclude each other".to_owned());
        }
        Ok(options)
    }

    /// Profiles and the filters there.
    fn machines(&self) -> Vec<(String, Vec<String>)> {
        let own = |machine: &GuestMachine| machine.filters.iter().map(|&filter| filter.to_owned()).collect();
        let machines = if self.all_machines { MACHINES } else { &MACHINES[..1] };
        machines
            .iter()
            .map(|machine| {
                let filters = if self.filters.is_empty() { own(machine) } else { self.filters.clone() };
                match &self.machine {
                    // Who names a machine wants all tests there.
                    Some(profile) => (profile.clone(), self.filters.clone()),
                    None => (machine.profile.to_owned(), filters),
                }
            })
            .collect()
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::parse(arguments).map_err(|why| Failure(format!("{why}\n\n{USAGE}")))?;
    let machines = options.machines();
    // What is wrong with a profile is said before anything is built.
    for (profile, _) in &machines {
        Layout::of(profile, 0)?;
    }
    let qemu = Qemu::find()?;
    let scratch = Scratch::new()?;
    let kernel = kernel::find(&scratch.0)?;
    let host = Host::build(qemu, kernel, scratch, &options)?;

    let mut guests = Vec::new();
    for (profile, filters) in &machines {
        let guest = host.guest(profile, filters)?;
        if !guest.plan.commands.is_empty() {
            guests.push(guest);
        } else {
            eprintln!("{profile}: no test has {} in its name", filters.join(" or "));
        }
    }
    if guests.is_empty() {
        return Err(Failure("nothing would be run in any guest".to_owned()));
    }
    let label = guests.len() > 1;
    let queue = Mutex::new(guests.iter());
    let reports = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(guests.len()) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("nobody panics with it").next();
                    let Some(guest) = next else { return };
                    let report = host.run(guest, label);
                    reports.lock().expect("nobody panics with it").push(report);
                }
            });
        }
    });
    let mut reports = reports.into_inner().expect("nobody panics with it");
    reports.sort_by_key(|(profile, _)| machines.iter().position(|(machine, _)| machine == profile));
    eprintln!();
    let mut failed = Vec::new();
    for (profile, outcome) in &reports {
        match outcome {
            Ok(text) => eprintln!("{profile}: {text}"),
            Err(failure) => {
                eprintln!("{profile}: FAILED, {failure}");
                failed.push(profile.as_str());
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure(format!("failed: {}", failed.join(", ")))) }
}

/// A directory of this run; removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        let all = target_directory().join("numa");
        remove_stale(&all, "run-");
        let directory = all.join(format!("run-{}", std::process::id()));
        let failed = |error| Failure(format!("{} cannot be made: {error}", directory.display()));
        fs::create_dir_all(&directory).map_err(failed)?;
        Ok(Scratch(directory))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left over is in the build directory, and goes with it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what an earlier process left, whose number follows `prefix`, if it was ended before it could.
fn remove_stale(directory: &Path, prefix: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if id.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            // If it cannot be removed it is in nobody's way.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// What all guests of a run share.
struct Host {
    qemu: Qemu,
    kernel: PathBuf,
    /// Programs and libraries: the first archive of each guest's image.
    image: Vec<u8>,
    /// What of the image will stay in the guest's memory.
    files_mib: u64,
    tests: Vec<TestBinary>,
    has_command: bool,
    record: Option<PathBuf>,
    limit: Duration,
    scratch: Scratch,
}

/// One machine to boot.
struct Guest {
    profile: String,
    layout: Layout,
    plan: Plan,
}

impl Host {
    fn build(qemu: Qemu, kernel: PathBuf, scratch: Scratch, options: &Options) -> Result<Host, Failure> {
        let built = build::build(&options.packages)?;
        let mut image = Image::new();
        for directory in ["proc", "sys", "tmp", "run", &plan::PROGRAMS[1..], &plan::ARRIVALS[1..]] {
            image.directory(directory);
        }
        let this = std::env::current_exe().map_err(|error| Failure(format!("this program: {error}")))?;
        image.program("init", &image::stripped(&this, &scratch.0)?)?;
        let mut files_bytes = 0;
        let command = built.command.iter().map(|path| ("memferry".to_owned(), path));
        let programs = built.tests.iter().map(|test| (test.name.clone(), &test.path)).chain(command);
        let mut names = BTreeSet::new();
        for (name, path) in programs {
            if !names.insert(name.clone()) {
                return Err(Failure(format!(
                    "two packages have tests called {name}; the guest can hold one"
                )));
            }
            let stripped = image::stripped(path, &scratch.0)?;
            files_bytes += fs::metadata(&stripped).map_or(0, |metadata| metadata.len());
            image.program(&format!("{}/{name}", plan::ARRIVALS), &stripped)?;
        }
        Ok(Host {
            qemu,
            kernel,
            image: image.finish(),
            files_mib: files_bytes.div_ceil(1 << 20),
            tests: built.tests,
            has_command: built.command.is_some(),
            record: options.record.clone(),
            limit: Duration::from_secs(options.timeout_seconds.unwrap_or(GUEST_SECONDS)),
            scratch,
        })
    }

    fn guest(&self, profile: &str, filters: &[String]) -> Result<Guest, Failure> {
        let layout = Layout::of(profile, self.files_mib)?;
        let plan = Plan {
            name: layout.profile.clone(),
            commands: self.commands(filters)?,
            record: self.record.is_some(),
        };
        Ok(Guest { profile: profile.to_owned(), layout, plan })
    }

    /// Writes the guest's image: the programs, then what is its own.
    fn initramfs(&self, guest: &Guest) -> Result<Temporary, Failure> {
        let json = |value: serde_json::Result<Vec<u8>>| value.map_err(|error| Failure(error.to_string()));
        let mut own = Image::default();
        own.file(plan::PLAN, &json(serde_json::to_vec(&guest.plan))?);
        own.file(plan::LAYOUT, &json(serde_json::to_vec(&guest.layout))?);
        let file = Temporary(self.scratch.0.join(format!("{}.cpio", file_stem(&guest.profile))));
        let write = || {
            let mut out = fs::File::create(&file.0)?;
            out.write_all(&self.image)?;
            out.write_all(&own.finish())
        };
        write().map_err(|error| Failure(format!("{}: {error}", file.0.display())))?;
        Ok(file)
    }

    /// The tests that match a filter, and what shows the machine; nothing if there is no such test.
    fn commands(&self, filters: &[String]) -> Result<Vec<PlanCommand>, Failure> {
        let env: BTreeMap<String, String> = [
            ("PATH", plan::PROGRAMS),
            ("HOME", "/tmp"),
            ("TMPDIR", "/tmp"),
            ("RUST_BACKTRACE", "0"),
            (plan::LAYOUT_VARIABLE, plan::LAYOUT),
            (plan::COMMAND_VARIABLE, if self.has_command { plan::COMMAND } else { "" }),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        let command = |name: &str, argv: Vec<String>| PlanCommand {
            name: name.to_owned(),
            argv,
            env: env.clone(),
            seconds_max: COMMAND_SECONDS.max(self.limit.as_secs() / 2),
        };
        let mut commands = Vec::new();
        if self.has_command && (filters.is_empty() || filters.iter().any(|filter| filter == "topology")) {
            commands
                .push(command("memferry topology", vec![plan::COMMAND.to_owned(), "topology".to_owned()]));
        }
        let shows = commands.len();
        for test in &self.tests {
            // A filter in the name of the file means all tests in it.
            let is_named = filters.iter().any(|filter| test.name.contains(filter.as_str()));
            let filters = if is_named { &[] } else { filters };
            if build::count(&test.path, filters)? > 0 {
                let mut argv = vec![format!("{}/{}", plan::PROGRAMS, test.name)];
                argv.extend_from_slice(filters);
                // One at a time: they look at free memory, and the test that hangs is the last one that was named.
                argv.push("--test-threads=1".to_owned());
                // So that one sees what was skipped.
                argv.push("--show-output".to_owned());
                commands.push(command(&test.name, argv));
            }
        }
        if commands.len() == shows {
            commands.clear();
        }
        Ok(commands)
    }

    /// Boots a machine, a second time if the guest did not finish; how it went, in words.
    fn run(&self, guest: &Guest, label: bool) -> (String, Result<String, Failure>) {
        let mut tries = 0;
        let outcome = loop {
            tries += 1;
            match self.run_once(guest, label) {
                Ok(Run { end: End::NotFinished(why), .. }) if tries < 2 => {
                    eprintln!("{}: the guest did not finish: {why}; once more", guest.profile);
                }
                outcome => break outcome,
            }
        };
        let verdict = outcome.and_then(|run| {
            let boot =
                run.boot.map_or("no boot".to_owned(), |boot| format!("boot {:.1} s", boot.as_secs_f64()));
            let again = if tries > 1 { ", at the second try" } else { "" };
            let times = format!("{boot}, all {:.1} s{again}", run.whole.as_secs_f64());
            match run.end {
                End::AllOk => Ok(format!("ok ({times})")),
                End::SomeFailed => Err(Failure(format!("see above ({times})"))),
                End::NotFinished(why) => {
                    Err(Failure(format!("the guest did not finish twice: {why} ({times})")))
                }
            }
        });
        (guest.profile.clone(), verdict)
    }

    fn run_once(&self, guest: &Guest, label: bool) -> Result<Run, Failure> {
        let layout = &guest.layout;
        eprintln!(
            "booting {}: {} nodes, {} CPUs, {} MiB, {} commands",
            guest.profile,
            layout.nodes.len(),
            layout.cpus_count(),
            layout.memory_mib(),
            guest.plan.commands.len()
        );
        let initramfs = self.initramfs(guest)?;
        let recording = self.record.as_ref().map(|_| Temporary(initramfs.0.with_extension("recording")));
        let boot = Boot {
            kernel: &self.kernel,
            initramfs: &initramfs.0,
            record: recording.as_ref().map(|file| file.0.as_path()),
        };
        let mut show = |line: &str| {
            skips::take_from_console(&layout.profile, line);
            if label { println!("[{}] {line}", layout.profile) } else { println!("{line}") }
        };
        let run = self.qemu.run(layout, &boot, self.limit, &mut show)?;
        if let (Some(file), Some(directory)) = (&recording, &self.record)
            && matches!(run.end, End::AllOk | End::SomeFailed)
        {
            keep(&file.0, &directory.join(format!("{}.json", file_stem(&layout.profile))))?;
        }
        Ok(run)
    }
}

/// A name for a file: a profile of somebody else's may have any name.
fn file_stem(profile: &str) -> String {
    profile.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Looks whether a recording came over whole, and keeps it in a form that can be read.
fn keep(sent: &Path, kept: &Path) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure(format!("the recording {}: {error}", kept.display()));
    let bytes = fs::read(sent).map_err(|error| failed(&error))?;
    let recording: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| failed(&error))?;
    let mut text = serde_json::to_string_pretty(&recording).map_err(|error| failed(&error))?;
    text.push('\n');
    let written = kept.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(kept, text));
    written.map_err(|error| failed(&error))
}

#[cfg(test)]
mod option_tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_default_machine_runs_everything() {
        let machines = parse("").unwrap().machines();
        assert_eq!(machines, [("xeon-max-9468-2s-flat".to_owned(), vec![])]);
        let machines = parse("--machine made-up-odd-nodes").unwrap().machines();
        assert_eq!(machines, [("made-up-odd-nodes".to_owned(), vec![])]);
    }

    #[test]
    fn a_filter_is_for_all_machines() {
        let machines = parse("--all-machines").unwrap().machines();
        assert_eq!(machines.len(), MACHINES.len());
        assert!(machines[0].1.is_empty() && machines[1].1 == OF_ANY_SHAPE);
        let machines = parse("--all-machines spread").unwrap().machines();
        assert!(machines.iter().all(|(_, filters)| filters == &["spread"]));
    }

    #[test]
    fn options_are_checked() {
        let options = parse("--package memferry --package memferry-cli --record d --timeout 9 a b").unwrap();
        assert_eq!(options.packages, ["memferry", "memferry-cli"]);
        assert_eq!((options.timeout_seconds, options.filters.len()), (Some(9), 2));
        for (line, words) in [
            ("--machine", "--machine needs a value"),
            ("--fast", "no option --fast"),
            ("--timeout 0", "a number of seconds"),
            ("--all-machines --machine x", "exclude each other"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
