//! Many small copies together, in batches of devices, each with its end.

use std::sync::Arc;

use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyError, CopyOptions, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, Guidelines, Mover,
};
use memferry_dsa::{Opcode, Request};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue};

use crate::mover_support;
use crate::mover_support::{check_descriptors, machine};

fn options() -> CopyOptions {
    CopyOptions::default()
}

fn mover_of(
    config: &DeviceConfig,
    fault_plan: FaultPlan,
    dsa: DsaOptions,
) -> (Mover, Arc<DsaEngine>, Arc<Emulator>) {
    mover_support::mover_of(
        config,
        fault_plan,
        dsa,
        Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 0 },
    )
}

fn check_sums(dsa: &DsaEngine) {
    check_descriptors(&dsa.stats(), "of batches");
}

/// Copies of these sizes in one batch, each checked.
fn copy_together(mover: &Mover, sizes: impl Iterator<Item = usize>) {
    let mut batch = mover.batch(options());
    let transfers: Vec<_> = sizes
        .map(|size| {
            let source: Vec<u8> = (0..size).map(|index| (index + size) as u8).collect();
            batch.copy(source, vec![0; size])
        })
        .collect();
    batch.submit();
    for transfer in transfers {
        let (source, target, report) = transfer.wait().expect("copied");
        assert_eq!((source == target, report.bytes()), (true, source.len() as u64));
    }
}

#[test]
fn small_copies_are_members_of_batches() {
    let (mover, dsa, device) =
        mover_of(&DeviceConfig::one_shared_queue(), FaultPlan::none(), DsaOptions::default());
    copy_together(&mover, (0..32).map(|size| 500 + size));
    let stats = dsa.stats();
    // Four batches of eight, as one submission each.
    assert_eq!((stats.descriptors, stats.batches, stats.descriptors_done), (32, 4, 32), "{stats:?}");
    assert_eq!(device.portal(0).counters().accepted, 4);
    // Three are too few, and 5000 bytes too much.
    copy_together(&mover, [500; 3].into_iter());
    copy_together(&mover, [5000; 8].into_iter());
    let stats = dsa.stats();
    assert_eq!((stats.descriptors, stats.batches), (32 + 3 + 8, 4), "{stats:?}");
    check_sums(&dsa);
}

#[test]
fn without_batches_members_go_alone() {
    let silent = DeviceConfig::one_shared_queue().without(&[Opcode::Batch]);
    let (mover, dsa, _device) = mover_of(&silent, FaultPlan::none(), DsaOptions::default());
    copy_together(&mover, [600; 20].into_iter());
    assert_eq!((dsa.stats().batches, dsa.stats().descriptors_done), (0, 20));
    let asked = DsaOptions { batch_len_max: 0, ..DsaOptions::default() };
    let (mover, dsa, _device) = mover_of(&DeviceConfig::one_shared_queue(), FaultPlan::none(), asked);
    copy_together(&mover, [600; 20].into_iter());
    assert_eq!((dsa.stats().batches, dsa.stats().descriptors_done), (0, 20));
}

#[test]
fn more_than_an_engine_takes_is_copied_all_the_same() {
    let queue = dedicated_queue("wq0.0", 1);
    let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]);
    let narrow = DsaOptions { backlog_max: 2, ..DsaOptions::default() };
    let (mover, dsa, _device) = mover_of(&config, FaultPlan::none(), narrow);
    copy_together(&mover, (0..200).map(|size| size % 3 * 700));
    check_sums(&dsa);
    assert!(dsa.stats().rejected > 0, "{:?}", dsa.stats());
}

#[test]
fn faulty_devices_do_batches() {
    let (mut batches, mut faults) = (0, 0);
    for seed in 0..20 {
        println!("seed {seed}");
        let queues = vec![shared_queue("wq0.0", 4), dedicated_queue("wq0.1", 3)];
        let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues }]);
        let (mover, dsa, _device) = mover_of(&config, FaultPlan::from_seed(seed), DsaOptions::default());
        copy_together(&mover, (0..60).map(|number| number * 97 % 4500));
        // Operations of other kinds are members like copies.
        let mut batch = mover.batch(options());
        let crcs: Vec<_> =
            (0..12).map(|byte| batch.run(vec![byte; 700], |bytes| Request::crc(0, &*bytes))).collect();
        batch.submit();
        for crc in crcs {
            let (bytes, crc, _) = crc.wait().expect("done");
            assert_eq!(crc, memferry_dsa::software::crc32c(0, &bytes, Default::default()), "seed {seed}");
        }
        check_sums(&dsa);
        (batches, faults) = (batches + dsa.stats().batches, faults + dsa.stats().faults_resumed);
    }
    assert!(batches > 0 && faults > 0, "{batches} batches, {faults} faults");
}

#[test]
fn a_batch_that_is_not_submitted_abandons_its_copies() {
    let mover = Mover::builder(machine()).build().expect("threads");
    let mut batch = mover.batch(options());
    let transfer = batch.copy(vec![1; 10], vec![0; 10]);
    assert_eq!((batch.len(), batch.is_empty(), transfer.is_done()), (1, false, false));
    drop(batch);
    let error = transfer.wait().expect_err("never begun");
    assert_eq!((error.error, error.buffers), (CopyError::Abandoned, Some((vec![1; 10], vec![0; 10]))));
}

/// Of two engines at one place, the one that is busy is not asked first.
#[test]
fn the_engine_with_less_to_do_is_asked_first() {
    let engine = || {
        let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
        Arc::new(Faulty::new(Arc::new(cpu), Faults::default(), 0).expect("a thread"))
    };
    let engines = [engine(), engine()];
    engines.iter().for_each(|engine| engine.hold());
    let builder = Mover::builder(machine()).engine(engines[0].clone()).engine(engines[1].clone());
    let mover = builder.build().expect("threads");
    let copy = || mover.copy(vec![1; 5000], vec![0; 5000], options());
    let stuck = copy();
    let busy = engines.iter().position(|engine| engine.stats().accepted == 1).expect("one has it");
    engines[1 - busy].release();
    for _ in 0..5 {
        copy().wait().expect("copied");
    }
    assert_eq!([busy, 1 - busy].map(|index| engines[index].stats().accepted), [1, 5]);
    engines[busy].release();
    stuck.wait().expect("copied");
}

/// Below the size at which devices pay, the CPU copies.
#[test]
fn what_is_small_stays_on_the_cpu() {
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).expect("a thread");
    let dsa = Arc::new(DsaEngine::new(vec![device.portal(0)], DsaOptions::default()).expect("a thread"));
    let mover = Mover::builder(machine()).engine(dsa.clone()).build().expect("threads");
    let least = mover.guidelines().offload_bytes_min;
    for (size, accepted) in [(least - 1, 0), (least, 1)] {
        mover.copy(vec![1; size], vec![0; size], options()).wait().expect("copied");
        assert_eq!(dsa.stats().accepted, accepted, "{size} bytes");
    }
    mover.run((), |()| Request::noop(), options()).wait().expect("done");
    assert_eq!(dsa.stats().accepted, 2, "a no-op is for the device");
}
