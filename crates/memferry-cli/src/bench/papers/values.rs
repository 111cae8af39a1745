//! Values of axes, as words on the command line or in a file.

use std::str::FromStr;

use anyhow::Result;
use memferry::mover::Route;
use memferry::topology::NodeId;
use serde::de::value::{Error as WordError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::usage;

/// One value of an axis, not yet parsed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Word(String);

impl FromStr for Word {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Word, Self::Err> {
        Ok(Word(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        Ok(Word(match Either::deserialize(deserializer)? {
            Either::Number(number) => number.to_string(),
            Either::Text(text) => text,
        }))
    }
}

/// The values of an option, or the defaults.
pub(super) fn values<T>(
    option: &str,
    words: &Option<Vec<Word>>,
    own: Vec<T>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>> {
    let Some(words) = words else { return Ok(own) };
    if words.is_empty() {
        return Err(usage(format!("--{option} has no values; leave it out for those of the papers")));
    }
    let wrong = |word: &Word, why| usage(format!("--{option}: {:?} is not valid: {why}", word.0));
    words.iter().map(|word| read(word.0.trim()).map_err(|why| wrong(word, why))).collect()
}

/// A variant by its name.
pub(super) fn named<T: DeserializeOwned>(word: &str) -> Result<T, String> {
    let word: StrDeserializer<'_, WordError> = word.into_deserializer();
    T::deserialize(word).map_err(|error| error.to_string())
}

pub(super) fn route(word: &str) -> Result<Option<Route>, String> {
    if word == "none" { Ok(None) } else { named(word).map(Some) }
}

pub(super) fn node(word: &str) -> Result<Option<NodeId>, String> {
    match word {
        "any" => Ok(None),
        _ => word.parse().map(|node| Some(NodeId(node))).map_err(|_| "a node is a number, or any".to_owned()),
    }
}

pub(super) fn priorities(word: &str) -> Result<Option<(u8, u8)>, String> {
    let is_priority = |priority: &u8| (1..=15).contains(priority);
    pair(word, is_priority).ok_or_else(|| "priorities are two numbers from 1 to 15, such as 15-1".to_owned())
}

pub(super) fn read_buffers(word: &str) -> Result<Option<(u32, u32)>, String> {
    pair(word, |buffers| *buffers > 0)
        .ok_or_else(|| "read buffers are two numbers from 1 on, such as 96-16".to_owned())
}

/// `15-1`, or `any`.
fn pair<T: FromStr>(word: &str, is_meant: impl Fn(&T) -> bool) -> Option<Option<(T, T)>> {
    if word == "any" {
        return Some(None);
    }
    let number = |word: &str| word.parse().ok().filter(&is_meant);
    let (first, second) = word.split_once('-')?;
    number(first).zip(number(second)).map(Some)
}

pub(super) fn counted<T: FromStr + PartialEq + Default>(word: &str) -> Result<T, String> {
    let number = word.parse().ok().filter(|number| *number != T::default());
    number.ok_or_else(|| "counts are whole numbers from 1 on".to_owned())
}
