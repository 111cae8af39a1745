//! The conformance suite of [`Engine`]: every engine there is runs all of it.
//!
//! Bytes arrive, nothing else is touched, each accepted copy is finished exactly once, and the counters add up;
//! whatever the sizes, however many threads submit, and whatever the callbacks do. Faulty devices come from
//! seeds, which are printed.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyError, CopyReport, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, EngineKind, EngineStats,
    RawRequest, Refusal, Rejected, StorageEngine, StorageOptions,
};
use memferry::storage::StoredFile;
use memferry::topology::Machine;
use memferry_dsa::{Portal, WorkQueueInfo};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue};

use crate::mover_support::check_descriptors;

/// How long anything may take before a test calls it a hang.
const HANG: Duration = Duration::from_secs(60);
/// Bytes around each buffer that no engine may touch.
const GUARD_BYTES: usize = 64;
/// Alignment of reads of files.
const BLOCK_BYTES: usize = 4096;
const GUARD: u8 = 0xa5;
/// Around the sizes at which copies change their ways: a cache line, a page, a huge page's half, one descriptor.
const SIZES: [usize; 15] = [
    0,
    1,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    5 << 20,
];

/// An engine under test.
struct Subject {
    name: String,
    make: Box<dyn Fn() -> Arc<dyn Engine> + Send + Sync>,
    /// Largest copy of the tests: emulated devices with tiny steps take their time.
    size_bytes_max: usize,
    /// It may end copies with [`CopyError::Injected`].
    fails: bool,
}

fn subject<E: Engine + 'static>(name: &str, make: impl Fn() -> E + Send + Sync + 'static) -> Subject {
    Subject {
        name: name.to_owned(),
        make: Box::new(move || Arc::new(make())),
        size_bytes_max: usize::MAX,
        fails: false,
    }
}

fn cpu(workers_count: usize, queue_copies_max: usize) -> CpuEngine {
    let machine = Machine::two_tiers().expect("built in");
    let options = CpuOptions { workers_count, queue_copies_max, ..CpuOptions::default() };
    CpuEngine::new(&machine, options).expect("threads")
}

/// One that hands all copies to its workers.
fn cpu_without_inline(workers_count: usize, queue_copies_max: usize) -> CpuEngine {
    let machine = Machine::two_tiers().expect("built in");
    let options =
        CpuOptions { workers_count, queue_copies_max, inline_bytes_max: 0, ..CpuOptions::default() };
    CpuEngine::new(&machine, options).expect("threads")
}

fn dsa(config: &DeviceConfig, fault_plan: &FaultPlan, devices_count: usize) -> DsaEngine {
    dsa_with(DsaOptions::default(), config, fault_plan, devices_count)
}

fn dsa_with(
    options: DsaOptions,
    config: &DeviceConfig,
    fault_plan: &FaultPlan,
    devices_count: usize,
) -> DsaEngine {
    let mut portals: Vec<Arc<dyn Portal>> = Vec::new();
    for _ in 0..devices_count {
        let device = Emulator::start(config, fault_plan.clone()).expect("a valid configuration");
        portals.extend((0..device.queue_count()).map(|queue| device.portal(queue)));
    }
    DsaEngine::new(portals, options).expect("a thread")
}

fn config_of(engines: u32, queues: Vec<WorkQueueInfo>) -> DeviceConfig {
    DeviceConfig::new(vec![GroupConfig { engines, queues }])
}

fn storage(options: StorageOptions) -> StorageEngine {
    StorageEngine::new(options).expect("a thread")
}

fn calm_subjects() -> Vec<Subject> {
    let small = StorageOptions {
        queue_reads_max: 2,
        piece_bytes: 64 << 10,
        pieces_in_flight_max: 3,
        threads_count: 3,
        page_cache: false,
        ..StorageOptions::default()
    };
    let threads = StorageOptions { io_uring: false, ..StorageOptions::default() };
    let calm = FaultPlan::none;
    let faults = |refuse_per_mille, fail_per_mille, delay_us| Faults {
        refuse_per_mille,
        fail_per_mille,
        delay_max: Duration::from_micros(delay_us),
    };
    vec![
        subject("cpu, 1 worker", || cpu(1, 128)),
        subject("cpu, 3 workers, queue of 2", || cpu(3, 2)),
        subject("cpu, nothing inline", || cpu_without_inline(2, 2)),
        subject("dsa, shared queue", move || dsa(&DeviceConfig::one_shared_queue(), &calm(), 1)),
        subject("dsa, dedicated queue", move || dsa(&DeviceConfig::one_dedicated_queue(), &calm(), 1)),
        subject("dsa, four engines", move || dsa(&DeviceConfig::four_engines(), &calm(), 1)),
        subject("dsa, two devices", move || dsa(&DeviceConfig::one_shared_queue(), &calm(), 2)),
        subject("dsa, one entry, 16 KiB at most", move || {
            let queue = WorkQueueInfo { transfer_bytes_max: 16 << 10, ..dedicated_queue("wq0.0", 1) };
            dsa(&config_of(1, vec![queue]), &calm(), 1)
        }),
        subject("storage", || storage(StorageOptions::default())),
        subject("storage, small pieces from the disk", move || storage(small)),
        subject("storage, threads", move || storage(threads)),
        subject("storage, threads, small pieces from the disk", move || {
            storage(StorageOptions { io_uring: false, ..small })
        }),
        subject("faulty storage, refusing and late", move || {
            Faulty::new(Arc::new(storage(small)), faults(300, 0, 300), 4).expect("a thread")
        }),
        subject("faulty cpu that does nothing wrong", move || {
            Faulty::new(Arc::new(cpu(1, 128)), faults(0, 0, 0), 0).expect("a thread")
        }),
        subject("faulty cpu, refusing and late", move || {
            Faulty::new(Arc::new(cpu(2, 4)), faults(300, 0, 300), 1).expect("a thread")
        }),
        Subject {
            fails: true,
            ..subject("faulty cpu, failing", move || {
                Faulty::new(Arc::new(cpu(2, 4)), faults(100, 300, 100), 2).expect("a thread")
            })
        },
        subject("faulty dsa, late", move || {
            let inner = dsa(&DeviceConfig::one_shared_queue(), &calm(), 1);
            Faulty::new(Arc::new(inner), faults(100, 0, 300), 3).expect("a thread")
        }),
    ]
}

/// Devices with bad habits: a shared and a dedicated queue with small descriptors, from each seed; and an engine
/// with more or less patience.
fn faulty_subjects(seeds: std::ops::Range<u64>) -> impl Iterator<Item = Subject> {
    seeds.map(|seed| {
        let fault_plan = FaultPlan::from_seed(seed);
        let make = move || {
            let queues = vec![
                WorkQueueInfo { transfer_bytes_max: 64 << 10, ..shared_queue("wq0.0", 8) },
                WorkQueueInfo { transfer_bytes_max: 32 << 10, ..dedicated_queue("wq0.1", 3) },
            ];
            // From no patience to that of the default.
            let faults_max = (seed % 9) as u32;
            let options = DsaOptions { faults_max, retries_max: faults_max, ..DsaOptions::default() };
            dsa_with(options, &config_of(2, queues), &fault_plan, 1)
        };
        Subject { size_bytes_max: 150_000, ..subject(&format!("dsa, faulty, seed {seed}"), make) }
    })
}

/// One copy with guarded buffers, checked when it is finished.
struct Trial {
    source: Vec<u8>,
    /// The source of a read: a block of something else, the bytes, and for every second one something behind them.
    file: Option<(tempfile::NamedTempFile, Arc<StoredFile>)>,
    target: Mutex<Vec<u8>>,
    /// Begin of the target in its vector.
    begin: usize,
    size_bytes: usize,
    finished_count: AtomicUsize,
    /// Raised when the callback is dropped: that is, when nobody can call it any more.
    results: Mutex<Sender<Result<CopyReport, CopyError>>>,
}

fn pattern(size_bytes: usize, salt: usize) -> Vec<u8> {
    (0..size_bytes).map(|index| (index * 31 + index / 251 + salt * 7) as u8).collect()
}

impl Trial {
    fn new(
        engine: &dyn Engine,
        size_bytes: usize,
        salt: usize,
    ) -> (Arc<Trial>, Receiver<Result<CopyReport, CopyError>>) {
        let (results, receiver) = channel();
        let source = pattern(size_bytes + 2 * GUARD_BYTES, salt);
        let mut target = vec![GUARD; size_bytes + 2 * GUARD_BYTES];
        let (mut file, mut begin) = (None, GUARD_BYTES);
        if engine.kind() == EngineKind::Storage {
            let mut temporary = tempfile::NamedTempFile::new().expect("a temporary file");
            temporary.write_all(&[0xee; BLOCK_BYTES]).expect("room");
            temporary.write_all(&source[GUARD_BYTES..][..size_bytes]).expect("room");
            temporary.write_all(&[0xee; 100][..salt % 2 * 100]).expect("room");
            let stored = StoredFile::open(temporary.path()).expect("readable");
            file = Some((temporary, Arc::new(stored)));
            target = vec![GUARD; size_bytes + 4 * BLOCK_BYTES];
            begin = GUARD_BYTES + target[GUARD_BYTES..].as_ptr().align_offset(BLOCK_BYTES);
        }
        let trial = Trial {
            source,
            file,
            target: Mutex::new(target),
            begin,
            size_bytes,
            finished_count: AtomicUsize::new(0),
            results: Mutex::new(results),
        };
        (Arc::new(trial), receiver)
    }

    /// The copy, at an alignment that depends on the salt, with something to do at its end.
    fn copy(self: &Arc<Trial>, then: impl FnOnce() + Send + 'static) -> RawRequest {
        let trial = self.clone();
        let target = self.target.lock().expect("not poisoned").as_mut_ptr();
        let done = move |result| {
            trial.finished_count.fetch_add(1, Ordering::Relaxed);
            let _ = trial.results.lock().expect("not poisoned").send(result);
            then();
        };
        if let Some((_, file)) = &self.file {
            // SAFETY: as below; the vector has room for whole blocks.
            return unsafe {
                let target = target.add(self.begin);
                RawRequest::read(file.clone(), BLOCK_BYTES as u64, target, self.size_bytes, done)
            };
        }
        // SAFETY: both vectors live in the trial, which `done` keeps; they are looked at after `done` only.
        unsafe {
            RawRequest::new(
                self.source.as_ptr().add(GUARD_BYTES),
                target.add(self.begin),
                self.size_bytes,
                done,
            )
        }
    }

    /// After its end: bytes and guards.
    fn check(&self, result: Result<CopyReport, CopyError>, subject: &Subject, salt: usize) {
        let (name, size) = (&subject.name, self.size_bytes);
        assert_eq!(self.finished_count.load(Ordering::Relaxed), 1, "{name}: {size} bytes: finished once");
        let target = self.target.lock().expect("not poisoned");
        let inner = self.begin..self.begin + size;
        let source = &self.source[GUARD_BYTES..GUARD_BYTES + size];
        let written_bytes = if self.file.is_some() { size.next_multiple_of(BLOCK_BYTES) } else { size };
        match result {
            Ok(report) => {
                assert!(target[inner] == *source, "{name}: {size} bytes differ");
                assert_eq!(report.bytes(), size as u64, "{name}: the report of {size} bytes");
            }
            Err(error) => {
                assert!(subject.fails && error == CopyError::Injected, "{name}: {size} bytes: {error}");
            }
        }
        assert!(self.source == pattern(size + 2 * GUARD_BYTES, salt), "{name}: the source was written");
        let guards = target[..self.begin].iter().chain(&target[self.begin + written_bytes..]);
        assert!(guards.copied().all(|byte| byte == GUARD), "{name}: {size} bytes: written beside the target");
    }
}

/// Submits until it is taken. A refused copy must come back as it was.
fn submit(engine: &dyn Engine, mut copy: RawRequest) {
    let before = (copy.source(), copy.target(), copy.size_bytes());
    while let Err(Rejected { copy: returned, why }) = engine.submit(copy) {
        assert_eq!(why, Refusal::Full, "{}: still there", engine.name());
        assert_eq!((returned.source(), returned.target(), returned.size_bytes()), before);
        copy = returned;
        thread::yield_now();
    }
}

fn receive(results: &Receiver<Result<CopyReport, CopyError>>, name: &str) -> Result<CopyReport, CopyError> {
    results.recv_timeout(HANG).unwrap_or_else(|_| panic!("{name}: a copy was never finished"))
}

/// The sums of `memferry::mover::EngineStats`, for an engine at rest whose copies had these bytes.
fn check_sums(stats: &EngineStats, subject: &Subject, copies: u64, bytes: u64) {
    let name = &subject.name;
    assert_eq!(stats.accepted, copies, "{name}: {stats:?}");
    assert_eq!(stats.operations + stats.errors, copies, "{name}: {stats:?}");
    check_descriptors(stats, name);
    if !subject.fails {
        assert_eq!(stats.errors, 0, "{name}: {stats:?}");
        assert_eq!(stats.bytes + stats.fallback_bytes, bytes, "{name}: {stats:?}");
    }
    assert_eq!(stats.leaked_bytes, 0, "{name}: {stats:?}");
}

fn copies_every_size(subject: &Subject) -> EngineStats {
    let engine = (subject.make)();
    let sizes: Vec<usize> = SIZES.into_iter().filter(|&size| size <= subject.size_bytes_max).collect();
    for (salt, &size) in sizes.iter().enumerate() {
        let (trial, results) = Trial::new(&*engine, size, salt);
        submit(&*engine, trial.copy(|| {}));
        trial.check(receive(&results, &subject.name), subject, salt);
    }
    let bytes = sizes.iter().sum::<usize>() as u64;
    check_sums(&engine.stats(), subject, sizes.len() as u64, bytes);
    engine.stats()
}

fn serves_many_threads(subject: &Subject) {
    const THREADS: usize = 3;
    const COPIES: usize = 60;
    let engine = (subject.make)();
    let size_of = |salt: usize| (salt * 7919) % 20_000;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let engine = &engine;
            scope.spawn(move || {
                let salts = (0..COPIES).map(|copy| thread * COPIES + copy);
                let trials: Vec<_> = salts
                    .map(|salt| {
                        let (trial, results) = Trial::new(&**engine, size_of(salt), salt);
                        submit(&**engine, trial.copy(|| {}));
                        (salt, trial, results)
                    })
                    .collect();
                for (salt, trial, results) in trials {
                    let result = receive(&results, engine.name());
                    trial.check(result, subject, salt);
                }
            });
        }
    });
    let bytes = (0..THREADS * COPIES).map(size_of).sum::<usize>() as u64;
    check_sums(&engine.stats(), subject, (THREADS * COPIES) as u64, bytes);
}

fn finishes_what_it_took_when_dropped(subject: &Subject) {
    let engine = (subject.make)();
    let trials: Vec<_> = (0..40)
        .map(|salt| {
            let (trial, results) = Trial::new(&*engine, 1000 + salt, salt);
            submit(&*engine, trial.copy(|| {}));
            (salt, trial, results)
        })
        .collect();
    drop(engine);
    for (salt, trial, results) in trials {
        let result = results.try_recv();
        let result = result.unwrap_or_else(|_| panic!("{}: dropped before it was done", subject.name));
        trial.check(result, subject, salt);
    }
}

fn survives_panicking_callbacks(subject: &Subject) {
    let engine = (subject.make)();
    for salt in 0..8 {
        let (trial, results) = Trial::new(&*engine, 100, salt);
        let panics = salt % 2 == 0;
        submit(&*engine, trial.copy(move || assert!(!panics, "this panic belongs to the test")));
        trial.check(receive(&results, &subject.name), subject, salt);
    }
}

fn lets_callbacks_submit_and_drop_it(subject: &Subject) {
    let engine = (subject.make)();
    let (second, second_results) = Trial::new(&*engine, 3000, 1);
    let (first, first_results) = Trial::new(&*engine, 2000, 0);
    let copy = second.copy(|| {});
    let last_owner = engine.clone();
    submit(
        &*engine,
        first.copy(move || {
            submit(&*last_owner, copy);
            drop(last_owner);
        }),
    );
    drop(engine);
    first.check(receive(&first_results, &subject.name), subject, 0);
    second.check(receive(&second_results, &subject.name), subject, 1);
}

fn conform(subject: &Subject) -> EngineStats {
    serves_many_threads(subject);
    finishes_what_it_took_when_dropped(subject);
    lets_callbacks_submit_and_drop_it(subject);
    copies_every_size(subject)
}

#[test]
fn every_engine_conforms() {
    for subject in calm_subjects() {
        println!("{}", subject.name);
        conform(&subject);
    }
}

#[test]
fn every_engine_survives_panicking_callbacks() {
    for subject in calm_subjects().into_iter().chain(faulty_subjects(0..2)) {
        survives_panicking_callbacks(&subject);
    }
}

#[test]
fn the_dsa_engine_conforms_on_faulty_devices() {
    let seeds = 0..30;
    println!("{} seeds: {seeds:?}", seeds.end);
    let (mut retries, mut faults_resumed, mut fallbacks) = (0, 0, 0);
    for subject in faulty_subjects(seeds) {
        println!("{}", subject.name);
        let stats = conform(&subject);
        retries += stats.retries;
        faults_resumed += stats.faults_resumed;
        fallbacks += stats.fallbacks;
    }
    println!("{retries} retries, {faults_resumed} faults resumed, {fallbacks} pieces by the CPU");
    assert!(retries > 0 && faults_resumed > 0 && fallbacks > 0, "the devices had no faults at all");
}
