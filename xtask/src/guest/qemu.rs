//! QEMU: its arguments for a layout, and one run of it.
//!
//! Source: `qemu-system-x86_64(1)`; QEMU `hw/core/numa.c`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::layout::Layout;
use super::{init, plan};
use crate::shell::{self, Failure};

const PROGRAM: &str = "qemu-system-x86_64";
/// The variable that selects the accelerator. The default `tcg`, software emulation, runs everywhere; a `/dev/kvm` may
/// exist and not work.
const ACCELERATOR: &str = "MEMFERRY_NUMA_ACCEL";
/// Time limit from the start of QEMU to the first line of process 1. Observed: 3 to 10 s on two busy cores.
const BOOT_MAX: Duration = Duration::from_secs(40);

/// Kernel arguments that halve the boot: console output only, no probes for absent devices, no security modules, no waits.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=-1 quiet loglevel=1 nokaslr edd=off mitigations=off \
     random.trust_cpu=on tsc=reliable no_timer_check rcupdate.rcu_expedited=1 audit=0 selinux=0 apparmor=0 \
     cryptomgr.notests noreplace-smp nomodeset";

/// The installed QEMU.
pub(crate) struct Qemu {
    /// Major version.
    version: u32,
    accelerator: Accelerator,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Accelerator {
    Tcg,
    Kvm,
}

/// The files of a guest.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    /// Receives what the guest writes to its second serial line.
    pub(crate) record: Option<&'a Path>,
}

/// A finished run of a guest.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    /// Time until the first line of process 1.
    pub(crate) boot: Option<Duration>,
    pub(crate) whole: Duration,
}

/// The outcome of a run.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    AllOk,
    SomeFailed,
    /// The guest stopped before the end of its plan, with the reason. Worth a retry.
    NotFinished(String),
}

impl Qemu {
    pub(crate) fn find() -> Result<Qemu, Failure> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Failure(
                "the guest runs x86-64 test binaries; run this on an x86-64 machine".to_owned(),
            ));
        }
        if !shell::is_installed(PROGRAM) {
            return Err(Failure(format!("{PROGRAM} is not installed; run `cargo xtask setup`")));
        }
        let text = shell::program(PROGRAM).arg("--version").output()?;
        let version = version(&text).ok_or_else(|| {
            Failure(format!(
                "cannot find the version in the output of {PROGRAM} --version: {:?}",
                text.lines().next().unwrap_or("")
            ))
        })?;
        let accelerator = match std::env::var(ACCELERATOR).as_deref() {
            Err(_) | Ok("" | "tcg") => Accelerator::Tcg,
            Ok("kvm") => Accelerator::Kvm,
            Ok(other) => return Err(Failure(format!("{ACCELERATOR} is {other:?}; set it to kvm or tcg"))),
        };
        Ok(Qemu { version, accelerator })
    }

    fn arguments(&self, layout: &Layout, boot: &Boot<'_>) -> Vec<String> {
        let mut arguments = self.processor();
        arguments.extend(machine(layout));
        let serial = match boot.record {
            Some(file) => vec!["-serial".to_owned(), format!("file:{}", file.display())],
            None => Vec::new(),
        };
        let fixed = "-nodefaults -no-user-config -display none -no-reboot -serial stdio";
        arguments.extend(fixed.split(' ').map(str::to_owned));
        arguments.extend(serial);
        arguments.extend(["-device", "isa-debug-exit,iobase=0x501,iosize=1", "-kernel"].map(str::to_owned));
        arguments.push(boot.kernel.display().to_string());
        arguments.extend(["-initrd".to_owned(), boot.initramfs.display().to_string()]);
        arguments.extend(["-append".to_owned(), KERNEL_ARGUMENTS.to_owned()]);
        arguments
    }

    fn processor(&self) -> Vec<String> {
        let (accelerator, cpu) = match (self.accelerator, self.version) {
            (Accelerator::Kvm, _) => ("kvm", "host"),
            // cx16: Linux 6.12 panics with it under QEMU 7. erms: QEMU emulates `rep movsb` byte by byte; without the
            // flag the kernel uses other instructions to copy and clear pages, and boots a quarter faster.
            (Accelerator::Tcg, ..10) => ("tcg,thread=single", "max,-cx16,-erms"),
            (Accelerator::Tcg, _) => ("tcg,thread=multi", "max,-erms"),
        };
        ["-accel", accelerator, "-cpu", cpu].map(str::to_owned).to_vec()
    }

    /// Boots the guest and passes its lines to `show` until it exits or `limit` has passed.
    pub(crate) fn run(
        &self,
        layout: &Layout,
        boot: &Boot<'_>,
        limit: Duration,
        show: &mut dyn FnMut(&str),
    ) -> Result<Run, Failure> {
        let mut command = Command::new(PROGRAM);
        command.args(self.arguments(layout, boot)).stdin(Stdio::null()).stdout(Stdio::piped());
        let parent = std::process::id();
        // SAFETY: between fork and exec this makes only system calls, which are async-signal-safe. The kernel sends the
        // signal when the thread that started QEMU exits; that thread waits for QEMU below.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent may have exited before prctl.
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                Ok(())
            });
        }
        let started = Instant::now();
        let child = command.spawn().map_err(|error| Failure(format!("cannot start {PROGRAM}: {error}")))?;
        let mut guest = Guest { child };
        let output = guest.child.stdout.take().expect("it is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                // The console ends lines in "\r\n".
                if sender.send(line.trim_end_matches('\r').to_owned()).is_err() {
                    return;
                }
            }
        });

        let mut up = None;
        let mut panic = None;
        let mut is_out_of_memory = false;
        let why_stopped = loop {
            let deadline = if up.is_some() { limit } else { limit.min(BOOT_MAX.max(limit / 4)) };
            match lines.recv_timeout(deadline.saturating_sub(started.elapsed())) {
                Ok(line) => {
                    if line.starts_with(plan::UP) {
                        up = Some(started.elapsed());
                    } else if let Some(at) = line.find("Kernel panic") {
                        panic.get_or_insert_with(|| line[at..].to_owned());
                    }
                    is_out_of_memory |= init::is_oom_kill(&line);
                    show(&line);
                }
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) if up.is_none() => {
                    break Some(format!("it did not boot within {} s", deadline.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    break Some(format!(
                        "it did not finish within {} s; --timeout sets another limit",
                        limit.as_secs()
                    ));
                }
            }
        };
        let outcome = match why_stopped {
            Some(why) => Outcome::NotFinished(why),
            None => {
                let status = guest.child.wait().map_err(|error| Failure(format!("{PROGRAM}: {error}")))?;
                self::outcome(status, panic)
            }
        };
        // Memory ran out, which our code must never cause: a retry would hide it.
        let outcome = match outcome {
            Outcome::NotFinished(why) if is_out_of_memory => {
                show(&format!("guest: the OOM killer ran, and then {why}"));
                Outcome::SomeFailed
            }
            outcome => outcome,
        };
        Ok(Run { outcome, boot: up, whole: started.elapsed() })
    }
}

/// A running QEMU; killed when dropped.
struct Guest {
    child: Child,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both fail if QEMU has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn outcome(status: ExitStatus, panic: Option<String>) -> Outcome {
    match (status.code(), panic) {
        (Some(code), _) if code == exit_code(plan::STATUS_OK) => Outcome::AllOk,
        (Some(code), _) if code == exit_code(plan::STATUS_FAILED) => Outcome::SomeFailed,
        (_, Some(panic)) => Outcome::NotFinished(format!("its kernel panicked: {panic}")),
        (Some(0), _) => Outcome::NotFinished("it powered off before it was done".to_owned()),
        (Some(code), _) => Outcome::NotFinished(format!("{PROGRAM} exited with status {code}, see above")),
        (None, _) => {
            let signal = status.signal().unwrap_or(0);
            Outcome::NotFinished(format!("signal {signal} killed {PROGRAM}"))
        }
    }
}

/// QEMU's exit code for a value written to isa-debug-exit.
fn exit_code(value: u8) -> i32 {
    i32::from(value) << 1 | 1
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
    option("-machine", format!("q35,hmat={}", if hmat { "on" } else { "off" }));
    option("-m", format!("{}M", layout.memory_mib()));
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
    use super::*;

    fn of(profile: &str) -> String {
        machine(&Layout::of(profile, 0).unwrap()).join(" ")
    }

    #[test]
    fn xeon_max() {
        let text = of("xeon-max-9468-2s-flat");
        for part in [
            "-machine q35,hmat=on -m 4096M -smp 8,sockets=2,cores=4,threads=1,maxcpus=8",
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
    fn old_versions_run_in_one_thread() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright"), Some(7));
        assert_eq!(version("QEMU emulator version 10.0.2"), Some(10));
        assert_eq!(version("something else"), None);
        let with = |version| Qemu { version, accelerator: Accelerator::Tcg }.processor().join(" ");
        assert_eq!(with(7), "-accel tcg,thread=single -cpu max,-cx16,-erms");
        assert!(with(10).contains("thread=multi"));
    }

    #[test]
    fn exit_statuses_become_outcomes() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(outcome(exited(33), None), Outcome::AllOk);
        assert_eq!(outcome(exited(35), None), Outcome::SomeFailed);
        // QEMU's own failure, a reboot, a signal.
        for status in [exited(1), exited(0), ExitStatus::from_raw(9)] {
            assert!(matches!(outcome(status, None), Outcome::NotFinished(_)), "{status}");
        }
        let panic = outcome(exited(0), Some("Kernel panic - not syncing".to_owned()));
        assert!(matches!(&panic, Outcome::NotFinished(why) if why.contains("not syncing")), "{panic:?}");
    }
}
