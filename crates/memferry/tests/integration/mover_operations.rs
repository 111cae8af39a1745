//! Operations other than copies, and copies of one source to several targets: on devices, faulty ones too, and without
//! any they come to what the CPU makes of the same request.

use std::cell::Cell;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use memferry::memory::{Mapping, MappingOptions};
use memferry::mover::{
    CopyError, CopyOptions, CopyReport, DsaEngine, DsaOptions, Engine, EngineKind, EngineStats, Guidelines,
    Mover, MoverStats, RawRequest, Rejected,
};
use memferry::topology::NodeId;
use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::software::{Delta, DeltaError};
use memferry_dsa::{
    Client, ClientOptions, DifFormat, DifSource, DifTags, DifTarget, Invalid, Opcode, Outcome, Request,
    WorkQueueInfo,
};
use memferry_dsa_emulator::{
    Capabilities, DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue,
};

use crate::mover_support;
use crate::mover_support::{check_descriptors, machine};

const PAGE: usize = PAGE_BYTES as usize;
const EVERYTHING: Guidelines =
    Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 1 << 40 };

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn mover_of(config: &DeviceConfig, fault_plan: FaultPlan) -> (Mover, Arc<DsaEngine>, Arc<Emulator>) {
    mover_support::mover_of(config, fault_plan, DsaOptions::default(), EVERYTHING)
}

/// Two queues whose limits cut what is larger than 32 KiB.
fn small_queues() -> DeviceConfig {
    let queues = vec![
        WorkQueueInfo { transfer_bytes_max: 64 << 10, ..shared_queue("wq0.0", 8) },
        WorkQueueInfo { transfer_bytes_max: 32 << 10, ..dedicated_queue("wq0.1", 3) },
    ];
    DeviceConfig::new(vec![GroupConfig { engines: 2, queues }])
}

fn check_sums(stats: &EngineStats) {
    check_descriptors(stats, "of operations");
    assert_eq!(stats.accepted, stats.operations + stats.errors, "{stats:?}");
}

/// The memory of an operation.
#[derive(Clone, PartialEq)]
struct Buffers {
    one: Vec<u8>,
    other: Vec<u8>,
    target: Vec<u8>,
    /// Blocks of `one` with their fields.
    fields: Vec<u8>,
    /// What makes `other` of `one`.
    delta: Vec<u8>,
}

fn cpu() -> Client {
    Client::new(Vec::new(), ClientOptions::default())
}

impl Buffers {
    /// `size_bytes` a multiple of 512; the two sources differ in a byte in the middle.
    fn new(size_bytes: usize, salt: usize) -> Buffers {
        let one: Vec<u8> = (0..size_bytes).map(|index| (index * 31 + index / 251 + salt) as u8).collect();
        let mut other = one.clone();
        other[size_bytes / 2] ^= 0xff;
        let mut fields = vec![0; size_bytes / 512 * 520];
        let insert = Request::dif_insert(&one, &mut fields, DifFormat::default(), DifTarget::default());
        cpu().run(insert).expect("a valid request");
        let mut delta = vec![0; 80];
        let made = cpu().run(Request::create_delta(&one, &other, &mut delta)).expect("a valid request");
        let Delta::Complete { size_bytes: written } = made else { panic!("one word differs: {made:?}") };
        delta.truncate(written);
        Buffers { target: vec![0xa5; 3 * size_bytes + 2 * PAGE], one, other, fields, delta }
    }
}

/// A mover under test.
struct Subject<'m> {
    mover: &'m Mover,
    size_bytes: usize,
    salt: usize,
    told: String,
    done: Vec<Opcode>,
}

impl Subject<'_> {
    fn same<O: Outcome + PartialEq + Debug + Send + 'static>(
        &mut self,
        opcode: Opcode,
        make: fn(&mut Buffers) -> Request<'_, O>,
    ) {
        let told = format!("{}: {} of {} bytes", self.told, opcode.name(), self.size_bytes);
        let mut expected = Buffers::new(self.size_bytes, self.salt);
        let outcome = cpu().run(make(&mut expected)).expect(&told);
        let run = self.mover.run(Buffers::new(self.size_bytes, self.salt), make, options());
        let (actual, yielded, _) = run.wait().unwrap_or_else(|error| panic!("{told}: {error}"));
        assert!(actual == expected, "{told}: bytes differ");
        assert_eq!(yielded, outcome, "{told}");
        self.done.push(opcode);
    }

    fn every_operation(mut self) -> u64 {
        self.same::<()>(Opcode::Noop, |_| Request::noop());
        self.same::<()>(Opcode::Memmove, |all| {
            Request::copy(&all.one, &mut all.target[7..][..all.one.len()])
        });
        self.same::<()>(Opcode::Fill, |all| Request::fill(0x0123_4567_89ab_cdef, &mut all.target[3..]));
        self.same::<()>(Opcode::Fill, |all| Request::fill_16(1 << 100 | 7, &mut all.target[5..]));
        self.same::<Option<usize>>(Opcode::Compare, |all| Request::compare(&all.one, &all.other));
        self.same::<Option<usize>>(Opcode::Compare, |all| Request::compare(&all.one[1..], &all.one[1..]));
        self.same::<Option<usize>>(Opcode::ComparePattern, |all| {
            let middle = all.target.len() / 2;
            all.target[middle + 3] = 1;
            Request::compare_pattern(0xa5a5_a5a5_a5a5_a5a5, &all.target)
        });
        self.same::<Delta>(Opcode::CreateDelta, |all| {
            Request::create_delta(&all.one, &all.other, &mut all.target)
        });
        self.same::<Result<(), DeltaError>>(Opcode::ApplyDelta, |all| {
            Request::apply_delta(&all.delta, &mut all.one)
        });
        self.same::<()>(Opcode::Dualcast, |all| {
            let size = all.one.len();
            let (near, far) = all.target.split_at_mut(size.next_multiple_of(PAGE));
            Request::dualcast(&all.one, &mut near[..size], &mut far[..size])
        });
        self.same::<u32>(Opcode::CrcGeneration, |all| Request::crc(7, &all.one));
        self.same::<u32>(Opcode::CopyCrc, |all| {
            Request::copy_crc(0, &all.one, &mut all.target[11..][..all.one.len()])
        });
        type Checked = Result<DifTags, memferry_dsa::software::Mismatch>;
        self.same::<Checked>(Opcode::DifCheck, |all| {
            Request::dif_check(&all.fields, DifFormat::default(), DifSource::default())
        });
        self.same::<Checked>(Opcode::DifCheck, |all| {
            let middle = all.fields.len() / 2;
            all.fields[middle] ^= 1;
            Request::dif_check(&all.fields, DifFormat::default(), DifSource::default())
        });
        self.same::<DifTags>(Opcode::DifInsert, |all| {
            let target = &mut all.target[..all.fields.len()];
            Request::dif_insert(&all.one, target, DifFormat::default(), DifTarget::default())
        });
        self.same::<Checked>(Opcode::DifStrip, |all| {
            let target = &mut all.target[..all.one.len()];
            Request::dif_strip(&all.fields, target, DifFormat::default(), DifSource::default())
        });
        self.same::<Result<(DifTags, DifTags), _>>(Opcode::DifUpdate, |all| {
            let target = &mut all.target[..all.fields.len()];
            let (source, made) = (DifSource::default(), DifTarget::default());
            Request::dif_update(&all.fields, target, DifFormat::default(), source, made)
        });
        self.same::<()>(Opcode::CacheFlush, |all| Request::cache_flush(&all.one));
        let missing: Vec<_> = Opcode::ALL
            .into_iter()
            .filter(|opcode| !matches!(opcode, Opcode::Batch | Opcode::Drain) && !self.done.contains(opcode))
            .collect();
        assert!(missing.is_empty(), "not tried: {missing:?}");
        self.done.len() as u64
    }
}

fn every_operation(mover: &Mover, size_bytes: usize, told: &str) -> u64 {
    Subject { mover, size_bytes, salt: size_bytes, told: told.to_owned(), done: Vec::new() }.every_operation()
}

fn of_kind(stats: &MoverStats, kind: EngineKind) -> EngineStats {
    stats.engines.iter().find(|engine| engine.kind == kind).expect("it was built with one").clone()
}

#[test]
fn a_calm_device_does_every_operation() {
    let (mover, dsa, _device) = mover_of(&DeviceConfig::one_shared_queue(), FaultPlan::none());
    let count =
        [512, 20_480].map(|size_bytes| every_operation(&mover, size_bytes, "calm")).iter().sum::<u64>();
    let stats = dsa.stats();
    check_sums(&stats);
    assert_eq!((stats.accepted, stats.errors), (count, 0), "{stats:?}");
    // A fill with 16 bytes is newer than the device.
    assert_eq!(stats.fallbacks, 2, "{stats:?}");
    assert_eq!(mover.stats().unsupported_operations, 0);
}

#[test]
fn without_a_device_the_cpu_does_every_operation() {
    let mover = Mover::builder(machine()).build().expect("threads");
    let count = every_operation(&mover, 20_480, "cpu");
    let stats = mover.stats();
    assert_eq!(stats.engines[0].accepted, count, "{stats:?}");
    assert_eq!(stats.unsupported_operations, 0, "nobody had been asked for");
}

#[test]
fn faulty_devices_do_every_operation() {
    let (mut faults, mut by_device) = (0, 0);
    for seed in 0..12 {
        let (mover, dsa, _device) = mover_of(&small_queues(), FaultPlan::from_seed(seed));
        for size_bytes in [512, 100 * 512] {
            every_operation(&mover, size_bytes, &format!("seed {seed}"));
        }
        let stats = dsa.stats();
        check_sums(&stats);
        assert_eq!(stats.errors, 0, "seed {seed}: {stats:?}");
        (faults, by_device) = (faults + stats.faults_resumed, by_device + stats.bytes);
    }
    assert!(faults > 0 && by_device > 0, "{faults} faults, {by_device} bytes");
}

/// Devices that are sold have no delta operations.
#[test]
fn what_a_device_lacks_goes_to_a_cpu_engine_and_is_counted() {
    let config = DeviceConfig::one_shared_queue().as_production();
    let (mover, dsa, _device) = mover_of(&config, FaultPlan::none());
    let count = every_operation(&mover, 4096, "production");
    let stats = mover.stats();
    assert_eq!(stats.unsupported_operations, 2, "{stats:?}");
    assert_eq!(of_kind(&stats, EngineKind::Cpu).accepted, 2, "{stats:?}");
    assert_eq!(dsa.stats().accepted, count - 2);
}

#[test]
fn wrong_requests_are_refused_and_return_their_buffers() {
    let (mover, dsa, _device) = mover_of(&DeviceConfig::one_shared_queue(), FaultPlan::none());
    fn refused(mover: &Mover, make: fn(&mut Vec<u8>) -> Request<'_, ()>) -> Invalid {
        let error = mover.run(vec![1; 100], make, options()).wait().expect_err("a wrong request");
        assert_eq!(error.buffers.as_deref(), Some(&[1; 100][..]), "untouched");
        let CopyError::Invalid(invalid) = error.error else { panic!("{error}") };
        invalid
    }
    let empty = refused(&mover, |bytes| Request::fill(0, &mut bytes[..0]));
    assert_eq!(empty, Invalid::Empty(Opcode::Fill));
    let lengths = refused(&mover, |bytes| {
        let (one, other) = bytes.split_at_mut(40);
        Request::copy(&*one, other)
    });
    assert!(matches!(lengths, Invalid::Length { bytes: 60, bytes_needed: 40, .. }), "{lengths}");
    let apart = refused(&mover, |bytes| {
        let (source, targets) = bytes.split_at_mut(10);
        let (one, other) = targets.split_at_mut(10);
        Request::dualcast(&*source, one, &mut other[..10])
    });
    assert_eq!(apart, Invalid::DualcastAlignment);
    assert_eq!(refused(&mover, |_| Request::drain()), Invalid::DrainAsTask);
    // Another thread may write the cells while the operation is in flight.
    let cells = refused(&mover, |bytes| Request::fill(0, Cell::from_mut(&mut bytes[..]).as_slice_of_cells()));
    assert_eq!(cells, Invalid::Cells(Opcode::Fill));
    assert_eq!(dsa.stats().accepted, 0, "nothing was submitted");
}

#[test]
fn a_device_that_dies_with_operations_in_it_leaks_their_buffers() {
    let (mut ended, mut lost) = (0, 0);
    for seed in 0..10 {
        let fault_plan = FaultPlan { delay_steps_max: 1000, ..FaultPlan::from_seed(seed) };
        let (mover, dsa, device) = mover_of(&DeviceConfig::one_shared_queue(), fault_plan);
        let mut batch = mover.batch(options());
        let operations: Vec<_> = (0..30)
            .map(|size| batch.run(vec![1_u8; 3000 + size], |bytes| Request::crc(0, &*bytes)))
            .collect();
        batch.submit();
        device.abort();
        let expected = |bytes: &[u8]| cpu().run(Request::crc(0, bytes)).expect("a valid request");
        for operation in operations {
            match operation.wait() {
                Ok((bytes, crc, _)) => {
                    assert_eq!(crc, expected(&bytes), "seed {seed}");
                    ended += 1;
                }
                Err(error) => {
                    assert!(error.error == CopyError::DeviceLost && error.buffers.is_none(), "{error}");
                    lost += 1;
                }
            }
        }
        check_sums(&dsa.stats());
    }
    assert!(ended > 0 && lost > 0, "{ended} ended, {lost} lost");
}

/// A device that does not know the hint refuses it once.
#[test]
fn a_hint_that_a_device_does_not_know_is_dropped() {
    let mut config = DeviceConfig::one_shared_queue();
    let bits = Capabilities::ALL.bits();
    config.capabilities = Capabilities::from_bits(bits & !(1 << 2));
    let (mover, dsa, _device) = mover_of(&config, FaultPlan::none());
    let soon = CopyOptions { consumer: memferry::mover::Consumer::CoresSoon, ..options() };
    for _ in 0..3 {
        let (source, target, report) = mover.copy(vec![5; 9000], vec![0; 9000], soon).wait().expect("copied");
        assert_eq!((source == target, report.dsa_bytes), (true, 9000));
        let (target, (), _) =
            mover.run(vec![0; 9000], |target| Request::fill(1, target), soon).wait().expect("done");
        assert_eq!(target[8], 1);
    }
    let stats = dsa.stats();
    check_sums(&stats);
    assert_eq!((stats.hints_dropped, stats.descriptors, stats.fallbacks), (1, 7, 0), "{stats:?}");
}

#[test]
fn copies_for_cores_that_read_soon_go_into_the_cache() {
    let copied = |consumer, size_bytes: usize| {
        let mut config = DeviceConfig::one_shared_queue();
        config.capabilities = Capabilities::from_bits(Capabilities::ALL.bits() & !(1 << 2));
        let device = Emulator::start(&config, FaultPlan::none()).expect("a valid configuration");
        let dsa = Arc::new(DsaEngine::new(vec![device.portal(0)], DsaOptions::default()).expect("a thread"));
        let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 80_000 };
        let mover =
            Mover::builder(machine()).guidelines(guidelines).engine(dsa.clone()).build().expect("threads");
        let how = CopyOptions { consumer, ..options() };
        mover.copy(vec![5; size_bytes], vec![0; size_bytes], how).wait().expect("copied");
        // A device that does not know the flag tells whether it was there.
        dsa.stats().hints_dropped
    };
    use memferry::mover::Consumer::{CoresSoon, Later, Unknown};
    assert_eq!((copied(CoresSoon, 10_000), copied(CoresSoon, 10_001)), (1, 0));
    assert_eq!((copied(Unknown, 1000), copied(Later, 1000)), (0, 0));
}

#[test]
fn replicas_are_dualcast_by_pairs_where_the_rules_allow() {
    let (mover, dsa, _device) = mover_of(&DeviceConfig::one_shared_queue(), FaultPlan::none());
    let source: Arc<[u8]> = (0..10_000_u32).map(|index| index as u8).collect();
    let nodes = [NodeId(0), NodeId(1), NodeId(0)];
    let ((_, replicas), (), report) =
        mover.replicate_to(source.clone(), &nodes, options()).expect("room").wait().expect("copied");
    assert!(replicas.len() == 3 && replicas.iter().all(|replica| replica[..] == source[..]));
    assert_eq!(report.dsa_bytes, 20_000, "a dualcast counts once");
    assert_eq!(dsa.stats().descriptors, 2, "a pair and one");

    // Slices of one page-aligned mapping at places that differ modulo 4096.
    struct Shifted(Vec<u8>, usize);
    impl AsMut<[u8]> for Shifted {
        fn as_mut(&mut self) -> &mut [u8] {
            let begin = (PAGE - self.0.as_ptr().addr() % PAGE) % PAGE + self.1;
            &mut self.0[begin..][..10_000]
        }
    }
    let targets = |shifts: &[usize]| shifts.iter().map(|shift| Shifted(vec![0; 20_000], *shift)).collect();
    for (shifts, descriptors) in [(&[0, 8][..], 2), (&[8, 0, 8, 0], 2), (&[1, 2, 3], 3), (&[], 0)] {
        let before = dsa.stats().descriptors;
        let replicas = mover.replicate(source.clone(), targets(shifts), options());
        let ((_, mut replicas), (), _) = replicas.wait().expect("copied");
        assert!(replicas.iter_mut().all(|replica| replica.as_mut() == &source[..]), "{shifts:?}");
        assert_eq!(dsa.stats().descriptors - before, descriptors, "{shifts:?}");
    }
    let error = mover.replicate(source.clone(), vec![vec![0; 10_000], vec![0; 9999]], options());
    let error = error.wait().expect_err("lengths differ").error;
    assert_eq!(error, CopyError::LengthMismatch { source_bytes: 10_000, target_bytes: 9999 });
    mover.replicate(Vec::new(), vec![Vec::new(); 3], options()).wait().expect("nothing to copy");
    assert!(mover.replicate_to(source, &[NodeId(99)], options()).is_err(), "no such node");
}

/// Says that it has copied, and touches nothing.
#[derive(Debug)]
struct Pretends;

impl Engine for Pretends {
    fn name(&self) -> &str {
        "pretends"
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Dsa
    }

    fn node(&self) -> Option<NodeId> {
        None
    }

    fn supports(&self, _: Opcode) -> bool {
        true
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        let dsa_bytes = copy.size_bytes() as u64;
        copy.finish(Ok(CopyReport { dsa_bytes, ..CopyReport::default() }));
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::new(self.name(), self.kind(), self.node())
    }
}

/// Regression: a dualcast has at most 4 GiB, and a larger source was refused if a device had the operation.
#[test]
fn sources_beyond_the_limit_of_a_dualcast_are_copied() {
    const SIZE_BYTES: usize = (4 << 30) + 1;
    let mover = Mover::builder(machine()).guidelines(EVERYTHING).engine(Arc::new(Pretends)).build();
    let mover = mover.expect("threads");
    // Addresses without memory.
    let unpopulated = MappingOptions { populate: false, ..MappingOptions::default() };
    let mapping = || Mapping::with(&machine(), SIZE_BYTES, unpopulated.clone()).expect("addresses");
    let replicas = mover.replicate(mapping(), vec![mapping(), mapping()], options());
    let (_, (), report) = replicas.wait().expect("copied");
    assert_eq!(report.dsa_bytes, 2 * SIZE_BYTES as u64, "two copies");
}

#[test]
fn replicas_are_right_on_faulty_devices_and_without_any() {
    let alone = Mover::builder(machine()).build().expect("threads");
    let faulty = (0..10).map(|seed| mover_of(&small_queues(), FaultPlan::from_seed(seed)));
    let faulty: Vec<_> = faulty.collect();
    for mover in faulty.iter().map(|(mover, ..)| mover).chain([&alone]) {
        let source: Vec<u8> = (0..70_000_u32).map(|index| (index * 7) as u8).collect();
        let nodes = [NodeId(0), NodeId(1), NodeId(1)];
        let replicas = mover.replicate_to(source, &nodes, options()).expect("room");
        let ((source, replicas), (), _) = replicas.wait().expect("copied");
        assert!(replicas.iter().all(|replica| replica[..] == source[..]));
    }
}

#[test]
fn borrowed_memory_is_operated_on_in_a_scope() {
    let (mover, _dsa, _device) = mover_of(&small_queues(), FaultPlan::from_seed(2));
    let source: Vec<u8> = (0..100_000_u32).map(|index| (index * 7) as u8).collect();
    let (mut copy, mut pattern) = (vec![0; 100_000], vec![1; 5000]);
    let (crc, difference) = mover
        .scope(|scope| {
            let crc = scope.run(Request::copy_crc(0, &source, &mut copy));
            scope.run(Request::fill(0, &mut pattern));
            let difference = scope.run(Request::compare(&source[..99], &source[1..100]));
            (crc.wait().expect("done").0, difference.wait().expect("done").0)
        })
        .expect("nothing fails");
    assert!(copy == source && pattern.iter().all(|byte| *byte == 0));
    assert_eq!(crc, cpu().run(Request::crc(0, &source)).expect("a valid request"));
    assert_eq!(difference, Some(0));
    let wrong = mover.scope(|scope| _ = scope.run(Request::fill(0, &mut pattern[..0])));
    assert_eq!(wrong, Err(CopyError::Invalid(Invalid::Empty(Opcode::Fill))));
}

/// Neither the closure that makes a request nor the one that a waker runs takes an engine with it.
#[test]
fn foreign_code_may_panic() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("this panic belongs to the test");
        }
    }
    let (mover, dsa, _device) =
        mover_of(&small_queues(), FaultPlan { delay_steps_max: 500, ..FaultPlan::from_seed(3) });
    fn make(_: &mut Vec<u8>) -> Request<'_, ()> {
        panic!("this panic belongs to the test")
    }
    let run = std::panic::AssertUnwindSafe(|| mover.run(vec![0; 100], make, options()));
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!(dsa.stats().accepted, 0);
    let waker = std::task::Waker::from(Arc::new(Panics));
    for _ in 0..20 {
        let mut operation = mover.run(vec![1; 5000], |bytes| Request::fill(2, bytes), options());
        let _ = std::pin::Pin::new(&mut operation).poll(&mut std::task::Context::from_waker(&waker));
    }
    let (bytes, (), _) =
        mover.run(vec![1; 5000], |bytes| Request::fill(0, bytes), options()).wait().expect("done");
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn operations_can_be_awaited_looked_at_and_dropped() {
    let (mover, _dsa, _device) = mover_of(&small_queues(), FaultPlan::from_seed(1));
    let run = || mover.run(vec![7_u8; 5000], |bytes| Request::crc(0, &*bytes), options());
    let (_, crc, _) = futures::executor::block_on(run()).expect("done");
    drop(run());
    let mut operation = run();
    let looked = loop {
        match operation.try_wait() {
            Ok(finished) => break finished.expect("done").1,
            Err(under_way) => operation = under_way,
        }
        std::thread::yield_now();
    };
    assert_eq!(looked, crc);
}
