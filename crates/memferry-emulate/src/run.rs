//! The way of a run: checks, namespace, server, program.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::panic;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;

use memferry_dsa::system::DeviceId;
use memferry_dsa_emulator::FakeDriver;

use crate::error::Error;
use crate::layout;
use crate::namespace::{self, Inside};
use crate::options::Options;
use crate::program::Program;
use crate::queues::Queues;
use crate::server::Server;
use crate::setup::Machine;
use crate::supervise;
use crate::system::{self, Forked, Pid, Signals};

/// Threads that answer requests of FUSE. One may wait for the driver's lock while the other serves.
const SERVER_THREADS: usize = 2;

/// Runs a program on emulated devices and says how it ended.
///
/// The calling process must have one thread and stays as it is: it waits, hands on signals and gets the status. What
/// the user should know besides goes to standard error.
///
/// # Errors
/// Nothing was run, or the supervising process was killed; [`Error::exit_code`] is what a command should exit with.
pub fn run(options: Options) -> Result<ExitStatus, Error> {
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(Error::Threads(threads));
    }
    let program = Program::find(&options.program)?;
    if let Some(path) = options.preload.as_ref().filter(|path| !path.is_file()) {
        return Err(Error::NoLibrary { path: path.clone() });
    }
    let machine = Machine::new(&options)?;
    namespace::open_fuse()?;
    // Empty, and before anything is run: processes append to it, each when it first uses a device. Open until the end:
    // a pipe's reader would take it for finished between two of them.
    let trace = options
        .trace
        .as_ref()
        .map(|path| fs::File::create(path).map_err(|source| Error::Trace { path: path.clone(), source }));
    let trace = trace.transpose()?;
    if let Some(note) = program.note().filter(|_| options.preload.is_some()) {
        eprintln!("memferry: note: {note}");
    }

    let before = supervise::children(&[]);
    let group = system::process_group(0).map_err(Error::system("ask for the process group"))?;
    let (mine, theirs) = UnixStream::pair().map_err(Error::system("make a pair of sockets"))?;
    system::become_subreaper().map_err(Error::system("adopt orphans"))?;
    let signals = supervise::handled_signals();
    let mask = signals.block().map_err(Error::system("block signals"))?;
    let outcome = match system::fork().map_err(Error::system("start a process"))? {
        Forked::Child => {
            drop(mine);
            supervisor(options, program, machine, theirs, &Caller { group, mask, signals });
        }
        Forked::Parent(supervisor) => {
            drop((theirs, trace));
            supervise::watch(supervisor, mine, &signals, &before)
        }
    };
    mask.block().map_err(Error::system("unblock signals"))?;
    outcome
}

/// Ends this process as another has ended: with its exit status, or by its signal.
pub fn exit_as(status: ExitStatus) -> ! {
    match (status.code(), status.signal()) {
        (Some(code), _) => std::process::exit(code),
        (None, Some(signal)) => system::die_by(signal),
        (None, None) => std::process::exit(1), // stopped or continued, which is not waited for
    }
}

/// What the supervisor must know of the process that it comes from.
struct Caller {
    group: Pid,
    mask: Signals,
    signals: Signals,
}

/// The child's whole life.
fn supervisor(
    options: Options,
    program: Program,
    machine: Machine,
    mut channel: UnixStream,
    caller: &Caller,
) -> ! {
    // A server that has lost a thread must not let the program hang: the caller cleans up after us.
    panic::set_hook(Box::new(|what| {
        eprintln!("memferry: the emulated driver failed: {what}");
        system::exit_now(125);
    }));
    let outcome = supervise_program(&options, &program, machine, &mut channel, caller);
    match outcome {
        Ok(Some(status)) => supervise::report(&mut channel, Ok(status)),
        Ok(None) => {} // nobody is left to be told
        Err(error) => {
            supervise::end_descendants(&[]);
            supervise::report(&mut channel, Err(&error));
        }
    }
    system::exit_now(0)
}

fn supervise_program(
    options: &Options,
    program: &Program,
    machine: Machine,
    channel: &mut UnixStream,
    caller: &Caller,
) -> Result<Option<ExitStatus>, Error> {
    // Signals to the caller's group then pass this process by, and `killall -9` of the command does. A session's leader
    // cannot leave, and is none here.
    let _ = system::join_group(0);
    supervise::supervisor_signals().block().map_err(Error::system("block signals"))?;
    system::set_name(c"idxd-emulator");
    system::become_subreaper().map_err(Error::system("adopt orphans"))?;
    let inside = namespace::enter(options.keep_user)?;
    let links = namespace::character_links();
    namespace::cover_dev()?;
    let Machine { devices, driver } = machine;
    let driver = Arc::new(driver);
    let queues = Arc::new(Queues::new(&driver, &devices, options)?);
    serve(driver, &devices, links, &queues, inside)?;
    queues.name_files().map_err(Error::system("look at /dev/dsa"))?;

    let mut command = Command::new(&program.path);
    command.args(&options.arguments);
    set_name(&mut command, options);
    if let Some(library) = &options.preload {
        // Ours last: what the program's user wants to interpose comes first, as without us.
        let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(library);
        command.env("LD_PRELOAD", preload);
    }
    system::hand_over(&mut command, caller.group, caller.mask);
    let shown = program.path.display().to_string();
    let failed = |source: io::Error| match program.machine {
        Some(machine) if source.raw_os_error() == Some(libc::ENOEXEC) => {
            Error::OtherMachine { program: shown.clone(), machine }
        }
        _ => Error::start(&shown, source),
    };
    if program.machine.is_some() {
        system::run_without_shell(&mut command, &options.program).map_err(failed)?;
    }
    let child = command.spawn().map_err(failed)?;
    // Now that the program has its own limit: the address space of each process that opens a queue takes three.
    system::raise_descriptor_limit();
    let signals = caller.signals.descriptor().map_err(Error::system("receive signals"))?;
    let status = supervise::attend(child.id() as Pid, channel, &signals, options.leftovers)
        .map_err(Error::system("wait for the program"))?;
    queues.finish_trace();
    if options.stats {
        eprint!("{}", queues.summary());
    }
    Ok(status)
}

/// The program sees the name that it was called by.
fn set_name(command: &mut Command, options: &Options) {
    use std::os::unix::process::CommandExt;
    command.arg0(&options.program);
}

/// Mounts the driver's files and serves them, in threads that end with this process.
fn serve(
    driver: Arc<FakeDriver>,
    devices: &[DeviceId],
    links: Vec<(String, String)>,
    queues: &Arc<Queues>,
    inside: Inside,
) -> Result<(), Error> {
    let buses: Vec<String> = (0..devices.len()).map(layout::bus).collect();
    let fuse = namespace::mount_fuse(inside)?;
    let server = Server::new(driver, devices, links, Arc::clone(queues), inside);
    let mut config = fuser::Config::default();
    config.n_threads = Some(SERVER_THREADS);
    let session = fuser::Session::from_fd(server, fuse.into(), fuser::SessionACL::All, config)
        .map_err(Error::system("speak with FUSE"))?;
    // Ends when the file system is gone, which is at the end of this process; or soon, if it cannot start its threads.
    let serving = thread::Builder::new().name("fuse".to_owned()).spawn(move || session.run());
    let serving = serving.map_err(Error::system("start a thread"))?;
    namespace::place(&buses).map_err(|error| match error {
        Error::Mount { source, .. } if source.raw_os_error() == Some(libc::ENOTCONN) => {
            let why = serving.join().ok().and_then(Result::err).unwrap_or(source);
            Error::system("serve the driver's files")(why)
        }
        error => error,
    })
}
