//! JSON in the dialect of accel-config.
//!
//! accel-config reads with json-c, which accepts a comma after the last element, as in two of its own profiles, and
//! comments. `serde_json` parses the text without them. Its `Value` would lose the order of keys, in which accel-config
//! applies settings, and repeated keys, which are errors; so objects are lists here.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// A JSON value, of a key that this crate does not know.
#[derive(Clone, PartialEq, Debug)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// Another number.
    Float(f64),
    /// A string.
    String(String),
    /// `[...]`.
    Array(Vec<Json>),
    /// `{...}`, in order.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one value.
    pub(super) fn parse(text: &str) -> Result<Json, serde_json::Error> {
        serde_json::from_str(&strict(text))
    }
}

/// Replaces commas before `]` and `}` and comments by blanks, so that lines and columns in errors stay right.
fn strict(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut comma = None;
    let mut before = b'[';
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                comma = None;
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'/' if matches!(bytes.get(at + 1), Some(b'/' | b'*')) => {
                let end = match bytes[at + 1] {
                    b'/' => bytes[at..].iter().position(|byte| *byte == b'\n').map(|length| at + length),
                    _ => bytes[at + 2..]
                        .windows(2)
                        .position(|pair| pair == b"*/")
                        .map(|length| at + length + 4),
                };
                let end = end.unwrap_or(bytes.len());
                for byte in &mut bytes[at..end] {
                    if *byte != b'\n' {
                        *byte = b' ';
                    }
                }
                at = end;
                continue;
            }
            b',' => comma = Some(at).filter(|_| !matches!(before, b'[' | b'{' | b',')),
            b']' | b'}' => {
                if let Some(comma) = comma.take() {
                    bytes[comma] = b' ';
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        if at < bytes.len() && !bytes[at].is_ascii_whitespace() {
            before = bytes[at];
        }
        at += 1;
    }
    // Only ASCII bytes and whole comments were replaced, so the rest is valid text.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Integer(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(Json::Integer(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
                Ok(Json::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(Json::String(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Json, A::Error> {
                let mut array = Vec::new();
                while let Some(value) = values.next_element()? {
                    array.push(value);
                }
                Ok(Json::Array(array))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
                let mut object = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    object.push(entry);
                }
                Ok(Json::Object(object))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => serializer.serialize_unit(),
            Json::Bool(value) => serializer.serialize_bool(*value),
            Json::Integer(value) => match (i64::try_from(*value), u64::try_from(*value)) {
                (Ok(value), _) => serializer.serialize_i64(value),
                (_, Ok(value)) => serializer.serialize_u64(value),
                // Parsing never yields such a number, and JSON cannot represent it exactly.
                _ => serializer.serialize_f64(*value as f64),
            },
            Json::Float(value) => serializer.serialize_f64(*value),
            Json::String(value) => serializer.serialize_str(value),
            Json::Array(values) => serializer.collect_seq(values),
            Json::Object(entries) => {
                let mut object = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    object.serialize_entry(key, value)?;
                }
                object.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_json_c_are_accepted() {
        let text = "[ {\"a\":1, }, /* , */ {\"b\":\"x,]\\\"\", // ]\n \"b\":2}, ]";
        let x = Json::String("x,]\"".to_owned());
        let first = Json::Object(vec![("a".to_owned(), Json::Integer(1))]);
        let second = Json::Object(vec![("b".to_owned(), x), ("b".to_owned(), Json::Integer(2))]);
        assert_eq!(Json::parse(text).unwrap(), Json::Array(vec![first, second]));
    }

    #[test]
    fn errors_have_the_right_position() {
        for text in ["", "[", "[,]", "{,}", "[1,,]", "{\"a\" 1}", "\"\\", "[/*", "[/", "//", "{\"a\":1,,}"] {
            assert!(Json::parse(text).is_err(), "{text:?}");
        }
        let error = Json::parse("[\n  {\"ä\": 1,},\n  x\n]").unwrap_err();
        assert_eq!((error.line(), error.column()), (3, 3));
    }
}
