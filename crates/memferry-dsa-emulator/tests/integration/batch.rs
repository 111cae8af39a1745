//! Batches: members, fences, abandoned members, and the batch's own completion record.

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion, Descriptor, Flags, Status};
use memferry_dsa_emulator::{DeviceConfig, FaultPlan};

use crate::common;
use crate::common::{PASID, complete, generous, pattern, record, run, submit};

const LIST: Address = Address(0x20_0000);
const DATA: Address = Address(0x40_0000);

/// Writes the members to the list; record `i + 1` is that of member `i`.
fn write_list(run: &common::Run, members: &[Descriptor]) {
    run.memory.map(LIST, members.len() * 64);
    for (index, member) in members.iter().enumerate() {
        let member = member.with_completion_at(record(index as u32 + 1));
        run.memory.store(LIST.offset(index as u64 * 64), &member.to_bytes());
        common::reset(run, index as u32 + 1);
    }
}

/// Runs a batch; returns the batch's completion, and the status of each member whose record was written.
fn batch(run: &mut common::Run, members: &[Descriptor]) -> (Completion, Vec<Option<Status>>) {
    write_list(run, members);
    let count = members.len() as u32;
    let completion = complete(run, Descriptor::batch(LIST, count)).expect("the batch completes");
    let statuses =
        (1..=count).map(|index| run.memory.poll(record(index)).map(|completion| completion.status));
    let statuses = statuses.collect();
    let counters = run.device.counters();
    assert_eq!(counters.in_flight(), 0);
    (completion, statuses)
}

fn device(fault_plan: FaultPlan) -> common::Run {
    let run = run(&generous(DeviceConfig::one_shared_queue()), fault_plan);
    run.memory.map(DATA, 64 << 10);
    run
}

fn good() -> Descriptor {
    Descriptor::noop()
}

fn bad() -> Descriptor {
    Descriptor::memmove(DATA, DATA, 0)
}

fn fenced(descriptor: Descriptor) -> Descriptor {
    descriptor.with_flags(Flags::FENCE)
}

const OK: Option<Status> = Some(Status::Success);
const BAD: Option<Status> = Some(Status::BadSize);

#[test]
fn all_members_succeed() {
    for size in [2, 3, 64, 65, 200, 1024] {
        let (completion, members) = batch(&mut device(FaultPlan::none()), &vec![good(); size]);
        assert_eq!((completion.status, completion.bytes_completed), (Status::Success, size as u32));
        assert_eq!(members, vec![OK; size]);
    }
}

/// Without a fence the other members are executed.
#[test]
fn a_failure_does_not_stop_the_others() {
    let (completion, members) = batch(&mut device(FaultPlan::none()), &[good(), bad(), good(), good()]);
    assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 4));
    assert_eq!(members, [OK, BAD, OK, OK]);
}

/// A fence after a failure abandons its member and all members behind it, fenced or not.
#[test]
fn a_fence_after_a_failure_abandons_the_rest() {
    let mut run = device(FaultPlan::none());
    let (completion, members) = batch(&mut run, &[bad(), good(), fenced(good()), good(), fenced(good())]);
    assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 2));
    assert_eq!(members, [BAD, OK, None, None, None]);
    assert_eq!((run.device.counters().members, run.device.counters().members_abandoned), (2, 3));
}

#[test]
fn a_fence_on_the_first_member_has_no_effect() {
    let (completion, members) =
        batch(&mut device(FaultPlan::none()), &[fenced(bad()), good(), fenced(good())]);
    assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 2));
    assert_eq!(members, [BAD, OK, None]);
}

/// A failure of the last member fails the batch, although no member follows.
#[test]
fn the_last_member_counts() {
    let (completion, members) = batch(&mut device(FaultPlan::none()), &[good(), fenced(bad())]);
    assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 2));
    assert_eq!(members, [OK, BAD]);
}

#[test]
fn batches_and_drains_are_refused_as_members() {
    let inner = Descriptor::batch(LIST, 2);
    let (completion, members) = batch(&mut device(FaultPlan::none()), &[inner, Descriptor::drain(), good()]);
    assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 3));
    assert_eq!(members, [Some(Status::BadOpcode), Some(Status::BadOpcode), OK]);
}

/// A member has the PASID of its batch; the device ignores the one in the list.
#[test]
fn members_belong_to_the_submitter_of_the_batch() {
    let mut run = device(FaultPlan::none());
    run.memory.map(LIST, 128);
    let mut words = Descriptor::memmove(DATA, DATA, 0).to_words();
    words[0] |= 1 << 31 | 5; // privileged, and of another address space; no record
    run.memory.store(LIST, &Descriptor::from_words(words).to_bytes());
    run.memory.store(LIST.offset(64), &good().to_bytes());
    let completion = complete(&mut run, Descriptor::batch(LIST, 2)).unwrap();
    assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 2));
    let error = run.device.take_error().expect("a failure without a record");
    assert_eq!((error.status, error.pasid, error.batch_member), (Status::BadSize, Some(PASID), Some(0)));
}

#[test]
fn invalid_batches_are_refused() {
    let config = DeviceConfig::one_shared_queue();
    let max = config.groups[0].queues[0].batch_max;
    let mut run = run(&config, FaultPlan::none());
    run.memory.map(LIST, 4096);
    for (list, count, expected) in [
        (LIST, 0, Status::BadCount),
        (LIST, 1, Status::BadCount),
        (LIST, max + 1, Status::BadCount),
        (LIST.offset(32), 2, Status::ListAlignment),
        (LIST.offset(32), 1, Status::BadCount),
        (LIST, max, Status::Success),
    ] {
        assert_eq!(common::status(&mut run, Descriptor::batch(list, count)), Some(expected));
    }
}

/// A list that continues on an unmapped page: the members before it are executed, and software resumes after them.
#[test]
fn a_list_with_an_unmapped_page() {
    let mut run = device(FaultPlan::none());
    let (readable, count) = (3, 8);
    let list = LIST.offset(PAGE_BYTES - readable * 64);
    run.memory.map(LIST, PAGE_BYTES as usize);
    for index in 0..readable {
        let member = good().with_completion_at(record(index as u32 + 1));
        run.memory.store(list.offset(index * 64), &member.to_bytes());
    }
    let completion = complete(&mut run, Descriptor::batch(list, count as u32)).unwrap();
    assert_eq!(completion.status_byte(), 0x06);
    assert_eq!(completion.bytes_completed, readable as u32);
    assert_eq!(completion.fault_address, LIST.offset(PAGE_BYTES));
    for index in 1..=readable as u32 {
        assert_eq!(run.memory.poll(record(index)).unwrap().status, Status::Success);
    }

    let rest = LIST.offset(PAGE_BYTES);
    run.memory.map(rest, PAGE_BYTES as usize);
    for index in readable..count {
        let member = good().with_completion_at(record(index as u32 + 1));
        run.memory.store(rest.offset((index - readable) * 64), &member.to_bytes());
        common::reset(&run, index as u32 + 1);
    }
    let completion = complete(&mut run, Descriptor::batch(rest, (count - readable) as u32)).unwrap();
    assert_eq!(completion.status, Status::Success);
    for index in readable + 1..=count {
        assert_eq!(run.memory.poll(record(index as u32)).unwrap().status, Status::Success);
    }
}

/// The device requests an absent page of the list, with any flags.
#[test]
fn an_absent_list_is_brought_in() {
    let mut run = device(FaultPlan::none());
    write_list(&run, &[good(), good()]);
    run.memory.page_out(LIST);
    assert_eq!(common::status(&mut run, Descriptor::batch(LIST, 2)), Some(Status::Success));
    assert_eq!(run.device.counters().page_requests, 1);
}

/// A chain of copies, each from the target of the previous one: correct only if every fence holds.
#[test]
fn fences_order_a_chain_of_copies() {
    const LINKS: u64 = 40;
    for seed in 0..200 {
        let fault_plan = FaultPlan { page_faults_per_mille: 0, ..FaultPlan::from_seed(seed) };
        let mut run = device(fault_plan);
        run.memory.store(DATA, &pattern(512, seed));
        let link = |index: u64| DATA.offset(index * 1000);
        let copies: Vec<_> =
            (0..LINKS).map(|index| fenced(Descriptor::memmove(link(index), link(index + 1), 512))).collect();
        let (completion, members) = batch(&mut run, &copies);
        assert_eq!(completion.status, Status::Success, "seed {seed}");
        assert_eq!(members, vec![OK; LINKS as usize], "seed {seed}");
        assert_eq!(run.memory.load(link(LINKS), 512), pattern(512, seed), "seed {seed}");
    }
}

/// When a fenced member starts, and when the batch completes, all earlier records are written.
#[test]
fn records_come_before_fenced_members_and_the_batch() {
    for seed in 0..200 {
        let fault_plan = FaultPlan { page_faults_per_mille: 0, ..FaultPlan::from_seed(seed) };
        let mut run = device(fault_plan);
        let fenced_copy = fenced(Descriptor::memmove(DATA, DATA.offset(100), 1));
        write_list(&run, &[good(), good(), good(), fenced_copy, good(), good()]);
        let batch = Descriptor::batch(LIST, 6).with_completion_at(record(0));
        submit(&mut run, &batch);
        loop {
            let moved = run.device.counters().bytes_copied > 0;
            let done = |index: u32| run.memory.poll(record(index)).is_some();
            assert!(!moved || (1..=3).all(done), "seed {seed}: the fence did not hold");
            if done(0) {
                assert!((1..=6).all(done), "seed {seed}: the batch completed before its members");
                break;
            }
            run.step();
        }
    }
}

/// Without fences a reordering device does not keep the order of the list, on which clients must not rely.
#[test]
fn members_without_fences_are_permuted() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let mut run =
            device(FaultPlan { delay_steps_max: 0, page_faults_per_mille: 0, ..FaultPlan::from_seed(seed) });
        batch(&mut run, &[good(), good(), good(), good()]);
        let visits = run.memory.visits();
        let statuses = visits.iter().filter(|visit| visit.size_bytes == 1).map(|visit| visit.address);
        orders.insert(statuses.collect::<Vec<_>>());
    }
    assert!(orders.len() > 10, "only {} orders", orders.len());
}

/// Batches of random members on faulty devices: statuses follow from the list alone, faults in the list included.
#[test]
fn random_batches_on_faulty_devices() {
    let mut list_faults = 0;
    for seed in 0..500u64 {
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = move |sides: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % sides
        };
        let members: Vec<_> = (0..2 + roll(150))
            .map(|_| {
                let member = if roll(20) == 0 { bad() } else { good() };
                if roll(6) == 0 { fenced(member) } else { member }
            })
            .collect();
        let failed_before = |index: usize| {
            members[..index].iter().any(|member| *member != good() && *member != fenced(good()))
        };
        let is_fenced = |member: &Descriptor| member.flags().contains(Flags::FENCE);
        let stop = (0..members.len())
            .find(|index| is_fenced(&members[*index]) && failed_before(*index))
            .unwrap_or(members.len());

        let mut run = device(FaultPlan::from_seed(seed));
        let (completion, statuses) = batch(&mut run, &members);
        let processed = completion.bytes_completed as usize;
        match completion.status {
            Status::BatchListFault => {
                list_faults += 1;
                assert!(processed < members.len() && processed <= stop, "seed {seed}: {completion:?}");
            }
            Status::Success => {
                assert!(processed == members.len() && !failed_before(processed), "seed {seed}")
            }
            Status::BatchFailed => assert!(processed == stop && failed_before(stop), "seed {seed}"),
            other => panic!("seed {seed}: {other}"),
        }
        for (index, member) in members.iter().enumerate() {
            let expected = match index < processed {
                true if *member == bad() || *member == fenced(bad()) => BAD,
                true => OK,
                false => None,
            };
            assert_eq!(statuses[index], expected, "seed {seed}, member {index} of {}", members.len());
        }
    }
    assert!(list_faults > 20, "only {list_faults} faults in lists");
}
