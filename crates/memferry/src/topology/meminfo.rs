//! `/proc/meminfo` and `/sys/devices/system/node/node*/meminfo`.
//!
//! Sources: Linux `Documentation/filesystems/proc.rst` (meminfo), `si_mem_available` in mm/show_mem.c.

/// The content of such a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total_bytes: u64,
    /// Memory available without swapping.
    pub(crate) available_bytes: u64,
}

/// The part of a memory that stays free: the kernel reserves its last pages (watermarks, per-CPU lists), and the value is
/// slightly old when used. Chosen, not measured; the kernel's low watermarks are below 1 %.
const SPARE_DIVISOR: u64 = 32;

/// The spare of a memory of this size.
pub(crate) fn spare_bytes(total_bytes: u64) -> u64 {
    total_bytes / SPARE_DIVISOR
}

/// `None` if `MemTotal` or `MemFree` is missing, or a line is invalid.
pub(crate) fn parse(text: &str) -> Option<Memory> {
    let (mut total, mut free, mut available, mut reclaimable) = (None, None, None, 0u64);
    for line in text.lines() {
        let (name, value) = line.split_once(':')?;
        // "Node 0 MemTotal" in a node's file, "MemTotal" in the machine's.
        let name = name.rsplit(' ').next()?;
        let bytes = || value.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok()?.checked_mul(1024);
        match name {
            "MemTotal" => total = Some(bytes()?),
            "MemFree" => free = Some(bytes()?),
            "MemAvailable" => available = Some(bytes()?),
            "Active(file)" | "Inactive(file)" | "SReclaimable" => {
                reclaimable = reclaimable.saturating_add(bytes()?)
            }
            _ => {}
        }
    }
    // A node has no MemAvailable. The kernel's estimate counts at least half of what can be reclaimed.
    let available = available.unwrap_or(free?.saturating_add(reclaimable / 2));
    let total_bytes = total?;
    Some(Memory { total_bytes, available_bytes: available.min(total_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_node() {
        let text = "Node 8 MemTotal:  1000 kB\nNode 8 MemFree:  600 kB\nNode 8 Active(file): 40 kB\n\
                    Node 8 Inactive(file): 60 kB\nNode 8 SReclaimable: 20 kB\nNode 8 HugePages_Total:     0\n";
        assert_eq!(parse(text), Some(Memory { total_bytes: 1000 << 10, available_bytes: 660 << 10 }));
    }

    #[test]
    fn of_the_machine() {
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 700 kB\nActive(file): 900 kB\n";
        assert_eq!(parse(text), Some(Memory { total_bytes: 1000 << 10, available_bytes: 700 << 10 }));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "MemTotal: 5 kB", "MemFree: 5 kB", "MemTotal: x kB\nMemFree: 1 kB", "MemTotal 5 kB"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let huge = format!("MemTotal: {} kB\nMemFree: 1 kB", u64::MAX);
        assert_eq!(parse(&huge), None);
    }
}
