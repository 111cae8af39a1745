//! QEMU: its accelerator, and its arguments for a layout.
//!
//! Source: `qemu-system-x86_64(1)`; QEMU `hw/core/numa.c`, `hw/9pfs`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::persistent::PersistentMemory;

pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// The variable that selects the accelerator.
const ACCELERATOR: &str = "MEMFERRY_NUMA_ACCEL";

/// Kernel arguments that halve the boot: console output only, no probes for absent devices, no security modules, no waits.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=-1 quiet loglevel=1 nokaslr edd=off mitigations=off \
     random.trust_cpu=on tsc=reliable no_timer_check rcupdate.rcu_expedited=1 audit=0 selinux=0 apparmor=0 \
     cryptomgr.notests noreplace-smp nomodeset";

/// How a guest's instructions are executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By QEMU's software emulation, which runs everywhere.
    Tcg {
        /// Why KVM is not used, if it was tried.
        why: Option<String>,
    },
    /// By the CPU.
    Kvm,
}

/// The installed QEMU.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// Major version.
    version: u32,
    accelerator: Accelerator,
}

/// The files of a guest.
#[derive(Clone, Debug)]
pub struct Boot<'a> {
    /// The ELF image.
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) record: Option<&'a Path>,
    /// Folders of the host.
    pub(crate) folders: &'a [Folder],
    /// Files of the layout's regions.
    pub(crate) persistent: Option<&'a PersistentMemory>,
}

impl<'a> Boot<'a> {
    /// A guest without folders of the host. The file `record` receives what the guest writes to its second serial line.
    pub fn new(kernel: &'a Kernel, initramfs: &'a Path, record: Option<&'a Path>) -> Boot<'a> {
        Boot { kernel: &kernel.image, initramfs, record, folders: &[], persistent: None }
    }

    /// Adds persistent memory, which a layout with regions needs.
    pub fn with_persistent(self, persistent: &'a PersistentMemory) -> Boot<'a> {
        Boot { persistent: Some(persistent), ..self }
    }
}

/// A directory of the host that the guest may mount.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Folder {
    pub(crate) tag: String,
    pub(crate) path: PathBuf,
    pub(crate) is_read_only: bool,
}

/// The serial lines that a guest's program uses, as file descriptors that QEMU inherits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramLines {
    pub(crate) console: i32,
    pub(crate) error: i32,
}

impl Qemu {
    /// Finds QEMU. The variable `MEMFERRY_NUMA_ACCEL`, `kvm` or `tcg`, selects the accelerator. Without it the guest is
    /// emulated, or uses KVM if `prefer_kvm` is true and KVM works.
    ///
    /// # Errors
    /// QEMU is missing, its version is unknown, or the variable has another value.
    pub fn find(prefer_kvm: bool) -> Result<Qemu, Error> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::Qemu(
                "the guest runs x86-64 programs; run this on an x86-64 machine".to_owned(),
            ));
        }
        crate::tools::check_tools()?;
        let output = Command::new(PROGRAM).arg("--version").output();
        let output = output.map_err(|error| Error::Qemu(format!("cannot run {PROGRAM}: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = version(&text).ok_or_else(|| {
            Error::Qemu(format!(
                "cannot find the version in the output of {PROGRAM} --version: {:?}",
                text.lines().next().unwrap_or("")
            ))
        })?;
        let accelerator = match std::env::var(ACCELERATOR).as_deref() {
            Err(_) | Ok("") if prefer_kvm => match try_kvm() {
                Ok(()) => Accelerator::Kvm,
                Err(why) => Accelerator::Tcg { why: Some(why) },
            },
            Err(_) | Ok("" | "tcg") => Accelerator::Tcg { why: None },
            Ok("kvm") => Accelerator::Kvm,
            Ok(other) => {
                return Err(Error::Qemu(format!("{ACCELERATOR} is {other:?}; set it to kvm or tcg")));
            }
        };
        Ok(Qemu { version, accelerator })
    }

    /// How the instructions of its guests are executed.
    pub fn accelerator(&self) -> &Accelerator {
        &self.accelerator
    }

    /// Without `lines`, the console is QEMU's standard output; with them, the program's output is.
    pub(crate) fn arguments(
        &self,
        layout: &Layout,
        boot: &Boot<'_>,
        lines: Option<ProgramLines>,
    ) -> Vec<String> {
        let mut arguments = self.processor();
        arguments.extend(machine(layout));
        let fixed = "-nodefaults -no-user-config -display none -no-reboot";
        arguments.extend(fixed.split(' ').map(str::to_owned));
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        let record = boot.record.map(|file| format!("file:{}", escaped(file)));
        match lines {
            None => {
                option("-serial", "stdio".to_owned());
                record.into_iter().for_each(|record| option("-serial", record));
            }
            Some(ProgramLines { console, error }) => {
                option("-serial", format!("file:/dev/fd/{console}"));
                option("-serial", record.unwrap_or_else(|| "null".to_owned()));
                option("-chardev", "stdio,id=program,signal=off".to_owned());
                option("-serial", "chardev:program".to_owned());
                option("-serial", format!("file:/dev/fd/{error}"));
            }
        }
        let files = boot.persistent.into_iter().flat_map(PersistentMemory::paths);
        for (number, (region, file)) in layout.regions.iter().zip(files).enumerate() {
            let (size, file) = (region.size_mib, escaped(file));
            option(
                "-object",
                format!("memory-backend-file,id=pmem{number},share=on,mem-path={file},size={size}M"),
            );
            option("-device", format!("nvdimm,id=nvdimm{number},memdev=pmem{number},node={}", region.node));
        }
        for Folder { tag, path, is_read_only } in boot.folders {
            let access = if *is_read_only { "on" } else { "off" };
            option(
                "-fsdev",
                format!(
                    "local,id={tag},path={},security_model=none,readonly={access},multidevs=remap",
                    escaped(path)
                ),
            );
            option("-device", format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
        }
        option("-device", "isa-debug-exit,iobase=0x501,iosize=1".to_owned());
        option("-kernel", boot.kernel.display().to_string());
        option("-initrd", boot.initramfs.display().to_string());
        option("-append", KERNEL_ARGUMENTS.to_owned());
        arguments
    }

    fn processor(&self) -> Vec<String> {
        let (accelerator, cpu) = match (&self.accelerator, self.version) {
            (Accelerator::Kvm, _) => ("kvm", "host"),
            // cx16: Linux 6.12 panics with it under QEMU 7. erms: QEMU emulates `rep movsb` byte by byte; without the
            // flag the kernel uses other instructions to copy and clear pages, and boots a quarter faster.
            (Accelerator::Tcg { .. }, ..10) => ("tcg,thread=single", "max,-cx16,-erms"),
            (Accelerator::Tcg { .. }, _) => ("tcg,thread=multi", "max,-erms"),
        };
        ["-accel", accelerator, "-cpu", cpu].map(str::to_owned).to_vec()
    }
}

/// A path as the value of an option: QEMU takes a comma for the beginning of the next one.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Makes an empty machine with KVM. A `/dev/kvm` may exist and not work, for example in a virtual machine.
fn try_kvm() -> Result<(), String> {
    const DEVICE: &str = "/dev/kvm";
    File::options().read(true).write(true).open(DEVICE).map_err(|error| format!("{DEVICE}: {error}"))?;
    let arguments = "-accel kvm -cpu host -machine q35 -m 64M -nodefaults -no-user-config -display none -S -monitor stdio";
    let mut command = Command::new(PROGRAM);
    command.args(arguments.split(' ')).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut run = || {
        let mut child = command.spawn()?;
        // QEMU may have exited.
        let _ = child.stdin.take().expect("it is piped").write_all(b"quit\n");
        child.wait_with_output()
    };
    let output = run().map_err(|error| format!("{PROGRAM}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(why_not(&String::from_utf8_lossy(&output.stderr))),
    }
}

/// The first error in QEMU's messages.
fn why_not(messages: &str) -> String {
    let line = messages.lines().find(|line| !line.contains("warning:"));
    line.unwrap_or("QEMU does not say why").trim_start_matches("qemu-system-x86_64: ").to_owned()
}

/// The major version in "QEMU emulator version 7.2.22 (Debian ...)".
fn version(text: &str) -> Option<u32> {
    let (_, version) = text.lines().next()?.split_once("version ")?;
    version.split('.').next()?.parse().ok()
}

/// QEMU's arguments for the nodes, in the order in which Linux numbers them.
fn machine(layout: &Layout) -> Vec<String> {
    let hmat = layout.has_hmat();
    let cores = layout.cores_per_socket();
    let mut arguments = Vec::new();
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    option("-machine", format!("q35,hmat={},nvdimm={}", on(hmat), on(!layout.regions.is_empty())));
    let slots = match layout.regions.len() {
        0 => String::new(),
        count => {
            let mib = layout.memory_mib() + layout.regions.iter().map(|region| region.size_mib).sum::<u64>();
            format!(",slots={count},maxmem={mib}M")
        }
    };
    option("-m", format!("{}M{slots}", layout.memory_mib()));
    // An offline node is a socket without present CPUs: the firmware's tables name it, but it has no resources.
    let sockets = layout.sockets as usize + layout.offline.len();
    let (present, possible) = (layout.cpus_count(), sockets * cores);
    option("-smp", format!("{present},sockets={sockets},cores={cores},threads=1,maxcpus={possible}"));

    for node in layout.nodes.iter().filter(|node| node.memory_mib > 0) {
        option("-object", format!("memory-backend-ram,id=memory{},size={}M", node.id, node.memory_mib));
    }
    let empty: Vec<(u32, String)> = (layout.offline.iter().zip(layout.sockets as usize..))
        .map(|(&id, socket)| (id, format!("node,nodeid={id},cpus={}", span(socket * cores, cores))))
        .collect();
    let online = layout.nodes.iter().map(|node| {
        let mut text = format!("node,nodeid={}", node.id);
        if let Some(&first) = node.cpus.first() {
            text += &format!(",cpus={}", span(first as usize, node.cpus.len()));
        }
        if node.memory_mib > 0 {
            text += &format!(",memdev=memory{}", node.id);
        }
        if hmat {
            text += &format!(",initiator={}", node.cpu_node);
        }
        (node.id, text)
    });
    let mut nodes: Vec<(u32, String)> = online.chain(empty).collect();
    nodes.sort_unstable();
    for (_, node) in &nodes {
        option("-numa", node.clone());
    }

    // QEMU wants all distances or none. An offline node gets the largest distance.
    let farthest = layout.distances.iter().flatten().copied().max().unwrap_or(10).max(20);
    let position = |id: u32| layout.nodes.iter().position(|node| node.id == id);
    for &(from, _) in &nodes {
        for &(to, _) in nodes.iter().filter(|(to, _)| *to != from) {
            let known = position(from).zip(position(to)).map(|(from, to)| layout.distances[from][to]);
            option("-numa", format!("dist,src={from},dst={to},val={}", known.unwrap_or(farthest)));
        }
    }
    for link in &layout.links {
        let mut figure = |what: &str, value: String| {
            let (initiator, target) = (link.initiator, link.target);
            option(
                "-numa",
                format!(
                    "hmat-lb,initiator={initiator},target={target},hierarchy=memory,data-type={what},{value}"
                ),
            );
        };
        figure("read-latency", format!("latency={}", link.read_latency_ns));
        figure("write-latency", format!("latency={}", link.write_latency_ns));
        figure("read-bandwidth", format!("bandwidth={}M", link.read_mib_per_s));
        figure("write-bandwidth", format!("bandwidth={}M", link.write_mib_per_s));
    }
    arguments
}

fn span(first: usize, count: usize) -> String {
    if count == 1 { first.to_string() } else { format!("{first}-{}", first + count - 1) }
}

#[cfg(test)]
mod tests {
    use memferry_testing::{Needs, skip};

    use super::*;

    fn of(profile: &str) -> String {
        machine(&Layout::of(profile, 0).unwrap()).join(" ")
    }

    #[test]
    fn xeon_max() {
        let text = of("xeon-max-9468-2s-flat");
        for part in [
            "-machine q35,hmat=on,nvdimm=off -m 4096M -smp 8,sockets=2,cores=4,threads=1,maxcpus=8",
            "-object memory-backend-ram,id=memory8,size=128M",
            "-numa node,nodeid=5,cpus=5,memdev=memory5,initiator=5",
            "-numa node,nodeid=13,memdev=memory13,initiator=5",
            "-numa dist,src=0,dst=8,val=13",
            "-numa hmat-lb,initiator=0,target=8,hierarchy=memory,data-type=read-bandwidth,bandwidth=204800M",
            "-numa hmat-lb,initiator=4,target=3,hierarchy=memory,data-type=write-latency,latency=200",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(text.matches("dist,").count(), 16 * 15);
        assert_eq!(text.matches("hmat-lb,").count(), 8 * 16 * 4);
    }

    #[test]
    fn odd_nodes() {
        let text = of("made-up-odd-nodes");
        for part in [
            "hmat=off",
            "-smp 4,sockets=3,cores=2,threads=1,maxcpus=6",
            "-numa node,nodeid=1,cpus=2-3 -numa node,nodeid=2,cpus=4-5 -numa node,nodeid=3,memdev=memory3 ",
            "dist,src=2,dst=0,val=24",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("initiator") && !text.contains("id=memory1,"), "{text}");
    }

    #[test]
    fn persistent_memory_becomes_an_nvdimm_of_its_node() {
        let layout = Layout::of("made-up-fsdax-node", 0).unwrap();
        let directory = tempfile::Builder::new().prefix("a,b").tempdir().unwrap();
        let kernel = Kernel { image: "/k".into(), folders: Vec::new(), persistent: Some(Vec::new()) };
        let persistent = match PersistentMemory::open(&layout, &kernel, directory.path()) {
            Err(Error::NotInstalled { .. }) => {
                return skip(Needs::Program("mkfs.ext4"), "it is not installed");
            }
            opened => opened.unwrap(),
        };
        let boot = Boot::new(&kernel, Path::new("/i"), None).with_persistent(&persistent);
        let qemu = Qemu { version: 10, accelerator: Accelerator::Kvm };
        let text = qemu.arguments(&layout, &boot, None).join(" ");
        let file = directory.path().join("pmem0").display().to_string().replace("a,b", "a,,b");
        for part in [
            "nvdimm=on -m 768M,slots=1,maxmem=1280M ".to_owned(),
            format!("memory-backend-file,id=pmem0,share=on,mem-path={file},size=512M"),
            "-device nvdimm,id=nvdimm0,memdev=pmem0,node=1".to_owned(),
        ] {
            assert!(text.contains(&part), "{part} is not in {text}");
        }
    }

    #[test]
    fn old_versions_run_in_one_thread() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright"), Some(7));
        assert_eq!(version("QEMU emulator version 10.0.2"), Some(10));
        assert_eq!(version("something else"), None);
        let with =
            |version| Qemu { version, accelerator: Accelerator::Tcg { why: None } }.processor().join(" ");
        assert_eq!(with(7), "-accel tcg,thread=single -cpu max,-cx16,-erms");
        assert!(with(10).contains("thread=multi"));
    }

    #[test]
    fn folders_and_lines_become_devices() {
        let qemu = Qemu { version: 10, accelerator: Accelerator::Kvm };
        let layout = Layout::of("made-up-two-tiers", 0).unwrap();
        let folder =
            |tag: &str, path: &str, is_read_only| Folder { tag: tag.into(), path: path.into(), is_read_only };
        let folders = [folder("root", "/", true), folder("share0", "/data/a,b", false)];
        let boot = Boot {
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            record: Some(Path::new("/r")),
            folders: &folders,
            persistent: None,
        };
        let text = qemu.arguments(&layout, &boot, Some(ProgramLines { console: 5, error: 6 })).join(" ");
        for part in [
            "-accel kvm -cpu host",
            "-serial file:/dev/fd/5 -serial file:/r -chardev stdio,id=program,signal=off -serial chardev:program -serial \
             file:/dev/fd/6",
            "-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap -device \
             virtio-9p-pci,fsdev=root,mount_tag=root",
            "path=/data/a,,b,security_model=none,readonly=off",
            "-kernel /k -initrd /i -append console=ttyS0",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let plain = qemu.arguments(&layout, &Boot { folders: &[], ..boot }, None).join(" ");
        assert!(plain.contains("-serial stdio -serial file:/r -device isa-debug-exit"), "{plain}");
    }

    #[test]
    fn the_reason_against_kvm_is_the_first_error() {
        let messages = "qemu-system-x86_64: -accel kvm: warning: Number of SMP cpus exceeds\n\
                        qemu-system-x86_64: error: failed to set MSR 0x10a to 0x69\nqemu-system-x86_64: ../target: abort\n";
        assert_eq!(why_not(messages), "error: failed to set MSR 0x10a to 0x69");
        assert!(!why_not("").is_empty());
    }
}
