//! Parts of a schema as the compiler has them, of which nothing is kept but what they are and how large (`expansion.rs`).

use serde_json::Value;
use std::rc::Rc;

/// Of a schema of several parts, and of a name in it. Others, of which thousands of values may be, have 1.
pub const OF_SEVERAL: u64 = 8;
const OF_NAME: u64 = 4;
pub enum Kind<'a> {
    Any,
    Never,
    /// A type's values by what is no schema: its index in TYPES.
    Simple(usize),
    /// A text that is given, and one with a pattern or format.
    Given,
    Formed,
    Array {
        first: Vec<Part<'a>>,
        rest: Option<Part<'a>>,
    },
    Object {
        named: Vec<(&'a str, Part<'a>)>,
        by_pattern: Vec<Part<'a>>,
        rest: Option<Part<'a>>,
    },
    Choice {
        of: Vec<Part<'a>>,
        one: bool,
    },
    Reference(&'a str),
}

/// A part and all that is in it. `size`: in the units above; a text has one more for 64 bytes.
pub struct Sized<'a> {
    pub kind: Kind<'a>,
    pub size: u64,
}
pub type Part<'a> = Rc<Sized<'a>>;

pub fn part(kind: Kind) -> Part {
    let all = |parts: &[Part]| parts.iter().map(|part| part.size).fold(0, u64::saturating_add);
    let of = |rest: &Option<Part>| rest.as_ref().map_or(0, |rest| rest.size);
    let size = match &kind {
        Kind::Array { first, rest } => OF_SEVERAL + all(first) + of(rest),
        Kind::Object { named, by_pattern, rest } => {
            let names = named.iter().map(|(name, _)| OF_NAME + texts(name)).sum::<u64>();
            let named = named.iter().map(|(_, part)| part.size).fold(0, u64::saturating_add);
            OF_SEVERAL + names + named + all(by_pattern) + of(rest)
        }
        Kind::Choice { of, .. } => OF_SEVERAL + all(of),
        _ => 1,
    };
    Rc::new(Sized { kind, size })
}

pub fn of_size(kind: Kind, more: u64) -> Part {
    Rc::new(Sized { kind, size: 1 + more })
}

pub fn texts(text: &str) -> u64 {
    text.len() as u64 / 64
}

/// As the compiler leaves them: choices in choices are one, what nothing fits is none.
pub fn choice<'a>(parts: Vec<Part<'a>>, one: bool) -> Part<'a> {
    let mut of = Vec::with_capacity(parts.len());
    for option in parts {
        match &option.kind {
            Kind::Any if !one => return option,
            Kind::Never => {}
            Kind::Choice { of: inner, one: as_well } if *as_well == one => of.extend(inner.iter().cloned()),
            _ => of.push(option),
        }
    }
    match of.len() {
        0 => part(Kind::Never),
        1 => of.swap_remove(0),
        _ => part(Kind::Choice { of, one }),
    }
}

pub fn literal(value: &Value) -> Part<'_> {
    match value {
        Value::Null => part(Kind::Simple(0)),
        Value::Bool(_) => part(Kind::Simple(1)),
        Value::Number(_) => part(Kind::Simple(2)),
        Value::String(text) => of_size(Kind::Given, texts(text)),
        Value::Array(items) => {
            part(Kind::Array { first: items.iter().map(literal).collect(), rest: Some(part(Kind::Never)) })
        }
        Value::Object(members) => part(Kind::Object {
            named: members.iter().map(|(name, value)| (name.as_str(), literal(value))).collect(),
            by_pattern: Vec::new(),
            rest: Some(part(Kind::Never)),
        }),
    }
}
