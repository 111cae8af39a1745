//! Copies on queues that have no Memory Move.
//!
//! Once, the operations of a queue were checked for other operations, and not for copies: a copy was submitted to any queue
//! with a free slot, and a queue without Memory Move failed it with status 0x10.

use std::sync::Arc;

use memferry::mover::{
    CopyOptions, DsaEngine, DsaOptions, Engine, EngineKind, Guidelines, Mover, Ordered, RawRequest, Route,
};
use memferry_dsa::{
    Descriptor, Opcode, OperationSet, Portal, PortalCounters, PortalKind, Status, Submission, SubmitError,
    WorkQueueInfo,
};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue};

use crate::mover_support::{check_descriptors, machine, mover_of};

const EVERYTHING: Guidelines =
    Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 1 << 40 };
/// The operations that copy: Dualcast serves a replication whose targets happen to be equal modulo 4096.
const COPY: &[Opcode] = &[Opcode::Memmove, Opcode::Dualcast];

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn without_copies() -> DeviceConfig {
    DeviceConfig::one_shared_queue().without(COPY)
}

/// Descriptors that the device ended with status 0x10.
fn bad_opcodes(device: &Emulator) -> u64 {
    device.counters().completed.get(&Status::BadOpcode).copied().unwrap_or(0)
}

/// A queue that claims more than it has.
struct Claims {
    portal: Arc<dyn Portal>,
    info: WorkQueueInfo,
}

// SAFETY: the portal behind keeps the promises.
#[allow(unsafe_code)]
unsafe impl Portal for Claims {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.info
    }
    fn kind(&self) -> PortalKind {
        self.portal.kind()
    }
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        // SAFETY: passed on to the caller.
        unsafe { self.portal.submit(descriptor) }
    }
    fn completed(&self, count: u32) {
        self.portal.completed(count);
    }
    fn is_gone(&self) -> bool {
        self.portal.is_gone()
    }
    fn counters(&self) -> PortalCounters {
        self.portal.counters()
    }
}

fn pattern(size_bytes: usize) -> Vec<u8> {
    (0..size_bytes).map(|index| (index * 31 + index / 251) as u8).collect()
}

/// A copy of each kind arrives, whatever the engines have.
fn every_copy(mover: &Mover, told: &str) {
    for size_bytes in [1, 5000, 100_000, 5 << 20] {
        let told = format!("{told}, {size_bytes} bytes");
        let copied = mover.copy(pattern(size_bytes), vec![0; size_bytes], options()).wait();
        let (source, target, report) = copied.unwrap_or_else(|error| panic!("{told}: {error}"));
        assert!(source == target, "{told}: bytes differ");
        assert_eq!(report.bytes(), size_bytes as u64, "{told}");
    }
    let mut batch = mover.batch(options());
    let members: Vec<_> = (0..20).map(|byte| batch.copy(vec![byte; 3000], vec![0xff; 3000])).collect();
    batch.submit();
    for member in members {
        let (source, target, _) = member.wait().unwrap_or_else(|error| panic!("{told}, batch: {error}"));
        assert!(source == target, "{told}: bytes differ");
    }
    let targets = vec![vec![0; 100_000]; 3];
    let copies = mover.replicate(pattern(100_000), targets, options()).wait();
    let ((source, targets), ..) = copies.unwrap_or_else(|error| panic!("{told}, replicate: {error}"));
    assert!(targets.iter().all(|target| *target == source), "{told}: bytes differ");
    let mut ordered = Ordered::new(mover.clone(), 4, options()).expect("room for some");
    let mut burst: Vec<_> = (0..4).map(|byte| (vec![byte; 2000], vec![0xff; 2000])).collect();
    ordered.submit_burst(&mut burst);
    while let Some(copied) = ordered.retire_wait() {
        let (source, target, _) = copied.unwrap_or_else(|error| panic!("{told}, ordered: {error}"));
        assert!(source == target, "{told}: bytes differ");
    }
}

/// Nobody has it: the mover's CPU engines copy, and each copy is counted.
#[test]
fn without_memory_move_the_cpu_copies() {
    let (mover, dsa, device) =
        mover_of(&without_copies(), FaultPlan::none(), DsaOptions::default(), EVERYTHING);
    every_copy(&mover, "one queue");
    let stats = mover.stats();
    assert_eq!(stats.bytes_by(EngineKind::Dsa), 0, "{stats:?}");
    // Four copies, twenty in a batch, three replicas, four in order.
    assert!(stats.unsupported_operations >= 4 + 20 + 3 + 4, "{stats:?}");
    assert_eq!((bad_opcodes(&device), dsa.stats().errors), (0, 0));
    // A copy with a route of its own, over the same engine.
    let routed = CopyOptions { route: Some(Route::All), ..options() };
    let (source, target, _) = mover.copy(pattern(4 << 20), vec![0; 4 << 20], routed).wait().expect("copied");
    assert!(source == target);
}

/// One engine, two queues of different operations: copies take the other queue, alone and in batches.
#[test]
fn another_queue_of_the_engine_copies() {
    let copies = shared_queue("wq0.1", 8);
    let lacks = WorkQueueInfo { operations: without(&copies), ..dedicated_queue("wq0.0", 8) };
    let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues: vec![lacks, copies] }]);
    let (mover, dsa, device) = mover_of(&config, FaultPlan::none(), DsaOptions::default(), EVERYTHING);
    every_copy(&mover, "two queues");
    let stats = dsa.stats();
    check_descriptors(&stats, "two queues");
    assert_eq!((stats.descriptors_failed, stats.fallbacks), (0, 0), "{stats:?}");
    assert!(stats.bytes > 5 << 20 && bad_opcodes(&device) == 0, "{stats:?}");
    assert_eq!(mover.stats().unsupported_operations, 0);
}

fn without(queue: &WorkQueueInfo) -> OperationSet {
    queue.operations.without(COPY)
}

/// Two engines: a split copy has no pieces for the one that lacks Memory Move.
#[test]
fn another_engine_copies() {
    let engine = |config: &DeviceConfig, name: &str| {
        let device = Emulator::start(config, FaultPlan::none()).expect("a valid configuration");
        let options = DsaOptions { name: name.to_owned(), ..DsaOptions::default() };
        Arc::new(DsaEngine::new(vec![device.portal(0)], options).expect("a thread"))
    };
    let (lacks, copies) =
        (engine(&without_copies(), "lacks"), engine(&DeviceConfig::one_shared_queue(), "has"));
    for route in [Route::Single, Route::PushPull, Route::All, Route::RoundRobin] {
        let builder = Mover::builder(machine()).guidelines(EVERYTHING).route(route);
        let mover = builder.engine(lacks.clone()).engine(copies.clone()).build().expect("threads");
        every_copy(&mover, &format!("{route:?}"));
        assert_eq!(mover.stats().unsupported_operations, 0, "{route:?}: one engine has it");
    }
    assert_eq!((lacks.stats().accepted, lacks.stats().fallbacks), (0, 0), "{:?}", lacks.stats());
    assert!(copies.stats().bytes > 5 << 20, "{:?}", copies.stats());
}

/// An engine that is asked all the same, and a queue whose operations are not the ones that sysfs shows: its own CPU
/// copies, and that is counted.
#[test]
#[allow(unsafe_code)]
fn an_engine_that_is_asked_all_the_same_copies_by_cpu() {
    let device = Emulator::start(&without_copies(), FaultPlan::none()).expect("a valid configuration");
    let claims = Claims { portal: device.portal(0), info: shared_queue("wq0.0", 8) };
    let portals: [(Arc<dyn Portal>, u64); 2] = [(device.portal(0), 0), (Arc::new(claims), 1)];
    for (portal, failed) in portals {
        let dsa = DsaEngine::new(vec![portal], DsaOptions::default()).expect("a thread");
        let (tells, told) = std::sync::mpsc::channel();
        let source: &'static [u8] = vec![7; 5000].leak();
        let target: &'static mut [u8] = vec![0; 5000].leak();
        // SAFETY: both are leaked; the target is read after the end only.
        let copy = unsafe {
            RawRequest::new(source.as_ptr(), target.as_mut_ptr(), 5000, move |end| {
                tells.send(end).expect("the test listens");
            })
        };
        dsa.submit(copy).expect("there is room");
        let report = told.recv().expect("an end").expect("the CPU copies");
        assert_eq!((report.cpu_bytes, source == target), (5000, true));
        let stats = dsa.stats();
        assert_eq!((stats.fallbacks, stats.descriptors_failed), (1, failed), "{stats:?}");
    }
}
