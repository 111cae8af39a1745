//! This process as a client of the devices.
//!
//! ```text
//! library loaded          connected, handlers installed      (inactive if there is no emulation)
//! first portal mapped     exit thread, joined: a client      (a child of fork starts again here)
//! first of a device       engine thread of that device
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc;

use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa_emulator::shared::{Client, Connected, Devices};

use crate::fork_local::{self, ForkLocal};
use crate::{engine, hooks, sys, trap};

/// Where `memferry emulate` listens.
const SOCKET: &str = "/dev/.memferry/devices";
/// Names another socket, for tests of this library.
const SOCKET_VARIABLE: &str = "MEMFERRY_EMULATE_SOCKET";

/// A client, and the devices that have an engine. Lives until the process exits; shared by all threads.
pub(crate) struct Process {
    pub(crate) client: Client,
    /// To the thread that exits the process.
    pub(crate) exit: mpsc::Sender<()>,
    engines: AtomicU32, // bit n: device n has an engine; set and cleared by `ForkLocal::start`
}

/// The connection to the emulation. Written once by `prepare`.
static CONNECTED: AtomicPtr<Connected> = AtomicPtr::new(std::ptr::null_mut());

/// How far the library is set up. The thread that changes NEW to PREPARING writes it.
static STAGE: AtomicU32 = AtomicU32::new(NEW);
const NEW: u32 = 0;
const PREPARING: u32 = 1;
const ACTIVE: u32 = 2;
const INACTIVE: u32 = 3;

/// Whether there are emulated devices. The first call sets up the library: a call from its constructor, or from a hook
/// that the constructor of another library has called before. Hooks that run during the set-up see no emulation.
pub(crate) fn is_active() -> bool {
    // ORDERING: Acquire pairs with the Release below: the connection, the hooks and the fork-local pages are visible.
    match STAGE.load(Ordering::Acquire) {
        ACTIVE => true,
        NEW if STAGE.compare_exchange(NEW, PREPARING, Ordering::Relaxed, Ordering::Relaxed).is_ok() => {
            let stage = if prepare() { ACTIVE } else { INACTIVE };
            // ORDERING: Release pairs with the Acquire above: the set-up is complete.
            STAGE.store(stage, Ordering::Release);
            if stage == ACTIVE {
                trap::install();
            }
            stage == ACTIVE
        }
        _ => false,
    }
}

fn prepare() -> bool {
    // Also without an emulation: hooks that look for the next function later may do it where that is not safe.
    hooks::prepare();
    let path = path();
    match Devices::connect(&path) {
        Ok(connected) => {
            KEEPS_TRAPS.store(!connected.devices().patches(), Ordering::Relaxed);
            // ORDERING: Release pairs with the Acquire in `connected`: the connection is complete.
            CONNECTED.store(Box::into_raw(Box::new(connected)), Ordering::Release);
            trap::prepare();
            let is_there = fork_local::prepare();
            if !is_there {
                warn("this kernel lacks MADV_WIPEONFORK, which the emulation needs; use Linux 4.14 or newer");
            }
            is_there
        }
        Err(error) if error.is_not_found() => false,
        Err(error) => {
            warn(&format!("{}: {error}; this process cannot submit to mapped queues", path.display()));
            false
        }
    }
}

/// The socket. A setuid program ignores the environment variable of its user.
fn path() -> PathBuf {
    // SAFETY: it takes a number.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let variable = if is_secure { None } else { std::env::var_os(SOCKET_VARIABLE) };
    variable.map_or_else(|| SOCKET.into(), PathBuf::from)
}

/// Returns the connection to the emulation, once the library is active.
pub(crate) fn connected() -> Option<&'static Connected> {
    // SAFETY: null, or a box that was leaked.
    // ORDERING: Acquire pairs with the Release in `prepare`: the connection is complete.
    unsafe { CONNECTED.load(Ordering::Acquire).as_ref() }
}

/// Whether call sites must not be patched.
pub(crate) fn keeps_traps() -> bool {
    KEEPS_TRAPS.load(Ordering::Relaxed)
}

static KEEPS_TRAPS: AtomicBool = AtomicBool::new(false);

/// Prints a message to the user. Not for signal handlers.
pub(crate) fn warn(message: &str) {
    eprintln!("memferry emulate: {message}");
}

impl Process {
    fn join(connected: &Connected) -> Result<Process, Box<dyn Error>> {
        let exit = engine::start_exit()?;
        // SAFETY: only the fork-local pages refer to the client, and children do not inherit them.
        let client = unsafe { connected.join() }?;
        Ok(Process { client, exit, engines: AtomicU32::new(0) })
    }

    /// Number of threads of this library: the engine threads, and the one that exits the process.
    pub(crate) fn thread_count(&self) -> usize {
        self.engines.load(Ordering::Relaxed).count_ones() as usize + 1
    }
}

impl ForkLocal {
    /// Returns this process as a client, if it has mapped a portal.
    #[inline]
    pub(crate) fn process(&self) -> Option<&'static Process> {
        // SAFETY: null, or a box that was leaked.
        // ORDERING: Acquire pairs with the Release in `join`: the client is complete.
        unsafe { self.process.load(Ordering::Acquire).as_ref() }
    }

    /// Starts the engine of a device, unless this process has one. False, with a message to the user: it cannot.
    pub(crate) fn start(&self, device: usize) -> bool {
        let Some(process) = self.process().or_else(|| self.join()) else { return false };
        let bit = 1 << device;
        // Relaxed: the bit only excludes a second start. `engine::start` hands data to its thread itself.
        if process.engines.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return true;
        }
        let started = engine::start(&process.client, device);
        if let Err(error) = &started {
            process.engines.fetch_and(!bit, Ordering::Relaxed);
            warn(&format!(
                "process {} cannot map queues, because no thread can execute its descriptors: {error}; if it is short of \
                memory or threads, raise its limits (ulimit -v, ulimit -u)",
                sys::process()
            ));
        }
        started.is_ok()
    }

    fn join(&self) -> Option<&'static Process> {
        // ORDERING: Acquire pairs with the Release below: the client that another thread has made is visible.
        while self.is_joining.swap(true, Ordering::Acquire) {
            sys::yield_now();
        }
        self.claim();
        let process = self.process().or_else(|| match Process::join(connected()?) {
            Ok(process) => {
                // ORDERING: Release pairs with the Acquire in `process`: the client is complete.
                self.process.store(Box::into_raw(Box::new(process)), Ordering::Release);
                self.process()
            }
            Err(error) => {
                warn(&format!(
                    "process {} cannot map queues: {error}; if it is short of memory, files or threads, raise its \
                    limits (ulimit -v, ulimit -n, ulimit -u)",
                    sys::process()
                ));
                None
            }
        });
        // ORDERING: Release pairs with the Acquire above: the next thread sees the client.
        self.is_joining.store(false, Ordering::Release);
        process
    }
}

/// Returns the instructions that are emulated in this process, as bits of register ECX of CPUID leaf 7, for programs
/// that ask before they use an instruction. See `memferry_dsa::internals::instructions::CpuFeatures`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn memferry_emulated_instructions() -> u32 {
    if is_active() { CpuFeatures::ALL.to_ecx() } else { 0 }
}

/// Called by the dynamic linker. Constructors of other libraries may run before, and call the hooks.
extern "C" fn construct() {
    is_active();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;
#[cfg(test)]
const _: extern "C" fn() = construct;
