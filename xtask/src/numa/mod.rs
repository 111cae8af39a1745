//! `cargo xtask numa`: runs tests in an emulated guest that has the NUMA nodes of a profile.
//!
//! ```text
//! profile ─▶ layout ─▶ a guest ─▶ exit status
//!               └────▶ /layout.json ──┐             ▲
//! tests, command, this program ─▶ image (initramfs) ┘
//! ```
//!
//! The crate memferry-guest boots the guests. Process 1 of a guest is this program. The memory is as fast as the host's: do
//! not measure in a guest.

mod build;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use memferry_guest::{
    ARRIVALS, Boot, COMMAND, COMMAND_VARIABLE, Image, Kernel, LAYOUT, LAYOUT_VARIABLE, Layout, Outcome,
    PERSISTENT, PLAN, PROGRAMS, PersistentMemory, Plan, PlanCommand, Qemu, Run, Scratch,
};
use serde_json::{Map, Value};
use tempfile::{NamedTempFile, TempPath};

use crate::binaries::{self, Binary};
use crate::shell::{Failure, target_directory};
use crate::skips;

/// A machine that `--all-machines` boots.
pub(crate) struct GuestMachine {
    pub(crate) profile: &'static str,
    /// Nodes without free memory.
    full: &'static [u32],
    /// Filters of the tests that run there; empty for all tests.
    filters: &'static [&'static str],
}

/// Tests that depend on the shape of a machine: discovery, placement of memory, workers of domains.
const OF_ANY_SHAPE: &[&str] = &["topology", "numa_memory", "numa_domains"];

/// Tests that look for a node that is already full.
const WITH_A_FULL_NODE: &[&str] = &["already_full"];

/// Tests that depend on persistent memory. The others of their file run everywhere, and take minutes in a guest.
const ON_PERSISTENT_MEMORY: &[&str] = &["needs_dax", "lies_at_the_node", "restored_by_the_next_process"];

/// The machines of `--all-machines`. The first is the default and runs all tests; the others run [`OF_ANY_SHAPE`],
/// [`WITH_A_FULL_NODE`], or [`ON_PERSISTENT_MEMORY`].
pub(crate) const MACHINES: &[GuestMachine] = &[
    GuestMachine { profile: "xeon-max-9468-2s-flat", full: &[], filters: &[] },
    GuestMachine { profile: "skylake-8180-snc-on", full: &[], filters: OF_ANY_SHAPE },
    GuestMachine { profile: "skylake-8180-snc-off", full: &[], filters: OF_ANY_SHAPE },
    GuestMachine { profile: "broadwell-2699v4-cod-off", full: &[], filters: OF_ANY_SHAPE },
    GuestMachine { profile: "epyc-7742-2s-nps4", full: &[], filters: OF_ANY_SHAPE },
    GuestMachine { profile: "made-up-odd-nodes", full: &[], filters: OF_ANY_SHAPE },
    GuestMachine { profile: "made-up-cxl-node", full: &[], filters: OF_ANY_SHAPE },
    GuestMachine { profile: "made-up-cxl-node", full: &[2], filters: WITH_A_FULL_NODE },
    GuestMachine { profile: "made-up-fsdax-node", full: &[], filters: ON_PERSISTENT_MEMORY },
];

/// Guests that run at the same time: each is one thread of QEMU, and CI has two CPUs.
const AT_A_TIME: usize = 2;
/// Time limits of a guest and of one of its commands: many times the slowest on two idle CPUs, because CI builds beside it.
const GUEST_SECONDS: u64 = 1200;
const COMMAND_SECONDS: u64 = 600;

pub(crate) const USAGE: &str = "\
cargo xtask numa [OPTION...] [FILTER...]
  FILTER             only tests whose name or file name contains it; `topology` also shows the machine
  --machine PROFILE  boot the machine of this profile, a name or a JSON file
  --all-machines     boot every machine that CI boots
  --full NODE        a node of the machine without free memory; may be repeated
  --package NAME     only tests of this package; may be repeated
  --record DIR       save the machine as the guest's kernel shows it in DIR/PROFILE.json
  --timeout SECONDS  time limit of a guest
";

#[derive(Debug, Default, PartialEq)]
struct Options {
    machine: Option<String>,
    all_machines: bool,
    full: Vec<u32>,
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
                "--full" => {
                    options.full.push(value()?.parse().map_err(|_| "--full needs the number of a node")?);
                }
                "--package" => options.packages.push(value()?),
                "--record" => options.record = Some(value()?.into()),
                "--timeout" => {
                    let seconds = value()?.parse().ok().filter(|&seconds| seconds > 0);
                    options.timeout_seconds = Some(seconds.ok_or("--timeout needs a number of seconds")?);
                }
                other if other.starts_with('-') => return Err(format!("unknown option {other}")),
                filter => options.filters.push(filter.to_owned()),
            }
        }
        if options.machine.is_some() && options.all_machines {
            return Err("--machine and --all-machines exclude each other".to_owned());
        }
        if options.all_machines && !options.full.is_empty() {
            return Err("--full is for one machine; leave out --all-machines".to_owned());
        }
        Ok(options)
    }

    /// The machines to boot.
    fn machines(&self) -> Vec<Wanted> {
        let own = |machine: &GuestMachine| machine.filters.iter().map(|&filter| filter.to_owned()).collect();
        let machines = if self.all_machines { MACHINES } else { &MACHINES[..1] };
        machines
            .iter()
            .map(|machine| {
                let filters = if self.filters.is_empty() { own(machine) } else { self.filters.clone() };
                let full = if self.all_machines { machine.full.to_vec() } else { self.full.clone() };
                match &self.machine {
                    // A machine chosen by name runs all tests.
                    Some(profile) => Wanted { profile: profile.clone(), full, filters: self.filters.clone() },
                    None => Wanted { profile: machine.profile.to_owned(), full, filters },
                }
            })
            .collect()
    }
}

/// A machine that a run boots.
#[derive(Debug, PartialEq)]
struct Wanted {
    profile: String,
    full: Vec<u32>,
    filters: Vec<String>,
}

impl Wanted {
    /// Its name in reports.
    fn name(&self) -> String {
        match self.full.as_slice() {
            [] => self.profile.clone(),
            full => {
                let nodes: Vec<String> = full.iter().map(u32::to_string).collect();
                format!("{}-full-{}", self.profile, nodes.join("-"))
            }
        }
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::parse(arguments).map_err(|why| Failure(format!("{why}\n\n{USAGE}")))?;
    let machines = options.machines();
    // Report errors of a profile before building.
    for machine in &machines {
        Layout::of(&machine.profile, 0)?.check_full(&machine.full)?;
    }
    let qemu = Qemu::find(false)?;
    let scratch = Scratch::new(&target_directory().join("numa"))?;
    let kernel = Kernel::find(scratch.path())?;
    let host = Host::build(qemu, kernel, scratch, &options)?;

    let mut guests = Vec::new();
    for machine in &machines {
        let guest = host.guest(machine)?;
        if !guest.plan.commands.is_empty() {
            guests.push(guest);
        } else {
            eprintln!("{}: no test name contains {}", machine.name(), machine.filters.join(" or "));
        }
    }
    if guests.is_empty() {
        return Err(Failure("no guest has a test to run; check the filters".to_owned()));
    }
    let label = guests.len() > 1;
    let queue = Mutex::new(guests.iter());
    let reports = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(guests.len()) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no thread panics while it holds the lock").next();
                    let Some(guest) = next else { return };
                    let report = host.run(guest, label);
                    reports.lock().expect("no thread panics while it holds the lock").push(report);
                }
            });
        }
    });
    let mut reports = reports.into_inner().expect("no thread panics while it holds the lock");
    reports.sort_by_key(|(profile, _)| machines.iter().position(|machine| machine.name() == *profile));
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

/// The state that all guests of a run share. Their threads only read it.
struct Host {
    qemu: Qemu,
    kernel: Kernel,
    /// Archive of programs and libraries, the first of each guest's image.
    image: Vec<u8>,
    /// Size of the files that stay in the guest's memory.
    files_mib: u64,
    tests: Vec<Binary>,
    has_command: bool,
    record: Option<PathBuf>,
    limit: Duration,
    scratch: Scratch,
}

/// A machine to boot.
struct Guest {
    name: String,
    layout: Layout,
    plan: Plan,
    persistent: PersistentMemory,
    /// Archive of the modules for it.
    modules: Vec<u8>,
}

impl Host {
    fn build(qemu: Qemu, kernel: Kernel, scratch: Scratch, options: &Options) -> Result<Host, Failure> {
        let built = build::build(&options.packages)?;
        let mut image = Image::new();
        for directory in ["proc", "sys", "tmp", "run", &PROGRAMS[1..], &ARRIVALS[1..]] {
            image.directory(directory);
        }
        let this = std::env::current_exe()
            .map_err(|error| Failure(format!("cannot find the path of xtask: {error}")))?;
        image.program("init", &this)?;
        let mut files_bytes = 0;
        let command = built.command.iter().map(|path| ("memferry".to_owned(), path));
        let programs = built.tests.iter().map(|test| (test.name.clone(), &test.path)).chain(command);
        let mut names = BTreeSet::new();
        for (name, path) in programs {
            if !names.insert(name.clone()) {
                return Err(Failure(format!(
                    "two packages have a test binary {name}, but a guest can hold one; choose one with --package"
                )));
            }
            files_bytes += image.program(&format!("{}/{name}", ARRIVALS), path)?;
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

    fn guest(&self, machine: &Wanted) -> Result<Guest, Failure> {
        let layout = Layout::of(&machine.profile, self.files_mib)?;
        let directory = self.scratch.path().join(file_stem(&machine.name()));
        let persistent = PersistentMemory::open(&layout, &self.kernel, &directory)?;
        let mut modules = Image::default();
        let plan = Plan {
            name: layout.profile.clone(),
            commands: self.commands(&layout, &machine.filters)?,
            record: self.record.is_some(),
            full: machine.full.clone(),
            persistent: persistent.plan(&mut modules)?,
            program: None,
        };
        Ok(Guest { name: machine.name(), layout, plan, persistent, modules: modules.finish() })
    }

    /// Writes the guest's image: the shared programs, then the plan and the layout of the guest.
    fn initramfs(&self, guest: &Guest) -> Result<TempPath, Failure> {
        let json = |value: serde_json::Result<Vec<u8>>| value.map_err(|error| Failure(error.to_string()));
        let mut own = Image::default();
        own.file(PLAN, &json(serde_json::to_vec(&guest.plan))?);
        own.file(LAYOUT, &json(serde_json::to_vec(&guest.layout))?);
        let write = || {
            let mut file = NamedTempFile::new_in(self.scratch.path())?;
            file.write_all(&self.image)?;
            file.write_all(&own.finish())?;
            file.write_all(&guest.modules)?;
            Ok(file.into_temp_path())
        };
        write().map_err(|error: io::Error| Failure(format!("{}: {error}", self.scratch.path().display())))
    }

    /// The commands of a guest: `memferry topology` and the tests that match a filter. Empty if no test matches.
    ///
    /// Tests put their files on the first persistent memory, if the machine has some.
    fn commands(&self, layout: &Layout, filters: &[String]) -> Result<Vec<PlanCommand>, Failure> {
        let has_persistent = !layout.regions.is_empty();
        let temporary = if has_persistent { format!("{PERSISTENT}0") } else { "/tmp".to_owned() };
        let env: BTreeMap<String, String> = [
            ("PATH", PROGRAMS),
            ("HOME", "/tmp"),
            ("TMPDIR", temporary.as_str()),
            ("RUST_BACKTRACE", "0"),
            (LAYOUT_VARIABLE, LAYOUT),
            (COMMAND_VARIABLE, if self.has_command { COMMAND } else { "" }),
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
            commands.push(command("memferry topology", vec![COMMAND.to_owned(), "topology".to_owned()]));
        }
        let without_tests = commands.len();
        for test in &self.tests {
            if test.name.starts_with(build::DAX_PREFIX) && !has_persistent {
                continue;
            }
            // A filter that matches the name of the file selects all of its tests.
            let is_named = filters.iter().any(|filter| test.name.contains(filter.as_str()));
            let filters = if is_named { &[] } else { filters };
            if !binaries::tests(&test.path, filters)?.is_empty() {
                let mut argv = vec![format!("{}/{}", PROGRAMS, test.name)];
                argv.extend_from_slice(filters);
                // One at a time: tests check free memory, and the last printed name is the test that hangs.
                argv.push("--test-threads=1".to_owned());
                // Shows the lines of skipped tests.
                argv.push("--show-output".to_owned());
                commands.push(command(&test.name, argv));
            }
        }
        if commands.len() == without_tests {
            commands.clear();
        }
        Ok(commands)
    }

    /// Boots a guest, a second time if it does not finish, and returns its profile and a verdict.
    fn run(&self, guest: &Guest, label: bool) -> (String, Result<String, Failure>) {
        let mut tries = 0;
        let outcome = loop {
            tries += 1;
            match self.run_once(guest, label) {
                Ok(Run { outcome: Outcome::NotFinished(why), .. }) if tries < 2 => {
                    eprintln!("{}: the guest did not finish: {why}; trying again", guest.name);
                }
                outcome => break outcome,
            }
        };
        let verdict = outcome.and_then(|run| {
            let boot =
                run.boot.map_or("no boot".to_owned(), |boot| format!("boot {:.1} s", boot.as_secs_f64()));
            let again = if tries > 1 { ", at the second try" } else { "" };
            let times = format!("{boot}, all {:.1} s{again}", run.whole.as_secs_f64());
            match run.outcome {
                Outcome::AllOk => Ok(format!("ok ({times})")),
                Outcome::SomeFailed => Err(Failure(format!("see above ({times})"))),
                Outcome::NotFinished(why) => {
                    Err(Failure(format!("the guest did not finish twice: {why} ({times})")))
                }
                Outcome::Stopped => Err(Failure(format!("the guest was stopped ({times})"))),
            }
        });
        (guest.name.clone(), verdict)
    }

    fn run_once(&self, guest: &Guest, label: bool) -> Result<Run, Failure> {
        let layout = &guest.layout;
        eprintln!(
            "booting {}: {} nodes, {} CPUs, {} MiB, {} commands",
            guest.name,
            layout.nodes.len(),
            layout.cpus_count(),
            layout.memory_mib(),
            guest.plan.commands.len()
        );
        let initramfs = self.initramfs(guest)?;
        let recording = self.record.as_ref().map(|_| initramfs.with_extension("recording"));
        let boot = Boot::new(&self.kernel, &initramfs, recording.as_deref());
        let boot = boot.with_persistent(&guest.persistent);
        let mut show = |line: &str| {
            skips::take_from_console(&layout.profile, line);
            if label { println!("[{}] {line}", guest.name) } else { println!("{line}") }
        };
        let run = self.qemu.run(layout, &boot, self.limit, &mut show)?;
        if let (Some(file), Some(directory)) = (&recording, &self.record)
            && matches!(run.outcome, Outcome::AllOk | Outcome::SomeFailed)
        {
            keep(file, &directory.join(format!("{}.json", file_stem(&layout.profile))))?;
        }
        Ok(run)
    }
}

/// A file name for a profile, whose name may have any characters.
fn file_stem(profile: &str) -> String {
    profile.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Checks that a recording is complete JSON and writes it indented.
fn keep(sent: &Path, kept: &Path) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure(format!("cannot save the recording {}: {error}", kept.display()))
    };
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
    fn guests_can_have_all_machines() {
        for machine in MACHINES {
            Layout::of(machine.profile, 0).unwrap().check_full(machine.full).unwrap();
        }
    }

    #[test]
    fn the_default_machine_runs_everything() {
        let machines = parse("").unwrap().machines();
        let all = |profile: &str| Wanted { profile: profile.to_owned(), full: vec![], filters: vec![] };
        assert_eq!(machines, [all("xeon-max-9468-2s-flat")]);
        let machines = parse("--machine made-up-odd-nodes").unwrap().machines();
        assert_eq!(machines, [all("made-up-odd-nodes")]);
        let machines = parse("--machine made-up-odd-nodes --full 3 --full 4").unwrap().machines();
        assert_eq!(machines[0].full, [3, 4]);
        assert_eq!(machines[0].name(), "made-up-odd-nodes-full-3-4");
    }

    #[test]
    fn a_filter_is_for_all_machines() {
        let machines = parse("--all-machines").unwrap().machines();
        assert_eq!(machines.len(), MACHINES.len());
        assert!(machines[0].filters.is_empty() && machines[1].filters == OF_ANY_SHAPE);
        let names: BTreeSet<String> = machines.iter().map(Wanted::name).collect();
        assert_eq!(names.len(), MACHINES.len(), "reports tell them apart");
        let machines = parse("--all-machines spread").unwrap().machines();
        assert!(machines.iter().all(|machine| machine.filters == ["spread"]));
    }

    #[test]
    fn options_are_checked() {
        let options = parse("--package memferry --package memferry-cli --record d --timeout 9 a b").unwrap();
        assert_eq!(options.packages, ["memferry", "memferry-cli"]);
        assert_eq!((options.timeout_seconds, options.filters.len()), (Some(9), 2));
        for (line, words) in [
            ("--machine", "--machine needs a value"),
            ("--fast", "unknown option --fast"),
            ("--timeout 0", "a number of seconds"),
            ("--full x", "the number of a node"),
            ("--full 1 --all-machines", "leave out --all-machines"),
            ("--all-machines --machine x", "exclude each other"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
