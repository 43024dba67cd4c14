//! Where in a schema the fault is that the compiler speaks of, and what it is in words of the schema.

use crate::regexes;
use crate::schema::{has_values, step, NAMES};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

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
        (_, None) => {
            let why = if keys == ["oneOf"] { ONE_OF } else { error };
            Some(format!("the schema's {}: {why}", places.join(", ")))
        }
        (1, _) => Some(format!("the schema's {} is not supported", places[0])),
        _ => Some(format!("the schema's {} are not supported", places.join(", "))),
    }
}

const ONE_OF: &str =
    "it is supported where no value can fit two of its schemas, as of objects with another constant in a \
                      required property; anyOf is without that";

/// Keywords whose values may be such that they are not supported: words of what the compiler says then.
const KEYWORDS_OF: [(&str, &str); 3] =
    [("oneOf constraints", "oneOf"), ("Unknown format", "format"), ("patternProperty regexes", "patternProperties")];

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

/// The path of the smallest part of `whole` of which the compiler says the same `error`, as far as time allows, and the
/// error in words; of a property or an item that must be there and cannot, what it says of that. `says`: what it says of a
/// schema.
pub fn narrow(whole: &Value, error: &str, says: impl Fn(&Value) -> Option<String>) -> (String, String) {
    let begun = Instant::now();
    let definitions: Map<String, Value> = ["$schema", "$defs", "definitions"]
        .into_iter()
        .filter_map(|key| Some((key.to_string(), whole.get(key)?.clone())))
        .collect();
    let fault = |part: &Value| {
        let Value::Object(members) = part else { return says(part) };
        let mut alone = members.clone();
        definitions.iter().for_each(|(key, value)| drop(alone.insert(key.clone(), value.clone())));
        says(&Value::Object(alone))
    };
    let (mut here, mut path, mut error) = (whole, String::from("#"), error.to_string());
    'deeper: while begun.elapsed() < NARROWING {
        let impossible = impossible_part(&error, &path);
        for (name, part) in parts(here, &path) {
            if begun.elapsed() >= NARROWING {
                break 'deeper;
            }
            if let Some(own) = fault(part).filter(|own| *own == error || impossible.as_ref() == Some(&name)) {
                (here, path, error) = (part, name, own);
                continue 'deeper;
            }
        }
        break;
    }
    (path, in_words(here, error))
}

/// The path of the property or item that an `error` of the schema at `path` says must be there and cannot.
fn impossible_part(error: &str, path: &str) -> Option<String> {
    let between = |begin: &str, end: char| Some(error.split_once(begin)?.1.split_once(end)?.0);
    if let Some(property) = between("required property '", '\'') {
        return Some(step(&step(path, "properties"), property));
    }
    if let Some(number) = between("prefixItems[", ']') {
        return Some(step(&step(path, "prefixItems"), number));
    }
    error.contains("required item is unsatisfiable").then(|| step(path, "items"))
}

/// Keywords that say which texts fit.
const OF_TEXTS: [&str; 9] = ["const", "enum", "pattern", "format", "minLength", "maxLength", "allOf", "anyOf", "$ref"];

/// What an error says, without the lines that show where, or how the compiler came there.
pub fn first_line(error: &str) -> String {
    if error.contains("assertion failed: grammar.symbols.len()") {
        return format!("it is too large: it has more than {} symbols", u16::MAX - 10);
    }
    let line = error.lines().next().unwrap_or_default();
    match error.split_once("regex parse error:").and_then(|(_, rest)| rest.split_once("error: ")) {
        Some((_, why)) => format!("{} {}", line.trim_end(), why.lines().next().unwrap_or_default()),
        None => regexes::in_words(line).unwrap_or_else(|| line.to_string()),
    }
}

/// The same of a regular expression, which the compiler reads within a grammar of its own.
pub fn of_regex(text: &str, error: &str) -> String {
    regexes::fault(text, error).map_or_else(|| first_line(error), |why| format!("it cannot be read: {why}"))
}

/// An error in words of the schema: the client knows neither the compiler's expressions nor its options.
fn in_words(schema: &Value, error: String) -> String {
    if error.contains("Only absolute $ref's") {
        let reference = schema.get("$ref").and_then(Value::as_str).unwrap_or_default();
        return format!("a $ref leads to a place within the schema (#/$defs/name): {reference:?} is not supported");
    }
    let patterns = schema.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let pattern = schema.get("pattern").and_then(Value::as_str).map(|pattern| ("pattern", pattern));
    for (key, pattern) in pattern.into_iter().chain(patterns.map(|key| ("patternProperties", key.as_str()))) {
        if let Some(why) = regexes::fault(pattern, &error) {
            return format!("its {key} cannot be read: {why}");
        }
    }
    let what = if error.contains("Regex is empty: ") {
        "Unsatisfiable schema: no text fits"
    } else if error.contains("Unable to determine if regex is empty: ") {
        "it would take too long to find out whether any text fits"
    } else {
        return error;
    };
    let said: Vec<&str> = OF_TEXTS.into_iter().filter(|key| schema.get(key).is_some()).collect();
    match said.as_slice() {
        [] => format!("{what} it"),
        [only] => format!("{what} its {only}"),
        [first @ .., last] => format!("{what} its {} and {last} together", first.join(", ")),
    }
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
