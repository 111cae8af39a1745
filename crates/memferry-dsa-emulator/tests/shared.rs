//! Devices that several processes share: clients in one process, clients in processes of their own, clients that die.

use std::env;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use memferry_dsa::{CompletionRecord, Descriptor, Status, Submission, WorkQueueInfo};
use memferry_dsa_emulator::shared::{
    Client, DeviceSetup, Devices, Listener, Options, QueueAt, Server, Submitted,
};
use memferry_dsa_emulator::{
    Capabilities, CheckedMemory, ConfigError, DeviceCosts, FaultPlan, OPERATIONS, dedicated_queue,
    shared_queue,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn at(queue: usize) -> QueueAt {
    QueueAt::new(1, queue).unwrap()
}

/// Device 1, called dsa2, whose four engines are in group 0.
fn state_with(options: &Options, queues: &[WorkQueueInfo]) -> Server {
    let state = Server::create(options).unwrap();
    enable(&state, queues, [Some(0); 4]);
    state
}

fn enable(state: &Server, queues: &[WorkQueueInfo], engine_groups: [Option<usize>; 4]) {
    let capabilities = Capabilities::ALL;
    state.enable_device(1, &DeviceSetup { number: 2, operations: OPERATIONS, capabilities, engine_groups });
    for (queue, info) in queues.iter().enumerate() {
        state.enable_queue(at(queue), 0, info).unwrap();
    }
}

fn join(state: &Server) -> Client {
    state.join(std::process::id()).unwrap()
}

/// Runs the client's engine of device 1 until `stop`.
fn run<'s>(scope: &'s Scope<'s, '_>, client: &Client, stop: &'s AtomicBool) {
    let mut engine = client.engine(1);
    scope.spawn(move || {
        // SAFETY: descriptors of these tests name memory that outlives the scope, and nobody else uses it.
        let memory = unsafe { CheckedMemory::open() }.unwrap();
        let check = || match stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(Duration::from_millis(100)),
        };
        engine.run(&memory, check).unwrap();
    });
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn wait_all(records: &[CompletionRecord]) {
    for (number, record) in records.iter().enumerate() {
        wait_for(&format!("record {number}"), || record.poll().is_some());
        assert_eq!(record.poll().unwrap().status, Status::Success);
    }
}

fn records<const N: usize>() -> [CompletionRecord; N] {
    std::array::from_fn(|_| CompletionRecord::new())
}

fn noop(record: &CompletionRecord) -> [u64; 8] {
    Descriptor::noop().with_completion(record).to_words()
}

/// One threshold for both clients, and one order: the second client waits for the first.
#[test]
fn a_queue_is_one_queue_for_all() {
    let state = state_with(&Options::default(), &[WorkQueueInfo { threshold: 5, ..shared_queue("", 16) }]);
    let (one, two) = (join(&state), join(&state));
    assert_ne!(one.pasid(), two.pasid());
    let (of_one, of_two): ([_; 3], [_; 2]) = (records(), records());
    for record in &of_one {
        assert_eq!(one.enqcmd(at(0), &mut noop(record)), Submission::Accepted);
    }
    for record in &of_two {
        assert_eq!(two.enqcmd(at(0), &mut noop(record)), Submission::Accepted);
    }
    for client in [&one, &two] {
        assert_eq!(client.enqcmd(at(0), &mut noop(&of_one[0])), Submission::Retry);
    }
    assert_eq!(state.queue_report(at(0)).occupancy, 5);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        run(scope, &two, &stop);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(state.queue_report(at(0)).occupancy, 5, "the first entries are the other client's");
        run(scope, &one, &stop);
        wait_all(&of_one);
        wait_all(&of_two);
        wait_for("the end of all", || state.is_drained(at(0)));
        stop.store(true, Ordering::Relaxed);
    });
    let counters = state.counters(1);
    assert_eq!((counters.accepted, counters.retried, counters.completed[&Status::Success]), (5, 2, 5));
    drop((one, two));
    assert_eq!(state.counters(1), counters, "the counters of a client that has left are kept");
    assert!(state.processes().is_empty());
}

/// The report of a client stays when it has left, with entries in the queue or without.
#[test]
fn each_clients_submissions_are_reported() {
    let state = state_with(&Options::default(), &[shared_queue("", 4), dedicated_queue("", 4)]);
    let me = std::process::id();
    let reported = || {
        let [report] = &state.client_reports()[..] else { panic!("{:?}", state.client_reports()) };
        assert_eq!(report.process, me);
        report.clone()
    };
    for round in 1..=2 {
        let client = join(&state);
        let stop = AtomicBool::new(false);
        let record = CompletionRecord::new();
        assert_eq!(client.enqcmd(at(0), &mut noop(&record)), Submission::Accepted);
        thread::scope(|scope| {
            run(scope, &client, &stop);
            wait_all(std::slice::from_ref(&record));
            wait_for("the end", || state.is_drained(at(0)));
            stop.store(true, Ordering::Relaxed);
        });
        // No engine executes these.
        let words = Descriptor::drain().to_words();
        (0..4).for_each(|_| assert_eq!(client.enqcmd(at(0), &mut words.clone()), Submission::Accepted));
        (0..2).for_each(|_| assert_eq!(client.enqcmd(at(0), &mut words.clone()), Submission::Retry));
        (0..5).for_each(|_| client.movdir64b(at(1), &mut words.clone()));
        let expected = [
            (at(0), Submitted { accepted: 5 * round, retried: 2 * round, dropped: 0 }),
            (at(1), Submitted { accepted: 4 * round, retried: 0, dropped: round }),
        ];
        assert_eq!(reported().queues, expected.into());
        drop(client);
        assert_eq!(reported().queues, expected.into(), "the client has left");
    }
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(reported().program, comm.trim_end());
    let total = state.queue_report(at(0));
    assert_eq!((total.accepted, total.retried, total.occupancy), (10, 4, 0));
}

/// Only the right instruction for a queue submits; drops of a dedicated queue are in the error register.
#[test]
fn the_instructions_and_the_modes() {
    let state = state_with(&Options::default(), &[shared_queue("", 4), dedicated_queue("", 4)]);
    let client = join(&state);
    let words = Descriptor::drain().to_words();
    client.movdir64b(at(0), &mut words.clone());
    assert_eq!(client.enqcmd(at(1), &mut words.clone()), Submission::Retry);
    assert_eq!(client.enqcmd(at(2), &mut words.clone()), Submission::Retry);
    client.movdir64b(at(2), &mut words.clone());
    assert_eq!(state.counters(1).accepted, 0);
    assert_eq!(state.take_error(1), None);
    (0..5).for_each(|_| client.movdir64b(at(1), &mut words.clone()));
    let error = state.take_error(1).unwrap();
    assert_eq!(
        (error.status, error.queue, error.pasid),
        (Status::QueueOverflow, Some(1), Some(client.pasid()))
    );
    assert_eq!((state.queue_report(at(1)).accepted, state.queue_report(at(1)).dropped), (4, 1));
}

#[test]
fn invalid_configurations_are_refused() {
    let state = state_with(&Options::default(), &[shared_queue("", 100)]);
    assert_eq!(state.enable_queue(at(1), 0, &shared_queue("", 29)), Err(ConfigError::TooManyEntries(129)));
    let refused = state.enable_queue(at(1), 1, &shared_queue("", 8));
    assert!(matches!(refused, Err(ConfigError::HalfGroup(_))), "group 1 has no engine: {refused:?}");
    assert_eq!(state.enable_queue(at(1), 0, &shared_queue("", 28)), Ok(()));
}

/// A queue is disabled and enabled again with another configuration; engines adopt it.
#[test]
fn queues_come_and_go() {
    let state = state_with(&Options::default(), &[shared_queue("", 8)]);
    let client = join(&state);
    let stop = AtomicBool::new(false);
    let found: [_; 3] = records();
    thread::scope(|scope| {
        run(scope, &client, &stop);
        assert_eq!(client.enqcmd(at(0), &mut noop(&found[0])), Submission::Accepted);
        state.close_queue(at(0));
        assert_eq!(client.enqcmd(at(0), &mut noop(&found[0])), Submission::Retry);
        wait_for("disabled", || state.disable_queue(at(0)));
        assert!(found[0].poll().is_some(), "accepted descriptors complete");
        state.enable_queue(at(0), 0, &dedicated_queue("", 2)).unwrap();
        state.enable_queue(at(5), 0, &shared_queue("", 2)).unwrap();
        assert_eq!(client.enqcmd(at(0), &mut noop(&found[1])), Submission::Retry);
        client.movdir64b(at(0), &mut noop(&found[1]));
        assert_eq!(client.enqcmd(at(5), &mut noop(&found[2])), Submission::Accepted);
        wait_all(&found);
        stop.store(true, Ordering::Relaxed);
    });
}

/// An abort drops the descriptors in flight of all clients, and the device can be enabled again.
#[test]
fn aborts() {
    let slow = DeviceCosts { latency_ns: 3_600_000_000_000, ..DeviceCosts::sapphire_rapids() };
    let options = Options { timing: Some(slow), ..Options::default() };
    let state = state_with(&options, &[shared_queue("", 16)]);
    let (one, two) = (join(&state), join(&state));
    let stop = AtomicBool::new(false);
    let lost: [_; 6] = records();
    thread::scope(|scope| {
        run(scope, &one, &stop);
        run(scope, &two, &stop);
        for pair in lost.chunks(2) {
            assert_eq!(one.enqcmd(at(0), &mut noop(&pair[0])), Submission::Accepted);
            assert_eq!(two.enqcmd(at(0), &mut noop(&pair[1])), Submission::Accepted);
        }
        wait_for("dispatch", || state.queue_report(at(0)).occupancy == 0);
        state.abort_device(1);
        wait_for("the abort", || state.disable_queue(at(0)));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(lost.iter().all(|record| record.poll().is_none()));
    let counters = state.counters(1);
    assert_eq!((counters.accepted, counters.records_lost), (6, 6));
    assert_eq!(counters.in_flight(), 0, "{counters:?}");
    enable(&state, &[shared_queue("", 1)], [Some(0), None, None, None]);
    assert_eq!(one.enqcmd(at(0), &mut noop(&lost[0])), Submission::Accepted);
}

/// Under a timing the descriptors of all processes share the device's time.
#[test]
fn processes_share_engines_and_bandwidth() {
    let timing = DeviceCosts { occupancy_ns: 10_000_000, ..DeviceCosts::sapphire_rapids() };
    let options = Options { timing: Some(timing), ..Options::default() };
    let state = Server::create(&options).unwrap();
    enable(&state, &[shared_queue("", 16)], [Some(0), None, None, None]);
    let (one, two) = (join(&state), join(&state));
    let stop = AtomicBool::new(false);
    let found: [_; 8] = records();
    let start = Instant::now();
    thread::scope(|scope| {
        run(scope, &one, &stop);
        run(scope, &two, &stop);
        for pair in found.chunks(2) {
            assert_eq!(one.enqcmd(at(0), &mut noop(&pair[0])), Submission::Accepted);
            assert_eq!(two.enqcmd(at(0), &mut noop(&pair[1])), Submission::Accepted);
        }
        wait_all(&found);
        stop.store(true, Ordering::Relaxed);
    });
    assert!(start.elapsed() >= Duration::from_millis(80), "one engine, 8 times 10 ms: {:?}", start.elapsed());
}

/// All clients share one arbiter: of two queues that are never empty, the one with three times the priority is served
/// three times as often, although two clients use them.
#[test]
fn priorities_hold_between_processes() {
    let timing =
        DeviceCosts { occupancy_ns: 1_000_000, submit_shared_ns: 0, ..DeviceCosts::sapphire_rapids() };
    let options = Options { timing: Some(timing), ..Options::default() };
    let state = Server::create(&options).unwrap();
    let of = |priority| WorkQueueInfo { priority, ..shared_queue("", 64) };
    enable(&state, &[of(12), of(4)], [Some(0), None, None, None]);
    let (one, two) = (join(&state), join(&state));
    let stop = AtomicBool::new(false);
    let (of_one, of_two): ([_; 48], [_; 48]) = (records(), records());
    for (first, second) in of_one.iter().zip(&of_two) {
        assert_eq!(one.enqcmd(at(0), &mut noop(first)), Submission::Accepted);
        assert_eq!(two.enqcmd(at(1), &mut noop(second)), Submission::Accepted);
    }
    thread::scope(|scope| {
        run(scope, &one, &stop);
        run(scope, &two, &stop);
        wait_all(&of_one);
        let left = state.queue_report(at(1)).occupancy;
        stop.store(true, Ordering::Relaxed);
        assert!((28..=34).contains(&left), "of 48 some 16 were served meanwhile, and {left} are left");
    });
}

#[test]
fn queues_are_found_by_their_files() {
    let state = state_with(&Options::default(), &[]);
    let other = state.devices();
    assert_eq!(other.queue_of(7, 0), None);
    state.set_portal(at(3), 7, 99);
    assert_eq!(other.queue_of(7, 99), Some(at(3)));
    assert_eq!((other.queue_of(8, 99), other.queue_of(7, 98)), (None, None));
}

// ---- clients in processes of their own ------------------------------------------------------------------------

const STATE: &str = "MEMFERRY_TEST_STATE";
const ROLE: &str = "MEMFERRY_TEST_ROLE";

/// Runs this program again as a client.
fn client_process(state: &Path, role: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(STATE, state).env(ROLE, role);
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Not a test, but the main function of the client processes.
#[test]
#[ignore = "is run by other tests, in a process of its own"]
fn child() {
    let (Some(path), Ok(role)) = (env::var_os(STATE), env::var(ROLE)) else { return };
    let connected = Devices::connect(Path::new(&path)).unwrap();
    // SAFETY: nothing forks here.
    let client = unsafe { connected.join() }.unwrap();
    match &*role {
        // Leaves entries that no engine will ever take.
        "submit and wait for the end" => {
            let record = CompletionRecord::new();
            (0..3).for_each(|_| assert_eq!(client.enqcmd(at(0), &mut noop(&record)), Submission::Accepted));
            thread::sleep(PATIENCE);
        }
        "copy" => copy_much(&client, 3000),
        "copy until the end" => copy_much(&client, usize::MAX),
        other => panic!("what is {other}?"),
    }
    // Exits like a program, without dropping anything.
    std::process::exit(0);
}

/// Copies and checks, with several descriptors in flight.
fn copy_much(client: &Client, count: usize) {
    const IN_FLIGHT: usize = 6;
    const BYTES: usize = 200;
    let stop = AtomicBool::new(false);
    let mut lanes: Vec<_> =
        (0..IN_FLIGHT).map(|_| (vec![0u8; BYTES], vec![0u8; BYTES], CompletionRecord::new())).collect();
    thread::scope(|scope| {
        run(scope, client, &stop);
        for number in 0..count {
            let (source, target, record) = &mut lanes[number % IN_FLIGHT];
            if number >= IN_FLIGHT {
                wait_all(std::slice::from_ref(record));
                assert_eq!(source, target);
            }
            record.reset();
            source.fill(number as u8);
            target.fill(!(number as u8));
            let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), BYTES as u32);
            let words = copy.with_completion(record).to_words();
            while client.enqcmd(at(0), &mut words.clone()) == Submission::Retry {
                thread::yield_now();
            }
        }
        lanes.iter().for_each(|(_, _, record)| wait_all(std::slice::from_ref(record)));
        stop.store(true, Ordering::Relaxed);
    });
}

/// A server for other processes.
struct Served {
    state: Server,
    directory: tempfile::TempDir,
    _listening: Listener,
}

impl Served {
    fn new(options: &Options, queues: &[WorkQueueInfo]) -> Served {
        let (state, directory) = (state_with(options, queues), tempfile::tempdir().unwrap());
        let listening = state.listen(&directory.path().join("devices"), |error| panic!("{error}")).unwrap();
        Served { state, directory, _listening: listening }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("devices")
    }
}

/// Entries of a killed process at the head of the queue block no other process.
#[test]
fn entries_of_killed_processes_are_skipped() {
    let served = Served::new(&Options::default(), &[shared_queue("", 8)]);
    let state = &served.state;
    let mut process = client_process(&served.path(), "submit and wait for the end");
    wait_for("the other's entries", || state.queue_report(at(0)).occupancy == 3);
    let client = join(&served.state);
    let stop = AtomicBool::new(false);
    let mine: [_; 2] = records();
    thread::scope(|scope| {
        run(scope, &client, &stop);
        for record in &mine {
            assert_eq!(client.enqcmd(at(0), &mut noop(record)), Submission::Accepted);
        }
        assert_eq!(state.reap(), 0, "all clients are alive");
        process.kill().unwrap();
        // The server's own thread may reap it first.
        wait_for("a corpse that its parent has not waited for", || {
            state.reap();
            state.processes() == [std::process::id()]
        });
        wait_all(&mine);
        wait_for("the end of all", || state.is_drained(at(0)));
        stop.store(true, Ordering::Relaxed);
    });
    process.wait().unwrap();
    let counters = state.counters(1);
    assert_eq!((counters.accepted, counters.completed_count(), counters.aborted), (5, 2, 3));
    assert_eq!(state.processes(), [std::process::id()]);
}

/// Processes copy through one small queue while others are killed at any moment: no process is stuck, only descriptors
/// of the killed ones are lost, and the sums add up.
#[test]
fn processes_are_killed_at_any_moment() {
    for (seed, timing) in [(None, false), (Some(1), false), (Some(2), true)] {
        let options = Options {
            fault_plan: seed.map_or(FaultPlan::none(), |seed| FaultPlan {
                page_faults_per_mille: 0,
                ..FaultPlan::from_seed(seed)
            }),
            timing: timing.then(DeviceCosts::sapphire_rapids),
            ..Options::default()
        };
        let queue = WorkQueueInfo { threshold: 9, block_on_fault: true, ..shared_queue("", 16) };
        let served = Served::new(&options, &[queue]);
        let state = &served.state;
        let mut honest: Vec<_> = (0..2).map(|_| client_process(&served.path(), "copy")).collect();
        let mut round = 0;
        while honest.iter_mut().any(|process| process.try_wait().unwrap().is_none()) && round < 40 {
            let mut victim = client_process(&served.path(), "copy until the end");
            thread::sleep(Duration::from_millis(20 + round * 7 % 31));
            victim.kill().unwrap();
            victim.wait().unwrap();
            state.reap();
            round += 1;
        }
        for process in &mut honest {
            assert!(process.wait().unwrap().success(), "round {round}, {options:?}");
        }
        state.reap();
        let counters = state.counters(1);
        assert!(state.is_drained(at(0)), "{:?}", state.queue_report(at(0)));
        assert_eq!(counters.in_flight(), 0, "{counters:?}");
        assert!(counters.completed_count() >= 6000 && state.processes().is_empty());
        assert_eq!(state.queue_report(at(0)).occupancy, 0);
    }
}

/// A process that connects often, or sends nothing or garbage, blocks no other client.
#[test]
fn useless_connections_block_no_client() {
    let served = Served::new(&Options::default(), &[shared_queue("", 8)]);
    let mut silent = Vec::new();
    for number in 0..300u32 {
        let mut socket = UnixStream::connect(served.path()).unwrap();
        match number % 3 {
            0 => silent.push(socket),
            1 => _ = socket.write(&[number as u8; 100]),
            _ => {}
        }
    }
    let start = Instant::now();
    let connected = Devices::connect(&served.path()).unwrap();
    // SAFETY: nothing forks here.
    let client = unsafe { connected.join() }.unwrap();
    assert!(start.elapsed() < PATIENCE / 3);
    assert_eq!(served.state.processes(), [std::process::id()]);
    assert_eq!(client.enqcmd(at(0), &mut Descriptor::drain().to_words()), Submission::Accepted);
    // SAFETY: as above.
    let again = unsafe { connected.join() }.unwrap();
    assert_ne!(again.pasid(), client.pasid());
    assert_eq!(served.state.processes(), [std::process::id()], "the former client was reaped");
    drop(silent);
}
