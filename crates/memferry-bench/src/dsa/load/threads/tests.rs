use memferry_dsa::{Flags, WorkQueueInfo};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, shared_queue};

use super::super::work::BYTE;
use super::*;
use crate::dsa::device;

/// Bytes that start on a page.
struct Paged(Vec<u8>, usize, usize);

impl Paged {
    fn new(bytes: usize) -> Paged {
        let all = vec![BYTE; bytes + 4096];
        let begin = all.as_ptr().align_offset(4096);
        Paged(all, begin, bytes)
    }
}

impl AsMut<[u8]> for Paged {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + self.2]
    }
}

fn lane(load: Load, executor: Executor) -> Lane<Paged> {
    let bytes = Lane::<Paged>::region_bytes(&load);
    let extra = Lane::<Paged>::extra_bytes(&load);
    let regions = [bytes, bytes, extra].map(Paged::new);
    Lane { load, executor, cpu: None, times_submissions: true, placed: Placed::default(), regions }
}

fn load(work: LoadOperation, batch: u32) -> Load {
    Load { work, size_bytes: 4096, batch, depth: 2, repetitions: 5, pages: PageState::Touched }
}

/// Every operation runs on cores and through a queue, as often as requested and with its effect.
#[test]
fn all_operations_everywhere() {
    let emulator = device::emulated().unwrap();
    for executor in [Executor::Core, Executor::Queue(emulator.portal(0))] {
        for batch in [1, 4] {
            let before = emulator.counters().completed_count();
            for work in LoadOperation::ALL {
                let lanes =
                    vec![lane(load(work, batch), executor.clone()), lane(load(work, batch), Executor::Core)];
                let (seen, _) = threads(lanes, 3).unwrap();
                assert_eq!(seen.len(), 3);
                assert!(
                    seen.iter().flatten().all(|seen| seen.elapsed_ns > seen.submitting_ns.unwrap_or(0.0)),
                    "{work}: {seen:?}"
                );
            }
            let members = if batch == 1 { 1 } else { batch + 1 };
            let expected =
                if matches!(executor, Executor::Core) { 0 } else { 14 * 3 * 5 * u64::from(members) };
            assert_eq!(emulator.counters().completed_count() - before, expected);
        }
    }
}

/// With one submission at a time descriptors are made anew, and the phases are within the elapsed time.
#[test]
fn phases_of_a_submission() {
    let emulator = device::emulated().unwrap();
    for (depth, batch) in [(1, 1), (1, 4), (2, 4)] {
        let load = Load { depth, ..load(LoadOperation::Crc, batch) };
        let (seen, _) = threads(vec![lane(load, Executor::Queue(emulator.portal(0)))], 1).unwrap();
        let SubmitterTimes { elapsed_ns, allocating_ns, preparing_ns, submitting_ns, .. } = seen[0][0];
        assert_eq!((allocating_ns.is_some(), preparing_ns.is_some()), (depth == 1, depth == 1));
        let phases: f64 = [allocating_ns, preparing_ns, submitting_ns].into_iter().flatten().sum();
        assert!(submitting_ns.is_some_and(|ns| ns > 0.0) && phases < elapsed_ns, "{seen:?}");
    }
    let mut plain = lane(load(LoadOperation::Copy, 1), Executor::Queue(emulator.portal(0)));
    plain.times_submissions = false;
    let (seen, _) = threads(vec![plain], 1).unwrap();
    assert_eq!(seen[0][0], SubmitterTimes { elapsed_ns: seen[0][0].elapsed_ns, ..SubmitterTimes::default() });
}

#[test]
fn targets_go_where_they_should() {
    let emulator = device::emulated().unwrap();
    let placed = |is_target_cached: bool| Placed { is_source_cached: !is_target_cached, is_target_cached };
    for (depth, batch) in [(1, 1), (2, 4)] {
        for is_target_cached in [false, true] {
            let load = Load { depth, ..load(LoadOperation::Copy, batch) };
            let mut placed_lane = lane(load, Executor::Queue(emulator.portal(0)));
            placed_lane.placed = placed(is_target_cached);
            let regions = placed_lane.regions.each_mut().map(AsMut::as_mut);
            let portal = emulator.portal(0);
            let made = Queue::new(&*portal, &load, placed(is_target_cached), regions).made;
            let copies = made.lists.iter().flatten().chain(&made.descriptors);
            let copies = copies.filter(|it| it.opcode() == Ok(memferry_dsa::Opcode::Memmove));
            let flags: Vec<bool> = copies.map(|it| it.flags().contains(Flags::CACHE_CONTROL)).collect();
            assert_eq!(flags, vec![is_target_cached; depth * batch as usize]);
            placed_lane.regions[0].as_mut().fill(9);
            let (_, mut lanes) = threads(vec![placed_lane], 2).unwrap();
            assert!(lanes[0].regions[1].as_mut().iter().all(|byte| *byte == 9), "whole after a flush");
        }
    }
    let mut wrong = lane(load(LoadOperation::Fill, 1), Executor::Queue(emulator.portal(0)));
    wrong.placed = placed(true);
    assert!(matches!(threads(vec![wrong], 1), Err(LoadError::Load(_))));
}

/// The device stops at absent pages and resumes after each; every copy arrives in its own part.
#[test]
fn copies_to_absent_pages_arrive() {
    let fault_plan = FaultPlan { page_faults_per_mille: 500, ..FaultPlan::none() };
    let queue = WorkQueueInfo { block_on_fault: false, ..shared_queue("wq0.0", 8) };
    let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues: vec![queue] }]);
    let emulator = Emulator::start(&config, fault_plan).unwrap();
    let absent = |pages, executor| {
        let load = Load { pages, size_bytes: 3 * 4096, ..load(LoadOperation::Copy, 1) };
        let mut lane = lane(load, executor);
        lane.regions[1] = Paged::new(Lane::<Paged>::target_bytes(&load));
        lane.regions[0].as_mut().fill(9);
        lane
    };
    let executor = || Executor::Queue(emulator.portal(0));
    let (seen, mut lanes) = threads(vec![absent(PageState::AbsentResume, executor())], 1).unwrap();
    assert!(seen[0][0].faults_count > 0, "{seen:?}");
    let target = lanes[0].regions[1].as_mut();
    assert_eq!(target.len(), 5 * 3 * 4096);
    assert!(target.iter().all(|byte| *byte == 9));
    for (wrong, iterations, word) in [
        (absent(PageState::AbsentBlock, executor()), 1, "block_on_fault"),
        (absent(PageState::AbsentResume, executor()), 2, "new lanes"),
        (absent(PageState::AbsentResume, Executor::Core), 1, "does not resume"),
    ] {
        let Err(error) = threads(vec![wrong], iterations) else { panic!("{word}") };
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn data_is_flushed_unless_it_is_to_be_cached() {
    use Before::{Flushed, Left, Read};
    let of = |is_source_cached, is_target_cached, is_core| {
        before(PageState::Touched, Placed { is_source_cached, is_target_cached }, is_core)
    };
    assert_eq!(of(false, false, true), [Flushed; 3]);
    assert_eq!(of(true, false, false), [Read, Flushed, Flushed]);
    assert_eq!(of(false, true, true), [Flushed, Read, Read]);
    // The device writes its target to a cache.
    assert_eq!(of(true, true, false), [Read, Flushed, Flushed]);
    assert_eq!(before(PageState::AbsentResume, Placed::default(), false), [Flushed, Left, Flushed]);
}

#[test]
fn copies_arrive() {
    let emulator = device::emulated().unwrap();
    let mut copying = lane(load(LoadOperation::Copy, 1), Executor::Queue(emulator.portal(0)));
    copying.regions[0].as_mut().fill(9);
    let (_, lanes) = threads(vec![copying], 1).unwrap();
    let mut lanes = lanes;
    assert!(lanes[0].regions[1].as_mut().iter().all(|byte| *byte == 9));
}

#[test]
fn a_device_that_is_gone_is_an_error() {
    let emulator = device::emulated().unwrap();
    let lanes = vec![
        lane(load(LoadOperation::Copy, 1), Executor::Queue(emulator.portal(0))),
        lane(load(LoadOperation::Copy, 1), Executor::Core),
    ];
    emulator.abort();
    assert!(matches!(threads(lanes, 3), Err(LoadError::BackoffError(_))));
}

#[test]
fn parts_come_in_turn() {
    let begins = |mut round: Round, count| (0..count).map(|_| round.next()).collect::<Vec<_>>();
    assert_eq!(begins(Round::new(3 * 4096, 100), 4), [0..100, 4096..4196, 8192..8292, 0..100]);
    assert_eq!(begins(Round::new(4096 + 100, 5000), 2), [0..5000, 0..5000]);
    assert_eq!(begins(Round::new(1, 0), 2), [0..0, 0..0], "an operation without a third region");
}
