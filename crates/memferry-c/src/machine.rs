//! Machines: nodes, links and copy engines.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use memferry::topology::{Machine, NodeId, Tier};

use crate::error::{Error, mf_status};
use crate::handles::{Object, insert, remove};
use crate::thread::{Call, call};

/// A node of memory or CPUs, as Linux numbers it.
pub type mf_node = u32;

/// No node, or an unknown one.
pub const MF_NO_NODE: mf_node = u32::MAX;

/// A machine. 0 is none. Free it with `mf_machine_free`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_machine {
    /// The handle.
    pub id: u64,
}

impl Object for Arc<Machine> {
    const KIND: u64 = 1;
    const NAME: &'static str = "machine";
}

/// A kind of memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum mf_tier {
    /// Not known.
    MF_TIER_UNKNOWN = 0,
    /// DDR.
    MF_TIER_DRAM = 1,
    /// High-bandwidth memory.
    MF_TIER_HBM = 2,
    /// Memory behind CXL.
    MF_TIER_CXL = 3,
    /// Persistent memory.
    MF_TIER_PMEM = 4,
}

/// A node of a machine. Sizes are 0 if unknown.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_node_info {
    /// The node.
    pub node: mf_node,
    /// The kind of its memory.
    pub tier: mf_tier,
    /// The socket, or -1.
    pub socket: i32,
    /// Number of its CPUs.
    pub cpus_count: u32,
    /// Size of its memory.
    pub memory_bytes: u64,
    /// Free memory when the machine was discovered.
    pub free_bytes: u64,
    /// The node whose CPUs are nearest: itself if it has CPUs.
    pub cpu_node: mf_node,
    /// Whether this process may allocate on it.
    pub is_allowed: bool,
}

/// The link from CPUs to memory. Figures are 0 if unknown.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_link {
    /// Read bandwidth.
    pub read_bytes_per_s: u64,
    /// Write bandwidth.
    pub write_bytes_per_s: u64,
    /// Read latency.
    pub read_latency_ns: f64,
    /// Write latency.
    pub write_latency_ns: f64,
    /// The distance of the firmware's table (SLIT).
    pub distance: u32,
}

/// Size of a name with its final 0.
pub const MF_NAME_SIZE: usize = 32;

/// A DSA device. Figures are 0 if unknown.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_accelerator {
    /// The kernel's name, such as "dsa0".
    pub name: [c_char; MF_NAME_SIZE],
    /// The node it is attached to, or `MF_NO_NODE`.
    pub node: mf_node,
    /// Work queues that it can have.
    pub work_queues_count: u32,
    /// Its processing engines.
    pub engines_count: u32,
    /// Its maximum copy rate.
    pub bytes_per_s_max: u64,
}

/// Writes through a pointer of the caller.
///
/// # Safety
/// `out` is NULL or valid for a write.
pub(crate) unsafe fn put<T>(out: *mut T, name: &str, value: T) -> Result<(), Error> {
    check_out(out, name)?;
    // SAFETY: promised by the caller.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes up to `capacity` values, and their number to `count`.
///
/// # Safety
/// `out` is valid for writes of `capacity` elements, `count` is NULL or valid for a write.
unsafe fn put_all<T>(
    values: impl ExactSizeIterator<Item = T>,
    out: *mut T,
    name: &str,
    capacity: usize,
    count: *mut usize,
) -> Result<(), Error> {
    check_out(count, "count")?;
    if capacity > 0 {
        check_out(out, name)?;
    }
    let found_count = values.len();
    for (index, value) in values.take(capacity).enumerate() {
        // SAFETY: `index` is below `capacity`.
        unsafe { out.add(index).write(value) };
    }
    // SAFETY: promised by the caller.
    unsafe { put(count, "count", found_count) }
}

/// Refuses a NULL pointer for a result, before anything happens.
pub(crate) fn check_out<T>(out: *mut T, name: &str) -> Result<(), Error> {
    if out.is_null() { Err(no_out(name)) } else { Ok(()) }
}

#[cold]
fn no_out(name: &str) -> Error {
    Error::argument(format!("{name} is NULL; pass the address of a variable for the result"))
}

/// A string of the caller.
///
/// # Safety
/// `text` is NULL or a C string.
unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::argument(format!("{name} is NULL; pass a string")));
    }
    // SAFETY: promised by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::argument(format!("{name} is not UTF-8")))
}

fn machine(call: &Call, machine: mf_machine) -> Result<&Arc<Machine>, Error> {
    call.get::<Arc<Machine>>(machine.id)
}

/// Makes the handle of `open` and writes it.
unsafe fn open(out: *mut mf_machine, open: impl FnOnce() -> Result<Machine, Error>) -> mf_status {
    call(|_| {
        check_out(out, "machine")?;
        let id = insert(Arc::new(open()?))?;
        // SAFETY: promised by the caller.
        unsafe { put(out, "machine", mf_machine { id }) }
    })
}

/// Discovers this machine.
///
/// # Safety
/// `machine` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_machine_discover(machine: *mut mf_machine) -> mf_status {
    // SAFETY: promised by the caller.
    unsafe { open(machine, || Ok(Machine::discover()?)) }
}

/// Makes a machine from a profile, such as "xeon-max-9468-2s-flat", or "two-tiers": a small machine for tests. Its memory
/// is memory of this machine.
///
/// # Safety
/// `name` is NULL or a C string, `machine` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_machine_from_profile(name: *const c_char, machine: *mut mf_machine) -> mf_status {
    // SAFETY: promised by the caller.
    unsafe {
        open(machine, || match text(name, "name")? {
            "two-tiers" => Ok(Machine::two_tiers()?),
            name => Ok(Machine::from_profile(name)?),
        })
    }
}

/// Frees a machine. Movers and caches keep what they need of it.
#[unsafe(no_mangle)]
pub extern "C" fn mf_machine_free(machine: mf_machine) -> mf_status {
    call(|_| remove::<Arc<Machine>>(machine.id, |_| None).map(drop))
}

/// Copies the name of a machine to `name`, cut to `size` bytes with the final 0. Writes the length of the whole name to
/// `length`, unless that is NULL.
///
/// # Safety
/// `name` is valid for writes of `size` bytes, `length` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_machine_name(
    machine: mf_machine,
    name: *mut c_char,
    size: usize,
    length: *mut usize,
) -> mf_status {
    call(|call| {
        let text = self::machine(call, machine)?.name();
        if size > 0 {
            check_out(name, "name")?;
            let cut = text.len().min(size - 1);
            // SAFETY: `cut` and one byte more are at most `size`, and the name of a machine is no memory of the caller.
            unsafe {
                name.copy_from_nonoverlapping(text.as_ptr().cast(), cut);
                name.add(cut).write(0);
            }
        }
        if !length.is_null() {
            // SAFETY: promised by the caller.
            unsafe { length.write(text.len()) };
        }
        Ok(())
    })
}

/// Writes up to `capacity` nodes, ascending, and their number to `count`. With capacity 0, `nodes` may be NULL.
///
/// # Safety
/// `nodes` is valid for writes of `capacity` elements, `count` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_machine_nodes(
    machine: mf_machine,
    nodes: *mut mf_node_info,
    capacity: usize,
    count: *mut usize,
) -> mf_status {
    call(|call| {
        let infos = self::machine(call, machine)?.nodes().iter().map(|node| mf_node_info {
            node: node.id.0,
            tier: match node.tier {
                Tier::Dram => mf_tier::MF_TIER_DRAM,
                Tier::Hbm => mf_tier::MF_TIER_HBM,
                Tier::Cxl => mf_tier::MF_TIER_CXL,
                Tier::Pmem => mf_tier::MF_TIER_PMEM,
                _ => mf_tier::MF_TIER_UNKNOWN,
            },
            socket: node.socket.map_or(-1, |socket| socket as i32),
            cpus_count: node.cpus.len() as u32,
            memory_bytes: node.memory_bytes.unwrap_or(0),
            free_bytes: node.free_bytes.unwrap_or(0),
            cpu_node: node.cpu_node.0,
            is_allowed: node.is_allowed,
        });
        // SAFETY: promised by the caller.
        unsafe { put_all(infos, nodes, "nodes", capacity, count) }
    })
}

/// Writes the figures of the link from the CPUs of `cpus` to the memory of `memory`.
///
/// # Safety
/// `link` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_machine_link(
    machine: mf_machine,
    cpus: mf_node,
    memory: mf_node,
    link: *mut mf_link,
) -> mf_status {
    call(|call| {
        let machine = self::machine(call, machine)?;
        let (cpus, memory) = (machine.node(NodeId(cpus))?.id, machine.node(NodeId(memory))?.id);
        let found = machine.link(cpus, memory);
        let figures = mf_link {
            read_bytes_per_s: found.read_bytes_per_s.unwrap_or(0),
            write_bytes_per_s: found.write_bytes_per_s.unwrap_or(0),
            read_latency_ns: found.read_latency_ns.unwrap_or(0.0),
            write_latency_ns: found.write_latency_ns.unwrap_or(0.0),
            distance: found.distance.unwrap_or(0),
        };
        // SAFETY: promised by the caller.
        unsafe { put(link, "link", figures) }
    })
}

/// Writes the nearest node with faster memory than `node`, or `MF_NO_NODE` if there is none.
///
/// # Safety
/// `faster` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_machine_nearest_faster(
    machine: mf_machine,
    node: mf_node,
    faster: *mut mf_node,
) -> mf_status {
    call(|call| {
        let machine = self::machine(call, machine)?;
        let found = machine.nearest_faster(machine.node(NodeId(node))?.id);
        // SAFETY: promised by the caller.
        unsafe { put(faster, "faster", found.map_or(MF_NO_NODE, |node| node.id.0)) }
    })
}

/// Writes up to `capacity` DSA devices, and their number to `count`. With capacity 0, `accelerators` may be NULL.
///
/// # Safety
/// `accelerators` is valid for writes of `capacity` elements, `count` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_machine_accelerators(
    machine: mf_machine,
    accelerators: *mut mf_accelerator,
    capacity: usize,
    count: *mut usize,
) -> mf_status {
    call(|call| {
        let found = self::machine(call, machine)?.accelerators();
        let infos = found.iter().map(|device| {
            let mut name = [0; MF_NAME_SIZE];
            for (to, &from) in name[..MF_NAME_SIZE - 1].iter_mut().zip(device.name.as_bytes()) {
                *to = from as c_char;
            }
            mf_accelerator {
                name,
                node: device.node.map_or(MF_NO_NODE, |node| node.0),
                work_queues_count: device.work_queues_count.unwrap_or(0),
                engines_count: device.engines_count.unwrap_or(0),
                bytes_per_s_max: device.bytes_per_s_max.unwrap_or(0),
            }
        });
        // SAFETY: promised by the caller.
        unsafe { put_all(infos, accelerators, "accelerators", capacity, count) }
    })
}
