//! The steps of a run: checks, namespace, server, program.

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
use nix::sys::prctl;
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, getpgid, setpgid};

use crate::error::Error;
use crate::layout;
use crate::namespace::{self, InnerUser};
use crate::options::Options;
use crate::preload;
use crate::program::Program;
use crate::queues::Queues;
use crate::server::Server;
use crate::setup::Machine;
use crate::supervise;
use crate::system::{self, Pid};

/// Threads that answer FUSE requests: one serves while the other waits for the driver's lock.
const SERVER_THREADS: usize = 2;

/// Runs a program on emulated devices and returns its status.
///
/// The calling process must have one thread. It stays outside the namespace, forwards signals to the program and waits
/// for it. Notes for the user go to standard error.
///
/// If `LD_PRELOAD` is set, the function executes the calling program again without it, with the same arguments: libraries
/// of the user belong to `options.program` only. So call it before anything that must not happen twice.
///
/// # Errors
/// The program was not run, or the supervisor was killed. [`Error::exit_code`] is the exit status for a command.
pub fn run(options: Options) -> Result<ExitStatus, Error> {
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(Error::Threads(threads));
    }
    preload::leave_out_libraries();
    let program = Program::find(&options.program)?;
    let machine = Machine::new(&options)?;
    namespace::open_fuse()?;
    // Created before anything runs: each process appends to it from its first use of a device on. It stays open here,
    // because the reader of a pipe would see its end while no process has it open.
    let trace = options
        .trace
        .as_ref()
        .map(|path| fs::File::create(path).map_err(|source| Error::Trace { path: path.clone(), source }));
    let trace = trace.transpose()?;
    if let Some(note) = program.note().filter(|_| options.preload) {
        eprintln!("memferry: note: {note}");
    }

    let before = supervise::children(&[]);
    let group = getpgid(None).map_err(Error::system("ask for the process group"))?;
    let (mine, theirs) = UnixStream::pair().map_err(Error::system("make a pair of sockets"))?;
    prctl::set_child_subreaper(true).map_err(Error::system("adopt orphans"))?;
    let signals = supervise::handled_signals();
    let mask = system::block(&signals).map_err(Error::system("block signals"))?;
    let outcome = match system::fork().map_err(Error::system("start a process"))? {
        ForkResult::Child => {
            drop(mine);
            supervisor(options, program, machine, theirs, &Caller { group, mask, signals });
        }
        ForkResult::Parent { child: supervisor } => {
            drop((theirs, trace));
            supervise::wait_for_supervisor(supervisor.as_raw(), mine, &signals, &before)
        }
    };
    system::block(&mask).map_err(Error::system("unblock signals"))?;
    outcome
}

/// Exits with the status of another process: its exit status, or its signal.
pub fn exit_as(status: ExitStatus) -> ! {
    match (status.code(), status.signal()) {
        (Some(code), _) => std::process::exit(code),
        (None, Some(signal)) => system::exit_by_signal(signal),
        (None, None) => std::process::exit(1), // stopped or continued: no such status is waited for
    }
}

/// Properties of the calling process that the supervisor needs.
struct Caller {
    group: nix::unistd::Pid,
    mask: SigSet,
    signals: SigSet,
}

/// The main function of the supervisor.
fn supervisor(
    options: Options,
    program: Program,
    machine: Machine,
    mut channel: UnixStream,
    caller: &Caller,
) -> ! {
    // Without one of its threads the server would leave the program hanging. After the exit the caller kills it.
    panic::set_hook(Box::new(|panic| {
        eprintln!("memferry: the emulated driver failed: {panic}");
        system::exit_immediately(125);
    }));
    let outcome = supervise_program(&options, &program, machine, &mut channel, caller);
    match outcome {
        Ok(Some(status)) => supervise::report(&mut channel, Ok(status)),
        Ok(None) => {} // the caller is gone
        Err(error) => {
            supervise::kill_descendants(&[]);
            supervise::report(&mut channel, Err(&error));
        }
    }
    system::exit_immediately(0)
}

fn supervise_program(
    options: &Options,
    program: &Program,
    machine: Machine,
    channel: &mut UnixStream,
    caller: &Caller,
) -> Result<Option<ExitStatus>, Error> {
    // A process group and a name of its own: signals to the caller's group and `killall` of the command do not reach
    // it. The call fails for the leader of a session only, which a child is not.
    let _ = setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0));
    system::block(&supervise::supervisor_signals()).map_err(Error::system("block signals"))?;
    let _ = prctl::set_name(c"idxd-emulator");
    prctl::set_child_subreaper(true).map_err(Error::system("adopt orphans"))?;
    let inner = namespace::enter(options.keep_user)?;
    let links = namespace::character_links();
    namespace::replace_dev()?;
    let Machine { devices, driver } = machine;
    let driver = Arc::new(driver);
    let queues = Arc::new(Queues::new(&driver, &devices, options)?);
    serve(driver, &devices, links, &queues, inner)?;
    queues.register_files().map_err(Error::system("look at /dev/dsa"))?;

    let mut command = Command::new(&program.path);
    command.args(&options.arguments);
    set_name(&mut command, options);
    let library = options.preload.then(preload::install).transpose();
    preload::set_environment(&mut command, library.map_err(Error::system("write the preload library"))?);
    system::prepare_exec(&mut command, caller.group.as_raw(), caller.mask);
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
    // After the start of the program, which keeps its limit: each address space that opens a queue takes three
    // descriptors of this process.
    system::raise_descriptor_limit();
    let signals = system::signal_descriptor(&caller.signals).map_err(Error::system("receive signals"))?;
    let status = supervise::wait_for_program(child.id() as Pid, channel, &signals, options.leftovers)
        .map_err(Error::system("wait for the program"))?;
    queues.finish_trace();
    if options.stats {
        eprint!("{}", queues.summary());
    }
    Ok(status)
}

/// Gives the program the name that it was called by.
fn set_name(command: &mut Command, options: &Options) {
    use std::os::unix::process::CommandExt;
    command.arg0(&options.program);
}

/// Mounts the driver's files and serves them, in threads that exit with this process.
fn serve(
    driver: Arc<FakeDriver>,
    devices: &[DeviceId],
    links: Vec<(String, String)>,
    queues: &Arc<Queues>,
    inner: InnerUser,
) -> Result<(), Error> {
    let buses: Vec<String> = (0..devices.len()).map(layout::bus).collect();
    let functions: Vec<String> = (0..devices.len()).map(layout::pci_address).collect();
    let fuse = namespace::mount_fuse(inner)?;
    let server = Server::new(driver, devices, links, Arc::clone(queues), inner);
    let mut config = fuser::Config::default();
    config.n_threads = Some(SERVER_THREADS);
    let session = fuser::Session::from_fd(server, fuse.into(), fuser::SessionACL::All, config)
        .map_err(Error::system("speak with FUSE"))?;
    // It returns at the end of this process, with the file system; or soon, if it cannot start its threads.
    let serving = thread::Builder::new().name("fuse".to_owned()).spawn(move || session.run());
    let serving = serving.map_err(Error::system("start a thread"))?;
    namespace::bind_tree(&buses, &functions).map_err(|error| match error {
        Error::Mount { source, .. } if source.raw_os_error() == Some(libc::ENOTCONN) => {
            let why = serving.join().ok().and_then(Result::err).unwrap_or(source);
            Error::system("serve the driver's files")(why)
        }
        error => error,
    })
}
