//! JSON in the dialect of accel-config.
//!
//! accel-config reads with json-c, which accepts a comma after the last element, as in two of its own profiles, and
//! comments. `serde_json` parses the text without them. Its `Value` would lose the order of keys, in which accel-config
//! applies settings, and repeated keys, which are errors; so objects are lists here.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::Number;

/// A JSON value, of a key that this crate does not know.
#[derive(Clone, PartialEq, Debug, serde::Deserialize, serde::Serialize)]
#[serde(untagged)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    String(String),
    /// `[...]`.
    Array(Vec<Json>),
    /// `{...}`.
    Object(Entries),
}

/// The keys and values of an object, in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Entries(
    /// Each key with its value; keys may repeat.
    pub Vec<(String, Json)>,
);

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

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Entries, A::Error> {
                std::iter::from_fn(|| entries.next_entry().transpose()).collect::<Result<_, _>>().map(Entries)
            }
        }
        deserializer.deserialize_map(Any)
    }
}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_json_c_are_accepted() {
        let text = "[ {\"a\":1, }, /* , */ {\"b\":\"x,]\\\"\", // ]\n \"b\":2}, ]";
        let x = Json::String("x,]\"".to_owned());
        let number = |number: u64| Json::Number(number.into());
        let first = Json::Object(Entries(vec![("a".to_owned(), number(1))]));
        let second = Json::Object(Entries(vec![("b".to_owned(), x), ("b".to_owned(), number(2))]));
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
