//! Memory that allows only accesses that a descriptor names.

use std::cell::{Cell, RefCell};

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, CompletionRecord, DIF_BYTES, Descriptor, Flags, Opcode};

use memferry_dsa_emulator::{Access, FakeMemory, Memory, Vanished, Visit};

/// Bytes of a descriptor.
const MEMBER_BYTES: u64 = size_of::<Descriptor>() as u64;
/// Bytes of a completion record.
const RECORD_BYTES: u64 = size_of::<CompletionRecord>() as u64;

/// A sparse address space that panics at the first access that no descriptor names.
///
/// The device's reads determine the members of a batch: bytes that were read from a list count as a descriptor from
/// then on, since another descriptor may have written them.
pub(super) struct Watched {
    pub(super) memory: FakeMemory,
    named: RefCell<Vec<Descriptor>>,
    has_touched_data: Cell<bool>,
}

impl Watched {
    pub(super) fn new(memory: FakeMemory) -> Watched {
        Watched { memory, named: RefCell::default(), has_touched_data: Cell::new(false) }
    }

    /// Allows the accesses of a descriptor.
    pub(super) fn allow(&self, descriptor: Descriptor) {
        self.named.borrow_mut().push(descriptor);
    }

    /// Forbids all accesses.
    pub(super) fn allow_nothing(&self) {
        self.named.borrow_mut().clear();
        self.has_touched_data.set(false);
    }

    /// Whether the device has accessed more than completion records since the last `allow_nothing`.
    pub(super) fn has_touched_data(&self) -> bool {
        self.has_touched_data.get()
    }

    fn visit(&self, access: Access, address: Address, size_bytes: usize) {
        let visit = Visit { access, address, size_bytes };
        let named = self.named.borrow();
        let is_record = |descriptor: &Descriptor| {
            access == Access::Write
                && record(descriptor).is_some_and(|(start, size)| within(start, size, &visit))
        };
        if !named.iter().any(is_record) {
            self.has_touched_data.set(true);
            assert!(named.iter().any(|named| names(named, &visit)), "no descriptor names {visit:?}");
        }
    }

    /// Learns the members of batches from a read.
    fn learn(&self, address: Address, bytes: &[u8]) {
        let (members, rest) = bytes.as_chunks::<{ MEMBER_BYTES as usize }>();
        let visit = Visit { access: Access::Read, address, size_bytes: bytes.len() };
        let mut named = self.named.borrow_mut();
        if !rest.is_empty() || !named.iter().any(|named| is_batch(named) && names(named, &visit)) {
            return;
        }
        for member in members.iter().map(Descriptor::from_bytes) {
            if !named.contains(&member) {
                named.push(member);
            }
        }
    }
}

impl Memory for Watched {
    fn is_present(&self, page: Address, access: Access) -> bool {
        self.memory.is_present(page, access)
    }

    /// The device may only request pages with bytes that a descriptor names.
    fn request_page(&self, page: Address, access: Access) -> bool {
        let in_page = |(start, size): (Address, u64)| {
            let last = Address(start.0.saturating_add(size.saturating_sub(1)));
            size > 0 && start <= page.offset(PAGE_BYTES - 1) && page <= last
        };
        let named = self.named.borrow();
        assert!(
            named.iter().flat_map(|named| regions(named, access)).flatten().any(in_page),
            "no descriptor names anything in the page {page:?} that was requested: {access:?}"
        );
        self.memory.request_page(page, access)
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.visit(Access::Read, address, bytes.len());
        self.memory.read(address, bytes)?;
        self.learn(address, bytes);
        Ok(())
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        self.visit(Access::Write, address, bytes.len());
        self.memory.write(address, bytes)
    }

    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        self.visit(Access::Read, source, size_bytes);
        self.visit(Access::Write, target, size_bytes);
        self.memory.copy(source, target, size_bytes)
    }

    fn flush(&self, address: Address, size_bytes: usize) {
        self.visit(Access::Read, address, size_bytes);
        self.memory.flush(address, size_bytes);
    }
}

/// Whether the descriptor allows the device this access.
pub(crate) fn names(descriptor: &Descriptor, visit: &Visit) -> bool {
    let regions = regions(descriptor, visit.access);
    regions.into_iter().flatten().any(|(start, size)| within(start, size, visit))
}

fn within(start: Address, size: u64, visit: &Visit) -> bool {
    visit.address >= start && visit.address.0 - start.0 + visit.size_bytes as u64 <= size
}

fn is_batch(descriptor: &Descriptor) -> bool {
    descriptor.opcode() == Ok(Opcode::Batch)
}

fn record(descriptor: &Descriptor) -> Option<(Address, u64)> {
    let has_record = descriptor.flags().contains(Flags::COMPLETION_ADDRESS_VALID);
    has_record.then_some((descriptor.completion_address(), RECORD_BYTES))
}

/// The regions that a descriptor names for this kind of access: at most two operands, and its record.
fn regions(descriptor: &Descriptor, access: Access) -> [Option<(Address, u64)>; 3] {
    let (first, second) = (descriptor.address_1(), descriptor.address_2());
    let size = u64::from(descriptor.size());
    let flags = descriptor.flags();
    let delta = (descriptor.delta_address(), u64::from(descriptor.delta_bytes()));
    let when = |flag, address, size| flags.contains(flag).then_some((address, size));
    let Ok(opcode) = descriptor.opcode() else {
        return [None, None, if access == Access::Write { record(descriptor) } else { None }];
    };
    match access {
        Access::Read => {
            let [one, other] = match opcode {
                Opcode::Noop | Opcode::Fill => [None, None],
                Opcode::Batch => [Some((first, size * MEMBER_BYTES)), None],
                Opcode::Drain => {
                    [when(Flags::DRAIN_READBACK_1, first, 1), when(Flags::DRAIN_READBACK_2, second, 1)]
                }
                Opcode::Compare | Opcode::CreateDelta => [Some((first, size)), Some((second, size))],
                Opcode::ApplyDelta => [Some(delta), None],
                Opcode::CrcGeneration | Opcode::CopyCrc => {
                    let seed = when(Flags::CRC_SEED_IN_MEMORY, descriptor.crc_seed_address(), 4);
                    [Some((first, size)), seed]
                }
                Opcode::CacheFlush => [Some((second, size)), None],
                _ => [Some((first, size)), None],
            };
            [one, other, None]
        }
        Access::Write => {
            let [one, other] = match opcode {
                Opcode::Memmove
                | Opcode::Fill
                | Opcode::ApplyDelta
                | Opcode::CopyCrc
                | Opcode::DifStrip
                | Opcode::DifUpdate => [Some((second, size)), None],
                Opcode::CreateDelta => [Some(delta), None],
                Opcode::Dualcast => [Some((second, size)), Some((descriptor.target_2(), size))],
                Opcode::DifInsert => {
                    let blocks = size / u64::from(descriptor.dif_format().block.bytes());
                    [Some((second, size + blocks * u64::from(DIF_BYTES))), None]
                }
                _ => [None, None],
            };
            [one, other, record(descriptor)]
        }
    }
}
