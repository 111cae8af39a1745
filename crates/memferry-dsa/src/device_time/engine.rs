//! The stages of an engine, and the bandwidth that engines share.

use crate::DeviceCosts;

/// The times of an engine.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct EngineTime {
    free_ns: u64,   // the end of its work so far
    opened_ns: u64, // since then it can prepare the next descriptor: the bytes of the last one move
    listed_ns: u64, // since then its batch unit can fetch the next list
}

impl EngineTime {
    /// An engine that is free at `ns`, whatever it did before.
    pub fn free_at(ns: u64) -> EngineTime {
        EngineTime { free_ns: ns, opened_ns: ns, listed_ns: ns }
    }

    /// The end of its work so far.
    pub fn free_ns(&self) -> u64 {
        self.free_ns
    }

    /// Begins a descriptor that reaches the engine at `arrival_ns`.
    pub fn begin(&mut self, arrival_ns: u64, costs: &DeviceCosts) {
        let prepared_ns = arrival_ns.max(self.opened_ns) + costs.occupancy_ns;
        self.free_ns = self.free_ns.max(prepared_ns);
        self.opened_ns = self.free_ns;
    }

    /// Fetches the list of a batch that reaches the engine at `arrival_ns`. Returns the arrival of its members.
    pub fn fetch(&mut self, arrival_ns: u64, members: u64, costs: &DeviceCosts) -> u64 {
        let cost_ns = costs.occupancy_ns + costs.batch_fetch_ns + members * costs.batch_member_ns;
        let list_ns = arrival_ns.max(self.listed_ns) + cost_ns;
        // One list ahead: the unit has the next list no earlier than the first member of this one begins.
        self.listed_ns = list_ns.max(self.free_ns);
        list_ns
    }

    /// Extends its work until `ns`.
    pub fn work_until(&mut self, ns: u64) {
        self.free_ns = self.free_ns.max(ns);
    }
}

/// The time at which a bandwidth is free.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Bandwidth {
    free_ns: u64,
    rest: u128, // the used part of the next nanosecond, in units of 1 / bytes_per_second
}

impl Bandwidth {
    /// The time at which `bytes` have passed that can start at `from_ns`.
    pub fn pass(&mut self, from_ns: u64, bytes: u64, bytes_per_second: u64) -> u64 {
        let rate = u128::from(bytes_per_second);
        if from_ns > self.free_ns + u64::from(self.rest > 0) {
            (self.free_ns, self.rest) = (from_ns, 0);
        }
        // The remainder is kept, since the rounding errors of many short pieces would add up.
        let work = u128::from(bytes) * 1_000_000_000 + self.rest;
        self.rest = work % rate;
        self.free_ns += u64::try_from(work / rate).unwrap_or(u64::MAX / 2);
        self.free_ns + u64::from(self.rest > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: DeviceCosts = DeviceCosts::sapphire_rapids();

    #[test]
    fn descriptors_are_prepared_while_bytes_move() {
        let (mut engine, mut bandwidth) = (EngineTime::default(), Bandwidth::default());
        let ends: Vec<u64> = [0, 0, 0]
            .map(|arrival_ns| {
                engine.begin(arrival_ns, &COSTS);
                engine.work_until(bandwidth.pass(engine.free_ns(), 30_000, 30_000_000_000));
                engine.free_ns()
            })
            .to_vec();
        let first = COSTS.occupancy_ns + 1000;
        assert_eq!(ends, [first, first + 1000, first + 2000]);
        // Without bytes they follow each other at the pace of the first stage.
        let mut engine = EngineTime::default();
        for number in 1..4 {
            engine.begin(0, &COSTS);
            assert_eq!(engine.free_ns(), number * COSTS.occupancy_ns);
        }
    }

    #[test]
    fn one_list_is_fetched_ahead() {
        let mut engine = EngineTime::default();
        let first = engine.fetch(0, 4, &COSTS);
        assert_eq!(first, COSTS.occupancy_ns + COSTS.batch_fetch_ns + 4 * COSTS.batch_member_ns);
        engine.begin(first, &COSTS);
        engine.work_until(first + 10_000);
        assert_eq!(engine.fetch(0, 4, &COSTS), 2 * first, "while the members of the first run");
        assert!(engine.fetch(0, 4, &COSTS) > first + 10_000, "but not the one after that");
    }

    /// Sums are exact, however short the pieces are.
    #[test]
    fn rounding_does_not_add_up() {
        let mut bandwidth = Bandwidth::default();
        let end = (0..1000).map(|_| bandwidth.pass(0, 7, 3_000_000_000)).last();
        assert_eq!(end, Some(2334), "7000 bytes at 3 bytes per ns");
    }
}
