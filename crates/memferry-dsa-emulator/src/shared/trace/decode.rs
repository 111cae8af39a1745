//! Serialises descriptors and completion records with the names of their fields.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3.

use std::fmt::Write;

use memferry_dsa::{Completion, DeltaResult, Descriptor, Flags, Opcode, Status};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// A number that is serialised as a hexadecimal string: addresses have more bits than JSON numbers keep.
pub(super) struct Hex(pub(super) u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

/// Bytes in hexadecimal, in order.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    text
}

pub(super) fn operation_name(descriptor: &Descriptor) -> &'static str {
    descriptor.opcode().map_or("unknown", Opcode::name)
}

/// A field of a descriptor: name, first byte, number of bytes, format.
struct Field(&'static str, usize, usize, Form);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Hex,
    Number,
}
use Form::{Hex as H, Number as N};

const SOURCE: Field = Field("source", 16, 8, H);
const TARGET: Field = Field("target", 24, 8, H);
const SIZE: Field = Field("size", 32, 4, N);
const EXPECTED: Field = Field("expected_result", 40, 1, N);
const CRC: [Field; 2] = [Field("seed", 40, 4, H), Field("seed_address", 48, 8, H)];
const DIF_FORMAT: Field = Field("dif_flags", 42, 1, H);
const DIF_SOURCE: [Field; 4] = [
    Field("source_dif_flags", 40, 1, H),
    Field("source_reference_tag", 48, 4, H),
    Field("source_application_mask", 52, 2, H),
    Field("source_application_tag", 54, 2, H),
];
const DIF_TARGET: [Field; 4] = [
    Field("target_dif_flags", 41, 1, H),
    Field("target_reference_tag", 56, 4, H),
    Field("target_application_mask", 60, 2, H),
    Field("target_application_tag", 62, 2, H),
];

/// The fields of an operation, in groups.
fn fields(descriptor: &Descriptor) -> Vec<&'static [Field]> {
    let Ok(opcode) = descriptor.opcode() else {
        return vec![&[Field("address_1", 16, 8, H), Field("address_2", 24, 8, H), SIZE]];
    };
    match opcode {
        Opcode::Noop => vec![],
        Opcode::Batch => vec![&[Field("list", 16, 8, H), Field("count", 32, 4, N)]],
        Opcode::Drain => vec![&[Field("readback_1", 16, 8, H), Field("readback_2", 24, 8, H)]],
        Opcode::Memmove => vec![&[SOURCE, TARGET, SIZE]],
        Opcode::Fill => {
            let high: &[Field] = match descriptor.flags().contains(Flags::FILL_PATTERN_16) {
                true => &[Field("pattern_high", 40, 8, H)],
                false => &[],
            };
            vec![&[Field("pattern", 16, 8, H), TARGET, SIZE], high]
        }
        Opcode::Compare => vec![&[Field("source_1", 16, 8, H), Field("source_2", 24, 8, H), SIZE, EXPECTED]],
        Opcode::ComparePattern => vec![&[SOURCE, Field("pattern", 24, 8, H), SIZE, EXPECTED]],
        Opcode::CreateDelta => vec![&[
            Field("old", 16, 8, H),
            Field("new", 24, 8, H),
            SIZE,
            Field("delta", 40, 8, H),
            Field("delta_bytes_max", 48, 4, N),
            Field("expected_result_mask", 56, 1, N),
        ]],
        Opcode::ApplyDelta => vec![&[Field("delta", 16, 8, H), TARGET, SIZE, Field("delta_bytes", 40, 4, N)]],
        Opcode::Dualcast => {
            vec![&[SOURCE, Field("target_1", 24, 8, H), Field("target_2", 40, 8, H), SIZE]]
        }
        Opcode::CrcGeneration => vec![&[SOURCE, SIZE], &CRC],
        Opcode::CopyCrc => vec![&[SOURCE, TARGET, SIZE], &CRC],
        Opcode::DifCheck => vec![&[SOURCE, SIZE, DIF_FORMAT], &DIF_SOURCE],
        Opcode::DifInsert => vec![&[SOURCE, TARGET, SIZE, DIF_FORMAT], &DIF_TARGET],
        Opcode::DifStrip => vec![&[SOURCE, TARGET, SIZE, DIF_FORMAT], &DIF_SOURCE],
        Opcode::DifUpdate => vec![&[SOURCE, TARGET, SIZE, DIF_FORMAT], &DIF_SOURCE, &DIF_TARGET],
        Opcode::CacheFlush => vec![&[TARGET, SIZE]],
    }
}

/// The operands of a descriptor, by name.
pub(super) struct Operands<'a>(pub(super) &'a Descriptor);

impl Serialize for Operands<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.to_bytes();
        let mut map = serializer.serialize_map(None)?;
        for Field(name, at, count, form) in fields(self.0).into_iter().flatten() {
            let value =
                bytes[*at..at + count].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
            match form {
                Form::Hex => map.serialize_entry(name, &Hex(value))?,
                Form::Number => map.serialize_entry(name, &value)?,
            }
        }
        map.end()
    }
}

/// The fields of a completion besides status and bytes completed.
pub(super) struct Results<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) completion: &'a Completion,
}

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Results { descriptor, completion } = *self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("result", &completion.result)?;
        if completion.fault_address.0 != 0 || is_page_fault(completion.status) {
            map.serialize_entry("fault_address", &Hex(completion.fault_address.0))?;
            map.serialize_entry("write_fault", &completion.write_fault)?;
        }
        if completion.status == Status::InvalidFlags {
            map.serialize_entry("invalid_flags", &flag_names(completion.invalid_flags(), descriptor))?;
            return map.end();
        }
        match descriptor.opcode() {
            Ok(Opcode::Memmove) => map.serialize_entry("backwards", &completion.is_backwards())?,
            Ok(Opcode::Compare | Opcode::ComparePattern) => {
                map.serialize_entry("differs", &completion.differs())?;
            }
            Ok(Opcode::CreateDelta) => {
                let what = match completion.delta_result() {
                    DeltaResult::Equal => "equal",
                    DeltaResult::Complete => "complete",
                    DeltaResult::Overflow => "overflow",
                };
                map.serialize_entry("delta", what)?;
                map.serialize_entry("delta_bytes", &completion.delta_bytes())?;
            }
            Ok(Opcode::CrcGeneration | Opcode::CopyCrc) => {
                map.serialize_entry("crc", &Hex(completion.crc().into()))?;
            }
            Ok(Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate) => {
                for (name, tags) in [
                    ("source_tags", completion.dif_source_tags()),
                    ("target_tags", completion.dif_target_tags()),
                ] {
                    map.serialize_entry(name, &[tags.reference, tags.application.into()])?;
                }
            }
            _ => {}
        }
        map.end()
    }
}

fn is_page_fault(status: Status) -> bool {
    use Status::{BatchListFault, CompletionFault, PageFault, PageFaultRefused, ReadbackFault};
    matches!(status, PageFault | PageFaultRefused | BatchListFault | CompletionFault | ReadbackFault)
}

/// Names of the set flags; `bit_N` for flags without a name.
pub(super) fn flag_names(flags: Flags, descriptor: &Descriptor) -> Vec<String> {
    let own: &[(Flags, &str)] = match descriptor.opcode() {
        Ok(Opcode::Drain) => &[
            (Flags::DRAIN_READBACK_1, "readback_1"),
            (Flags::DRAIN_READBACK_2, "readback_2"),
            (Flags::DRAIN_NO_READBACK_A, "no_readback_a"),
            (Flags::DRAIN_NO_READBACK_B, "no_readback_b"),
        ],
        Ok(Opcode::Fill) => &[(Flags::FILL_PATTERN_16, "pattern_16")],
        Ok(Opcode::Dualcast) => &[(Flags::DUALCAST_STEERING_TAG_2, "steering_tag_2")],
        Ok(Opcode::CrcGeneration | Opcode::CopyCrc) => &[
            (Flags::CRC_SEED_IN_MEMORY, "seed_in_memory"),
            (Flags::CRC_BYPASS_INVERSION, "bypass_inversion"),
            (Flags::CRC_BYPASS_DATA_REFLECTION, "bypass_data_reflection"),
        ],
        _ => &[],
    };
    let name = |bit: u32| {
        let flag = Flags::from_bits(1 << bit);
        let named = COMMON.iter().chain(own).find(|(named, _)| *named == flag);
        named.map_or_else(|| format!("bit_{bit}"), |(_, name)| (*name).to_owned())
    };
    (0..24).filter(|bit| flags.bits() >> bit & 1 == 1).map(name).collect()
}

const COMMON: [(Flags, &str); 15] = [
    (Flags::FENCE, "fence"),
    (Flags::BLOCK_ON_FAULT, "block_on_fault"),
    (Flags::COMPLETION_ADDRESS_VALID, "completion_address_valid"),
    (Flags::REQUEST_COMPLETION, "request_completion"),
    (Flags::REQUEST_INTERRUPT, "request_interrupt"),
    (Flags::COMPLETION_STEERING_TAG, "completion_steering_tag"),
    (Flags::CHECK_RESULT, "check_result"),
    (Flags::CACHE_CONTROL, "cache_control"),
    (Flags::ADDRESS_1_CLASS, "address_1_class"),
    (Flags::ADDRESS_2_CLASS, "address_2_class"),
    (Flags::ADDRESS_3_CLASS, "address_3_class"),
    (Flags::COMPLETION_CLASS, "completion_class"),
    (Flags::STRICT_ORDERING, "strict_ordering"),
    (Flags::DESTINATION_READBACK, "destination_readback"),
    (Flags::DESTINATION_STEERING_TAG, "destination_steering_tag"),
];

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use memferry_dsa::Address;

    use super::*;

    fn operands(descriptor: &Descriptor) -> String {
        serde_json::to_string(&Operands(descriptor)).unwrap()
    }

    #[test]
    fn operands_by_name() {
        let (one, two) = (Address(0x1000), Address(0x2000));
        for (descriptor, told) in [
            (Descriptor::noop(), "{}"),
            (Descriptor::memmove(one, two, 7), r#"{"source":"0x1000","target":"0x2000","size":7}"#),
            (Descriptor::batch(one, 3), r#"{"list":"0x1000","count":3}"#),
            (
                Descriptor::create_delta(one, two, 8, Address(0x3000), 80),
                r#"{"old":"0x1000","new":"0x2000","size":8,"delta":"0x3000","delta_bytes_max":80,"expected_result_mask":0}"#,
            ),
            (
                Descriptor::fill_16(5 << 64 | 6, two, 9),
                r#"{"pattern":"0x6","target":"0x2000","size":9,"pattern_high":"0x5"}"#,
            ),
        ] {
            assert_eq!(operands(&descriptor), told);
        }
        // Every operation but the no-op has some.
        for opcode in Opcode::ALL {
            let mut bytes = [0; 64];
            bytes[7] = opcode as u8;
            let told = operands(&Descriptor::from_bytes(&bytes));
            assert_eq!(told == "{}", opcode == Opcode::Noop, "{opcode:?}: {told}");
        }
        let mut unknown = [0; 64];
        (unknown[7], unknown[16]) = (0x77, 9);
        let unknown = Descriptor::from_bytes(&unknown);
        assert_eq!(operands(&unknown), r#"{"address_1":"0x9","address_2":"0x0","size":0}"#);
        assert_eq!(operation_name(&unknown), "unknown");
    }

    #[test]
    fn flags_by_name() {
        let drain = Descriptor::drain().with_readback_1(Address(8));
        let flags = Flags::FENCE | Flags::DRAIN_READBACK_1 | Flags::from_bits(1 << 23 | 1 << 6);
        assert_eq!(flag_names(flags, &drain), ["fence", "bit_6", "readback_1", "bit_23"]);
        assert_eq!(flag_names(Flags::CRC_SEED_IN_MEMORY, &Descriptor::noop()), ["bit_16"]);
    }

    #[test]
    fn results_by_name() {
        let told = |descriptor: &Descriptor, completion: &Completion| {
            serde_json::to_string(&Results { descriptor, completion }).unwrap()
        };
        let copy = Descriptor::memmove(Address(1), Address(2), 3);
        let fault = Completion {
            write_fault: true,
            fault_address: Address(0x5000),
            result: 1,
            ..Completion::new(Status::PageFault)
        };
        assert_eq!(
            told(&copy, &fault),
            r#"{"result":1,"fault_address":"0x5000","write_fault":true,"backwards":true}"#
        );
        let flags = Completion { operation: [2, 0], ..Completion::new(Status::InvalidFlags) };
        assert_eq!(told(&copy, &flags), r#"{"result":0,"invalid_flags":["block_on_fault"]}"#);
        let crc = Completion { operation: [0xabc, 0], ..Completion::new(Status::Success) };
        let descriptor = Descriptor::crc(0, Address(1), 3);
        assert_eq!(told(&descriptor, &crc), r#"{"result":0,"crc":"0xabc"}"#);
    }
}
