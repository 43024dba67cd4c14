//! White space between the parts of a JSON text. JSON has as much of it as one likes, and a weak model writes it until its
//! answer is cut: an answer has as much as people and programs lay JSON out with, or what its schema says.

use crate::ffi::{invalid, Outcome};
use regex_syntax::hir::{
    Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition,
};
use regex_syntax::ParserBuilder;
use serde_json::{json, Value};

const OWN: &str = "x-guidance";
const FLEXIBLE: &str = "whitespace_flexible";
const PATTERN: &str = "whitespace_pattern";

/// Between two parts: a few spaces, or the ends of a line and of an empty one behind it, and an indentation of up to 16
/// levels of four.
pub const BOUNDED: &str = r"[ \t]{1,4}|[ \t]{0,4}(?:\r?\n){1,2}[ \t]{0,64}";

/// What JSON takes for white space.
const SPACES: [char; 4] = ['\t', '\n', '\r', ' '];
/// Of a pattern. Each level of groups may double what is made of it.
const MOST_BYTES: usize = 256;
const MOST_NESTED: u32 = 8;

/// Of the compiler's own keyword only what white space may stand between the parts: by its other members it can be told to
/// leave out what it does not know.
pub fn own_keywords(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        let own = members.shift_remove(OWN).unwrap_or_default();
        if let Some(pattern) = own.get(PATTERN).filter(|pattern| !pattern.is_null()) {
            members.insert(OWN.into(), json!({ PATTERN: pattern }));
        } else if let Some(spaced) = own.get(FLEXIBLE).and_then(Value::as_bool) {
            members.insert(OWN.into(), json!({ FLEXIBLE: spaced }));
        }
    }
    schema
}

/// Bounds the white space of a schema that does not say itself how much there may be; puts what it says as the compiler
/// takes it.
pub fn bound(mut schema: Value) -> Outcome<Value> {
    let own = match schema.get(OWN) {
        None => json!({ PATTERN: BOUNDED }),
        Some(own) => match own.get(PATTERN) {
            None => return Ok(schema),
            Some(Value::String(pattern)) => match wanted(pattern) {
                Ok(Some(spaces)) => json!({ PATTERN: spaces }),
                Ok(None) => json!({ FLEXIBLE: false }),
                Err(why) => return invalid(format!("the schema's #/{OWN}/{PATTERN}: {why}")),
            },
            Some(other) => return invalid(format!("the schema's #/{OWN}/{PATTERN} is a text, not {other}")),
        },
    };
    match &mut schema {
        Value::Bool(true) => return Ok(json!({ OWN: own })),
        Value::Object(members) => drop(members.insert(OWN.into(), own)),
        _ => {}
    }
    Ok(schema)
}

/// What is wrong with a pattern of white space.
pub fn check(pattern: &str) -> Outcome<()> {
    wanted(pattern).map(drop).or_else(invalid)
}

/// The texts of a pattern that are white space, but for the empty one: the compiler leaves white space out by itself, and
/// wants expressions that take something. None: there are none.
fn wanted(pattern: &str) -> Result<Option<String>, String> {
    if pattern.len() > MOST_BYTES {
        return Err(format!("a pattern of white space has at most {MOST_BYTES} bytes, not {}", pattern.len()));
    }
    let parsed = ParserBuilder::new().nest_limit(MOST_NESTED).build().parse(pattern);
    let parsed = parsed.map_err(|error| match error {
        regex_syntax::Error::Parse(error) => format!("it cannot be read: {}", error.kind()),
        regex_syntax::Error::Translate(error) => format!("it cannot be read: {}", error.kind()),
        _ => "it cannot be read".into(),
    })?;
    let texts = Texts::of(&parsed)?;
    if !texts.empty {
        return Err(
            "white space may be left out between any two parts, so that a pattern of it takes the empty text, \
                    too: `[ ]?`, `[ \\n]*`"
                .into(),
        );
    }
    Ok(texts.others.map(|others| others.to_string()))
}

/// The texts of an expression that are white space.
struct Texts {
    empty: bool,         // among them
    others: Option<Hir>, // None: there are none
}

impl Texts {
    fn of(hir: &Hir) -> Result<Texts, String> {
        let some = |others| Ok(Texts { empty: false, others });
        match hir.kind() {
            HirKind::Empty => Ok(Texts { empty: true, others: None }),
            HirKind::Look(_) => Err("boundaries and ends of lines are not supported".into()),
            HirKind::Literal(literal) => {
                some(literal.0.iter().all(|byte| SPACES.contains(&char::from(*byte))).then(|| hir.clone()))
            }
            HirKind::Class(class) => {
                let spaces = match class {
                    Class::Unicode(class) => {
                        let mut class = class.clone();
                        class.intersect(&ClassUnicode::new(SPACES.map(|c| ClassUnicodeRange::new(c, c))));
                        Class::Unicode(class)
                    }
                    Class::Bytes(class) => {
                        let mut class = class.clone();
                        class.intersect(&ClassBytes::new(SPACES.map(|c| ClassBytesRange::new(c as u8, c as u8))));
                        Class::Bytes(class)
                    }
                };
                some((!spaces.is_empty()).then(|| Hir::class(spaces)))
            }
            HirKind::Capture(capture) => Texts::of(&capture.sub),
            HirKind::Repetition(repeated) => Ok(Texts::of(&repeated.sub)?.repeated(repeated)),
            HirKind::Alternation(options) => {
                let (mut empty, mut others) = (false, Vec::new());
                for option in options {
                    let texts = Texts::of(option)?;
                    empty |= texts.empty;
                    others.extend(texts.others);
                }
                Ok(Texts { empty, others: (!others.is_empty()).then(|| Hir::alternation(others)) })
            }
            HirKind::Concat(parts) => {
                let mut all = Texts { empty: true, others: None };
                for part in parts {
                    all = all.followed_by(Texts::of(part)?);
                }
                Ok(all)
            }
        }
    }

    fn repeated(self, by: &Repetition) -> Texts {
        let empty = self.empty || by.min == 0;
        let min = if empty { 1 } else { by.min };
        let sub = self.others.filter(|_| by.max != Some(0));
        Texts { empty, others: sub.map(|sub| Hir::repetition(Repetition { min, sub: Box::new(sub), ..by.clone() })) }
    }

    fn followed_by(self, next: Texts) -> Texts {
        let own = next.others.clone().filter(|_| self.empty);
        let behind = match (next.others, next.empty) {
            (Some(others), true) => Some(Hir::alternation(vec![others, Hir::empty()])),
            (others, empty) => others.or(empty.then(Hir::empty)),
        };
        let both = self.others.zip(behind).map(|(before, behind)| Hir::concat(vec![before, behind]));
        let others: Vec<Hir> = both.into_iter().chain(own).collect();
        Texts { empty: self.empty && next.empty, others: (!others.is_empty()).then(|| Hir::alternation(others)) }
    }
}
