//! What the kernel says of the mappings of this process.

/// Bytes in transparent huge pages of the mapping that begins like `bytes`, and of what the kernel joined
/// with it.
pub(crate) fn anon_huge_bytes(bytes: &[u8]) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let range = range.and_then(|(start, end)| {
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        });
        if let Some(range) = range {
            is_inside = range.contains(&bytes.as_ptr().addr());
        } else if is_inside && let Some(kib) = line.strip_prefix("AnonHugePages:") {
            return kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
        }
    }
    panic!("no mapping in {smaps}");
}
