//! JSON Schemas before they are compiled: what would take too long or come out wrong is refused, what the compiler reads in
//! another way than the draft is put as it understands it.

use crate::bounds::{self, EXACT};
use crate::chains;
use crate::drafts;
use crate::endless::is_endless;
use crate::expansion;
use crate::ffi::{invalid, Outcome};
use crate::given::Sieve;
use crate::regexes::plain_groups;
use crate::repeated::put_once;
use crate::spaces;
use serde_json::{json, Map, Value};

/// Checked, and as the compiler understands it.
pub fn prepare(schema: Value) -> Outcome<Value> {
    let mut schema = spaces::own_keywords(schema);
    check_numbers(&schema, "#")?;
    let is_older = drafts::is_older(&schema);
    if !is_older {
        drafts::check(&schema, "#")?;
    }
    let mut inner = Vec::new();
    let mut costly = Ok(());
    let mut values = 0;
    each_schema(&mut schema, &mut |members| {
        values += members.get("enum").and_then(Value::as_array).map_or(0, Vec::len);
        inner.extend(bounds::inner_bounds(members));
        if let (Ok(()), Some(pattern)) = (&costly, members.get("pattern").and_then(Value::as_str)) {
            costly = chains::check_regex(pattern);
        }
    });
    costly?;
    chains::check_constants(values)?;
    let next_to_zero = bounds::next_to_zero(inner.into_iter());
    let mut sieve = Sieve::new();
    each_schema(&mut schema, &mut |members| {
        mend(members, &mut sieve);
        if !is_older {
            drafts::mend(members);
        }
        bounds::mend(members, next_to_zero);
    });
    check(&schema)?;
    each_schema(&mut schema, &mut bounds::spell_step);
    put_once(&mut schema);
    expansion::check(&schema, is_older)?;
    spaces::bound(schema)
}

/// Divisibility by n is an automaton of n states, and limits count none of them: 5 to 20 µs each.
const DIVISOR_LIMIT: u64 = 20_000;

/// What the compiler would take too long for, or never end of, or take for something else.
fn check(schema: &Value) -> Outcome<()> {
    if is_endless(schema) {
        return invalid("no text fits it: the schema asks for itself within itself, without an end");
    }
    let mut divisors = Vec::new();
    collect_divisors(schema, &mut divisors);
    divisors.sort_unstable();
    divisors.dedup();
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let together = divisors.iter().fold(1u64, |all, &d| all.saturating_mul(d / gcd(all, d)));
    let sum = divisors.iter().fold(0u64, |all, &d| all.saturating_add(d));
    if together.max(sum) > DIVISOR_LIMIT {
        return invalid(format!(
            "the schema's multipleOf are too large: their least common multiple is {together}, their sum {sum}, at most \
             {DIVISOR_LIMIT} are possible"
        ));
    }
    Ok(())
}

/// The digits of every multipleOf, leading zeros left out: 0.25 is 25.
fn collect_divisors(value: &Value, out: &mut Vec<u64>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                if let ("multipleOf", Value::Number(n)) = (key.as_str(), member) {
                    let text = n.to_string();
                    let digits: String =
                        text.split('e').next().unwrap_or("").chars().filter(char::is_ascii_digit).collect();
                    out.push(digits.parse().unwrap_or(u64::MAX).max(1));
                }
                collect_divisors(member, out);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_divisors(item, out)),
        _ => {}
    }
}

/// Keywords whose members are named schemas: their keys are no keywords.
pub const NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The keywords whose values are values, not schemas.
pub fn has_values(key: &str) -> bool {
    matches!(key, "const" | "enum" | "default" | "examples")
}

fn check_numbers(value: &Value, path: &str) -> Outcome<()> {
    match value {
        Value::Object(members) => members.iter().try_for_each(|(key, member)| {
            let here = step(path, key);
            match key.as_str() {
                "const" | "enum" => check_constant(member, &here),
                "default" | "examples" => Ok(()),
                "minimum" | "exclusiveMinimum" => check_bound(member, 1.0, &here),
                "maximum" | "exclusiveMaximum" => check_bound(member, -1.0, &here),
                "multipleOf" => check_step(member, &here),
                _ => check_numbers(member, &here),
            }
        }),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(i, item)| check_numbers(item, &format!("{path}/{i}")))
        }
        _ => Ok(()),
    }
}

fn check_constant(value: &Value, path: &str) -> Outcome<()> {
    match value {
        Value::Number(n) if n.as_i64().map_or(n.is_u64(), |i| i.unsigned_abs() > EXACT) => {
            invalid(format!("the schema's {path} is {n}: whole numbers beyond {EXACT} are not kept exactly"))
        }
        Value::Object(members) => members.values().try_for_each(|member| check_constant(member, path)),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(i, item)| check_constant(item, &format!("{path}/{i}")))
        }
        _ => Ok(()),
    }
}

/// `inward`: 1 for a lower, -1 for an upper bound. A bound may also be the name of a property.
fn check_bound(value: &Value, inward: f64, path: &str) -> Outcome<()> {
    let farthest = bounds::FARTHEST;
    match value {
        Value::Number(n) if n.as_f64().is_some_and(|bound| bound * inward > farthest) => {
            let most = if inward > 0.0 { "a lower bound is at most " } else { "an upper bound is at least -" };
            invalid(format!("the schema's {path} is {n}: {most}{farthest:e}"))
        }
        Value::Number(_) => Ok(()),
        _ => check_numbers(value, path),
    }
}

fn check_step(value: &Value, path: &str) -> Outcome<()> {
    match value {
        Value::Number(n) if n.as_f64().is_some_and(|step| bounds::spelled(step.abs()).is_none()) => {
            invalid(format!("the schema's {path} is {n}: the multiples of this number cannot be told exactly"))
        }
        Value::Number(_) => Ok(()),
        _ => check_numbers(value, path),
    }
}

/// A time has its 60th second only when a leap second comes, which a grammar cannot know: without it all are valid.
macro_rules! time {
    () => {
        "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    };
}
/// A 29th of February is one in leap years only, and no calendar has a year 0.
macro_rules! date {
    () => {
        concat!(
            "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-(?:02-(?:0[1-9]|1[0-9]|2[0-8])",
            "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01]))",
            "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
        )
    };
}
const TIME: &str = concat!("^", time!(), "$");
const DATE: &str = concat!("^", date!(), "$");
const DATE_TIME: &str = concat!("^", date!(), "[tT]", time!(), "$");

/// The part of a host's name between two dots: its third and fourth character not both hyphens, which only names in
/// Punycode have; at most four more than `$most`, and `$less` is one less.
macro_rules! label {
    ($most:literal, $less:literal) => {
        concat!(
            "[0-9A-Za-z](?:[0-9A-Za-z-]?[0-9A-Za-z]|[0-9A-Za-z-](?:[0-9A-Za-z][0-9A-Za-z-]{0,",
            $most,
            "}[0-9A-Za-z]|-[0-9A-Za-z](?:[0-9A-Za-z-]{0,",
            $less,
            "}[0-9A-Za-z])?))?"
        )
    };
}
const HOST: &str = concat!("^", label!("59", "58"), r"(?:\.", label!("59", "58"), ")*$");
/// 64 characters at most, 32 where there are dots between them (RFC 5321 allows 64 then, too, but counting both costs
/// more states than the compiler has); of a host's name up to three parts of 63 characters or up to ten of 24.
const MAILBOX: &str = concat!(
    "^(?:[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]{1,64}",
    r"|[0-9A-Za-z!#$%&'*+/=?^_`{|}~-](?:\.?[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]){1,31})@",
    "(?:",
    label!("59", "58"),
    r"(?:\.",
    label!("59", "58"),
    "){0,2}|",
    label!("20", "19"),
    r"(?:\.",
    label!("20", "19"),
    "){3,9}|",
    r"\[(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\])$"
);
const BASE64: &str = "^(?:[0-9A-Za-z+/]{4})*(?:[0-9A-Za-z+/]{2}==|[0-9A-Za-z+/]{3}=)?$";
macro_rules! uuid {
    ($version:literal) => {
        concat!("^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-", $version, "[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$")
    };
}
/// Formats in other words than the compiler's, which let through more: names without a bound (a host's has 253 characters
/// at most), days that there are not.
const WORDED: [(&str, &[&str]); 16] = [
    ("byte", &[BASE64]),
    ("base64", &[BASE64]),
    ("uuid1", &[uuid!("1")]),
    ("uuid3", &[uuid!("3")]),
    ("uuid4", &[uuid!("4")]),
    ("uuid5", &[uuid!("5")]),
    // What OpenAPI and pydantic say of a text that may be any.
    ("password", &[]),
    ("binary", &[]),
    ("path", &[]),
    ("file-path", &[]),
    ("directory-path", &[]),
    ("hostname", &[HOST, "^.{1,253}$"]),
    ("email", &[MAILBOX]),
    ("time", &[TIME]),
    ("date", &[DATE]),
    ("date-time", &[DATE_TIME]),
];
/// Those that their words hold narrower than they need be.
const NARROWED: [&str; 2] = ["hostname", "email"];

/// Calls `see` with every schema in `value`, inner ones first.
pub fn each_schema(value: &mut Value, see: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                match member {
                    Value::Object(named) if NAMES.contains(&key.as_str()) => {
                        named.iter_mut().for_each(|(_, part)| each_schema(part, see))
                    }
                    _ if has_values(key) => {}
                    _ => each_schema(member, see),
                }
            }
            see(members);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each_schema(item, see)),
        _ => {}
    }
}

const COUNTS: [&str; 6] = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

fn mend(members: &mut Map<String, Value>, sieve: &mut Sieve) {
    if let Some(Value::String(reference)) = members.get_mut("$ref") {
        decode_reference(reference);
    }
    if let Some(Value::String(pattern)) = members.get_mut("pattern") {
        *pattern = plain_groups(pattern).into_owned();
        sieve.use_pattern(members);
    }
    if expansion::IN_PLACE.iter().any(|key| members.contains_key(*key)) {
        // The compiler would put what it does not know (OpenAPI's `nullable`) together with what stands beside it.
        members.retain(|key, value| drafts::is_known(key) || value.is_object() || value.is_array());
    }
    if members.get("uniqueItems") == Some(&Value::Bool(false)) {
        members.shift_remove("uniqueItems");
    }
    if !members.contains_key("anyOf") && members.get("oneOf").is_some_and(all_differ) {
        let constants = members.shift_remove("oneOf").unwrap_or_default();
        members.insert("anyOf".into(), constants);
    }
    for key in COUNTS {
        // 3.0 is a whole number to the draft.
        if let Some(count) = members.get_mut(key).filter(|count| count.is_f64()) {
            match count.as_f64() {
                Some(whole) if whole.fract() == 0.0 && (0.0..EXACT as f64).contains(&whole) => {
                    *count = json!(whole as u64)
                }
                _ => {}
            }
        }
    }
    let format = members.get("format").and_then(Value::as_str).unwrap_or_default();
    let worded = WORDED.iter().find(|(name, _)| *name == format).map(|(_, patterns)| *patterns);
    // A name that is given is left as it is.
    let is_given = NARROWED.contains(&format) && (members.contains_key("const") || members.contains_key("enum"));
    let Some(patterns) = worded.filter(|_| !is_given) else { return sieve.use_format(members) };
    members.shift_remove("format");
    for pattern in patterns {
        if !sieve.keep_fitting(members, pattern) {
            bounds::add_all_of(members, json!({"pattern": pattern}));
        }
    }
}

/// Whether the schemas of a list each name their values, and no value is named twice: of these one fits at most.
fn all_differ(schemas: &Value) -> bool {
    let Value::Array(schemas) = schemas else { return false };
    let mut seen = std::collections::BTreeSet::new();
    schemas.iter().all(|schema| {
        let named = match (schema.get("const"), schema.get("enum")) {
            (Some(value), None) => std::slice::from_ref(value),
            (None, Some(Value::Array(values))) => values.as_slice(),
            _ => return false,
        };
        let mut own = Vec::new();
        for value in named {
            match value {
                Value::Array(_) | Value::Object(_) => return false,
                Value::Number(number) => own.push(format!("{:e}", number.as_f64().unwrap_or(f64::NAN))), // 1.0 is 1
                other => own.push(other.to_string()),
            }
        }
        own.dedup();
        own.into_iter().all(|value| seen.insert(value))
    })
}

/// `#/$defs/List%3Cint%3E` is the definition `List<int>`. The compiler looks names up as they stand there.
fn decode_reference(reference: &mut String) {
    if !reference.starts_with("#/") || !reference.contains(['%', '~']) {
        return;
    }
    let mut bytes = Vec::with_capacity(reference.len());
    let mut rest = reference.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let hex = (first == b'%').then(|| behind.get(..2)).flatten().and_then(|d| std::str::from_utf8(d).ok());
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    // A name with a slash has no spelling that the compiler takes: it says then that there is none such.
    if let Some(decoded) = String::from_utf8(bytes).ok().filter(|d| !d.contains("~1")) {
        *reference = decoded.replace("~0", "~");
    }
}

/// The path of a member of what is at `path`.
pub fn step(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}
