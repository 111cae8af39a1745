//! Ordering rules: the device uses every freedom that the specification allows.

use memferry_dsa::{Address, Descriptor, Flags, Status, Submission};
use memferry_dsa_emulator::{Access, DeviceConfig, FaultPlan, GroupConfig, shared_queue};

use crate::common::{PASID, complete, generous, pattern, record, run};
#[allow(dead_code)] // each test program uses a part
use crate::oracle;

const DATA: Address = Address(0x10_0000);
const LIST: Address = Address(0x20_0000);

fn fault_plan(seed: u64) -> FaultPlan {
    FaultPlan { page_faults_per_mille: 0, retries_per_mille: 0, ..FaultPlan::from_seed(seed) }
}

/// A copy, and a copy of its target directly after it: on one engine the second may read too early, and
/// still its write comes second.
#[test]
fn reads_pass_writes_and_writes_do_not_pass_writes() {
    let (source, middle, target) = (DATA, DATA.offset(0x1000), DATA.offset(0x2000));
    let mut stale = 0;
    for seed in 0..200 {
        let mut run = run(&DeviceConfig::one_shared_queue(), fault_plan(seed));
        run.memory.map(DATA, 0x3000);
        let (old, new) = (pattern(600, 1), pattern(600, 2));
        run.memory.store(source, &new);
        run.memory.store(middle, &old);
        for (number, copy) in
            [Descriptor::memmove(source, middle, 600), Descriptor::memmove(middle, target, 600)]
                .into_iter()
                .enumerate()
        {
            let copy = copy.with_completion_at(record(number as u32));
            assert_eq!(run.device.submit(0, &copy, PASID), Ok(Submission::Accepted));
        }
        run.run_until_idle();
        let copied = run.memory.load(target, 600);
        let is_mix = copied.iter().zip(old.iter().zip(&new)).all(|(is, (old, new))| is == old || is == new);
        assert!(is_mix, "seed {seed}: bytes from nowhere");
        stale += usize::from(copied != new);
        assert_eq!(run.memory.load(middle, 600), new, "seed {seed}");
        // In the order of the writes, all of the first copy's come before all of the second's.
        let visits = run.memory.visits();
        let writes = visits
            .iter()
            .filter(|visit| visit.access == Access::Write && visit.address < DATA.offset(0x3000));
        let places: Vec<_> = writes.map(|visit| visit.address.page()).collect();
        assert!(places.is_sorted(), "seed {seed}: {places:?}");
    }
    assert!(stale > 20, "only in {stale} of 200 runs the second copy read too early");
}

/// Descriptors of different queues overtake each other even on one engine.
#[test]
fn queues_are_not_ordered_against_each_other() {
    let queues = vec![shared_queue("wq0.0", 8), shared_queue("wq0.1", 8)];
    let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues }]);
    let overtaken = (0..200).filter(|seed| {
        let mut run = run(&config, FaultPlan { delay_steps_max: 0, ..fault_plan(*seed) });
        run.memory.map(DATA, 0x8000);
        for queue in 0..2 {
            let copy = Descriptor::memmove(DATA, DATA.offset(0x4000), if queue == 0 { 16_000 } else { 10 });
            let copy = copy.with_completion_at(record(queue));
            assert_eq!(run.device.submit(queue as usize, &copy, PASID), Ok(Submission::Accepted));
        }
        while run.memory.poll(record(1)).is_none() {
            run.step();
        }
        let overtook = run.memory.poll(record(0)).is_none();
        run.run_until_idle();
        overtook
    });
    let overtaken = overtaken.count();
    assert!(overtaken > 20, "only in {overtaken} of 200 runs");
}

/// Members of one batch run on several engines at once, and the batch is still right.
#[test]
fn batches_are_spread() {
    let mut side_by_side = 0;
    for seed in 0..100 {
        let fault_plan =
            FaultPlan { spread_batches_per_mille: 1000, piece_bytes_max: 100, ..fault_plan(seed) };
        let mut run = run(&generous(DeviceConfig::four_engines()), fault_plan);
        run.memory.map(DATA, 0x8000);
        run.memory.map(LIST, 4096);
        run.memory.store(DATA, &pattern(0x1000, seed));
        for number in 0..40u64 {
            // Eight copies of a chunk, a fence, eight copies of the copies, and so on.
            let round = number / 8;
            let from = DATA.offset(round * 0x1000 + number % 8 * 500);
            let copy = Descriptor::memmove(from, from.offset(0x1000), 500)
                .with_completion_at(record(number as u32 + 1));
            let copy = if number % 8 == 0 { copy.with_flags(Flags::FENCE) } else { copy };
            run.memory.store(LIST.offset(number * 64), &copy.to_bytes());
        }
        let completion = complete(&mut run, Descriptor::batch(LIST, 40)).unwrap();
        assert_eq!((completion.status, completion.bytes_completed), (Status::Success, 40), "seed {seed}");
        assert_eq!(run.memory.load(DATA.offset(0x5000), 4000), pattern(0x1000, seed)[..4000], "seed {seed}");
        // A copy that continues after another one has started.
        let visits = run.memory.visits();
        let reads = visits.iter().filter(|visit| visit.access == Access::Read && visit.address < LIST);
        let chunks: Vec<u64> = reads.map(|visit| (visit.address.0 - DATA.0) / 500).collect();
        let mut begun = chunks.clone();
        begun.dedup();
        let distinct: std::collections::BTreeSet<_> = chunks.iter().collect();
        side_by_side += usize::from(begun.len() > distinct.len());
    }
    assert!(side_by_side > 90, "only in {side_by_side} of 100 runs");
}

/// One batch with members of every kind, fences between those that depend on each other, on faulty devices.
#[test]
fn a_batch_of_everything() {
    let [a, b, c, d, e] = [0u64, 1, 2, 3, 4].map(|page| DATA.offset(page * 0x1000));
    let fenced = |descriptor: Descriptor| descriptor.with_flags(Flags::FENCE);
    for seed in 0..200 {
        let mut run = run(&generous(DeviceConfig::four_engines()), fault_plan(seed));
        run.memory.map(DATA, 0x8000);
        run.memory.map(LIST, 4096);
        let data = pattern(1024, seed);
        run.memory.store(a, &data);
        let members = [
            Descriptor::memmove(a, b, 1024),
            Descriptor::fill(0, c, 1024),
            Descriptor::cache_flush(a, 1024),
            fenced(Descriptor::compare(a, b, 1024)),
            Descriptor::compare_pattern(0, c, 1024),
            Descriptor::create_delta(c, b, 1024, d, 2000),
            fenced(Descriptor::noop()),
            Descriptor::dualcast(a, c, e, 1024),
            Descriptor::crc(0, b, 9),
            // The CRC of the member before, in its record, is the seed of this one.
            fenced(Descriptor::crc(0, b.offset(9), 1015).with_crc_seed_at(record(9).offset(16))),
            fenced(Descriptor::copy_crc(0, e, b.offset(2048), 1024)),
        ];
        for (number, member) in members.iter().enumerate() {
            let member = member.with_completion_at(record(number as u32 + 1));
            run.memory.store(LIST.offset(number as u64 * 64), &member.to_bytes());
        }
        let completion = complete(&mut run, Descriptor::batch(LIST, members.len() as u32)).unwrap();
        assert_eq!(completion.status, Status::Success, "seed {seed}: {completion:?}");
        let crc = oracle::crc32c(0, &data, false, false);
        assert_eq!(run.memory.poll(record(10)).unwrap().crc(), crc, "seed {seed}");
        assert_eq!(run.memory.poll(record(11)).unwrap().crc(), crc, "seed {seed}");
        assert_eq!(run.memory.load(b.offset(2048), 1024), data, "seed {seed}");
        let record_of_delta = run.memory.poll(record(6)).unwrap();
        assert_eq!(
            run.memory.load(d, record_of_delta.delta_bytes() as usize),
            oracle::delta(&[0; 1024], &data)
        );
        let counters = run.device.counters();
        assert_eq!((counters.completed_count(), counters.in_flight()), (12, 0), "seed {seed}");
    }
}
