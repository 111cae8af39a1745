//! Machines as trees in memory: a healthy one, and small edits of it with exactly one diagnosis each.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use memferry::internals::Recording;
use memferry::topology::Machine;
use memferry_dsa::internals::system::{Files, Owner};
use memferry_dsa::system::{ApplyOptions, Config, DeviceId, Plan, Shape, SystemState};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};

use super::facts::Trial;
use super::*;

const DEVICES: &str = "sys/bus/dsa/devices";
const PCI: &str = "sys/bus/pci/devices/0000:6a:01.0";
const CONFIG: &str = "boot/config-6.12.0";
/// Number of `CAP_SYS_RAWIO`.
const RAW_IO: u32 = 17;

/// A file that only root may use.
const ROOT_ONLY: Owner = Owner { mode: 0o600, user: 0, group: 0, is_device: true };
const EVERYBODY: Owner = Owner { mode: 0o666, ..ROOT_ONLY };

/// A machine with two nodes, with this number of configured DSA devices, and a process of a user that may do everything.
fn with_devices(count: u32) -> Recording {
    let ids: Vec<DeviceId> = (0..count).map(|node| DeviceId(2 * node)).collect();
    let devices: Vec<FakeDevice> = ids.iter().map(|id| FakeDevice::sapphire_rapids(*id, id.0 / 2)).collect();
    let driver = FakeDriver::new(&devices);
    if count > 0 {
        let shape: Shape = format!("{count}n1d1e1w").parse().unwrap();
        let state = SystemState::read(&driver).unwrap();
        let options = ApplyOptions { disable_first: false, enable: true };
        let plan = Plan::new(&Config::for_devices(&ids, &shape), &state, options).unwrap();
        plan.apply_to(&driver).unwrap();
    }
    let mut tree = Recording::new();
    for path in driver.paths() {
        if let Ok(bytes) = driver.read(&path) {
            tree.insert(&path, &String::from_utf8(bytes).unwrap());
        }
    }
    for id in &ids {
        tree.insert_owner(&format!("dev/dsa/{}", id.queue(0)), EVERYBODY);
        let function = PCI.replace("6a", &format!("{:02x}", 0x6a + id.0));
        tree.insert(&format!("{function}/vendor"), "0x8086\n");
        tree.insert(&format!("{function}/device"), "0x0b25\n");
        tree.insert_link(&format!("{function}/driver"), "../../../bus/pci/drivers/idxd");
    }
    for node in 0..2 {
        put_node(
            &mut tree,
            node,
            &format!("{}-{}", 2 * node, 2 * node + 1),
            ["10 21\n", "21 10\n"][node as usize],
        );
    }
    for (path, text) in [
        ("proc/cpuinfo", INTEL),
        ("proc/cmdline", "root=/dev/vda1 ro intel_iommu=on,sm_on quiet\n"),
        ("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 4194304 kB\nInactive(file): 0 kB\n"),
        ("proc/sys/kernel/hostname", "xeon\n"),
        ("proc/sys/kernel/io_uring_disabled", "0\n"),
        ("proc/sys/kernel/numa_balancing", "0\n"),
        ("proc/sys/user/max_user_namespaces", "63000\n"),
        ("sys/class/iommu/dmar0/intel-iommu/version", "5:0\n"),
        ("sys/firmware/acpi/tables/DMAR", ""),
        ("sys/firmware/acpi/tables/APIC", ""),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("sys/devices/system/node/online", "0-1\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        (
            CONFIG,
            "CONFIG_INTEL_IDXD=m\nCONFIG_INTEL_IDXD_SVM=y\nCONFIG_INTEL_IOMMU=y\nCONFIG_INTEL_IOMMU_SVM=y\n\
             # CONFIG_INTEL_IOMMU_DEFAULT_ON is not set\n",
        ),
    ] {
        tree.insert(path, text);
    }
    tree.insert_owner("dev/fuse", EVERYBODY);
    become_user(&mut tree, &[RAW_IO], "");
    tree
}

const INTEL: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\n\
    flags\t\t: fpu avx2 avx512f avx512bw la57 waitpkg movdir64b enqcmd\n\
    address sizes\t: 52 bits physical, 57 bits virtual\n";

fn put_node(tree: &mut Recording, node: u32, cpus: &str, distance: &str) {
    let at = format!("sys/devices/system/node/node{node}");
    tree.insert(&format!("{at}/cpulist"), &format!("{cpus}\n"));
    tree.insert(&format!("{at}/distance"), distance);
    let size = format!("Node {node} MemTotal: 4194304 kB\nNode {node} MemFree: 2097152 kB\n");
    tree.insert(&format!("{at}/meminfo"), &size);
}

/// Makes the process one of user 1000 with these capabilities; `lines` are further ones of its status.
fn become_user(tree: &mut Recording, capabilities: &[u32], lines: &str) {
    let bits: u64 = capabilities.iter().map(|number| 1 << number).sum();
    let ids = "1000\t1000\t1000\t1000";
    let status =
        format!("Uid:\t{ids}\nGid:\t{ids}\nGroups:\t1000\nCapEff:\t{bits:016x}\nSeccomp:\t0\n{lines}");
    tree.insert("proc/self/status", &status);
}

/// Replaces a part of a file, which must be there.
#[track_caller]
fn replace(tree: &mut Recording, path: &str, from: &str, to: &str) {
    let text = tree.text(path).unwrap_or_else(|| panic!("no {path}"));
    assert!(text.contains(from), "{from:?} is not in {path}: {text}");
    let text = text.replace(from, to);
    tree.insert(path, &text);
}

/// Sets an attribute of a device or queue, which must be there.
#[track_caller]
fn set(tree: &mut Recording, object: &str, value: &str) {
    let path = format!("{DEVICES}/{object}");
    assert!(tree.text(&path).is_some(), "no {path}");
    tree.insert(&path, &format!("{value}\n"));
}

static HEALTHY: LazyLock<Recording> = LazyLock::new(|| with_devices(2));

fn facts(tree: &Recording) -> Facts {
    Facts::read(tree, Machine::discover_in(tree).map_err(|error| error.to_string()))
}

fn no_pasid(tree: &mut Recording) {
    for device in ["dsa0", "dsa2"] {
        set(tree, &format!("{device}/pasid_enabled"), "0");
        // As the driver leaves it: neither device nor queue can be enabled.
        set(tree, &format!("{device}/state"), "disabled");
        let queue = format!("{device}/wq{}.0", &device[3..]);
        set(tree, &format!("{queue}/state"), "disabled");
    }
}

fn guest(tree: &mut Recording) {
    replace(tree, "proc/cpuinfo", "fpu", "fpu hypervisor");
}

fn container(tree: &mut Recording) {
    tree.insert("run/.containerenv", "");
}

fn xeon_max(tree: &mut Recording) {
    replace(tree, "proc/cpuinfo", "Platinum 8480+", "CPU Max 9468");
}

type Edit = fn(&mut Recording);

/// The name of the diagnosis, a part of its source, and the edit of the healthy machine that it diagnoses.
const BROKEN: &[(&str, &str, Edit)] = &[
    // The driver.
    ("device-on-another-driver", "spdk/spdk 2486", |tree| {
        tree.insert_link(&format!("{PCI}/driver"), "../../../bus/pci/drivers/vfio-pci");
        tree.remove(&format!("{DEVICES}/dsa0"));
    }),
    ("kernel-without-driver", "facebook/CacheLib 415", |tree| {
        without_driver(tree);
        replace(tree, CONFIG, "CONFIG_INTEL_IDXD=m\n", "# CONFIG_INTEL_IDXD is not set\n");
    }),
    ("driver-not-loaded", "intel-device-plugins-for-kubernetes 919", without_driver),
    ("device-not-bound", "deepin-community/kernel 788", |tree| {
        without_devices(tree);
        tree.insert("sys/bus/dsa/drivers/idxd/bind", "");
        // Granite Rapids D.
        tree.insert(&format!("{PCI}/device"), "0x11fb\n");
    }),
    // Shared address spaces.
    ("kernel-too-old", "intel/idxd-config 7", |tree| {
        no_pasid(tree);
        tree.insert("proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
    }),
    ("vt-d-off", "intel/idxd-config 5", |tree| {
        no_pasid(tree);
        tree.remove("sys/class/iommu");
        tree.remove("sys/firmware/acpi/tables/DMAR");
        // Also without the parameter: first the BIOS.
        replace(tree, "proc/cmdline", " intel_iommu=on,sm_on", "");
    }),
    ("guest-without-iommu", "intel/idxd-config 5 and 46", |tree| {
        no_pasid(tree);
        guest(tree);
        tree.remove("sys/class/iommu");
        tree.remove("sys/firmware/acpi/tables/DMAR");
    }),
    ("iommu-off-at-boot", "Fürst 2024, 2.5, step 2", |tree| {
        no_pasid(tree);
        replace(tree, "proc/cmdline", " intel_iommu=on,sm_on", "");
    }),
    ("iommu-off-at-boot", "intel/idxd-config 5", |tree| {
        no_pasid(tree);
        // The last value wins, also over the default of the kernel.
        replace(tree, "proc/cmdline", "sm_on", "sm_on intel_iommu=off");
        replace(
            tree,
            CONFIG,
            "# CONFIG_INTEL_IOMMU_DEFAULT_ON is not set",
            "CONFIG_INTEL_IOMMU_DEFAULT_ON=y",
        );
    }),
    ("scalable-mode-off-at-boot", "openshift 307", |tree| {
        no_pasid(tree);
        replace(tree, "proc/cmdline", "on,sm_on", "on");
    }),
    ("kernel-without-sharing", "facebook/CacheLib 415", |tree| {
        no_pasid(tree);
        replace(tree, CONFIG, "CONFIG_INTEL_IOMMU_SVM=y\n", "");
    }),
    ("address-limit", "Fürst 2024, 2.5, step 1", |tree| {
        no_pasid(tree);
        replace(tree, "proc/cpuinfo", "52 bits", "46 bits");
    }),
    ("five-level-paging", "intel/qpl 50", no_pasid),
    ("sharing-refused", "intel/idxd-config 46", |tree| {
        no_pasid(tree);
        replace(tree, "proc/cpuinfo", " la57", "");
    }),
    ("sharing-refused", "intel/idxd-config 46", |tree| {
        no_pasid(tree);
        guest(tree);
        replace(tree, "proc/cpuinfo", " la57", "");
    }),
    // Devices.
    ("device-halted", "intel/dsa-perf-micros 3", |tree| set(tree, "dsa0/state", "halted")),
    ("device-disabled", "Fürst 2024, 2.5, step 5", |tree| {
        let driver = FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 0)]);
        tree.remove(&format!("{DEVICES}/dsa0"));
        for path in driver.paths().iter().filter(|path| path.contains("/dsa0/")) {
            if let Ok(bytes) = driver.read(path) {
                tree.insert(path, &String::from_utf8(bytes).unwrap());
            }
        }
    }),
    ("device-refused", "intel/DML 40", |tree| {
        set(tree, "dsa0/state", "disabled");
        set(tree, "dsa0/cmd_status", "0x14");
    }),
    ("device-refused", "intel/idxd-config 15 and 29", |tree| {
        set(tree, "dsa0/state", "disabled");
        set(tree, "dsa0/cmd_status", "0x15");
    }),
    ("device-without-queue", "intel/DML 32", |tree| {
        set(tree, "dsa0/wq0.0/size", "0");
        set(tree, "dsa0/wq0.0/group_id", "-1");
    }),
    ("device-error", "spdk/spdk 2503", |tree| {
        set(tree, "dsa2/errors", "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00001a01");
    }),
    // Queues.
    ("queue-of-kernel", "intel/idxd-config 49", |tree| {
        for queue in ["dsa0/wq0.0", "dsa2/wq2.0"] {
            set(tree, &format!("{queue}/type"), "kernel");
        }
    }),
    ("queue-without-name", "0x80040000", |tree| {
        disable_queue(tree, "0x80040000");
        set(tree, "dsa0/wq0.0/name", "");
    }),
    ("queue-without-driver-name", "intel/idxd-config 40", |tree| {
        disable_queue(tree, "0x80200000");
        set(tree, "dsa0/wq0.0/driver_name", "");
    }),
    ("queue-refused", "intel/idxd-config 11, 29 and 45", |tree| disable_queue(tree, "0x800c0000")),
    ("queue-disabled", "Fürst 2024, 2.5, step 5", |tree| disable_queue(tree, "0x0")),
    ("group-without-engine", "intel/idxd-config 15", |tree| set(tree, "dsa0/engine0.0/group_id", "-1")),
    ("queue-without-threshold", "IDXD_SCMD_WQ_NO_THRESH", |tree| set(tree, "dsa0/wq0.0/threshold", "0")),
    ("queue-without-move", "Linux sysfs-driver-dma-idxd", |tree| {
        set(
            tree,
            "dsa0/wq0.0/op_config",
            "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00000005",
        );
    }),
    ("queue-not-in-container", "intel/idxd-config 73", |tree| {
        container(tree);
        tree.remove("dev/dsa");
    }),
    ("queue-without-file", "intel/idxd-config 8", |tree| {
        tree.remove("dev/dsa");
    }),
    ("queue-without-permission", "intel/qpl 26", |tree| {
        for queue in ["wq0.0", "wq2.0"] {
            tree.insert_owner(&format!("dev/dsa/{queue}"), ROOT_ONLY);
        }
    }),
    ("queue-in-use", "cdev.c (EBUSY)", |tree| {
        set(tree, "dsa0/wq0.0/mode", "dedicated");
        set(tree, "dsa0/wq0.0/threshold", "0");
        set(tree, "dsa0/wq0.0/clients", "1");
    }),
    ("queue-on-another-node", "intel/DML 33", |tree| {
        tree.remove(&format!("{DEVICES}/dsa0"));
        become_user(tree, &[RAW_IO], "Cpus_allowed_list:\t0-1\n");
    }),
    ("no-raw-io", "intel-device-plugins-for-kubernetes 1779", |tree| become_user(tree, &[], "")),
    ("no-submission-instruction", "Intel SDM, ENQCMD", |tree| {
        guest(tree);
        replace(tree, "proc/cpuinfo", " enqcmd", "");
    }),
    ("no-wait-instruction", "Intel SDM, UMWAIT", |tree| {
        guest(tree);
        replace(tree, "proc/cpuinfo", " waitpkg", "");
    }),
    // The host.
    ("unreadable", "intel/idxd-config 9", |tree| set(tree, "dsa0/wq0.0/size", "many")),
    ("unreadable", "intel/idxd-config 9", |tree| {
        tree.remove("sys/devices/system/node/node0/meminfo");
    }),
    ("no-avx2", "software-operations.md", |tree| replace(tree, "proc/cpuinfo", " avx2", "")),
    ("hbm-as-cache", "Fürst 2024, 2.5, step 1", |tree| {
        xeon_max(tree);
        for node in 0..2 {
            let cache = format!("sys/devices/system/node/node{node}/memory_side_cache/index1");
            for (file, text) in [("size", "17179869184\n"), ("line_size", "64\n"), ("indexing", "0\n")] {
                tree.insert(&format!("{cache}/{file}"), text);
            }
        }
    }),
    ("memory-as-device", "sysfs-bus-dax", |tree| {
        xeon_max(tree);
        let device = "sys/bus/dax/devices/dax0.0";
        tree.insert_link(&format!("{device}/driver"), "../../../bus/dax/drivers/device_dax");
        tree.insert(&format!("{device}/target_node"), "2\n");
        tree.insert(&format!("{device}/size"), "17179869184\n");
    }),
    ("memory-not-allowed", "vllm-project/vllm 25559", |tree| {
        become_user(tree, &[RAW_IO], "Mems_allowed_list:\t0\n");
    }),
    ("numa-balancing", "sysctl/kernel.rst", |tree| tree.insert("proc/sys/kernel/numa_balancing", "1\n")),
    ("no-huge-pages", "huge-pages.md", |tree| {
        tree.insert("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    }),
    ("io-uring-disabled", "sysctl/kernel.rst", |tree| {
        tree.insert("proc/sys/kernel/io_uring_disabled", "2\n")
    }),
    ("io-uring-disabled", "sysctl/kernel.rst", |tree| {
        tree.insert("proc/sys/kernel/io_uring_disabled", "1\n");
        tree.insert("proc/sys/kernel/io_uring_group", "-1\n");
    }),
    ("no-fuse", "docs/guides/emulate.md", |tree| {
        tree.remove("dev/fuse");
    }),
    ("fuse-not-permitted", "docs/guides/emulate.md", |tree| tree.insert_owner("dev/fuse", ROOT_ONLY)),
    ("no-user-namespaces", "docs/guides/emulate.md", |tree| {
        tree.insert("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
    }),
    ("no-user-namespaces", "docs/guides/emulate.md", |tree| {
        tree.insert("proc/sys/kernel/unprivileged_userns_clone", "0\n");
    }),
    ("no-user-namespaces", "docs/guides/emulate.md", |tree| {
        tree.insert("proc/sys/user/max_user_namespaces", "0\n");
    }),
];

fn without_devices(tree: &mut Recording) {
    tree.remove("sys/bus/dsa");
    tree.remove("dev/dsa");
    for function in ["6a", "6c"] {
        tree.remove(&format!("{}/driver", PCI.replace("6a", function)));
    }
}

fn without_driver(tree: &mut Recording) {
    without_devices(tree);
    tree.remove("sys/module/idxd");
}

fn disable_queue(tree: &mut Recording, status: &str) {
    set(tree, "dsa0/wq0.0/state", "disabled");
    set(tree, "dsa0/cmd_status", status);
}

/// The names of the problems.
fn names(problems: &[Problem]) -> Vec<&str> {
    problems.iter().map(|problem| problem.name).collect()
}

#[test]
fn broken_machines_have_exactly_their_problem() {
    for (index, (name, source, edit)) in BROKEN.iter().enumerate() {
        let mut tree = HEALTHY.clone();
        edit(&mut tree);
        let found = problems(&facts(&tree));
        assert_eq!(names(&found), [*name], "machine {index}: {found:#?}");
        assert!(found[0].source.contains(source), "{name}: {} is not {source}", found[0].source);
    }
}

#[test]
fn refused_io_uring_is_a_problem_of_the_filter() {
    let mut tree = HEALTHY.clone();
    container(&mut tree);
    replace(&mut tree, "proc/self/status", "Seccomp:\t0", "Seccomp:\t2");
    let mut facts = facts(&tree);
    assert_eq!(problems(&facts), []);
    // Only trying tells what a filter refuses.
    facts.io_uring.works = Some(false);
    let found = problems(&facts);
    assert_eq!(names(&found), ["io-uring-refused"]);
    assert!(found[0].cause.contains("seccomp"), "{}", found[0].cause);
}

#[test]
fn a_queue_that_executes_nothing_is_a_problem() {
    let mut facts = facts(&HEALTHY);
    let trial = |device: u32, error: Option<&str>| Trial {
        queue: DeviceId(device).queue(0),
        error: error.map(str::to_owned),
    };
    facts.trials = vec![trial(0, None), trial(2, None)];
    assert_eq!(problems(&facts), []);
    facts.trials[1] = trial(2, Some("no completion"));
    let found = problems(&facts);
    assert_eq!(names(&found), ["queue-fails"]);
    assert_eq!(found[0].cause, "A No-op fails in wq2.0: no completion.");
}

#[test]
fn healthy_machines_have_no_problem() {
    let root: Edit = |tree| become_user(tree, &[1, RAW_IO, 21], "");
    let dedicated: Edit = |tree| {
        set(tree, "dsa0/wq0.0/mode", "dedicated");
        set(tree, "dsa0/wq0.0/threshold", "0");
    };
    let beside_kernel: Edit = |tree| set(tree, "dsa2/wq2.0/type", "kernel");
    let in_container: Edit = |tree| {
        container(tree);
        tree.insert("proc/self/cgroup", "0::/docker/4f1c\n");
        // Its own CPUs, and all memory beside them.
        become_user(tree, &[RAW_IO], "Cpus_allowed_list:\t2-3\nMems_allowed_list:\t1\n");
    };
    let default_on: Edit = |tree| {
        replace(tree, "proc/cmdline", " intel_iommu=on,sm_on", "");
        tree.insert(
            CONFIG,
            "CONFIG_INTEL_IOMMU_DEFAULT_ON=y\nCONFIG_INTEL_IOMMU_SCALABLE_MODE_DEFAULT_ON=y\n",
        );
    };
    let with_devices_edits: [(&str, Edit); 7] = [
        ("as it is", |_| {}),
        ("root", root),
        ("a dedicated queue", dedicated),
        ("a queue of the kernel", beside_kernel),
        ("a container", in_container),
        ("a virtual machine", guest),
        ("without boot parameters, which a built-in default replaces", default_on),
    ];
    for (what, edit) in with_devices_edits {
        let mut tree = HEALTHY.clone();
        edit(&mut tree);
        assert_eq!(problems(&facts(&tree)), [], "{what}");
    }
    let amd: Edit = |tree| {
        without_driver(tree);
        tree.insert("proc/cpuinfo", "processor: 0\nmodel name: AMD EPYC\nflags: fpu avx2 hypervisor\n");
        tree.remove("sys/class");
        tree.remove("sys/firmware");
    };
    let bare: Edit = |tree| *tree = minimal();
    for (what, edit) in [("without DSA", without_driver as Edit), ("AMD", amd), ("nearly no files", bare)] {
        let mut tree = with_devices(0);
        edit(&mut tree);
        let facts = facts(&tree);
        assert_eq!(problems(&facts), [], "{what}");
        let text = conclusion(&facts, &[]);
        assert!(text.contains("no DSA") && text.contains("CPU cores"), "{text}");
    }
}

/// A tree with nothing but one node: an unknown fact is no problem. Only a missing device file is a fact.
fn minimal() -> Recording {
    let mut tree = Recording::new();
    put_node(&mut tree, 0, "0-3", "10\n");
    tree.insert("sys/devices/system/node/online", "0\n");
    tree.insert("sys/devices/system/cpu/online", "0-3\n");
    tree.insert_owner("dev/fuse", EVERYBODY);
    tree
}

#[test]
fn unreadable_devices_are_not_absent() {
    let mut tree = with_devices(1);
    tree.remove(PCI);
    set(&mut tree, "dsa0/wq0.0/size", "many");
    let facts = facts(&tree);
    let report = Report { problems: problems(&facts), guide: None, telemetry: None, facts: &facts };
    assert_eq!(names(&report.problems), ["unreadable"]);
    assert!(!report.text().contains("no DSA"), "{}", report.text());
}

#[test]
fn problems_are_sentences() {
    let mut all = BTreeSet::new();
    for (name, _, edit) in BROKEN {
        let mut tree = HEALTHY.clone();
        edit(&mut tree);
        let problem = problems(&facts(&tree)).remove(0);
        for sentence in [&problem.cause, &problem.cure] {
            let is_sentence = sentence.ends_with('.') && !sentence.contains(". ") && !sentence.contains('\n');
            assert!(is_sentence, "{name}: {sentence:?}");
        }
        assert!(!problem.command.is_empty() && !problem.source.is_empty(), "{problem:?}");
        all.insert(*name);
    }
    assert!(BROKEN.len() >= 25 && all.len() >= 25, "{} of {} machines", all.len(), BROKEN.len());
}

#[test]
fn status_is_that_of_the_worst_problem() {
    let status = |edits: &[Edit]| {
        let mut tree = HEALTHY.clone();
        edits.iter().for_each(|edit| edit(&mut tree));
        let facts = facts(&tree);
        Report { problems: problems(&facts), guide: None, telemetry: None, facts: &facts }.status()
    };
    let warning: Edit = |tree| tree.insert("proc/sys/kernel/numa_balancing", "1\n");
    let error: Edit = |tree| set(tree, "dsa0/state", "halted");
    assert_eq!(status(&[]), 0);
    assert_eq!(status(&[warning]), STATUS_WARNINGS);
    assert_eq!(status(&[error]), STATUS_ERRORS);
    assert_eq!(status(&[warning, error]), STATUS_ERRORS);
}

#[test]
fn text_has_the_worst_problem_first() {
    let mut tree = HEALTHY.clone();
    tree.insert("proc/sys/kernel/numa_balancing", "1\n");
    no_pasid(&mut tree);
    replace(&mut tree, "proc/cmdline", "on,sm_on", "on");
    let facts = facts(&tree);
    let text = Report { problems: problems(&facts), guide: None, telemetry: None, facts: &facts }.text();
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part:?} is not in:\n{text}"));
    assert!(at("error scalable-mode-off-at-boot: Programs") < at("warning numa-balancing"), "{text}");
    assert!(text.contains("  $ sysctl kernel.numa_balancing=0\n"), "{text}");
    assert!(text.ends_with("2 problems found.\n"), "{text}");
}

/// Each monitor has a sentence, whether it is there or not.
#[test]
fn monitors_are_listed_with_the_reasons_of_the_absent_ones() {
    let mut tree = HEALTHY.clone();
    for (file, text) in [
        ("sys/class/powercap/intel-rapl:0/name", "package-0\n"),
        ("sys/class/powercap/intel-rapl:0/energy_uj", "1000\n"),
        ("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "262143328850\n"),
        ("sys/bus/event_source/devices/dsa0/type", "30\n"),
        ("sys/bus/event_source/devices/dsa0/cpumask", "0\n"),
        ("sys/bus/event_source/devices/dsa0/format/event_category", "config:0-3\n"),
        ("sys/bus/event_source/devices/dsa0/format/event", "config:4-31\n"),
    ] {
        tree.insert(file, text);
    }
    let text = telemetry::text(&monitors(&tree, false));
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "- DSA devices: inbound, outbound, shared_requests, dedicated_requests of dsa0.",
        "- last-level caches: nothing. The kernel has no /sys/fs/resctrl:",
        "- memory controllers: nothing. There is no PMU of a memory controller",
        "- energy: package-0.",
    ] {
        assert!(joined.contains(sentence), "{sentence:?} is not in {text}");
    }
    tree.insert("sys/class/powercap/intel-rapl:0/energy_uj", "?\n");
    let text = telemetry::text(&monitors(&tree, false));
    assert!(text.contains("energy: nothing. /sys/class/powercap/intel-rapl:0/energy_uj has \"?\""), "{text}");
}

#[test]
fn guide_shows_the_first_open_step() {
    let states = |tree: &Recording| -> Vec<(u32, State)> {
        steps(&facts(tree)).iter().map(|step| (step.number, step.state)).collect()
    };
    use State::{Done, Open, Unknown};
    let mut tree = HEALTHY.clone();
    tree.insert("usr/bin/accel-config", "");
    let done = [
        (1, Unknown),
        (1, Done),
        (1, Done),
        (2, Done),
        (2, Done),
        (3, Done),
        (4, Done),
        (5, Done),
        (6, Done),
    ];
    assert_eq!(states(&tree), done);
    no_pasid(&mut tree);
    replace(&mut tree, "proc/cmdline", "on,sm_on", "on");
    tree.remove("usr");
    let open = [
        (1, Unknown),
        (1, Done),
        (1, Done),
        (2, Done),
        (2, Open),
        (3, Open),
        (4, Open),
        (5, Open),
        (6, Open),
    ];
    assert_eq!(states(&tree), open);
}
