//! Threads keep to one of several equal engines. The only test of its program, since threads are numbered.

use std::sync::Arc;
use std::thread;

use memferry::internals::{Faults, Faulty};
use memferry::mover::{CopyOptions, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, Guidelines, Mover};
use memferry::topology::Machine;
use memferry_dsa::Portal;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue};

fn mover(engines: [Arc<dyn Engine>; 2]) -> Mover {
    let machine = Arc::new(Machine::two_tiers().expect("built in"));
    let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 0 };
    let [one, other] = engines;
    Mover::builder(machine).guidelines(guidelines).engine(one).engine(other).build().expect("threads")
}

fn accepted(mover: &Mover) -> [u64; 2] {
    let stats = mover.stats();
    [stats.engines[0].accepted, stats.engines[1].accepted]
}

fn copy(mover: &Mover, size_bytes: usize) -> memferry::mover::Transfer<Vec<u8>, Vec<u8>> {
    mover.copy(vec![1; size_bytes], vec![0; size_bytes], CopyOptions::default())
}

#[test]
fn each_thread_has_an_engine_and_leaves_it_for_one_with_less_to_do() {
    // Two dedicated queues, each with an engine of its own.
    let devices = [(); 2].map(|()| {
        Emulator::start(&DeviceConfig::one_dedicated_queue(), FaultPlan::none()).expect("a thread")
    });
    let engine = |device: &Arc<Emulator>| -> Arc<dyn Engine> {
        Arc::new(DsaEngine::new(vec![device.portal(0)], DsaOptions::default()).expect("a thread"))
    };
    let dedicated = mover([engine(&devices[0]), engine(&devices[1])]);
    for round in 1..=4 {
        // Both have the same to do, and so the next thread's turn is the other's.
        for _ in 0..2 {
            let before = accepted(&dedicated);
            thread::scope(|scope| {
                scope.spawn(|| (0..50).for_each(|_| assert!(copy(&dedicated, 1000).wait().is_ok())));
            });
            let after = accepted(&dedicated);
            let gains = [after[0] - before[0], after[1] - before[1]];
            assert!(gains == [50, 0] || gains == [0, 50], "{gains:?}");
        }
        assert_eq!(accepted(&dedicated), [50 * round; 2], "threads are dealt out");
    }

    // Whose home has a batch more to do than the other goes there; back again when that has as much.
    let held = [(); 2].map(|()| {
        let cpu =
            CpuEngine::new(&Machine::two_tiers().expect("built in"), CpuOptions::default()).expect("threads");
        let held = Arc::new(Faulty::new(Arc::new(cpu), Faults::default(), 0).expect("a thread"));
        held.hold();
        held
    });
    for (size_bytes, mut expected) in [(1000, [12, 8]), (5000, [10, 10])] {
        let mover = mover([held[0].clone(), held[1].clone()]);
        let before = accepted(&mover);
        let copies: Vec<_> = (0..20).map(|_| copy(&mover, size_bytes)).collect();
        let after = accepted(&mover);
        let mut gains = [after[0] - before[0], after[1] - before[1]];
        gains.sort_unstable();
        expected.sort_unstable();
        assert_eq!(gains, expected, "{size_bytes} bytes");
        held.iter().for_each(|engine| engine.release());
        copies.into_iter().for_each(|copy| assert!(copy.wait().is_ok()));
        held.iter().for_each(|engine| engine.hold());
    }

    // Within one engine: small copies go to the thread's queue, others to each in turn.
    let queues = vec![dedicated_queue("wq0.0", 8), dedicated_queue("wq0.1", 8)];
    let device =
        Emulator::start(&DeviceConfig::new(vec![GroupConfig { engines: 1, queues }]), FaultPlan::none())
            .expect("a thread");
    let portals = [device.portal(0), device.portal(1)];
    let submitted = || portals.each_ref().map(|portal| portal.counters().accepted);
    let both = portals.iter().cloned().map(|portal| -> Arc<dyn Portal> { portal }).collect();
    let engine = Arc::new(DsaEngine::new(both, DsaOptions::default()).expect("a thread"));
    let mover = mover([engine.clone(), engine]);
    for (size_bytes, is_small) in [(1000, true), (1000, true), (1 << 20, false)] {
        let before = submitted();
        thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| assert!(copy(&mover, size_bytes).wait().is_ok())));
        });
        let after = submitted();
        let gains = [after[0] - before[0], after[1] - before[1]];
        let keeps = gains == [50, 0] || gains == [0, 50];
        assert!(if is_small { keeps } else { gains == [25, 25] }, "{size_bytes} bytes: {gains:?}");
    }
    assert_eq!(submitted()[0], submitted()[1], "threads are dealt out");
}
