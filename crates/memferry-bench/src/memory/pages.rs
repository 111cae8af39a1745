//! Whether memory has huge pages: the kernel may refuse them silently.

use std::fs;

/// The share of the memory around `bytes` that is in huge pages; `None` if the kernel does not say.
///
/// The kernel counts by mapping, and joins mappings of the same kind that touch: the share is that of all of them.
///
/// Source: proc_pid_smaps(5).
pub(super) fn huge_share(bytes: &[u8]) -> Option<f64> {
    let begin = bytes.as_ptr().addr();
    share(&fs::read_to_string("/proc/self/smaps").ok()?, begin, begin + bytes.len())
}

fn share(smaps: &str, begin: usize, end: usize) -> Option<f64> {
    let mut is_within = false;
    let (mut huge_kib, mut all_kib) = (0, 0);
    for line in smaps.lines() {
        if let Some((first, last)) = addresses(line) {
            is_within = first < end && begin < last;
        }
        let kib = |key: &str| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
        if is_within {
            all_kib += kib("Rss:").unwrap_or(0);
            huge_kib += kib("AnonHugePages:").unwrap_or(0);
        }
    }
    (all_kib > 0).then(|| huge_kib as f64 / all_kib as f64)
}

/// The range of a mapping's first line, `7f00-7f20 rw-p ...`.
fn addresses(line: &str) -> Option<(usize, usize)> {
    let (range, _) = line.split_once(' ')?;
    let (first, last) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(first)?, address(last)?))
}

#[cfg(test)]
mod tests {
    use memferry::memory::{Binding, Mapping, MappingOptions};
    use memferry::topology::Machine;
    use memferry_testing::{Needs, skip};

    use super::super::row::Pages;
    use super::*;

    #[test]
    fn the_share_is_that_of_the_mappings() {
        let smaps = "\
1000-3000 rw-p 00000000 00:00 0 [heap]
Size:                  8 kB
Rss:                   8 kB
AnonHugePages:         8 kB
200000-600000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac
600000-800000 rw-p 00000000 00:00 0
Rss:                2048 kB
AnonHugePages:         0 kB
";
        assert_eq!(share(smaps, 0x200000, 0x600000), Some(0.5));
        assert_eq!(share(smaps, 0x1800, 0x2000), Some(1.0));
        assert_eq!(share(smaps, 0x5fffff, 0x600001), Some(2048.0 / 6144.0));
        assert_eq!(share(smaps, 0x900000, 0xa00000), None);
    }

    #[test]
    fn pages_are_of_the_wanted_kind() {
        let machine = Machine::discover().unwrap();
        let share = |pages: Pages| {
            let huge_pages = pages.advice();
            let options = MappingOptions { binding: Binding::Any, huge_pages, ..MappingOptions::default() };
            huge_share(&Mapping::with(&machine, 8 << 20, options).unwrap())
        };
        assert_eq!(share(Pages::Small), Some(0.0));
        let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if enabled.is_empty() || enabled.contains("[never]") {
            return skip(Needs::HugePages, "they are switched off");
        }
        // One of four huge pages may not fit between the ends.
        assert!(share(Pages::Huge) >= Some(0.5), "{:?} with {enabled}", share(Pages::Huge));
    }
}
