//! Copy policies: a function of the program chooses the engines of each copy.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use memferry::cache::{Access, Cache};
use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyOptions, CopyRequest, CpuEngine, CpuOptions, DsaOptions, EngineShare, Guidelines, Mover, Route,
};
use memferry::topology::{Machine, NodeId};
use memferry_dsa::Request;
use memferry_dsa_emulator::{DeviceConfig, FaultPlan};

use crate::mover_support::{self, mover_of};

const MIB: usize = 1 << 20;

/// A machine with CPUs on several nodes.
fn machine() -> Arc<Machine> {
    Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").expect("built in"))
}

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn only(engine: usize) -> Vec<EngineShare> {
    vec![EngineShare { engine, weight: 1 }]
}

/// Three engines on nodes 0, 2 and 1, which tests can hold, and a mover with this policy.
fn mover(
    policy: impl Fn(&Machine, &CopyRequest<'_>) -> Vec<EngineShare> + Send + Sync + 'static,
) -> (Mover, Vec<Arc<Faulty>>) {
    let engine = |node| {
        let cpu = CpuOptions { node: Some(NodeId(node)), ..CpuOptions::default() };
        let cpu = Arc::new(CpuEngine::new(&machine(), cpu).expect("threads"));
        Arc::new(Faulty::new(cpu, Faults::default(), 0).expect("a thread"))
    };
    let engines: Vec<_> = [0, 2, 1].map(engine).into_iter().collect();
    let builder = Mover::builder(machine()).copy_policy(policy);
    let builder = engines.iter().cloned().fold(builder, |builder, engine| builder.engine(engine));
    (builder.build().expect("threads"), engines)
}

/// Bytes of the added engines, and of all others together.
fn bytes_of(mover: &Mover) -> [u64; 4] {
    let bytes: Vec<u64> = mover.stats().engines.iter().map(|engine| engine.bytes).collect();
    [bytes[0], bytes[1], bytes[2], bytes[3..].iter().sum()]
}

#[test]
fn a_policy_is_told_of_the_copy_and_its_engine_copies() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let (mover, _) = mover(move |machine, request| {
        let CopyRequest { source_node, target_node, size_bytes, requester, engines, .. } = *request;
        assert!(!machine.nodes().is_empty() && engines.len() > 3, "the own CPU engines can be chosen too");
        told.lock().unwrap().push((source_node, target_node, size_bytes, requester));
        only(match requester {
            Some(NodeId(0)) => 1,
            _ => 2,
        })
    });
    let between = CopyOptions {
        source_node: Some(NodeId(0)),
        target_node: Some(NodeId(1)),
        requester: Some(NodeId(0)),
        ..options()
    };
    let copy = |size_bytes, options| mover.copy(vec![7; size_bytes], vec![0; size_bytes], options).wait();
    assert_eq!(copy(10_000, between).expect("copied").1, [7; 10_000]);
    copy(5000, options()).expect("copied");
    // Of a batch too, where each member may have another engine.
    let mut batch = mover.batch(between);
    let copies: Vec<_> = (0..2).map(|_| batch.copy(vec![1; 100], vec![0; 100])).collect();
    batch.submit();
    copies.into_iter().for_each(|copy| drop(copy.wait().expect("copied")));
    mover.run(vec![0; 300], |bytes| Request::fill(1, bytes), between).wait().expect("filled");
    assert_eq!(bytes_of(&mover), [0, 10_000 + 200 + 300, 5000, 0]);
    let (here, there) = (Some(NodeId(0)), Some(NodeId(1)));
    let of_batch = (here, there, 100, here);
    let all =
        [(here, there, 10_000, here), (None, None, 5000, None), of_batch, of_batch, (here, there, 300, here)];
    assert_eq!(*seen.lock().unwrap(), all);
}

#[test]
fn large_copies_are_split_among_the_chosen_engines() {
    let (mover, engines) = mover(|_, _| {
        [(0, 3), (1, 0), (2, 1)].map(|(engine, weight)| EngineShare { engine, weight }).to_vec()
    });
    for size_bytes in [8 * MIB, 2 * MIB] {
        engines.iter().for_each(|engine| engine.hold());
        let transfer = mover.copy(vec![7; size_bytes], vec![0; size_bytes], options());
        // Before that nobody could take over what others had not begun.
        engines.iter().for_each(|engine| engine.release());
        assert!(transfer.wait().expect("copied").1 == vec![7; size_bytes]);
    }
    let [first, second, third, own] = bytes_of(&mover);
    assert!(first > 0 && third > 0 && first + third == 10 * MIB as u64, "{first} and {third}");
    assert_eq!((second, own), (0, 0), "an engine of weight 0, and engines that were not chosen");
    // Smaller ones go whole to the first engine that has room.
    mover.copy(vec![7; MIB], vec![0; MIB], options()).wait().expect("copied");
    assert_eq!(bytes_of(&mover), [first + MIB as u64, 0, third, 0]);
}

#[test]
fn the_route_decides_where_the_policy_does_not() {
    let (mover, _) = mover(|machine, request| match request.size_bytes {
        size if size < 1000 => Vec::new(),
        _ => request.by_route(machine, Route::Single),
    });
    let from = |node, route| CopyOptions { source_node: Some(NodeId(node)), route, ..options() };
    let copy = |size_bytes, options| {
        mover.copy(vec![7; size_bytes], vec![0; size_bytes], options).wait().expect("copied");
    };
    // The route of the mover: the engine at the source. By `by_route` the same.
    copy(500, from(1, None));
    copy(2000, from(1, None));
    assert_eq!(bytes_of(&mover), [0, 0, 2500, 0]);
    let policy_only = |route| {
        let (mover, _) = self::mover(|_, _| only(2));
        mover.copy(vec![7; 500], vec![0; 500], from(0, route)).wait().expect("copied");
        bytes_of(&mover)[2]
    };
    assert_eq!(
        (policy_only(None), policy_only(Some(Route::Single))),
        (500, 0),
        "a copy's own route comes first"
    );
}

/// If what was chosen is full, the copy waits like any other.
#[test]
fn a_chosen_engine_may_be_full() {
    let (mover, engines) = mover(|_, _| only(0));
    engines[0].hold();
    let copies: Vec<_> = (0..2000).map(|_| mover.copy(vec![7; 5000], vec![0; 5000], options())).collect();
    engines[0].release();
    assert!(copies.into_iter().all(|copy| copy.wait().expect("copied").1 == [7; 5000]));
    let [_, second, third, _] = bytes_of(&mover);
    assert_eq!((second, third), (0, 0), "others were not chosen");
}

#[test]
fn an_engine_that_is_not_there_is_a_bug_of_the_policy() {
    let (mover, _) = mover(|_, _| only(99));
    let copy = || mover.copy(vec![7; 500], vec![0; 500], options());
    let panic = catch_unwind(AssertUnwindSafe(copy)).expect_err("no such engine");
    let text = panic.downcast_ref::<String>().expect("a message");
    assert!(text.contains("engine 99") && text.contains("0 to"), "{text}");
    mover.drain().wait().expect("nothing is left in flight");
}

#[test]
fn a_cache_tells_the_policy_who_reads() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let (mover, _) = mover(move |_, request| {
        told.lock().unwrap().push((request.requester, request.target_node));
        only(2)
    });
    let (home, near) = (NodeId(0), NodeId(1));
    let cache = Cache::builder(mover.clone()).budget(near, MIB).build().expect("a budget");
    let region = cache.register_on(vec![7_u8; 5000], Some(home));
    let access = Access { requester: Some(home), ..Access::near(near) };
    cache.access(&region, 0..5000, access).expect("in range").wait();
    assert_eq!(*seen.lock().unwrap(), [(Some(home), Some(near))]);
    assert_eq!(bytes_of(&mover)[2], 5000);
}

/// G2, section 6.1 of Kuper et al. (2024): below 4 KB a core copies if it would wait for the device.
#[test]
fn copies_that_are_waited_for_need_a_larger_size() {
    let guidelines = Guidelines { llc_bytes: 0, ..Guidelines::of(&mover_support::machine()) };
    let config = DeviceConfig::four_engines();
    let (mover, ..) = mover_of(&config, FaultPlan::none(), DsaOptions::default(), guidelines);
    for (size_bytes, waits, is_by_device) in
        [(255, false, false), (256, false, true), (256, true, false), (4095, true, false), (4096, true, true)]
    {
        let options = CopyOptions { waits, ..options() };
        let copy = mover.copy(vec![7; size_bytes], vec![0; size_bytes], options);
        let (_, _, report) = copy.wait().expect("copied");
        assert_eq!(report.dsa_bytes > 0, is_by_device, "{size_bytes} bytes, waits: {waits}");
    }
}
