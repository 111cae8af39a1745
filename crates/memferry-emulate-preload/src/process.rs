//! This process as a client of the devices.
//!
//! ```text
//! library loaded          connected, handlers installed      or nothing: then this is no emulated machine
//! first portal mapped     joined: a client                   (a child of fork starts here again)
//! first of a device       engine of that device, a thread
//! ```

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use memferry_dsa::instructions::CpuFeatures;
use memferry_dsa_emulator::shared::{Client, Connected, Devices};

use crate::wiped::{self, Wiped};
use crate::{engine, hooks, sys, trap};

/// Where `memferry emulate` listens.
const SOCKET: &str = "/dev/.memferry/devices";
/// Another place, for tests of this library alone.
const SOCKET_VARIABLE: &str = "MEMFERRY_EMULATE_SOCKET";

/// A client, and which devices have an engine. Lives until the process ends.
pub(crate) struct Process {
    pub(crate) client: Client,
    engines: AtomicU32, // bit n: device n
}

/// The emulation that this process is in.
static CONNECTED: AtomicPtr<Connected> = AtomicPtr::new(std::ptr::null_mut());

/// How far the library is.
static STAGE: AtomicU32 = AtomicU32::new(NEW);
const NEW: u32 = 0;
const PREPARING: u32 = 1;
const ACTIVE: u32 = 2;
const INACTIVE: u32 = 3;

/// Whether there are emulated devices. The first to ask prepares everything: the library's constructor, or a hook that
/// another library's constructor has called before. While it does, its own calls find nothing.
pub(crate) fn is_active() -> bool {
    match STAGE.load(Ordering::Acquire) {
        ACTIVE => true,
        NEW if STAGE.compare_exchange(NEW, PREPARING, Ordering::Relaxed, Ordering::Relaxed).is_ok() => {
            let stage = if prepare() { ACTIVE } else { INACTIVE };
            // ORDERING: Release pairs with the Acquire above: all is prepared.
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
    let path = path();
    match Devices::connect(&path) {
        Ok(connected) => {
            KEEPS_TRAPS.store(!connected.devices().patches(), Ordering::Relaxed);
            CONNECTED.store(Box::into_raw(Box::new(connected)), Ordering::Release);
            trap::prepare();
            hooks::prepare();
            let is_there = wiped::prepare();
            if !is_there {
                complain("this kernel has no MADV_WIPEONFORK, which the emulation needs (Linux 4.14)");
            }
            is_there
        }
        Err(error) if error.is_not_found() => false,
        Err(error) => {
            complain(&format!("{}: {error}; this process cannot submit to mapped queues", path.display()));
            false
        }
    }
}

/// A program with other rights than its user does not listen to his environment.
fn path() -> PathBuf {
    // SAFETY: it has no preconditions.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let variable = if is_secure { None } else { std::env::var_os(SOCKET_VARIABLE) };
    variable.map_or_else(|| SOCKET.into(), PathBuf::from)
}

/// The emulation, once the library is active.
pub(crate) fn connected() -> Option<&'static Connected> {
    // SAFETY: null, or a box that was leaked.
    unsafe { CONNECTED.load(Ordering::Acquire).as_ref() }
}

/// Whether call sites are to stay as they are.
pub(crate) fn keeps_traps() -> bool {
    KEEPS_TRAPS.load(Ordering::Relaxed)
}

static KEEPS_TRAPS: AtomicBool = AtomicBool::new(false);

/// Says something to the user, once in a while and never from a handler.
pub(crate) fn complain(message: &str) {
    eprintln!("memferry emulate: {message}");
}

impl Process {
    /// Threads that execute descriptors.
    pub(crate) fn engine_count(&self) -> usize {
        self.engines.load(Ordering::Relaxed).count_ones() as usize
    }
}

impl Wiped {
    /// This process, if it has mapped a portal.
    #[inline]
    pub(crate) fn process(&self) -> Option<&'static Process> {
        // SAFETY: null, or a box that was leaked.
        unsafe { self.process.load(Ordering::Acquire).as_ref() }
    }

    /// Sees to it that this process has an engine of the device; false, with a word to the user, if it cannot.
    pub(crate) fn start(&self, device: usize) -> bool {
        let Some(process) = self.process().or_else(|| self.join()) else { return false };
        let bit = 1 << device;
        if process.engines.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return true;
        }
        let started = engine::start(&process.client, device);
        if let Err(error) = &started {
            process.engines.fetch_and(!bit, Ordering::AcqRel);
            complain(&format!(
                "process {} cannot execute descriptors, and so not map queues: {error}; if it is short of memory or \
                threads, raise its limits (ulimit -v, ulimit -u)",
                sys::process()
            ));
        }
        started.is_ok()
    }

    fn join(&self) -> Option<&'static Process> {
        // ORDERING: Acquire pairs with the Release below: what another one has made is seen.
        while self.is_joining.swap(true, Ordering::Acquire) {
            sys::yield_now();
        }
        self.belongs_here();
        // SAFETY: the client is in the page that children do not inherit, and they find it nowhere else.
        let process = self.process().or_else(|| match unsafe { connected()?.join() } {
            Ok(client) => {
                let process = Box::new(Process { client, engines: AtomicU32::new(0) });
                self.process.store(Box::into_raw(process), Ordering::Release);
                self.process()
            }
            Err(error) => {
                complain(&format!(
                    "process {} cannot map queues: {error}; if it is short of memory or files, raise its limits \
                    (ulimit -v, ulimit -n)",
                    sys::process()
                ));
                None
            }
        });
        self.is_joining.store(false, Ordering::Release);
        process
    }
}

/// For programs that ask before they use an instruction: those that are emulated in this process, as bits of register
/// ECX of CPUID leaf 7. See `memferry_dsa::instructions::CpuFeatures`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn memferry_emulated_instructions() -> u32 {
    if is_active() { CpuFeatures::ALL.to_ecx() } else { 0 }
}

/// Called by the dynamic linker. Others' constructors may run before, and call the hooks.
extern "C" fn construct() {
    is_active();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;
#[cfg(test)]
const _: extern "C" fn() = construct;
