//! Integers beyond 64 bits in what a template gets, which JSON readers make doubles of: it prints all of their digits, as
//! Python does.

use minijinja::value::{Object, ObjectRepr};
use minijinja::Value;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value as Json};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// A shorter one fits in 64 bits.
const FEWEST_DIGITS: usize = 19;

/// One beyond 128 bits: nothing but its digits.
#[derive(Debug)]
struct Whole(String);

impl Object for Whole {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Its digits, if it is one beyond 128 bits.
pub fn digits_of(value: &Value) -> Option<String> {
    value.downcast_object_ref::<Whole>().map(|whole| whole.0.clone())
}

/// Those of one rendering. While its values are JSON, a double stands for each: one that nobody who wrote them can know.
#[derive(Default)]
pub struct Wholes {
    by_bits: HashMap<u64, Value>,
    random: RandomState,
}

impl Wholes {
    /// `json` as a JSON reader may have it.
    pub fn read(&mut self, json: &[u8]) -> serde_json::Result<Json> {
        if !has_many_digits(json) {
            return serde_json::from_slice(json);
        }
        let mut out = Vec::with_capacity(json.len());
        let (mut at, mut written) = (0, 0);
        while at < json.len() {
            match json[at] {
                b'"' => at = end_of_string(json, at),
                b'-' | b'0'..=b'9' => {
                    let begin = at;
                    at = begin + json[begin..].iter().take_while(|c| b"+-.0123456789eE".contains(c)).count();
                    if let Some(value) = great(&json[begin..at]) {
                        out.extend_from_slice(&json[written..begin]);
                        out.extend_from_slice(format!("{:e}", self.stand_in(value)).as_bytes());
                        written = at;
                    }
                }
                _ => at += 1,
            }
        }
        out.extend_from_slice(&json[written..]);
        serde_json::from_slice(&out)
    }

    /// A number beyond 1e300.
    fn stand_in(&mut self, value: Value) -> f64 {
        const BEYOND: u64 = 0x7E40_0000_0000_0000;
        const DIGITS: u64 = 0x000F_FFFF_FFFF_FFFF;
        let mut hasher = self.random.build_hasher();
        hasher.write_usize(self.by_bits.len());
        let bits = BEYOND | (hasher.finish() & DIGITS);
        self.by_bits.insert(bits, value);
        f64::from_bits(bits)
    }

    pub fn to_value(&self, members: &Map<String, Json>) -> Value {
        if self.by_bits.is_empty() {
            return Value::from_serialize(members);
        }
        Value::from_serialize(Members(members, self))
    }

    fn of(&self, json: &Json) -> Option<&Value> {
        self.by_bits.get(&json.as_number()?.as_f64()?.to_bits())
    }
}

struct Members<'a>(&'a Map<String, Json>, &'a Wholes);
struct Exact<'a>(&'a Json, &'a Wholes);

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(key, value)| (key, Exact(value, self.1))))
    }
}

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Json::Object(members) => Members(members, self.1).serialize(to),
            Json::Array(items) => to.collect_seq(items.iter().map(|item| Exact(item, self.1))),
            other => match self.1.of(other) {
                Some(whole) => whole.serialize(to),
                None => other.serialize(to),
            },
        }
    }
}

/// Whether as many digits as a great integer has follow each other: one of every so many bytes is one of them.
fn has_many_digits(json: &[u8]) -> bool {
    (FEWEST_DIGITS - 1..json.len()).step_by(FEWEST_DIGITS).any(|at| {
        json[at].is_ascii_digit() && {
            let before = json[..at].iter().rev().take_while(|c| c.is_ascii_digit()).count();
            let behind = json[at..].iter().take_while(|c| c.is_ascii_digit()).count();
            before + behind >= FEWEST_DIGITS
        }
    })
}

/// Where the string ends that begins at `at`.
fn end_of_string(json: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < json.len() && json[end] != b'"' {
        end += if json[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(json.len())
}

/// The value of an integer beyond 64 bits; None: it is another number.
fn great(number: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(number).ok()?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_whole = digits.len() >= FEWEST_DIGITS && digits.bytes().all(|c| c.is_ascii_digit());
    if !is_whole || digits.starts_with('0') || text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
        return None;
    }
    let known = text.parse::<i128>().map(Value::from).or_else(|_| text.parse::<u128>().map(Value::from));
    Some(known.unwrap_or_else(|_| Value::from_object(Whole(text.to_string()))))
}
