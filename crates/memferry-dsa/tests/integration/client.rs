//! What a client does when queues are full, devices lack something, go away, fall silent, or when a panic passes
//! through.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use memferry_dsa::system::Version;
use memferry_dsa::{
    Backoff, Batch, Client, ClientError, ClientOptions, Completion, CompletionRecord, Descriptor,
    MemberError, OnCpu, Opcode, Portal, PortalCounters, PortalKind, Request, Status, Submission, SubmitError,
    Ticket, Wait, WorkQueueInfo,
};
use memferry_dsa_emulator::{
    Capabilities, DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue,
};

fn emulator(config: &DeviceConfig) -> Arc<Emulator> {
    Emulator::start(config, FaultPlan::none()).expect("a valid configuration")
}

fn client_of(portals: Vec<Arc<dyn Portal>>) -> Client {
    Client::new(portals, ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::default() })
}

/// A portal that behaves as a test says, in front of a device or of none.
struct Odd {
    inner: Arc<dyn Portal>,
    answer: fn(&Odd, &Descriptor) -> Option<Result<Submission, SubmitError>>,
    is_gone: AtomicBool,
    panics: bool,
    takes_batches: Option<bool>,
    asked: AtomicU32,
}

impl Odd {
    fn new(answer: fn(&Odd, &Descriptor) -> Option<Result<Submission, SubmitError>>) -> Odd {
        let inner = emulator(&DeviceConfig::one_shared_queue()).portal(0);
        let (is_gone, asked) = (AtomicBool::new(false), AtomicU32::new(0));
        Odd { inner, answer, is_gone, panics: false, takes_batches: None, asked }
    }

    /// Takes everything, and nothing comes of it.
    fn deaf() -> Odd {
        Odd::new(|_, _| Some(Ok(Submission::Accepted)))
    }
}

// SAFETY: what is answered in the device's place was not submitted to it; a test that says that the device is gone has one
// that was given nothing.
unsafe impl Portal for Odd {
    fn work_queue(&self) -> &WorkQueueInfo {
        self.inner.work_queue()
    }
    fn kind(&self) -> PortalKind {
        self.inner.kind()
    }
    fn supports_batch(&self) -> bool {
        self.takes_batches.unwrap_or_else(|| self.inner.supports_batch())
    }
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match (self.answer)(self, descriptor) {
            Some(answer) => answer,
            // SAFETY: passed on.
            None => unsafe { self.inner.submit(descriptor) },
        }
    }
    fn completed(&self, count: u32) {
        self.inner.completed(count);
    }
    fn is_gone(&self) -> bool {
        assert!(!self.panics, "a portal that panics");
        self.is_gone.load(Ordering::SeqCst)
    }
    fn counters(&self) -> PortalCounters {
        self.inner.counters()
    }
}

#[test]
fn a_full_queue_the_next_queue_the_cpu() {
    let full = || Arc::new(Odd::new(|_, _| Some(Ok(Submission::Retry))));
    let options = ClientOptions { backoff: Backoff::new(3), ..ClientOptions::default() };
    let good = emulator(&DeviceConfig::one_shared_queue()).portal(0);
    let client = Client::new(vec![full(), good.clone(), full()], options.clone());
    for _ in 0..3 {
        assert_eq!(client.run(Request::crc(0, b"123456789")), Ok(0xe306_9283));
    }
    // In turns, beginning with each once: full, good; good; full, full, good.
    let stats = client.stats();
    assert_eq!((stats.queues_full, stats.retries, stats.submitted), (3, 9, 3), "{stats:?}");
    assert_eq!(stats.on_cpu_total(), 0);

    let client = Client::new(vec![full(), full()], options.clone());
    assert_eq!(client.run(Request::crc(0, b"123456789")), Ok(0xe306_9283));
    let stats = client.stats();
    assert_eq!((stats.on_cpu(OnCpu::QueueFull), stats.queues_full, stats.submitted), (1, 2, 0), "{stats:?}");

    let client = Client::new(vec![full()], ClientOptions { may_use_cpu: false, ..options });
    assert_eq!(client.run(Request::crc(0, b"1")), Err(ClientError::NoDevice(OnCpu::QueueFull)));
    assert_eq!(client.stats().errors, 1);
}

#[test]
fn a_device_that_has_gone_is_an_error_once() {
    let odd = Arc::new(Odd::deaf());
    odd.is_gone.store(true, Ordering::SeqCst);
    let client = client_of(vec![odd.clone()]);
    let mut target = [0u8; 10];
    let gone = client.run(Request::fill(1, &mut target));
    assert_eq!(gone, Err(ClientError::Gone { queue: "wq0.0".to_owned() }));
    let stats = client.stats();
    assert_eq!((stats.lost, stats.queues_lost, stats.leaked_bytes), (1, 1, 64), "{stats:?}");
    assert!(stats.adds_up());
    assert_eq!(client.run(Request::fill(1, &mut target)), Ok(()));
    assert_eq!(odd.asked.load(Ordering::SeqCst), 1, "a lost queue was used again");
    assert_eq!(client.stats().on_cpu(OnCpu::Gone), 1);

    let client = client_of(vec![Arc::new(Odd::new(|_, _| Some(Err(SubmitError::Gone))))]);
    assert_eq!(client.run(Request::fill(1, &mut target)), Ok(()), "nothing was submitted: no reason to fail");
    assert_eq!(client.stats().queues_lost, 1);
}

/// The emulated device dies with a batch in it, whose completions it cannot write.
#[test]
fn a_device_that_dies() {
    let fault_plan = FaultPlan { lost_records_per_mille: 1000, ..FaultPlan::none() };
    let device =
        Emulator::start(&DeviceConfig::one_dedicated_queue(), fault_plan).expect("a valid configuration");
    let client = client_of(vec![device.portal(0)]);
    let mut targets = [[0u8; 100]; 3];
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            device.abort();
        });
        let mut batch = Batch::new();
        for target in &mut targets {
            batch.add(Request::fill(1, target));
        }
        let error = client.run_batch(batch).map(|_| ());
        assert_eq!(error, Err(ClientError::Gone { queue: "wq0.0".to_owned() }));
    });
    let stats = client.stats();
    assert_eq!((stats.lost, stats.queues_lost), (3, 1), "{stats:?}");
    assert!(stats.leaked_bytes >= 3 * (64 + 32) && stats.adds_up(), "{stats:?}");
}

#[test]
fn a_silent_device_costs_owned_buffers() {
    let options = ClientOptions { timeout: Duration::from_millis(120), ..ClientOptions::default() };
    let client = Client::new(vec![Arc::new(Odd::deaf())], options);
    let start = Instant::now();
    let buffers = Box::new((vec![1u8; 1000], vec![0u8; 1000]));
    let error = client.run_owned(buffers, |(source, target)| Request::copy(&*source, target));
    let error = error.expect_err("nothing came of it");
    assert!(matches!(error.error, ClientError::Silent { .. }) && error.buffers.is_none(), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(60), "its patience is 120 ms");
    assert_eq!((client.stats().leaked_bytes, client.stats().lost), (2000 + 64, 1));
    // The next one does not wait for it.
    let again = client.run_owned(Box::new([0u8; 8]), |target| Request::fill(0x0807_0605_0403_0201, target));
    assert_eq!(again.map(|(target, ())| *target).ok(), Some([1, 2, 3, 4, 5, 6, 7, 8]));
    // A batch as well.
    let client = Client::new(vec![Arc::new(Odd::deaf())], client.options().clone());
    fn make(buffers: &mut [[u8; 100]; 2]) -> (Batch<'_>, [Ticket<()>; 2]) {
        let [one, other] = buffers;
        let mut batch = Batch::new();
        let tickets = [batch.add(Request::fill(1, one)), batch.add(Request::fill(2, other))];
        (batch, tickets)
    }
    let leaked = client.run_batch_owned(Box::new([[0u8; 100]; 2]), make);
    assert!(leaked.is_err_and(|error| error.buffers.is_none()));
    assert!(client.stats().leaked_bytes >= 200 + 2 * (64 + 32), "{:?}", client.stats());
    let (buffers, (outcomes, tickets)) =
        client.run_batch_owned(Box::new([[0u8; 100]; 2]), make).expect("by the CPU");
    assert!(tickets.iter().all(|ticket| outcomes.get(ticket) == Ok(())) && buffers[1][8] == 2);
    // What is wrong hands the buffers back.
    let refused = client.run_owned(Box::new([0u8; 0]), |target| Request::fill(1, target));
    assert!(refused.is_err_and(|error| error.buffers.is_some()));
}

const CHILD: &str = "MEMFERRY_SILENT_CHILD";

/// Borrowed memory cannot be given back while the device may write to it: the process ends, and says why.
#[test]
fn a_silent_device_ends_a_process_that_lent_memory() {
    ends_the_process("a_silent_device_ends_a_process_that_lent_memory", |client| {
        let _ = client.run(Request::fill(1, &mut [0u8; 64]));
    });
}

/// Cells may be in other hands when the call has ended, so that leaking the buffers is not enough.
#[test]
fn a_silent_device_ends_a_process_that_owns_cells() {
    ends_the_process("a_silent_device_ends_a_process_that_owns_cells", |client| {
        let cells: Rc<[Cell<u8>]> = [(); 64].map(|()| Cell::new(0)).into();
        let _ = client.run_owned(Box::new(cells), |cells| Request::fill(1, &cells[..]));
    });
}

#[test]
fn a_silent_device_ends_a_process_that_owns_a_batch_of_cells() {
    ends_the_process("a_silent_device_ends_a_process_that_owns_a_batch_of_cells", |client| {
        let cells: Rc<[Cell<u8>]> = [(); 64].map(|()| Cell::new(0)).into();
        let _ = client.run_batch_owned(Box::new(cells), |cells| {
            let mut batch = Batch::new();
            batch.add(Request::fill(1, &cells[..]));
            batch.add(Request::noop());
            (batch, ())
        });
    });
}

/// Runs `call` on a device that is silent, in a process of its own, which must not survive it.
fn ends_the_process(test: &str, call: fn(&Client)) {
    if std::env::var_os(CHILD).is_some() {
        let options = ClientOptions { timeout: Duration::from_millis(60), ..ClientOptions::default() };
        call(&Client::new(vec![Arc::new(Odd::deaf())], options));
        std::process::exit(0);
    }
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args([&format!("client::{test}"), "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output();
    let output = output.expect("this program runs again");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(libc::SIGABRT), "{told}");
    assert!(told.contains("nothing was heard of wq0.0"), "{told}");
}

/// The descriptor reaches the device long after the panic began; the call unwinds after it is done.
#[test]
fn a_panic_waits_for_the_device() {
    let late = |odd: &Odd, descriptor: &Descriptor| {
        let (inner, descriptor) = (odd.inner.clone(), *descriptor);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            // SAFETY: whoever submitted it keeps the memory until it ends; that is what is tested.
            assert_eq!(unsafe { inner.submit(&descriptor) }, Ok(Submission::Accepted));
        });
        Some(Ok(Submission::Accepted))
    };
    for wait in [Wait::Pause, Wait::Block] {
        let odd = Odd { panics: true, ..Odd::new(late) };
        let client = Client::new(vec![Arc::new(odd)], ClientOptions { wait, ..ClientOptions::default() });
        let mut target = [0u8; 5000];
        let result = catch_unwind(AssertUnwindSafe(|| client.run(Request::fill(u64::MAX, &mut target))));
        assert!(result.is_err(), "the portal should have panicked");
        assert!(target.iter().all(|byte| *byte == 0xff), "it unwound while the device had the memory");
    }
}

#[test]
fn hints_are_hints() {
    let mut config = DeviceConfig::one_shared_queue();
    config.capabilities =
        Capabilities::from_bits(Capabilities::ALL.bits() & !Capabilities::CACHE_CONTROL.bits());
    let client = client_of(vec![emulator(&config).portal(0)]);
    let mut target = [0u8; 100];
    for _ in 0..3 {
        client.run(Request::fill(7, &mut target).into_cache().block_on_fault()).unwrap();
    }
    let stats = client.stats();
    // The queue says that it does not block on faults; the other flag must be tried once.
    assert_eq!((stats.not_taken, stats.submitted, stats.hints_dropped), (1, 4, 4), "{stats:?}");
    assert_eq!(stats.on_cpu_total(), 0);
    // The same in a batch, with another client that has not learnt it.
    let client = client_of(vec![emulator(&config).portal(0)]);
    let mut batch = Batch::new();
    let filled: Vec<_> =
        target.chunks_mut(10).map(|chunk| batch.add(Request::fill(9, chunk).into_cache())).collect();
    let outcomes = client.run_batch(batch).unwrap();
    assert!(filled.iter().all(|ticket| outcomes.get(ticket) == Ok(())));
    let stats = client.stats();
    assert_eq!((stats.batches, stats.not_taken, stats.on_cpu_total()), (2, 10, 0), "{stats:?}");
}

#[test]
fn a_device_that_cannot_copy_what_overlaps() {
    let mut config = DeviceConfig::one_shared_queue();
    let without = Capabilities::ALL.bits() & !Capabilities::OVERLAPPING_COPY.bits();
    config.capabilities = Capabilities::from_bits(without);
    let client = client_of(vec![emulator(&config).portal(0)]);
    let mut bytes = *b"0123456789";
    let cells = Cell::from_mut(&mut bytes[..]).as_slice_of_cells();
    client.run(Request::copy(&cells[..8], &cells[2..])).unwrap();
    assert_eq!(&bytes, b"0101234567");
    assert_eq!((client.stats().not_taken, client.stats().on_cpu(OnCpu::Operation)), (1, 1));
}

/// A flag of version 2.0 is not tried on devices of 1.0, and if the caller says that they are 2.0, their refusal is
/// heard.
#[test]
fn what_is_newer() {
    let pattern = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100;
    for (version, why, not_taken) in
        [(Version::V1_0, OnCpu::Version, 0), (Version::V2_0, OnCpu::Operation, 1)]
    {
        let portal = emulator(&DeviceConfig::one_shared_queue()).portal(0);
        let client = Client::new(vec![portal], ClientOptions { version, ..ClientOptions::default() });
        let mut target = [0u8; 16];
        client.run(Request::fill_16(pattern, &mut target)).unwrap();
        assert_eq!(u128::from_le_bytes(target), pattern);
        let stats = client.stats();
        assert_eq!((stats.on_cpu(why), stats.not_taken), (1, not_taken), "{stats:?}");
    }
}

#[test]
fn a_drain_asks_every_queue() {
    let queues = vec![shared_queue("wq0.0", 4), dedicated_queue("wq0.1", 4)];
    let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues }]);
    let device = emulator(&config);
    let client = client_of(vec![device.portal(0), device.portal(1)]);
    client.run(Request::drain()).unwrap();
    assert_eq!((client.stats().submitted, client.stats().succeeded), (2, 2));
    let without = emulator(&config.without(&[Opcode::Drain]));
    let client = client_of(vec![without.portal(0)]);
    assert_eq!(client.run(Request::drain()), Err(ClientError::NoDevice(OnCpu::Operation)));
    assert_eq!(client_of(Vec::new()).run(Request::drain()), Ok(()), "without queues nothing is in flight");
    // Nor in a device that has gone, whether a call has noticed that before or not.
    device.abort();
    let client = client_of(vec![device.portal(0)]);
    for _ in 0..2 {
        assert_eq!(client.run(Request::drain()), Ok(()));
        assert_eq!(client.stats().queues_lost, 1);
    }
}

/// A queue that should take batches and does not is asked once.
#[test]
fn a_batch_that_is_refused_is_unrolled() {
    let config = DeviceConfig::one_shared_queue().without(&[Opcode::Batch]);
    let odd = Odd { inner: emulator(&config).portal(0), takes_batches: Some(true), ..Odd::new(|_, _| None) };
    let client = client_of(vec![Arc::new(odd)]);
    for round in 1..=2 {
        let mut batch = Batch::new();
        let crcs = [batch.add(Request::crc(0, b"123456789")), batch.add(Request::crc(0, b"123456789"))];
        let outcomes = client.run_batch(batch).unwrap();
        assert!(crcs.iter().all(|crc| outcomes.get(crc) == Ok(0xe306_9283)) && outcomes.all_ended());
        let stats = client.stats();
        assert_eq!(
            (stats.batches, stats.batches_unrolled, stats.succeeded),
            (1, round, 2 * round),
            "{stats:?}"
        );
        assert!(stats.adds_up(), "{stats:?}");
    }
}

/// A batch that ends well, of whose members nothing is said, is an error: trying again would not end.
#[test]
fn a_batch_without_members_is_an_error() {
    let odd = Odd::new(|_, descriptor| {
        let record: *const CompletionRecord =
            ptr::with_exposed_provenance(descriptor.completion_address().0 as usize);
        // SAFETY: the record of a descriptor that is being submitted.
        unsafe { &*record }.publish(&Completion::new(Status::Success));
        Some(Ok(Submission::Accepted))
    });
    let client = client_of(vec![Arc::new(odd)]);
    let mut batch = Batch::new();
    let _ = [batch.add(Request::noop()), batch.add(Request::noop())];
    let error = client.run_batch(batch).map(|_| ());
    assert!(matches!(error, Err(ClientError::Failed { .. })), "{error:?}");
    let stats = client.stats();
    assert_eq!((stats.batches, stats.submitted, stats.skipped), (1, 2, 2), "{stats:?}");
}

#[test]
fn tickets_are_of_their_batch() {
    let client = client_of(Vec::new());
    let (mut one, mut other) = (Batch::new(), Batch::new());
    let mine = one.add(Request::noop());
    let crc = other.add(Request::crc(0, b"1"));
    let outcomes = client.run_batch(one).unwrap();
    assert_eq!(outcomes.get(&mine), Ok(()));
    assert_eq!(outcomes.get(&crc), Err(MemberError::Foreign));
    let wrong = Cell::new(0u8);
    other.add(Request::copy(std::slice::from_ref(&wrong), &[][..] as &[Cell<u8>]));
    assert!(matches!(client.run_batch(other), Err(ClientError::InvalidMember { member: 1, .. })));
}

/// Hardware errors are told, each with its queue; a member's does not spoil the others.
#[test]
fn hardware_errors_are_told() {
    let fault_plan = FaultPlan { hardware_errors_per_mille: 1000, ..FaultPlan::none() };
    let device =
        Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan).expect("a valid configuration");
    let client = client_of(vec![device.portal(0)]);
    let error = client.run(Request::fill(1, &mut [0u8; 8]));
    assert!(matches!(error, Err(ClientError::Failed { .. })), "{error:?}");
    let (mut a, mut b) = ([0u8; 8], [0u8; 8]);
    let mut batch = Batch::new();
    let noop = batch.add(Request::noop());
    let tickets = [batch.add(Request::fill(1, &mut a)), batch.add(Request::fill(1, &mut b))];
    // The list itself cannot be read either: then its members are tried alone.
    match client.run_batch(batch) {
        Ok(outcomes) => {
            assert_eq!(outcomes.get(&noop), Ok(()));
            for ticket in &tickets {
                assert!(matches!(outcomes.get(ticket), Err(MemberError::Failed(_))));
            }
        }
        Err(error) => assert!(matches!(error, ClientError::Failed { .. }), "{error:?}"),
    }
    assert!(client.stats().adds_up(), "{:?}", client.stats());
}

/// Threads share a client, and queues that are smaller than their number.
#[test]
fn many_threads() {
    let queues = vec![shared_queue("wq0.0", 2), dedicated_queue("wq0.1", 2)];
    let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues }]);
    let fault_plan = FaultPlan::from_seed(11);
    let device = Emulator::start(&config, fault_plan).expect("a valid configuration");
    let portals: Vec<_> = (0..2).map(|queue| device.portal(queue)).collect();
    let client = client_of(portals.clone());
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..150u64 {
                    let mut target = vec![0u8; 1 + (round * 61 % 9000) as usize];
                    let pattern = thread << 32 | round;
                    client.run(Request::fill(pattern, &mut target)).unwrap();
                    assert_eq!(client.run(Request::compare_pattern(pattern, &target)), Ok(None));
                }
            });
        }
    });
    let stats = client.stats();
    assert!(stats.adds_up() && stats.calls == 1200 && stats.errors == 0, "{stats:?}");
    assert!(stats.succeeded > 300, "{stats:?}");
    assert_eq!(portals[1].counters().in_flight, 0);
}

/// A device faults at every page: after the number of faults in the options, the CPU executes the rest, or the request fails.
#[test]
fn the_cpu_after_many_faults() {
    let fault_plan = FaultPlan { page_faults_per_mille: 1000, ..FaultPlan::none() };
    for (faults_max, may_use_cpu) in [(0, true), (5, true), (5, false), (1000, false)] {
        let device = Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan.clone())
            .expect("a valid configuration");
        let options = ClientOptions { faults_max, may_use_cpu, ..ClientOptions::default() };
        let client = Client::new(vec![device.portal(0)], options);
        let mut target = vec![0u8; 50 * 4096];
        let filled = client.run(Request::fill(u64::MAX, &mut target));
        let stats = client.stats();
        if faults_max == 1000 {
            assert_eq!((&filled, stats.on_cpu_total()), (&Ok(()), 0), "{stats:?}");
            assert!((50..=51).contains(&stats.partial) && stats.pages_touched == stats.partial, "{stats:?}");
        } else {
            assert_eq!(stats.partial, u64::from(faults_max) + 1, "{stats:?}");
            assert_eq!(stats.on_cpu(OnCpu::Faults), u64::from(may_use_cpu));
            let expected = if may_use_cpu { Ok(()) } else { Err(ClientError::NoDevice(OnCpu::Faults)) };
            assert_eq!(filled, expected);
        }
        assert!(filled.is_err() || target.iter().all(|byte| *byte == 0xff));
    }
}

/// The list of a batch can fault as well: its page is touched, and what was not read is submitted again.
#[test]
fn a_fault_in_the_list() {
    let fault_plan = FaultPlan { page_faults_per_mille: 1000, ..FaultPlan::none() };
    let device =
        Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan).expect("a valid configuration");
    let client = client_of(vec![device.portal(0)]);
    let mut batch = Batch::new();
    let noops = [batch.add(Request::noop()), batch.add(Request::noop()), batch.add(Request::noop())];
    let outcomes = client.run_batch(batch).unwrap();
    assert!(noops.iter().all(|noop| outcomes.get(noop) == Ok(())));
    let stats = client.stats();
    assert!(stats.batches >= 2 && stats.pages_touched >= 1 && stats.skipped >= 1, "{stats:?}");
    assert_eq!((stats.succeeded, stats.strange_faults, stats.batches_unrolled), (3, 0, 0), "{stats:?}");
}
