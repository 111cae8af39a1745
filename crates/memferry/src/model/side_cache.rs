//! Memory behind a hardware cache, such as DDR behind HBM in cache mode.
//!
//! The thesis names the mode (Fürst 2024, 2.1) and leaves the comparison with prefetching to others (chapter 7). The
//! behaviour of such a cache is therefore **assumed** here:
//!
//! - it is direct-mapped, and pages lie anywhere in physical memory ([`hit_share`]);
//! - a hit reads a line of the cache; a miss reads it too, then reads the line from the memory behind, and writes it into
//!   the cache;
//! - nothing is written back, since columns are not written.

use crate::topology::NodeId;

use super::ModelError;
use super::hardware::Hardware;

/// Share of reads that hit when `footprint_bytes` at random places are read again and again, in order, through a
/// direct-mapped cache. A line stays if no other line has the same place; with evenly spread places the probability is
/// e^(-footprint/cache).
pub fn hit_share(footprint_bytes: u64, cache_bytes: u64) -> f64 {
    (-(footprint_bytes as f64) / cache_bytes.max(1) as f64).exp()
}

impl Hardware {
    /// The same machine with the memory of `cache` as a cache of `memory`, in which `hit_share` of the reads hit. All
    /// reads of `memory` go through the cache.
    ///
    /// # Errors
    /// [`ModelError::Node`], [`Unknown`](ModelError::Unknown).
    pub fn with_side_cache(
        &self,
        memory: NodeId,
        cache: NodeId,
        hit_share: f64,
    ) -> Result<Hardware, ModelError> {
        let (memory, cache) = (self.position(memory)?, self.position(cache)?);
        let misses = 1.0 - hit_share.clamp(0.0, 1.0);
        // For each byte read, the memory behind moves the misses; the cache moves the byte, and the fills of misses.
        let through = |behind: f64, beside: f64| (behind / misses).min(beside / (1.0 + misses));
        let rate = through(self.memory_rate(memory)?, self.memory_rate(cache)?);
        let mut hardware = self.clone();
        hardware.memories[memory].rate = Some(rate);
        for ways in &mut hardware.ways {
            ways[memory] = (ways[memory] / misses).min(ways[cache]);
        }
        Ok(hardware)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Machine;

    #[test]
    fn lines_that_share_a_place_miss() {
        assert_eq!(hit_share(0, 1 << 30), 1.0);
        assert!((hit_share(8 << 30, 16 << 30) - 0.606_53).abs() < 1e-5);
        assert!(hit_share(1 << 40, 16 << 30) < 1e-20 && hit_share(1, 0) < 1.0);
    }

    #[test]
    fn hits_go_at_the_pace_of_the_cache() {
        let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        let flat = Hardware::of(&machine).unwrap();
        let (ddr, hbm) = (NodeId(0), NodeId(8));
        let rate = |hits| flat.with_side_cache(ddr, hbm, hits).unwrap().memory_rate(0).unwrap() / 1e6;
        assert!((rate(0.0) - 67_521.2).abs() < 0.1, "all of it comes from DDR: {}", rate(0.0));
        assert!((rate(0.5) - 2.0 * 67_521.2).abs() < 0.1, "half of it does: {}", rate(0.5));
        assert!((rate(1.0) - 256_000.0).abs() < 0.1, "HBM alone: {}", rate(1.0));
        // Fills take their part of what HBM has.
        assert!((rate(0.8) - 256_000.0 / 1.2).abs() < 0.1, "{}", rate(0.8));
        assert!(flat.with_side_cache(ddr, NodeId(99), 0.5).is_err());
        let unknown = Hardware::of(&Machine::two_tiers().unwrap()).unwrap();
        assert!(unknown.with_side_cache(NodeId(0), NodeId(1), 0.5).is_err());
    }
}
