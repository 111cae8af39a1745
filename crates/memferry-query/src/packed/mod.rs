//! Bit-packed columns: integers without the bits that none of them needs.
//!
//! ```text
//! values       103  100  107  101         Int32: 128 bits
//! reference    100                        the smallest value
//! width          3                        bits of the largest difference
//! bits         011  000  111  001         12 bits, the first value lowest
//! ```
//!
//! In Arrow such a column is a list of `width` booleans a row, because a buffer of booleans is a string of bits: the array
//! has as many rows as the column, has its validity, can be sliced at any row, and means the same to each reader of Arrow.
//! The extension `memferry.bit_packed` says with its metadata (`100 Int32`) which values the bits are.
//!
//! Tables keep such arrays as they are, one for each row group with its own reference and width; copies near are copies of the
//! bits, and scans unpack the rows that they look at.
//!
//! Source: D. Lemire, L. Boytsov, Decoding billions of integers per second through vectorization, 2015 (frame of
//! reference); Arrow columnar format, "Extension Types".

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, Field, FieldRef};
use arrow::error::ArrowError;
use memferry_kernels::{Bits, Native, Packer, rows_of, value};

/// Keys of the Arrow columnar format, "Extension Types".
const NAME_KEY: &str = "ARROW:extension:name";
const METADATA_KEY: &str = "ARROW:extension:metadata";

/// The type of a bit-packed column: which values its bits are.
#[derive(Clone, PartialEq, Eq)]
pub struct BitPacked {
    value_type: DataType,
    /// The smallest value, as a 64-bit integer with its sign.
    reference: u64,
    width: u32,
}

/// Integers of a type as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Integers {
    bytes: usize,
    is_signed: bool,
}

impl Integers {
    fn of(data_type: &DataType) -> Option<Integers> {
        let (bytes, is_signed) = match data_type {
            DataType::Int8 => (1, true),
            DataType::Int16 => (2, true),
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) => (4, true),
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_) => (8, true),
            DataType::UInt8 => (1, false),
            DataType::UInt16 => (2, false),
            DataType::UInt32 => (4, false),
            DataType::UInt64 => (8, false),
            DataType::Decimal128(..) => (16, true),
            _ => return None,
        };
        Some(Integers { bytes, is_signed })
    }

    /// Whether all values of an array fit into 64 bits.
    fn fit(self, array: &ArrayData) -> bool {
        let fits = |value: &i128| i64::try_from(*value).is_ok();
        match (self.bytes, array.nulls()) {
            (16, None) => values_of::<i128>(array).iter().all(fits),
            (16, Some(nulls)) => {
                values_of::<i128>(array).iter().zip(nulls).all(|(value, is_valid)| !is_valid || fits(value))
            }
            _ => true,
        }
    }

    /// Calls `each` for the value of every row, extended to 64 bits with its sign; `None` for nulls.
    fn visit(self, array: &ArrayData, each: &mut impl FnMut(Option<u64>)) {
        let nulls = array.nulls();
        let mut visit = |values: &mut dyn Iterator<Item = u64>| match nulls {
            None => values.for_each(|value| each(Some(value))),
            Some(nulls) => {
                values.zip(nulls.iter()).for_each(|(value, is_valid)| each(is_valid.then_some(value)));
            }
        };
        match (self.bytes, self.is_signed) {
            (1, true) => visit(&mut values_of::<i8>(array).iter().map(|&value| i64::from(value) as u64)),
            (2, true) => visit(&mut values_of::<i16>(array).iter().map(|&value| i64::from(value) as u64)),
            (4, true) => visit(&mut values_of::<i32>(array).iter().map(|&value| i64::from(value) as u64)),
            (1, false) => visit(&mut values_of::<u8>(array).iter().map(|&value| value.into())),
            (2, false) => visit(&mut values_of::<u16>(array).iter().map(|&value| value.into())),
            (4, false) => visit(&mut values_of::<u32>(array).iter().map(|&value| value.into())),
            (16, _) => visit(&mut values_of::<i128>(array).iter().map(|&value| value as u64)),
            _ => visit(&mut values_of::<u64>(array).iter().copied()),
        }
    }
}

fn values_of<T: ArrowNativeType>(array: &ArrayData) -> &[T] {
    &array.buffers()[0].typed_data::<T>()[array.offset()..array.offset() + array.len()]
}

/// A column that was packed.
#[derive(Debug, Clone)]
pub struct PackedColumn {
    /// The type.
    pub packed: BitPacked,
    /// Its bits.
    pub array: ArrayRef,
    /// Smallest and largest value, if the values are integers up to `i64` and there is one.
    pub values: Option<RangeInclusive<i64>>,
}

impl BitPacked {
    /// The name of the extension.
    pub const NAME: &'static str = "memferry.bit_packed";

    /// Whether each column of this type can be packed: integers, dates, times and durations. Decimals can if their unscaled
    /// values fit into 64 bits.
    pub fn supports(data_type: &DataType) -> bool {
        Integers::of(data_type).is_some_and(|integers| integers.bytes <= size_of::<u64>())
    }

    /// Packs `pieces`, one after the other, with the fewest bits that hold all their values, at least one.
    ///
    /// Cost: two passes over the values.
    ///
    /// # Errors
    /// [`ArrowError::InvalidArgumentError`] for a type that is not [supported](BitPacked::supports), for no piece, for pieces of
    /// different types, and for decimals beyond 64 bits.
    pub fn pack(pieces: &[ArrayRef]) -> Result<PackedColumn, ArrowError> {
        let invalid = |text: String| Err(ArrowError::InvalidArgumentError(text));
        let Some(first) = pieces.first() else {
            return invalid("no array to pack; pass at least one".into());
        };
        let value_type = first.data_type().clone();
        let Some(integers) = Integers::of(&value_type) else {
            return invalid(format!("{value_type} cannot be packed; cast it to a type of integers"));
        };
        if let Some(other) = pieces.iter().find(|piece| piece.data_type() != &value_type) {
            return invalid(format!(
                "arrays of {value_type} and {} cannot be packed together",
                other.data_type()
            ));
        }
        let pieces: Vec<ArrayData> = pieces.iter().map(|piece| piece.to_data()).collect();
        if !pieces.iter().all(|piece| integers.fit(piece)) {
            return invalid(format!("values of {value_type} beyond 64 bits cannot be packed"));
        }
        let range = Range::of(&pieces, integers);
        pack(&pieces, integers, value_type, &range, range.bits)
    }

    /// Packs values of eight and more bytes in one, two, four or eight bytes each: the fewest that hold all of them. `None` for
    /// other types, and if values would not become smaller.
    ///
    /// Cost: three passes over the values.
    pub(crate) fn narrow(pieces: &[ArrayRef]) -> Option<PackedColumn> {
        let value_type = pieces.first()?.data_type().clone();
        let integers = Integers::of(&value_type).filter(|integers| integers.bytes >= size_of::<u64>())?;
        let pieces: Vec<ArrayData> = pieces.iter().map(|piece| piece.to_data()).collect();
        if !pieces.iter().all(|piece| integers.fit(piece)) {
            return None;
        }
        let range = Range::of(&pieces, integers);
        let width = range.bits.next_power_of_two().max(u8::BITS);
        if width as usize >= 8 * integers.bytes {
            return None;
        }
        pack(&pieces, integers, value_type, &range, width).ok()
    }

    /// The bit-packed column that a field describes; `None` for other columns.
    ///
    /// # Errors
    /// [`ArrowError::InvalidArgumentError`] if the field has the extension's name, and its type or metadata do not fit.
    pub fn of_field(field: &Field) -> Result<Option<BitPacked>, ArrowError> {
        if field.metadata().get(NAME_KEY).is_none_or(|name| name != Self::NAME) {
            return Ok(None);
        }
        let width = match field.data_type() {
            DataType::FixedSizeList(item, width) if item.data_type() == &DataType::Boolean => {
                u32::try_from(*width).ok().filter(|width| (1..=u64::BITS).contains(width))
            }
            _ => None,
        };
        let metadata = field.metadata().get(METADATA_KEY).map_or("", String::as_str);
        let values = metadata.split_once(' ').and_then(|(reference, value_type)| {
            let value_type: DataType = value_type.parse().ok()?;
            let reference = match Integers::of(&value_type)?.is_signed {
                true => reference.parse::<i64>().ok()? as u64,
                false => reference.parse().ok()?,
            };
            Some((reference, value_type))
        });
        let (Some(width), Some((reference, value_type))) = (width, values) else {
            let (name, storage) = (field.name(), field.data_type());
            return Err(ArrowError::InvalidArgumentError(format!(
                "column {name:?} is of {} with the storage {storage} and the metadata {metadata:?}; write lists of 1 to 64 \
                 booleans, and the smallest value and the type, such as '100 Int32'",
                Self::NAME
            )));
        };
        Ok(Some(BitPacked { value_type, reference, width }))
    }

    /// A field of this type.
    pub fn field(&self, name: &str, is_nullable: bool) -> Field {
        let metadata = [
            (NAME_KEY.to_owned(), Self::NAME.to_owned()),
            (METADATA_KEY.to_owned(), format!("{} {}", self.reference_text(), self.value_type)),
        ];
        Field::new(name, self.storage_type(), is_nullable).with_metadata(HashMap::from(metadata))
    }

    /// The type of the arrays with its bits: lists of booleans.
    pub fn storage_type(&self) -> DataType {
        let (item, length) = self.list();
        DataType::FixedSizeList(item, length)
    }

    /// The type of the values.
    pub fn value_type(&self) -> &DataType {
        &self.value_type
    }

    /// Bits of a value.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Bytes of a value that is not packed.
    pub fn value_bytes(&self) -> usize {
        self.integers().bytes
    }

    /// Whether it takes fewer bits than its values do.
    pub fn is_smaller(&self) -> bool {
        (self.width as usize) < 8 * self.value_bytes()
    }

    /// The values of a column, or of a slice of one.
    ///
    /// # Panics
    /// If `array` is not of the [storage type](BitPacked::storage_type).
    pub fn unpack(&self, array: &ArrayRef) -> ArrayRef {
        let (bits, rows, reference) = (self.bits(array), array.len(), self.reference as i64);
        let values = match self.integers().bytes {
            1 => Buffer::from_vec(u8::unpacked(bits, rows, reference)),
            2 => Buffer::from_vec(u16::unpacked(bits, rows, reference)),
            4 => Buffer::from_vec(u32::unpacked(bits, rows, reference)),
            8 => Buffer::from_vec(u64::unpacked(bits, rows, reference)),
            _ => Buffer::from_vec(i128::unpacked(bits, rows, reference)),
        };
        self.array(values, rows, array.nulls().cloned())
    }

    /// The values of the rows whose bit is set in `mask`.
    ///
    /// # Panics
    /// As [`unpack`](BitPacked::unpack), and if the mask has not a bit for each row.
    pub fn unpack_selected(&self, array: &ArrayRef, mask: &BooleanBuffer) -> ArrayRef {
        assert_eq!(array.len(), mask.len(), "one bit a row");
        self.unpack_rows(array, &rows_of(mask.values(), mask.offset(), mask.len()))
    }

    /// The values of these rows.
    ///
    /// # Panics
    /// As [`unpack`](BitPacked::unpack), and if there is no such row.
    pub(crate) fn unpack_rows(&self, array: &ArrayRef, rows: &[u32]) -> ArrayRef {
        let (bits, reference) = (self.bits(array), self.reference as i64);
        let values = match self.integers().bytes {
            1 => Buffer::from_vec(u8::unpack_rows(bits, reference, rows)),
            2 => Buffer::from_vec(u16::unpack_rows(bits, reference, rows)),
            4 => Buffer::from_vec(u32::unpack_rows(bits, reference, rows)),
            8 => Buffer::from_vec(u64::unpack_rows(bits, reference, rows)),
            _ => Buffer::from_vec(i128::unpack_rows(bits, reference, rows)),
        };
        let nulls = array.nulls().map(|nulls| rows.iter().map(|&row| nulls.is_valid(row as usize)).collect());
        self.array(values, rows.len(), nulls)
    }

    /// The rows whose value is in `range`, for values up to `i64`; of nulls, any.
    ///
    /// # Panics
    /// As [`unpack`](BitPacked::unpack).
    pub(crate) fn within(&self, array: &ArrayRef, range: &RangeInclusive<i64>) -> BooleanBuffer {
        let bits = self.bits(array);
        // Differences of 64-bit integers need 65 bits.
        let difference = |bound: i64| i128::from(bound) - i128::from(self.reference as i64);
        let most = i128::from(u64::MAX >> (u64::BITS - self.width));
        let (first, last) = (difference(*range.start()).max(0), difference(*range.end()).min(most));
        if first > last {
            return BooleanBuffer::new_unset(array.len());
        }
        if (first, last) == (0, most) {
            return BooleanBuffer::new_set(array.len());
        }
        bits_of(memferry_kernels::within(bits, array.len(), first as u64, last as u64), array.len())
    }

    /// The value of a row, also of a null, as a 64-bit integer.
    ///
    /// # Panics
    /// As [`unpack`](BitPacked::unpack), and if there is no such row.
    pub(crate) fn integer(&self, array: &ArrayRef, row: usize) -> i64 {
        let Bits { bytes, start, width } = self.bits(array);
        self.reference.wrapping_add(value(bytes, start + row * width as usize, width)) as i64
    }

    fn array(&self, values: Buffer, rows: usize, nulls: Option<NullBuffer>) -> ArrayRef {
        let builder = ArrayData::builder(self.value_type.clone()).len(rows).nulls(nulls).add_buffer(values);
        make_array(builder.build().expect("there is a value and a bit of validity for each row"))
    }

    /// The bits of an array.
    fn bits<'a>(&self, array: &'a ArrayRef) -> Bits<'a> {
        let lists = array.as_fixed_size_list();
        assert_eq!(lists.value_length(), self.width as i32, "the storage of {self:?}");
        let bits = lists.values().as_boolean().values();
        Bits { bytes: bits.values(), start: bits.offset(), width: self.width }
    }

    fn list(&self) -> (FieldRef, i32) {
        (Arc::new(Field::new_list_field(DataType::Boolean, false)), self.width as i32)
    }

    fn integers(&self) -> Integers {
        Integers::of(&self.value_type).expect("no other type is packed")
    }

    fn reference_text(&self) -> String {
        match self.integers().is_signed {
            true => (self.reference as i64).to_string(),
            false => self.reference.to_string(),
        }
    }
}

impl fmt::Debug for BitPacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value_type, width, .. } = self;
        write!(f, "BitPacked({value_type} from {} in {width} bits)", self.reference_text())
    }
}

/// Words of bits as those of `rows` rows.
pub(crate) fn bits_of(words: Vec<u64>, rows: usize) -> BooleanBuffer {
    BooleanBuffer::new(Buffer::from_vec(words), 0, rows)
}

/// Packs integers in as many bits as `width_of` makes of the fewest that hold all of them.
fn pack(
    pieces: &[ArrayData],
    integers: Integers,
    value_type: DataType,
    range: &Range,
    width: u32,
) -> Result<PackedColumn, ArrowError> {
    let reference = range.bounds.map_or(0, |(least, _)| least);
    let rows = pieces.iter().map(ArrayData::len).sum();
    let mut packer = Packer::new(width, rows);
    for piece in pieces {
        integers
            .visit(piece, &mut |value| packer.push(value.map_or(0, |value| value.wrapping_sub(reference))));
    }
    let bits = BooleanBuffer::new(Buffer::from_vec(packer.finish()), 0, rows * width as usize);
    let packed = BitPacked { value_type, reference, width };
    let (item, length) = packed.list();
    let bits = Arc::new(BooleanArray::new(bits, None));
    let array = FixedSizeListArray::try_new_with_length(item, length, bits, validity(pieces), rows)?;
    let bounds = range.bounds.filter(|&(_, most)| integers.is_signed || most <= i64::MAX as u64);
    let values = bounds.map(|(least, most)| least as i64..=most as i64);
    Ok(PackedColumn { packed, array: Arc::new(array), values })
}

/// The values that a column has.
struct Range {
    /// The smallest and the largest one, extended to 64 bits with their signs; `None` without values.
    bounds: Option<(u64, u64)>,
    /// Bits that hold their difference, at least one.
    bits: u32,
}

impl Range {
    fn of(pieces: &[ArrayData], integers: Integers) -> Range {
        // With the sign bit inverted, signed integers have the order of those without sign.
        let order = if integers.is_signed { 1 << 63 } else { 0 };
        let (mut least, mut most) = (u64::MAX, 0);
        for piece in pieces {
            integers.visit(piece, &mut |value| {
                if let Some(value) = value {
                    least = least.min(value ^ order);
                    most = most.max(value ^ order);
                }
            });
        }
        if least > most {
            return Range { bounds: None, bits: 1 };
        }
        let bits = (u64::BITS - (most - least).leading_zeros()).max(1);
        Range { bounds: Some((least ^ order, most ^ order)), bits }
    }
}

/// The validity of pieces one after the other.
fn validity(pieces: &[ArrayData]) -> Option<NullBuffer> {
    if pieces.iter().all(|piece| piece.null_count() == 0) {
        return None;
    }
    let of_piece = |piece: &ArrayData| match piece.nulls() {
        Some(nulls) => nulls.clone(),
        None => NullBuffer::new_valid(piece.len()),
    };
    let pieces: Vec<NullBuffer> = pieces.iter().map(of_piece).collect();
    Some(pieces.iter().flat_map(NullBuffer::iter).collect())
}

#[cfg(test)]
mod tests;
