use std::fs;
use std::time::Instant;

use super::*;
use crate::telemetry::FakeKernel;

/// Two L3 caches, as Linux documents them; this process has two threads.
fn fake() -> FakeKernel {
    let kernel = FakeKernel::new();
    let features =
        "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config\nmbm_local_bytes\nmbm_local_bytes_config\n";
    kernel.write("sys/fs/resctrl/info/L3_MON/mon_features", features);
    with_domains(&kernel, "sys/fs/resctrl");
    kernel.write("proc/self/cpu_resctrl_groups", "res:/\nmon:\n");
    kernel.write("proc/self/task/4711/comm", "memferry\n");
    kernel.write("proc/self/task/4712/comm", "memferry\n");
    kernel
}

fn with_domains(kernel: &FakeKernel, group: &str) {
    for domain in ["mon_L3_00", "mon_L3_01"] {
        for event in [OCCUPANCY, TRAFFIC[0], TRAFFIC[1]] {
            kernel.write(&format!("{group}/mon_data/{domain}/{event}"), "0\n");
        }
    }
    kernel.write(&format!("{group}/tasks"), "");
    fs::create_dir(kernel.path(&format!("{group}/mon_groups"))).unwrap();
}

fn groups(kernel: &FakeKernel, parent: &str) -> Vec<String> {
    Tree(kernel.files()).entries(&format!("{parent}/mon_groups"))
}

fn open(kernel: &FakeKernel) -> Result<ResctrlMonitor, Absent> {
    ResctrlMonitor::open(Arc::new(kernel.clone()), &find(kernel.files())?)
}

fn set(kernel: &FakeKernel, domain: &str, event: &str, text: &str) {
    let group = format!("memferry-{}", std::process::id());
    kernel.write(&format!("{RESCTRL}/mon_groups/{group}/mon_data/{domain}/{event}"), text);
}

#[test]
fn occupancy_is_a_course_and_traffic_an_increase() {
    let kernel = fake();
    let mut monitor = open(&kernel).unwrap();
    set(&kernel, "mon_L3_00", OCCUPANCY, "1000\n");
    set(&kernel, "mon_L3_00", TRAFFIC[0], "500\n");
    monitor.begin();
    set(&kernel, "mon_L3_00", OCCUPANCY, "5000\n");
    monitor.sample(Duration::from_secs(1));
    set(&kernel, "mon_L3_00", OCCUPANCY, "3000\n");
    set(&kernel, "mon_L3_00", TRAFFIC[0], "1700\n");
    set(&kernel, "mon_L3_01", TRAFFIC[1], "64\n");
    let counts = monitor.end(Duration::from_secs(2));
    let found: Vec<_> = counts
        .iter()
        .map(|it| (it.name.as_str(), it.place.as_deref().unwrap(), it.value, it.min.zip(it.max)))
        .collect();
    let expected = [
        (OCCUPANCY, "L3 0", 3000.0, Some((1000.0, 5000.0))),
        (TRAFFIC[0], "L3 0", 1200.0, None),
        (TRAFFIC[1], "L3 0", 0.0, None),
        (OCCUPANCY, "L3 1", 0.0, Some((0.0, 0.0))),
        (TRAFFIC[0], "L3 1", 0.0, None),
        (TRAFFIC[1], "L3 1", 64.0, None),
    ];
    assert_eq!(found, expected);
    assert_eq!(counts[0].series, [(0.0, 1000.0), (1.0, 5000.0), (2.0, 3000.0)]);
    assert!(counts.iter().all(|it| it.unit == "bytes" && it.monitor == MonitorKind::Cache));
    assert_eq!(monitor.period(), Some(PERIOD));
}

/// `Unavailable` and `Error` are no zeros.
#[test]
fn values_that_the_hardware_lacks_are_left_out() {
    let kernel = fake();
    let mut monitor = open(&kernel).unwrap();
    set(&kernel, "mon_L3_00", OCCUPANCY, "Unavailable\n");
    set(&kernel, "mon_L3_00", TRAFFIC[0], "Unavailable\n");
    set(&kernel, "mon_L3_00", TRAFFIC[1], "70\n");
    monitor.begin();
    set(&kernel, "mon_L3_00", TRAFFIC[0], "900\n");
    set(&kernel, "mon_L3_00", TRAFFIC[1], "60\n");
    set(&kernel, "mon_L3_01", OCCUPANCY, "Error\n");
    let counts = monitor.end(Duration::from_secs(1));
    let of_first = counts.iter().filter(|it| it.place.as_deref() == Some("L3 0"));
    assert_eq!(of_first.count(), 0, "{counts:?}");
    let second: Vec<&str> =
        counts.iter().filter(|it| it.place.as_deref() == Some("L3 1")).map(|it| it.name.as_str()).collect();
    assert_eq!(second, [OCCUPANCY, TRAFFIC[0], TRAFFIC[1]]);
}

#[test]
fn all_threads_are_monitored_and_the_group_is_removed() {
    let kernel = fake();
    let monitor = open(&kernel).unwrap();
    let name = format!("memferry-{}", std::process::id());
    assert_eq!(groups(&kernel, RESCTRL), std::slice::from_ref(&name));
    let tasks = fs::read_to_string(kernel.path(&format!("{RESCTRL}/mon_groups/{name}/tasks"))).unwrap();
    assert_eq!(tasks, "4711\n4712\n");
    drop(monitor);
    assert!(groups(&kernel, RESCTRL).is_empty());

    // Also if the benchmark panics.
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _monitor = open(&kernel).unwrap();
        assert_eq!(groups(&kernel, RESCTRL).len(), 1);
        std::panic::resume_unwind(Box::new("a benchmark"));
    }));
    assert!(panic.is_err() && groups(&kernel, RESCTRL).is_empty());

    // Also if the threads cannot be moved.
    let group = Group::new(Arc::new(kernel.clone()), RESCTRL).unwrap();
    kernel.remove(&format!("{RESCTRL}/mon_groups/{name}/tasks"));
    let error = group.join_all_threads().unwrap_err().to_string();
    assert!(error.contains("cannot be given the threads of this process"), "{error}");
    drop(group);
    assert!(groups(&kernel, RESCTRL).is_empty());
}

#[test]
fn a_process_in_a_control_group_is_monitored_there() {
    let kernel = fake();
    with_domains(&kernel, "sys/fs/resctrl/half");
    kernel.write("proc/self/cpu_resctrl_groups", "res:half\nmon:\n");
    let monitor = open(&kernel).unwrap();
    assert_eq!((groups(&kernel, RESCTRL).len(), groups(&kernel, "sys/fs/resctrl/half").len()), (0, 1));
    drop(monitor);
    assert!(groups(&kernel, "sys/fs/resctrl/half").is_empty());
    kernel.write("proc/self/cpu_resctrl_groups", "res:half\nmon:theirs\n");
    let error = find(kernel.files()).unwrap_err().to_string();
    assert!(error.contains("in the monitoring group \"theirs\""), "{error}");
}

#[test]
fn what_is_missing_is_told_apart() {
    let kernel = FakeKernel::new();
    let error = |kernel: &FakeKernel| find(kernel.files()).unwrap_err().to_string();
    assert!(error(&kernel).contains("the kernel has no /sys/fs/resctrl"), "{}", error(&kernel));
    fs::create_dir_all(kernel.path(RESCTRL)).unwrap();
    assert!(error(&kernel).contains("resctrl is not mounted"), "{}", error(&kernel));
    kernel.write("sys/fs/resctrl/info/L3/cbm_mask", "fff\n");
    assert!(error(&kernel).contains("no info/L3_MON"), "{}", error(&kernel));

    let kernel = fake();
    kernel.own("proc/self", 1000);
    kernel.own("sys/fs/resctrl/mon_groups", 0);
    let expected =
        "the monitoring group /sys/fs/resctrl/mon_groups cannot be made: permission denied; run as root";
    assert_eq!(error(&kernel), expected);
    kernel.own("proc/self", 0);
    assert!(find(kernel.files()).is_ok());
    for (errno, remedy) in [
        (libc::EACCES, "; run as root"),
        (libc::ENOSPC, "; all groups of the CPU are in use"),
        (libc::EBUSY, "; the cache still has bytes of removed groups"),
    ] {
        kernel.refuse_groups(errno);
        let error = open(&kernel).err().expect("groups are refused").to_string();
        assert!(error.contains("cannot be made") && error.contains(remedy), "{error}");
    }
    assert!(groups(&kernel, RESCTRL).is_empty());
}

/// A group of the same name belongs to a process of another PID namespace.
#[test]
fn the_group_of_another_process_stays() {
    let kernel = fake();
    let name = format!("memferry-{}", std::process::id());
    fs::create_dir(kernel.path(&format!("{RESCTRL}/mon_groups/{name}"))).unwrap();
    let error = open(&kernel).err().expect("the name is in use").to_string();
    assert!(error.contains("File exists"), "{error}");
    assert_eq!(groups(&kernel, RESCTRL), [name]);
}

/// A process that is killed drops nothing; its end of the pipe is closed by the kernel.
#[test]
fn the_group_of_a_killed_process_is_removed_by_the_shell() {
    let directory = tempfile::tempdir().unwrap();
    let group = directory.path().join("memferry-1");
    let wait = |what: &str, is_done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_done() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    fs::create_dir(&group).unwrap();
    let mut remover = Remover::start(group.as_os_str()).unwrap();
    let stdin = remover.0.stdin.take();
    assert!(group.exists());
    drop(stdin);
    wait("the directory is not removed", &|| !group.exists());
    drop(remover);

    // A dismissed shell ends, and removes nothing.
    fs::create_dir(&group).unwrap();
    Remover::start(group.as_os_str()).unwrap().dismiss();
    assert!(group.exists());
}
