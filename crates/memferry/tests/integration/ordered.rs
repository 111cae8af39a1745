//! The ordered pipeline: whatever the devices do, copies leave it in the order in which they came.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memferry::internals::{Faults, Faulty};
use memferry::mover::Ordered;
use memferry::mover::{
    CopyError, CopyOptions, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Guidelines, Mover, MoverError,
};
use memferry::topology::Machine;
use memferry_dsa::Portal;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use proptest::prelude::*;

fn machine() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().expect("built in"))
}

fn on_device(fault_plan: FaultPlan) -> (Mover, Arc<Emulator>) {
    let device = Emulator::start(&DeviceConfig::four_engines(), fault_plan).expect("a valid configuration");
    let portals: Vec<Arc<dyn Portal>> = vec![device.portal(0)];
    let dsa = DsaEngine::new(portals, DsaOptions::default()).expect("a thread");
    let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 0 };
    let builder = Mover::builder(machine()).guidelines(guidelines).engine(Arc::new(dsa));
    (builder.build().expect("threads"), device)
}

/// A mover whose copies end when the engine is released, late and out of order.
fn held(faults: Faults) -> (Mover, Arc<Faulty>) {
    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let faulty = Arc::new(Faulty::new(Arc::new(cpu), faults, 3).expect("a thread"));
    (Mover::builder(machine()).engine(faulty.clone()).build().expect("threads"), faulty)
}

fn pipeline(mover: &Mover, len_max: usize) -> Ordered<Vec<u8>, Vec<u8>> {
    Ordered::new(mover.clone(), len_max, CopyOptions::default()).expect("not empty")
}

/// A packet that says its number.
fn packet(number: usize, size: usize) -> Vec<u8> {
    let mut packet = vec![(number * 7) as u8; size.max(8)];
    packet[..8].copy_from_slice(&number.to_le_bytes());
    packet
}

fn number(packet: &[u8]) -> usize {
    usize::from_le_bytes(packet[..8].try_into().expect("8 bytes"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn faulty_devices_change_no_order(
        seed in any::<u64>(),
        len_max in 1_usize..80,
        bursts in prop::collection::vec((1_usize..40, any::<bool>()), 1..20),
    ) {
        let (mover, _device) = on_device(FaultPlan::from_seed(seed));
        let mut pipeline = pipeline(&mover, len_max);
        let (mut submitted, mut retired) = (0, 0);
        let mut check = |outcome: Option<Result<(Vec<u8>, Vec<u8>, _), _>>| {
            let Some(outcome) = outcome else { return false };
            let (source, target, _) = outcome.expect("copied");
            assert!(source == target, "bytes differ");
            assert_eq!(number(&target), retired, "out of order");
            retired += 1;
            true
        };
        for (len, waits) in bursts {
            let mut burst: Vec<_> = (submitted..submitted + len)
                .map(|number| (packet(number, number * 131 % 1500), vec![0; (number * 131 % 1500).max(8)]))
                .collect();
            submitted += len;
            while !burst.is_empty() {
                pipeline.submit_burst(&mut burst);
                prop_assert!(pipeline.len() <= len_max);
                if !burst.is_empty() {
                    prop_assert_eq!(pipeline.room(), 0, "what has room is taken");
                    check(pipeline.retire_wait());
                }
            }
            while if waits { check(pipeline.retire_wait()) } else { check(pipeline.retire()) } {}
        }
        while check(futures::executor::block_on(pipeline.next())) {}
        prop_assert_eq!((retired, pipeline.is_empty()), (submitted, true));
    }
}

#[test]
fn a_full_pipeline_hands_back_and_the_oldest_comes_first() {
    let (mover, engine) = held(Faults::default());
    engine.hold();
    let mut pipeline = pipeline(&mover, 2);
    assert!(pipeline.retire().is_none() && pipeline.retire_wait().is_none(), "empty");
    for number in 0..2 {
        pipeline.submit(packet(number, 100), vec![0; 100]).expect("room");
    }
    let refused = pipeline.submit(packet(2, 100), vec![0; 100]).expect_err("two are in flight");
    assert_eq!((number(&refused.0), refused.1.len()), (2, 100));
    let mut burst = vec![refused];
    pipeline.submit_burst(&mut burst);
    assert_eq!((burst.len(), pipeline.len(), pipeline.room()), (1, 2, 0));
    assert!(pipeline.retire().is_none(), "nothing is done");
    engine.release();
    let first = pipeline.retire_wait().expect("two are under way").expect("copied");
    assert_eq!(number(&first.1), 0);
    pipeline.submit_burst(&mut burst);
    for expected in [1, 2] {
        let next = pipeline.retire_wait().expect("under way").expect("copied");
        assert_eq!(number(&next.1), expected);
    }
    let nothing = Ordered::<Vec<u8>, Vec<u8>>::new(mover, 0, CopyOptions::default());
    assert!(matches!(nothing, Err(MoverError::NoQueue)));
}

#[test]
fn errors_come_in_their_turn_and_stop_nothing() {
    let (mover, _engine) = held(Faults { fail_per_mille: 400, ..Faults::default() });
    let mut pipeline = pipeline(&mover, 100);
    for number in 0..60 {
        // Every tenth is of the wrong length, and known to fail at once.
        let target = if number % 10 == 9 { vec![0; 99] } else { vec![0; 100] };
        pipeline.submit(packet(number, 100), target).expect("room");
    }
    let (mut copied, mut failed) = (0, 0);
    for expected in 0..60 {
        match pipeline.retire_wait().expect("sixty were submitted") {
            Ok((_, target, _)) => {
                assert_eq!(number(&target), expected);
                copied += 1;
            }
            Err(error) => {
                let (source, _) = error.buffers.expect("given back");
                assert_eq!(number(&source), expected, "in its turn");
                let is_wrong = matches!(error.error, CopyError::LengthMismatch { .. });
                assert_eq!(is_wrong, expected % 10 == 9);
                failed += 1;
            }
        }
    }
    assert!(copied > 6 && failed > 6, "{copied} copied, {failed} failed");
}

#[test]
fn a_device_that_dies_fails_what_it_had_in_order() {
    let (mover, device) = on_device(FaultPlan { delay_steps_max: 1000, ..FaultPlan::from_seed(5) });
    let mut pipeline = pipeline(&mover, 64);
    let mut burst: Vec<_> = (0..64).map(|number| (packet(number, 1000), vec![0; 1000])).collect();
    pipeline.submit_burst(&mut burst);
    device.abort();
    for expected in 0..64 {
        match pipeline.retire_wait().expect("sixty-four were submitted") {
            Ok((_, target, _)) => assert_eq!(number(&target), expected),
            Err(error) => assert_eq!(error.error, CopyError::DeviceLost),
        }
    }
    assert!(pipeline.is_empty());
}

/// Counts its drops.
struct Witness(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Witness {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Witness {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_dropped_pipeline_frees_nothing_that_is_under_way() {
    let (mover, engine) = held(Faults::default());
    let drops = Arc::new(AtomicUsize::new(0));
    engine.hold();
    let mut pipeline = Ordered::new(mover.clone(), 10, CopyOptions::default()).expect("not empty");
    for _ in 0..5 {
        let witness = || Witness(vec![0; 5000], drops.clone());
        assert!(pipeline.submit(witness(), witness()).is_ok());
    }
    drop(pipeline);
    assert_eq!(drops.load(Ordering::SeqCst), 0, "freed while an engine has it");
    engine.release();
    // Both hold the engine, which reports all that it has before it goes.
    drop((mover, engine));
    assert_eq!(drops.load(Ordering::SeqCst), 10);
}
