//! The slots on a medium that tears writes. Each failure prints the seed of its run.

use std::path::Path;

use super::error::ReplicaError;
use super::format::{DATA_OFFSET, Layout};
use super::simulation::{Fault, Random, Simulation, UNIT_BYTES};
use super::slots::Slots;

/// The bytes of the newest version; `None` before the first.
type Content = Option<(u64, Vec<u8>)>;

const ALL: [Fault; 3] = [Fault::Reset, Fault::Kill, Fault::Error];

fn layout(capacity_bytes: usize) -> Layout {
    Layout::new(capacity_bytes as u64).unwrap()
}

fn create(capacity_bytes: usize, unit_bytes: usize, seed: u64) -> (Simulation, Slots<Simulation>) {
    let layout = layout(capacity_bytes);
    let medium = Simulation::new(layout.total_bytes() as usize, unit_bytes, seed);
    let slots = Slots::create(medium.clone(), path(), seed, layout).unwrap();
    (medium, slots)
}

fn path() -> &'static Path {
    Path::new("simulated")
}

fn open(medium: &Simulation) -> Result<Slots<Simulation>, ReplicaError> {
    Slots::open(medium.clone(), path())
}

fn content(slots: &Slots<Simulation>) -> Content {
    let newest = slots.newest();
    let mut bytes = vec![0; newest.size_bytes as usize];
    slots.restore_into(&mut bytes).unwrap();
    assert!(newest.version > 0 || bytes.is_empty());
    (newest.version > 0).then_some((newest.version, bytes))
}

/// Writes in several parts, so that a fault can happen between them.
fn write(slots: &mut Slots<Simulation>, bytes: &[u8], parts_count: usize) -> Result<u64, ReplicaError> {
    let part_bytes = bytes.len().div_ceil(parts_count).max(1);
    slots.write(&bytes.chunks(part_bytes).collect::<Vec<_>>())
}

/// A replica, and what may be in it: the acknowledged version, or an attempt since then.
struct Model {
    medium: Simulation,
    slots: Option<Slots<Simulation>>,
    acknowledged: Content,
    attempts: Vec<Vec<u8>>,
}

impl Model {
    fn new(capacity_bytes: usize, unit_bytes: usize, seed: u64) -> Model {
        let (medium, slots) = create(capacity_bytes, unit_bytes, seed);
        Model { medium, slots: Some(slots), acknowledged: None, attempts: Vec::new() }
    }

    /// Writes new bytes.
    fn write(&mut self, bytes: &[u8], parts_count: usize) {
        let slots = self.slots.as_mut().expect("open between writes");
        let faults_count = self.medium.faults_count();
        match write(slots, bytes, parts_count) {
            Ok(version) => {
                assert!(self.acknowledged.as_ref().is_none_or(|(before, _)| version > *before));
                self.acknowledged = Some((version, bytes.to_vec()));
                self.attempts.clear();
            }
            Err(error) => {
                assert!(self.medium.faults_count() > faults_count, "{error}");
                self.attempts.push(bytes.to_vec());
            }
        }
        // For this process the newest version is the acknowledged one, whatever else is durable.
        assert_eq!(content(slots), self.acknowledged);
    }

    /// Another process opens the replica. It may only find the acknowledged version or an attempt, and what it finds stays.
    fn open(&mut self, when: &str) {
        self.slots = None;
        let faults_count = self.medium.faults_count();
        let slots = match open(&self.medium) {
            Ok(slots) => slots,
            Err(error) => return assert!(self.medium.faults_count() > faults_count, "{when}: {error}"),
        };
        assert_eq!(slots.damaged(), None, "{when}: an interrupted write is no damage");
        let found = content(&slots);
        if found != self.acknowledged {
            let (version, bytes) =
                found.as_ref().unwrap_or_else(|| panic!("{when}: an acknowledged version is lost"));
            assert!(self.attempts.contains(bytes), "{when}: version {version} was never written");
            let is_newer = self.acknowledged.as_ref().is_none_or(|(before, _)| version > before);
            assert!(is_newer, "{when}: {version} is not newer");
        }
        (self.acknowledged, self.slots) = (found, Some(slots));
        self.attempts.clear();
    }

    /// Ends the process, and perhaps resets the machine, whose memory may otherwise have more than is durable.
    fn end_process(&mut self, resets: bool) {
        self.slots = None;
        self.medium.restart();
        if resets {
            self.medium.reset();
        }
    }
}

/// Every operation of two writes and of the opening between them, with every fault in its middle.
#[test]
fn a_fault_at_any_operation_leaves_the_old_or_the_new_version() {
    let mut faults_count = 0;
    for seed in 0..600 {
        let mut random = Random(seed);
        let unit_bytes = UNIT_BYTES[random.below(4)];
        let capacity_bytes = [200, 4096, 9000][random.below(3)];
        let contents = [(); 4].map(|()| {
            let len = random.below(capacity_bytes + 1);
            random.bytes(len)
        });
        for fault in ALL {
            for operation in 0.. {
                let when = format!("seed {seed}, {fault:?} at {operation}, units of {unit_bytes} bytes");
                let mut model = Model::new(capacity_bytes, unit_bytes, seed ^ operation as u64);
                model.write(&contents[0], 1);
                model.medium.plan(operation, fault);
                model.write(&contents[1], 3);
                if model.medium.faults_count() == 0 {
                    model.open(&when);
                }
                if model.medium.faults_count() == 0 {
                    model.write(&contents[2], 2);
                }
                let has_failed = model.medium.faults_count() > 0;
                model.end_process(random.is_one_in(2));
                model.open(&when);
                // The next process meets a reset, too.
                model.medium.plan(random.below(6), Fault::Reset);
                model.write(&contents[3], 2);
                model.end_process(false);
                model.open(&when);
                if !has_failed {
                    break;
                }
                faults_count += 1;
            }
        }
    }
    assert!(faults_count > 20_000, "{faults_count}");
}

/// Long lives: many writes, processes and faults, several in a row, and also during opening.
#[test]
fn no_sequence_of_faults_makes_a_mixture_or_loses_an_acknowledged_version() {
    let (mut faults_count, mut versions_count) = (0, 0);
    for seed in 0..3000 {
        let mut random = Random(!seed);
        let unit_bytes = UNIT_BYTES[random.below(4)];
        let capacity_bytes = 1 + random.below(5000);
        let mut model = Model::new(capacity_bytes, unit_bytes, seed);
        for step in 0..30 {
            let when = format!("seed {seed}, step {step}, units of {unit_bytes} bytes");
            if random.is_one_in(2) {
                model.medium.plan(random.below(10), ALL[random.below(3)]);
            }
            if model.slots.is_some() {
                let len = random.below(capacity_bytes + 1);
                let bytes = random.bytes(len);
                model.write(&bytes, 1 + random.below(3));
            }
            if model.medium.is_down() || random.is_one_in(3) {
                model.end_process(random.is_one_in(2));
                if random.is_one_in(3) {
                    model.medium.plan(random.below(3), ALL[random.below(3)]);
                }
            }
            if model.slots.is_none() {
                model.open(&when);
            }
        }
        faults_count += model.medium.faults_count();
        versions_count += model.acknowledged.map_or(0, |(version, _)| version);
    }
    assert!(faults_count > 20_000 && versions_count > 20_000, "{faults_count} {versions_count}");
}

/// What is found after damage of the durable bytes.
#[derive(Debug, PartialEq)]
enum Answer {
    Newest,
    Older,
    Refused,
}

/// Two versions, and the medium with one bit flipped. The newest one is in the slot `newest`.
fn with_flipped_bit(newest: usize, place: usize, bit: u8) -> Answer {
    let (medium, mut slots) = create(300, 64, 1);
    // The first version goes to slot 1.
    for fill in 0..2 + (newest as u8) {
        write(&mut slots, &[fill + 1; 300], 1).unwrap();
    }
    let last = slots.newest().version;
    drop(slots);
    open(&medium).unwrap();
    medium.damage(|bytes| bytes[place] ^= 1 << bit);
    match open(&medium) {
        Ok(slots) => {
            let (version, bytes) = content(&slots).expect("one of two versions");
            assert_eq!(bytes, [version as u8; 300]);
            let is_data = place as u64 >= DATA_OFFSET;
            assert_eq!(slots.damaged(), (version < last && is_data).then_some(last));
            if version == last { Answer::Newest } else { Answer::Older }
        }
        Err(ReplicaError::Damaged { .. }) => Answer::Refused,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_flipped_bit_is_answered_with_an_intact_version() {
    for newest in [0, 1] {
        for slot in [0, 1] {
            let expected = if slot == newest { Answer::Older } else { Answer::Newest };
            for byte in 0..64 {
                for bit in 0..8 {
                    assert_eq!(
                        with_flipped_bit(newest, slot * 4096 + byte, bit),
                        expected,
                        "{slot} {byte} {bit}"
                    );
                }
            }
            for byte in 0..300 {
                let place = layout(300).data_offset(slot) as usize + byte;
                assert_eq!(with_flipped_bit(newest, place, (byte % 8) as u8), expected, "{slot} {byte}");
            }
        }
    }
}

/// Damages a replica with some versions, and opens it.
fn damage(versions: u8, seed: u64, close: fn(&Simulation), places: &[usize]) -> Result<u64, ReplicaError> {
    let (medium, mut slots) = create(300, 64, seed);
    for fill in 0..versions {
        write(&mut slots, &[fill + 1; 300], 1).unwrap();
    }
    drop(slots);
    close(&medium);
    medium.damage(|bytes| places.iter().for_each(|&place| bytes[place] ^= 1));
    open(&medium).map(|slots| slots.newest().version)
}

/// After damage of both slots, or of the only version, there is no answer, and in particular not "no version yet".
#[test]
fn damage_of_all_versions_is_an_error() {
    let opened: fn(&Simulation) = |medium| drop(open(medium).unwrap());
    let data = [0, 1].map(|slot| layout(300).data_offset(slot) as usize);
    for close in [opened, Simulation::write_back] {
        // The first version is in slot 1.
        for place in [4096 + 33, data[1] + 299] {
            assert!(matches!(damage(1, 1, close, &[place]), Err(ReplicaError::Damaged { .. })), "{place}");
        }
        for places in [[20, 4096 + 20], [20, data[1]], [data[0], 4096 + 20], data] {
            assert!(matches!(damage(2, 1, close, &places), Err(ReplicaError::Damaged { .. })), "{places:?}");
        }
        assert_eq!(damage(1, 1, close, &[data[0]]).unwrap(), 1, "nothing is stored there");
    }
    // The machine may be reset before the header of slot 0, which says "no version", is erased.
    for seed in 0..50 {
        let damaged = damage(1, seed, Simulation::reset, &[data[1]]);
        assert!(matches!(damaged, Err(ReplicaError::Damaged { .. })), "seed {seed}: {damaged:?}");
    }
}

/// The flush of a header fails, and the flush of its erasure fails as well: the medium has the header, and reads do not show
/// it. The next process must not write other data below it.
#[test]
fn a_header_that_only_the_medium_has_is_erased() {
    for seed in 0..500 {
        let mut model = Model::new(300, UNIT_BYTES[seed as usize % 4], seed);
        for fill in 1..=2 {
            model.write(&[fill; 300], 1);
        }
        model.medium.plan(3, Fault::Error);
        model.write(&[3; 300], 1);
        model.medium.plan(1, Fault::Error);
        model.write(&[4; 300], 1);
        assert_eq!(model.medium.faults_count(), 2);
        model.end_process(false);
        model.open("after two failed flushes");
        model.medium.plan(1, Fault::Reset);
        model.write(&[5; 300], 1);
        model.end_process(false);
        model.open(&format!("seed {seed}"));
    }
}

/// Damage that is overwritten is over, and the numbers go on behind it.
#[test]
fn a_damaged_version_is_overwritten_next() {
    let (medium, mut slots) = create(10, 8, 1);
    for fill in 1..=3 {
        write(&mut slots, &[fill; 10], 1).unwrap();
    }
    let newest_data = layout(10).data_offset(1) as usize;
    medium.damage(|bytes| bytes[newest_data] ^= 1);
    let what = slots.restore_into(&mut [0; 10]).unwrap_err().to_string();
    assert!(what.contains("changed since the file was opened"), "{what}");
    let mut slots = open(&medium).unwrap();
    assert_eq!((content(&slots), slots.damaged()), (Some((2, vec![2; 10])), Some(3)));
    assert_eq!(write(&mut slots, &[4; 10], 1).unwrap(), 4);
    assert_eq!((content(&open(&medium).unwrap()), slots.damaged()), (Some((4, vec![4; 10])), None));
}
