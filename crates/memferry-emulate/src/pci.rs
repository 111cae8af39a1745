//! The PCI function of a device: its configuration space and its memory, as sysfs shows them.
//!
//! ```text
//! 000  header       040  PCI Express    080  MSI-X    090  power management
//! 100  errors       150  latency tolerance            160  processing hints (TPH)    170  virtual channel
//! 200  DVSEC 5 (scalable I/O virtualisation)
//! 220  ATS          230  PASID                        240  page requests
//! ```
//!
//! Address translation, PASID and page requests are on if the driver has enabled PASIDs. Registers of events and the
//! contents of memory are zero.
//!
//! The order and the offsets of the capabilities are those that `lspci -vvv` lists for Sapphire Rapids. Not known from
//! there are the addresses of the memory, and TPH Requester Control (0x168): it has the value after a reset, because the
//! driver does not enable processing hints.
//!
//! Source: PCI Express Base Specification 6.0, chapter 7 (registers); Linux `include/uapi/linux/pci_regs.h`,
//! `drivers/pci/pci-sysfs.c` (`resource`), `drivers/iommu/intel/iommu.c` (enabling).

/// Size of the configuration space of PCI Express.
pub(crate) const CONFIG_BYTES: usize = 4096;

/// Start and size of BAR 0, the registers, and of BAR 2, the portals, for the first device. Nothing is there.
const BAR_0: (u64, u64) = (0x206f_e000_0000, 64 << 10);
const BAR_2: (u64, u64) = (0x206f_f000_0000, 128 << 10);
/// Distance between the memory of two devices.
const BAR_STEP: u64 = 1 << 20;

/// Page requests that Linux lets a device have in flight (`PRQ_DEPTH`).
const PAGE_REQUESTS: u32 = 32;

/// Returns the configuration space of the device with this index.
pub(crate) fn config(index: usize, has_pasid: bool) -> Vec<u8> {
    let mut space = Space(vec![0; CONFIG_BYTES]);
    space.header(index);
    space.capabilities();
    space.extended_capabilities(has_pasid);
    space.0
}

/// Returns the lines of `resource`: start, end and flags of the six BARs and the ROM.
pub(crate) fn resource(index: usize) -> String {
    const FLAGS: u64 = 0x14_220c; // 64 bits, prefetchable, aligned to its size
    let line = |bar: usize| match bar {
        0 | 2 => {
            let (start, bytes) = bar_range(bar, index);
            format!("{start:#018x} {:#018x} {FLAGS:#018x}", start + bytes - 1)
        }
        _ => vec![format!("{:#018x}", 0); 3].join(" "),
    };
    (0..7).map(line).collect::<Vec<_>>().join("\n")
}

fn bar_range(bar: usize, index: usize) -> (u64, u64) {
    let (start, bytes) = if bar == 0 { BAR_0 } else { BAR_2 };
    (start + index as u64 * BAR_STEP, bytes)
}

struct Space(Vec<u8>);

impl Space {
    fn put_16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put_32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn header(&mut self, index: usize) {
        self.put_32(0x00, 0x0b25_8086); // device and vendor
        self.put_16(0x04, 0x0406); // command: memory, bus master, no INTx
        self.put_16(0x06, 0x0010); // status: has capabilities
        self.put_32(0x08, 0x0880_0000); // class: system peripheral; revision 0
        for (bar, at) in [(0, 0x10), (2, 0x18)] {
            let start = bar_range(bar, index).0 | 0xc; // 64 bits, prefetchable
            self.put_32(at, start as u32);
            self.put_32(at + 4, (start >> 32) as u32);
        }
        self.put_16(0x2c, 0x8086); // vendor of the subsystem
        self.put_16(0x34, 0x40); // first capability
    }

    fn capabilities(&mut self) {
        self.put_16(0x40, 0x8010); // PCI Express, next 80
        self.put_16(0x42, 0x0092); // version 2, root complex integrated endpoint
        // Payloads of 512 bytes, extended tags, role-based errors, function level reset.
        self.put_32(0x44, 2 | 1 << 5 | 1 << 15 | 1 << 28);
        // Errors are reported, relaxed order, payloads of 512 bytes, extended tags, reads of 4096 bytes.
        self.put_16(0x48, 7 | 1 << 4 | 2 << 5 | 1 << 8 | 5 << 12);
        // No completion time-out, latency tolerance, tags of 10 bits, prefixes.
        self.put_32(0x64, 1 << 4 | 1 << 11 | 3 << 16 | 1 << 20 | 1 << 21 | 1 << 22);
        self.put_16(0x80, 0x9011); // MSI-X, next 90
        self.put_16(0x82, 1 << 15 | 8); // enabled, 9 vectors
        self.put_32(0x84, 0x2000); // their table and their pending bits, in BAR 0
        self.put_32(0x88, 0x3000);
        self.put_16(0x90, 0x0001); // power management, the last one
        self.put_16(0x92, 3); // version 3
        self.put_16(0x94, 1 << 3); // D0, keeps its state
    }

    /// The header of an extended capability.
    fn extended(&mut self, at: usize, id: u32, version: u32, next: u32) {
        self.put_32(at, id | version << 16 | next << 20);
    }

    fn extended_capabilities(&mut self, has_pasid: bool) {
        self.extended(0x100, 0x01, 2, 0x150); // errors
        self.extended(0x150, 0x18, 1, 0x160); // latency tolerance
        self.extended(0x160, 0x17, 1, 0x170); // processing hints
        // Also without steering tags, device specific mode, a table of 2 entries in this capability.
        self.put_32(0x164, 1 | 1 << 2 | 1 << 9 | 1 << 16);
        self.put_32(0x168, 0); // control: off
        self.extended(0x170, 0x02, 1, 0x200); // virtual channel
        self.put_32(0x184, 1 << 31 | 0xff); // channel 0: enabled, all traffic classes
        self.extended(0x200, 0x23, 1, 0x220); // DVSEC
        self.put_32(0x204, 0x18 << 20 | 0x8086); // 24 bytes, Intel
        self.put_16(0x208, 5); // scalable I/O virtualisation
        self.extended(0x220, 0x0f, 1, 0x230); // ATS
        self.put_16(0x224, 1 << 5); // aligned to pages
        self.extended(0x230, 0x1b, 1, 0x240); // PASID
        self.put_16(0x234, 20 << 8 | 1 << 2); // 20 bits, privileged mode
        self.extended(0x240, 0x13, 1, 0); // page requests, the last one
        self.put_16(0x246, 1 << 15 | 1 << 8); // answers have a PASID; stopped
        self.put_32(0x248, 512); // capacity
        if has_pasid {
            self.put_16(0x226, 1 << 15); // enabled
            self.put_16(0x236, 1 | 1 << 2); // enabled, privileged mode
            self.put_16(0x244, 1); // enabled
            self.put_32(0x24c, PAGE_REQUESTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(space: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(space[at..at + 4].try_into().unwrap())
    }

    /// Both lists end, and each capability lies behind the one before.
    #[test]
    fn the_lists_of_capabilities() {
        let space = config(0, true);
        let (mut at, mut found) = (space[0x34] as usize, Vec::new());
        while at != 0 {
            found.push((at, space[at]));
            at = space[at + 1] as usize;
        }
        assert_eq!(found, [(0x40, 0x10), (0x80, 0x11), (0x90, 0x01)]);
        let (mut at, mut found) = (0x100, Vec::new());
        while at != 0 {
            let header = get(&space, at);
            found.push((at, header & 0xffff));
            at = (header >> 20) as usize;
        }
        let expected = [(0x100, 0x01), (0x150, 0x18), (0x160, 0x17), (0x170, 0x02), (0x200, 0x23)];
        assert_eq!(found[..5], expected);
        assert_eq!(found[5..], [(0x220, 0x0f), (0x230, 0x1b), (0x240, 0x13)]);
    }

    #[test]
    fn translation_is_on_if_the_driver_has_enabled_pasids() {
        let enabled =
            |space: &[u8]| [get(space, 0x224) >> 31, get(space, 0x234) >> 16 & 1, get(space, 0x244) & 1];
        assert_eq!((enabled(&config(0, true)), enabled(&config(0, false))), ([1; 3], [0; 3]));
    }

    #[test]
    fn the_memory_of_devices_does_not_overlap() {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for index in 0..8 {
            let space = config(index, true);
            let text = resource(index);
            for (bar, at) in [(0, 0x10), (2, 0x18)] {
                let line = text.lines().nth(bar).unwrap();
                let numbers: Vec<u64> = line
                    .split(' ')
                    .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap())
                    .collect();
                let start = u64::from(get(&space, at + 4)) << 32 | u64::from(get(&space, at) & !0xf);
                assert_eq!(numbers[0], start);
                ranges.push((start, numbers[1]));
            }
            assert_eq!(text.lines().count(), 7);
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:x?}");
    }
}
