//! JSON Schemas before they are compiled: what would take too long or come out wrong is refused, what the compiler reads in
//! another way than the draft is put as it understands it; and where in a schema the fault is that it speaks of.

use crate::endless::is_endless;
use crate::ffi::{invalid, Outcome};
use serde_json::{json, Map, Value};
use std::time::{Duration, Instant};

/// Checked, and as the compiler understands it.
pub fn prepare(mut schema: Value) -> Outcome<Value> {
    mend(&mut schema);
    check(&schema)?;
    Ok(schema)
}

/// Divisibility by n is an automaton of n states, and limits count none of them: 5 to 20 µs each.
const DIVISOR_LIMIT: u64 = 20_000;

/// What the compiler would take too long for, or never end of, or take for something else.
pub fn check(schema: &Value) -> Outcome<()> {
    check_numbers(schema, "#")?;
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

/// The keywords whose values are values, not schemas.
fn has_values(key: &str) -> bool {
    matches!(key, "const" | "enum" | "default" | "examples")
}

/// The compiler reads numbers as doubles.
const EXACT: u64 = 1 << 53;

fn check_numbers(value: &Value, path: &str) -> Outcome<()> {
    match value {
        Value::Object(members) => members.iter().try_for_each(|(key, member)| {
            let here = step(path, key);
            match key.as_str() {
                "const" | "enum" => check_constant(member, &here),
                "default" | "examples" => Ok(()),
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

/// A time has its 60th second only when a leap second comes, which a grammar cannot know: without it all are valid.
const NO_LEAP_SECOND: &str = "^[^:]*:[^:]*:[0-5]";

fn mend(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                match (key.as_str(), &mut *member) {
                    ("$ref", Value::String(reference)) => decode_reference(reference),
                    (key, member) if !has_values(key) => mend(member),
                    _ => {}
                }
            }
            if matches!(members.get("format"), Some(Value::String(format)) if format == "time" || format == "date-time")
            {
                let all = members.entry("allOf").or_insert_with(|| json!([]));
                if let Value::Array(all) = all {
                    all.push(json!({"pattern": NO_LEAP_SECOND}));
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mend),
        _ => {}
    }
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

fn step(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Where the keywords stand that `error` names as not supported.
pub fn places_of_keywords(schemas: &[Value], error: &str) -> Option<String> {
    let quoted = error.split_once("Unimplemented keys: [").map(|(_, rest)| rest.split(']').next().unwrap_or_default());
    let keys: Vec<&str> = match quoted {
        Some(quoted) => quoted.split(", ").map(|key| key.trim_matches('"')).collect(),
        None => KEYWORDS_OF.iter().filter(|(words, _)| error.contains(words)).map(|&(_, key)| key).collect(),
    };
    let mut places = Vec::new();
    schemas.iter().for_each(|schema| find(schema, "#", &keys, &mut places));
    match (places.len(), quoted) {
        (0, _) => None,
        (_, None) => Some(format!("the schema's {}: {error}", places.join(", "))),
        (1, _) => Some(format!("the schema's {} is not supported", places[0])),
        _ => Some(format!("the schema's {} are not supported", places.join(", "))),
    }
}

/// Keywords whose values may be such that they are not supported: words of what the compiler says then.
const KEYWORDS_OF: [(&str, &str); 3] =
    [("oneOf constraints", "oneOf"), ("Unknown format", "format"), ("patternProperty regexes", "patternProperties")];

/// Keywords whose members are named schemas: their keys are no keywords.
const NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Paths of every member called as one of `keys`, properties of that name left out.
fn find(value: &Value, path: &str, keys: &[&str], places: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let here = step(path, key);
                if keys.contains(&key.as_str()) && places.len() < 8 {
                    places.push(here.clone());
                }
                match member {
                    Value::Object(named) if NAMES.contains(&key.as_str()) => {
                        named.iter().for_each(|(name, schema)| find(schema, &step(&here, name), keys, places))
                    }
                    _ if has_values(key) => {}
                    _ => find(member, &here, keys, places),
                }
            }
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| find(item, &format!("{path}/{i}"), keys, places))
        }
        _ => {}
    }
}

/// A fault is looked for so long.
const NARROWING: Duration = Duration::from_millis(50);

/// The path of the smallest part of `whole` of which the compiler says the same `error`, as far as time allows. `says`:
/// what it says of a schema.
pub fn narrow(whole: &Value, error: &str, says: impl Fn(&Value) -> Option<String>) -> String {
    let begun = Instant::now();
    let definitions: Map<String, Value> = ["$schema", "$defs", "definitions"]
        .into_iter()
        .filter_map(|key| Some((key.to_string(), whole.get(key)?.clone())))
        .collect();
    let has_fault = |part: &Value| {
        let Value::Object(members) = part else { return says(part).as_deref() == Some(error) };
        let mut alone = members.clone();
        definitions.iter().for_each(|(key, value)| drop(alone.insert(key.clone(), value.clone())));
        says(&Value::Object(alone)).as_deref() == Some(error)
    };
    let (mut here, mut path) = (whole, String::from("#"));
    'deeper: while begun.elapsed() < NARROWING {
        for (name, part) in parts(here, &path) {
            if begun.elapsed() >= NARROWING {
                break 'deeper;
            }
            if has_fault(part) {
                (here, path) = (part, name);
                continue 'deeper;
            }
        }
        break;
    }
    path
}

/// The schemas that stand directly in one, with their paths.
fn parts<'a>(schema: &'a Value, path: &str) -> Vec<(String, &'a Value)> {
    let Value::Object(members) = schema else { return Vec::new() };
    let mut out = Vec::new();
    for (key, member) in members {
        let here = step(path, key);
        match (key.as_str(), member) {
            (key, Value::Object(named)) if NAMES.contains(&key) => {
                out.extend(named.iter().map(|(name, part)| (step(&here, name), part)))
            }
            ("items" | "additionalProperties", part) => out.push((here, part)),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(list)) => {
                out.extend(list.iter().enumerate().map(|(i, part)| (format!("{here}/{i}"), part)))
            }
            _ => {}
        }
    }
    out
}
