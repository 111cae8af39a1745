//! The facts about a machine and this process, read from files. [`checks`](super::checks) judges them.
//!
//! A file that does not exist or cannot be read makes a fact unknown (`None`), and an unknown fact is never a problem.
//! No file is written: in containers sysfs is read-only, and a write to `cmd_status` fails there (intel/idxd-config 38).

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memferry::mover::{StorageEngine, StorageOptions};
use memferry::topology::Machine;
use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::system::{Files, Owner};
use memferry_dsa::system::{Device, Queue, QueueFilter, QueueId, SystemState};
use memferry_dsa::{Client, ClientOptions, DevicePortal, OpenOptions, Request};
use serde::Serialize;

use crate::source::Source;

/// Limit for a No-op. A busy queue takes microseconds.
const NOOP_TIME: Duration = Duration::from_millis(200);
/// The time after which no further queue is tried.
const TRIALS_TIME: Duration = Duration::from_millis(300);

/// PCI ids of a DSA, with vendor 8086. Source: Linux `drivers/dma/idxd/registers.h`.
const DSA_IDS: [&str; 3] = ["0x0b25", "0x11fb", "0x1212"];

/// Flags of `/proc/cpuinfo` that memferry uses, or that explain a problem.
const CPU_FLAGS: [&str; 8] =
    ["avx2", "avx512f", "avx512bw", "enqcmd", "hypervisor", "la57", "movdir64b", "waitpkg"];

/// Options of the kernel's configuration that a DSA needs. Source: facebook/CacheLib 415; Linux `drivers/dma/Kconfig`.
const KERNEL_OPTIONS: [&str; 6] = [
    "CONFIG_INTEL_IDXD",
    "CONFIG_INTEL_IDXD_SVM",
    "CONFIG_INTEL_IOMMU",
    "CONFIG_INTEL_IOMMU_SVM",
    "CONFIG_INTEL_IOMMU_DEFAULT_ON",
    "CONFIG_INTEL_IOMMU_SCALABLE_MODE_DEFAULT_ON",
];

/// Everything that the checks look at.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Facts {
    pub(crate) cpu: Cpu,
    pub(crate) kernel: Kernel,
    pub(crate) iommu: Iommu,
    /// DSA functions on the PCI bus.
    pub(crate) pci: Vec<PciFunction>,
    pub(crate) dsa: SystemState,
    /// No-ops that this process submitted to the usable queues of this machine.
    pub(crate) trials: Vec<Trial>,
    /// `None` if it cannot be read; `unreadable` says why.
    pub(crate) machine: Option<Machine>,
    /// Memories that are devices instead of nodes (`/sys/bus/dax`).
    pub(crate) dax: Vec<String>,
    /// The mode of transparent huge pages: always, madvise, never.
    pub(crate) huge_pages: Option<String>,
    pub(crate) io_uring: IoUring,
    pub(crate) emulation: Emulation,
    pub(crate) container: Container,
    /// Whether accel-config is installed.
    pub(crate) has_accel_config: bool,
    /// Errors of reading the devices or the topology.
    pub(crate) unreadable: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cpu {
    pub(crate) model: Option<String>,
    /// Those of [`CPU_FLAGS`] that the CPU has; `None` without `/proc/cpuinfo`, or on another architecture.
    pub(crate) flags: Option<Vec<&'static str>>,
    /// Bits of a physical address.
    pub(crate) address_bits: Option<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Kernel {
    pub(crate) release: Option<String>,
    /// The first two numbers of its release.
    pub(crate) version: Option<(u32, u32)>,
    /// Those of [`KERNEL_OPTIONS`] that are `y` or `m`; `None` if the configuration cannot be read.
    pub(crate) options: Option<Vec<&'static str>>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Iommu {
    /// Whether the firmware describes one: VT-d is on in the BIOS.
    pub(crate) is_in_firmware: Option<bool>,
    /// The values of the boot parameter `intel_iommu`; `None` without `/proc/cmdline`.
    pub(crate) boot_values: Option<Vec<String>>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PciFunction {
    pub(crate) address: String,
    pub(crate) driver: Option<String>,
}

/// A No-op in a queue.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Trial {
    pub(crate) queue: QueueId,
    /// `None` if the device executed it.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct IoUring {
    /// `kernel.io_uring_disabled`: 1 refuses users without `CAP_SYS_ADMIN`, 2 refuses all.
    pub(crate) disabled: Option<u32>,
    /// The group that 1 does not refuse.
    pub(crate) group: Option<u32>,
    /// Whether a ring could be made; only tried on this machine.
    pub(crate) works: Option<bool>,
}

/// What `memferry emulate` needs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Emulation {
    #[serde(skip)]
    pub(crate) fuse: Option<Owner>,
    pub(crate) has_fuse: bool,
    pub(crate) user_namespaces_max: Option<u32>,
    /// `kernel.unprivileged_userns_clone`, in Debian's kernels.
    pub(crate) unprivileged_user_namespaces: Option<u32>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, in Ubuntu's kernels.
    pub(crate) apparmor_restricts: Option<u32>,
    /// Whether this process runs on emulated devices.
    pub(crate) is_here: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Container {
    pub(crate) is_here: bool,
    /// Whether a seccomp filter checks the system calls.
    pub(crate) has_seccomp: bool,
}

impl Cpu {
    /// Reads the facts about the CPU of this machine.
    pub(crate) fn of_this_machine() -> Cpu {
        Tree(&*Source::Here.files()).cpu()
    }

    fn has_flag(&self, flag: &str) -> Option<bool> {
        self.flags.as_ref().map(|flags| flags.contains(&flag))
    }

    /// Whether it is the CPU of a virtual machine.
    pub(crate) fn is_virtual(&self) -> bool {
        self.has_flag("hypervisor") == Some(true)
    }
}

impl Facts {
    /// Reads the facts of the machine with these files.
    pub(crate) fn read(files: &dyn Files, machine: Result<Machine, String>) -> Facts {
        let tree = Tree(files);
        let mut unreadable = Vec::new();
        let mut keep = |error: String| unreadable.push(error);
        let machine = machine.map_err(&mut keep).ok();
        let dsa = SystemState::read(files).map_err(|error| keep(error.to_string())).unwrap_or_default();
        let fuse = files.owner("dev/fuse").ok();
        let tables = "sys/firmware/acpi/tables";
        let has_units = !tree.entries("sys/class/iommu").is_empty();
        Facts {
            cpu: tree.cpu(),
            kernel: tree.kernel(),
            iommu: Iommu {
                is_in_firmware: (has_units || tree.exists(tables))
                    .then(|| has_units || tree.exists(&format!("{tables}/DMAR"))),
                boot_values: tree.text("proc/cmdline").map(|line| {
                    let values = line.split_whitespace().filter_map(|word| word.strip_prefix("intel_iommu="));
                    values.flat_map(|values| values.split(',')).map(str::to_owned).collect()
                }),
            },
            pci: tree.pci(),
            dsa,
            trials: Vec::new(),
            machine,
            dax: tree.dax(),
            huge_pages: (tree.text("sys/kernel/mm/transparent_hugepage/enabled"))
                .and_then(|modes| Some(modes.split_once('[')?.1.split_once(']')?.0.to_owned())),
            io_uring: IoUring {
                disabled: tree.number("proc/sys/kernel/io_uring_disabled"),
                group: tree.number("proc/sys/kernel/io_uring_group"),
                works: None,
            },
            emulation: Emulation {
                fuse,
                has_fuse: fuse.is_some(),
                user_namespaces_max: tree.number("proc/sys/user/max_user_namespaces"),
                unprivileged_user_namespaces: tree.number("proc/sys/kernel/unprivileged_userns_clone"),
                apparmor_restricts: tree.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
                is_here: tree.exists("dev/.memferry"),
            },
            container: tree.container(),
            has_accel_config: ["usr/bin", "usr/local/bin", "usr/sbin"]
                .iter()
                .any(|directory| tree.exists(&format!("{directory}/accel-config"))),
            unreadable,
        }
    }

    /// Adds what only trying tells: whether queues execute a No-op, whether io_uring works, and which instructions
    /// `memferry emulate` executes.
    pub(crate) fn probe(mut self) -> Facts {
        let start = Instant::now();
        let usable = self.dsa.diagnose(&QueueFilter::default()).usable;
        let in_time = usable.into_iter().take_while(|_| start.elapsed() < TRIALS_TIME);
        self.trials = in_time
            .map(|(device, queue)| Trial { queue: queue.id, error: run_noop(device, queue).err() })
            .collect();
        let options = StorageOptions { threads_count: 1, ..StorageOptions::default() };
        self.io_uring.works = StorageEngine::new(options).ok().map(|engine| engine.uses_io_uring());
        let found = CpuFeatures::detect();
        if let Some(flags) = &mut self.cpu.flags {
            let emulated =
                [(found.enqcmd, "enqcmd"), (found.movdir64b, "movdir64b"), (found.waitpkg, "waitpkg")];
            flags.extend(emulated.iter().filter(|(has, _)| *has).map(|(_, flag)| *flag));
            flags.sort_unstable();
            flags.dedup();
        }
        self
    }

    /// Whether the CPU has a feature; `None` if unknown.
    pub(crate) fn has_flag(&self, flag: &str) -> Option<bool> {
        self.cpu.has_flag(flag)
    }

    /// Whether the kernel was built with an option; `None` if unknown.
    pub(crate) fn has_option(&self, option: &str) -> Option<bool> {
        self.kernel.options.as_ref().map(|options| options.contains(&option))
    }

    /// Whether this process is in a virtual machine.
    pub(crate) fn is_guest(&self) -> bool {
        self.cpu.is_virtual()
    }

    /// Whether there is a DSA: on the PCI bus, or with a driver. `None` if the devices cannot be read.
    pub(crate) fn has_dsa(&self) -> Option<bool> {
        match !self.pci.is_empty() || !self.dsa.devices.is_empty() {
            true => Some(true),
            false if self.unreadable.is_empty() => Some(false),
            false => None,
        }
    }

    /// Whether this process has a capability, by its number, or may have it: without `/proc` that is unknown.
    pub(crate) fn has_capability(&self, number: u32) -> bool {
        self.dsa.process.user.is_none() || self.dsa.process.capabilities >> number & 1 == 1
    }

    /// Whether the value of `intel_iommu`, or else the kernel's default, switches something on. `None` if unknown.
    pub(crate) fn is_booted_with(&self, on: &str, off: &str, option: &str) -> Option<bool> {
        let values = self.iommu.boot_values.as_ref()?;
        match values.iter().rev().find(|value| *value == on || *value == off) {
            Some(value) => Some(value == on),
            // Without a readable configuration the default is unknown; most distributions leave both off.
            None => Some(self.has_option(option) == Some(true)),
        }
    }
}

/// Submits a No-op to a queue, and waits for its completion.
fn run_noop(device: &Device, queue: &Queue) -> Result<(), String> {
    let info = queue.info(device).map_err(|error| error.to_string())?;
    let path = format!("/dev/dsa/{}", queue.id);
    let options = OpenOptions { batch_probe_timeout: None, ..OpenOptions::default() };
    let portal = DevicePortal::open(path.as_ref(), info, options).map_err(|error| error.to_string())?;
    let options = ClientOptions { may_use_cpu: false, timeout: NOOP_TIME, ..ClientOptions::default() };
    let client = Client::new(vec![portal], options);
    let result = client.run_owned(Box::new(()), |()| Request::noop());
    if result.as_ref().is_err_and(|error| error.buffers.is_none()) {
        // Closing the file of a silent queue waits for the device. The report comes first.
        std::mem::forget(client);
    }
    result.map(|_| ()).map_err(|error| error.to_string())
}

/// The files of a machine, with everything unreadable as absent.
struct Tree<'a>(&'a dyn Files);

impl Tree<'_> {
    fn text(&self, path: &str) -> Option<String> {
        let bytes = self.0.read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u32> {
        self.text(path)?.parse().ok()
    }

    fn entries(&self, directory: &str) -> Vec<String> {
        let mut names = self.0.entries(directory).unwrap_or_default();
        names.sort_unstable();
        names
    }

    fn exists(&self, path: &str) -> bool {
        self.0.owner(path).is_ok() || self.0.entries(path).is_ok() || self.0.head(path, 1).is_ok()
    }

    /// The name of the driver that a device is bound to.
    fn driver(&self, device: &str) -> Option<String> {
        let target = self.0.link(&format!("{device}/driver")).ok()?;
        target.rsplit('/').next().map(str::to_owned)
    }

    fn cpu(&self) -> Cpu {
        // The first processor only: the file is long on large machines.
        let text = self.0.head("proc/cpuinfo", 8192).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let value = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim())
        };
        Cpu {
            model: value("model name").map(str::to_owned),
            flags: value("flags").map(|line| {
                let has = |flag: &&str| line.split(' ').any(|found| found == *flag);
                CPU_FLAGS.into_iter().filter(has).collect()
            }),
            address_bits: value("address sizes").and_then(|sizes| sizes.split(' ').next()?.parse().ok()),
        }
    }

    fn kernel(&self) -> Kernel {
        let release = self.text("proc/sys/kernel/osrelease").filter(|release| !release.is_empty());
        let known = release.clone().unwrap_or_default();
        let mut numbers = known.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let version = match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
            _ => None,
        };
        let places = [format!("boot/config-{known}"), format!("lib/modules/{known}/config")];
        let config = places.iter().find_map(|path| self.text(path)).or_else(|| self.packed_config());
        let options = config.map(|config| {
            let is_set = |option: &&str| {
                config.lines().any(|line| {
                    line.strip_prefix(*option).is_some_and(|value| value == "=y" || value == "=m")
                })
            };
            KERNEL_OPTIONS.into_iter().filter(is_set).collect()
        });
        Kernel { release, version, options }
    }

    /// The content of `/proc/config.gz`, if there is one and gzip is installed.
    fn packed_config(&self) -> Option<String> {
        let packed = self.0.read("proc/config.gz").ok()?;
        let mut gzip = Command::new("gzip")
            .arg("-dc")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut stdin = gzip.stdin.take()?;
        // Both pipes are shorter than the texts, so another thread writes.
        let writer = thread::spawn(move || stdin.write_all(&packed).is_ok());
        let mut text = String::new();
        let is_read = gzip.stdout.take()?.read_to_string(&mut text).is_ok();
        let is_written = writer.join().unwrap_or(false);
        (gzip.wait().ok()?.success() && is_read && is_written).then_some(text)
    }

    fn pci(&self) -> Vec<PciFunction> {
        const FUNCTIONS: &str = "sys/bus/pci/devices";
        let is_dsa = |address: &String| {
            let id = |file| self.text(&format!("{FUNCTIONS}/{address}/{file}")).unwrap_or_default();
            id("vendor") == "0x8086" && DSA_IDS.contains(&id("device").as_str())
        };
        let function =
            |address: String| PciFunction { driver: self.driver(&format!("{FUNCTIONS}/{address}")), address };
        self.entries(FUNCTIONS).into_iter().filter(is_dsa).map(function).collect()
    }

    fn dax(&self) -> Vec<String> {
        const DEVICES: &str = "sys/bus/dax/devices";
        let is_device = |name: &String| {
            self.driver(&format!("{DEVICES}/{name}")).is_some_and(|driver| driver == "device_dax")
        };
        self.entries(DEVICES).into_iter().filter(is_device).collect()
    }

    fn container(&self) -> Container {
        let groups = self.text("proc/self/cgroup").unwrap_or_default();
        let status = self.text("proc/self/status").unwrap_or_default();
        let is_named = ["docker", "kubepods", "libpod", "lxc"].iter().any(|name| groups.contains(name));
        Container {
            is_here: is_named || [".dockerenv", "run/.containerenv"].iter().any(|file| self.exists(file)),
            // Mode 2 is a filter. Source: proc_pid_status(5).
            has_seccomp: status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])),
        }
    }
}
