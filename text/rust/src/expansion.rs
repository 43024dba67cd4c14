//! How large a schema becomes in the compiler, which puts the parts of a schema into one another before it makes a grammar
//! of it. Of references it then makes copies: definitions of which each has two of the one before are 2^n schemas. What it
//! counts itself are the parts it puts together, not what is in them. So the same is done here with parts of which nothing
//! is kept but their size, as the compiler (llguidance's json/schema.rs) does it, in its order: that decides how deep it
//! calls itself, too.

use crate::ffi::{invalid, Outcome};
use crate::schema::step;
use crate::sizes::{choice, literal, of_size, part, texts, Kind, Part, OF_SEVERAL};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// What is copied in all: 0.2 KB and 1 us for each schema of several parts.
const MOST_COPIED: u64 = 150_000;
/// What the compiler compares with each other, or goes through again for each: names of an object's properties, options of a
/// oneOf, patterns of names. 10 to 30 ns each.
const MOST_PAIRS: u64 = 25_000_000;
const OF_OPTIONAL: u64 = 8;
const OF_PATTERNS: u64 = 5_000;
/// Texts that are given and have a pattern or format beside them: 0.1 ms each.
const MOST_GIVEN: usize = 4_000;
/// Schemas within schemas, through references: at most 5 KB of a stack of 8 MiB each.
const MOST_NESTED: usize = 800;
/// Where the compiler refuses by itself.
const ITS_STEPS: usize = 50_000;
const ITS_LEVELS: usize = 128;

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Keywords whose schemas hold at the same place.
pub const IN_PLACE: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];
const ASIDE: [&str; 15] = [
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];

enum Stop {
    Refused(String),
    /// The compiler refuses it, and says why.
    Elsewhere,
}
type Found<T> = Result<T, Stop>;

/// Refuses a schema that would become too large, or too deep. `is_older`: of a draft before 2020-12.
pub fn check(schema: &Value, is_older: bool) -> Outcome<()> {
    let mut sizes = Expansion {
        root: schema,
        is_older,
        known: HashMap::new(),
        reading: Vec::new(),
        steps: 0,
        copied: 0,
        pairs: 0,
        given: 0,
    };
    match sizes.read(schema) {
        Err(Stop::Refused(why)) => {
            let place = sizes.reading.last().and_then(|place| path_of(schema, place, "#"));
            invalid(format!("the schema's {}: {why}", place.unwrap_or_else(|| "#".into())))
        }
        Ok(_) | Err(Stop::Elsewhere) => Ok(()),
    }
}

/// Where `target` stands within `value`, which is at `path`.
fn path_of(value: &Value, target: &Value, path: &str) -> Option<String> {
    if std::ptr::eq(value, target) {
        return Some(path.to_string());
    }
    match value {
        Value::Object(members) => members.iter().find_map(|(key, member)| path_of(member, target, &step(path, key))),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| path_of(item, target, &format!("{path}/{index}")))
        }
        _ => None,
    }
}

struct Expansion<'a> {
    root: &'a Value,
    is_older: bool,
    known: HashMap<&'a str, Option<Part<'a>>>, // by references; None: it is being read
    reading: Vec<&'a Value>,                   // one within another
    steps: usize,
    copied: u64,
    pairs: u64,
    given: usize,
}

impl<'a> Expansion<'a> {
    fn step(&mut self) -> Found<()> {
        self.steps += 1;
        if self.steps > ITS_STEPS {
            return Err(Stop::Elsewhere);
        }
        Ok(())
    }

    fn copy(&mut self, copied: &Part<'a>) -> Found<Part<'a>> {
        self.copied = self.copied.saturating_add(copied.size);
        if self.copied > MOST_COPIED {
            return Err(Stop::Refused(format!(
                "it is too large where its parts are put together: copies of what stands in allOf, anyOf, oneOf \
                 or behind a $ref, for each of the others beside it, come to more than {} schemas",
                MOST_COPIED / OF_SEVERAL
            )));
        }
        Ok(copied.clone())
    }

    /// `count` of them are compared with each other. `each`: what one of these costs.
    fn compare(&mut self, count: usize, each: u64, what: &str) -> Found<()> {
        let count = count as u64;
        self.pairs = self.pairs.saturating_add(count.saturating_mul(count).saturating_mul(each));
        if self.pairs > MOST_PAIRS {
            return Err(Stop::Refused(format!(
                "it is too costly: {count} {what} at one place, at most {} are possible, fewer where others are",
                (MOST_PAIRS / each).isqrt()
            )));
        }
        Ok(())
    }

    fn read(&mut self, schema: &'a Value) -> Found<Part<'a>> {
        let members = match schema {
            Value::Bool(true) => return Ok(part(Kind::Any)),
            Value::Bool(false) => return Ok(part(Kind::Never)),
            Value::Object(members) => members,
            _ => return Err(Stop::Elsewhere),
        };
        self.step()?;
        if members.keys().all(|key| ASIDE.contains(&key.as_str())) {
            return Ok(part(Kind::Any));
        }
        self.reading.push(schema);
        if self.reading.len() > MOST_NESTED {
            return Err(Stop::Refused(format!(
                "it is too deep: more than {MOST_NESTED} schemas are within one another, through $ref"
            )));
        }
        let (mut result, mut beside) = (part(Kind::Any), Vec::new());
        for (key, value) in members {
            if IN_PLACE.contains(&key.as_str()) {
                result = self.with_simple(result, members, &mut beside)?;
                result = self.apply(result, key, value)?;
            } else if !ASIDE.contains(&key.as_str()) {
                beside.push(key.as_str());
            }
        }
        result = self.with_simple(result, members, &mut beside)?;
        self.reading.pop();
        Ok(result)
    }

    /// `result` and what the members called `beside` say.
    fn with_simple(
        &mut self,
        result: Part<'a>,
        members: &'a Map<String, Value>,
        beside: &mut Vec<&'a str>,
    ) -> Found<Part<'a>> {
        if beside.is_empty() {
            return Ok(result);
        }
        let said = std::mem::take(beside);
        let simple = match members.get("type") {
            Some(Value::String(only)) => self.read_type(only, members, &said)?,
            Some(Value::Array(names)) => {
                let names = names.iter().filter_map(Value::as_str);
                choice(names.map(|name| self.read_type(name, members, &said)).collect::<Found<_>>()?, false)
            }
            _ => choice(TYPES.iter().map(|name| self.read_type(name, members, &said)).collect::<Found<_>>()?, false),
        };
        self.both(result, simple, 0)
    }

    fn read_type(&mut self, name: &str, members: &'a Map<String, Value>, said: &[&str]) -> Found<Part<'a>> {
        self.step()?;
        let member = |key: &str| members.get(key).filter(|_| said.contains(&key));
        match name {
            "array" => self.read_array(member("items"), member("prefixItems"), member("additionalItems")),
            "object" => {
                let mut named = Vec::new();
                for (name, value) in member("properties").and_then(Value::as_object).into_iter().flatten() {
                    named.push((name.as_str(), self.read(value)?));
                }
                let required = members.get("required").and_then(Value::as_array).map_or(0, Vec::len);
                self.compare(named.len().max(required), 1, "properties")?;
                self.compare(named.len().saturating_sub(required), OF_OPTIONAL, "optional properties")?;
                let mut by_pattern = Vec::new();
                for (_, value) in member("patternProperties").and_then(Value::as_object).into_iter().flatten() {
                    by_pattern.push(self.read(value)?);
                }
                self.compare(by_pattern.len(), OF_PATTERNS, "patternProperties")?;
                for (_, value) in &mut named {
                    if let Some(pattern) = by_pattern.iter().max_by_key(|pattern| pattern.size) {
                        let pattern = self.copy(pattern)?; // any of them may be of this name
                        *value = self.both(value.clone(), pattern, 0)?;
                    }
                }
                let rest = member("additionalProperties").map(|value| self.read(value)).transpose()?;
                Ok(part(Kind::Object { named, by_pattern, rest }))
            }
            "string" => {
                let pattern = member("pattern").and_then(Value::as_str);
                let is_formed = pattern.is_some() || member("format").is_some();
                Ok(of_size(if is_formed { Kind::Formed } else { Kind::Simple(3) }, pattern.map_or(0, texts)))
            }
            "integer" => Ok(part(Kind::Simple(2))),
            _ => match TYPES.iter().position(|one| *one == name) {
                Some(index) => Ok(part(Kind::Simple(index))),
                None => Err(Stop::Elsewhere),
            },
        }
    }

    fn read_array(
        &mut self,
        items: Option<&'a Value>,
        prefix: Option<&'a Value>,
        additional: Option<&'a Value>,
    ) -> Found<Part<'a>> {
        let (prefix, items) = match items {
            Some(Value::Array(_)) => (items, additional),
            _ if self.is_older || additional.is_some() => (None, items),
            _ => (prefix, items),
        };
        let mut first = Vec::new();
        for item in prefix.and_then(Value::as_array).into_iter().flatten() {
            first.push(self.read(item)?);
        }
        let rest = items.map(|items| self.read(items)).transpose()?;
        Ok(part(Kind::Array { first, rest }))
    }

    fn apply(&mut self, result: Part<'a>, key: &str, value: &'a Value) -> Found<Part<'a>> {
        if key == "const" {
            return self.both(result, literal(value), 0);
        }
        if key == "$ref" {
            let reference = value.as_str().ok_or(Stop::Elsewhere)?;
            self.define(reference)?;
            if matches!(result.kind, Kind::Any) {
                return Ok(part(Kind::Reference(reference)));
            }
            return self.both_of(reference, result, 0);
        }
        let list = value.as_array().ok_or(Stop::Elsewhere)?;
        if key == "allOf" {
            let mut all = result;
            for one in list {
                let one = self.read(one)?;
                all = self.both(all, one, 0)?;
            }
            return Ok(all);
        }
        let options: Vec<Part<'a>> = match key {
            "enum" => list.iter().map(literal).collect(),
            _ => list.iter().map(|one| self.read(one)).collect::<Found<_>>()?,
        };
        if key == "oneOf" {
            self.compare(options.len(), 1, "schemas of a oneOf")?;
        }
        self.both(result, part(Kind::Choice { of: options, one: key == "oneOf" }), 0)
    }

    fn define(&mut self, reference: &'a str) -> Found<()> {
        if self.known.contains_key(reference) {
            return Ok(());
        }
        self.known.insert(reference, None);
        let mut target = self.root;
        let path = reference.strip_prefix("#/").or(reference.strip_prefix('#')).ok_or(Stop::Elsewhere)?;
        for name in path.split('/').filter(|_| !path.is_empty()) {
            let inner = match target {
                Value::Array(list) => name.parse().ok().and_then(|index: usize| list.get(index)),
                _ => target.get(name),
            };
            target = inner.ok_or(Stop::Elsewhere)?;
        }
        let defined = self.read(target)?;
        self.known.insert(reference, Some(defined));
        Ok(())
    }

    /// What both a reference and `other` say: a copy of what the reference is of.
    fn both_of(&mut self, reference: &'a str, other: Part<'a>, level: usize) -> Found<Part<'a>> {
        self.define(reference)?;
        let defined = self.known.get(reference).cloned().flatten().ok_or(Stop::Elsewhere)?;
        let defined = self.copy(&defined)?;
        self.both(defined, other, level + 1)
    }

    /// What fits both.
    fn both(&mut self, a: Part<'a>, b: Part<'a>, level: usize) -> Found<Part<'a>> {
        self.step()?;
        if level > ITS_LEVELS {
            return Err(Stop::Elsewhere);
        }
        match (&a.kind, &b.kind) {
            (Kind::Any, Kind::Choice { of, one }) | (Kind::Choice { of, one }, Kind::Any) => {
                Ok(choice(of.clone(), *one))
            }
            (Kind::Any, _) | (_, Kind::Never) => Ok(b),
            (_, Kind::Any) | (Kind::Never, _) => Ok(a),
            (Kind::Reference(reference), _) => self.both_of(reference, b, level + 1),
            (_, Kind::Reference(reference)) => self.both_of(reference, a, level + 1),
            (Kind::Choice { of, one }, _) => self.each(of, *one, &b, level),
            (_, Kind::Choice { of, one }) => self.each(of, *one, &a, level),
            (Kind::Simple(one), Kind::Simple(other)) if one == other => {
                Ok(of_size(Kind::Simple(*one), a.size + b.size))
            }
            (Kind::Given, Kind::Formed) | (Kind::Formed, Kind::Given) => {
                self.given += 1;
                if self.given > MOST_GIVEN {
                    return Err(Stop::Refused(format!(
                        "it gives more than {MOST_GIVEN} texts that have a pattern or format beside them"
                    )));
                }
                Ok(of_size(Kind::Formed, a.size + b.size))
            }
            (Kind::Given | Kind::Formed | Kind::Simple(3), Kind::Given | Kind::Formed | Kind::Simple(3)) => {
                let is_formed = matches!(a.kind, Kind::Formed) || matches!(b.kind, Kind::Formed);
                let is_given = matches!(a.kind, Kind::Given) || matches!(b.kind, Kind::Given);
                let kind = if is_given {
                    Kind::Given
                } else if is_formed {
                    Kind::Formed
                } else {
                    Kind::Simple(3)
                };
                Ok(of_size(kind, a.size + b.size))
            }
            (Kind::Array { first, rest }, Kind::Array { first: firsts, rest: rests }) => {
                let mut both = Vec::new();
                for index in 0..first.len().max(firsts.len()) {
                    let mut item = |list: &[Part<'a>], rest: &Option<Part<'a>>| match (list.get(index), rest) {
                        (Some(item), _) => Ok(item.clone()),
                        (None, Some(rest)) => self.copy(rest),
                        _ => Ok(part(Kind::Any)),
                    };
                    let (one, other) = (item(first, rest)?, item(firsts, rests)?);
                    both.push(self.both(one, other, level + 1)?);
                }
                let rest = self.both_rests(rest, rests, level)?;
                Ok(part(Kind::Array { first: both, rest }))
            }
            (Kind::Object { .. }, Kind::Object { .. }) => self.both_objects(&a, &b, level),
            _ => Ok(part(Kind::Never)),
        }
    }

    fn each(&mut self, of: &[Part<'a>], one: bool, other: &Part<'a>, level: usize) -> Found<Part<'a>> {
        let mut options = Vec::with_capacity(of.len());
        for option in of {
            let other = self.copy(other)?;
            options.push(self.both(option.clone(), other, level + 1)?);
        }
        if one {
            self.compare(options.len(), 1, "schemas of a oneOf")?;
        }
        Ok(choice(options, one))
    }

    fn both_rests(
        &mut self,
        one: &Option<Part<'a>>,
        other: &Option<Part<'a>>,
        level: usize,
    ) -> Found<Option<Part<'a>>> {
        match (one, other) {
            (Some(one), Some(other)) => Ok(Some(self.both(one.clone(), other.clone(), level + 1)?)),
            _ => Ok(one.clone().or(other.clone())),
        }
    }

    fn both_objects(&mut self, a: &Part<'a>, b: &Part<'a>, level: usize) -> Found<Part<'a>> {
        let (
            Kind::Object { named, by_pattern, rest },
            Kind::Object { named: names, by_pattern: patterns, rest: rests },
        ) = (&a.kind, &b.kind)
        else {
            return Err(Stop::Elsewhere);
        };
        let by_name = |named: &[(&'a str, Part<'a>)]| named.iter().cloned().collect::<HashMap<&'a str, Part<'a>>>();
        let (ours, theirs) = (by_name(named), by_name(names));
        // Of a name that an object says nothing of, the largest that may be meant.
        let of_others = |patterns: &[Part<'a>], rest: &Option<Part<'a>>| {
            patterns.iter().chain(rest).max_by_key(|one| one.size).cloned().unwrap_or_else(|| part(Kind::Any))
        };
        let (our_rest, their_rest) = (of_others(by_pattern, rest), of_others(patterns, rests));
        let mut both = Vec::new();
        for (name, value) in named {
            let other = self.copy(theirs.get(name).unwrap_or(&their_rest))?;
            both.push((*name, self.both(value.clone(), other, level + 1)?));
        }
        for (name, value) in names.iter().filter(|(name, _)| !ours.contains_key(name)) {
            let other = self.copy(&our_rest)?;
            both.push((*name, self.both(other, value.clone(), level + 1)?));
        }
        self.compare(both.len(), 1, "properties")?;
        self.compare(by_pattern.len() + patterns.len(), OF_PATTERNS, "patternProperties")?;
        let mut all_patterns = Vec::new();
        for (pattern, other) in by_pattern.iter().map(|p| (p, rests)).chain(patterns.iter().map(|p| (p, rest))) {
            let Some(other) = other else {
                all_patterns.push(pattern.clone());
                continue;
            };
            let other = self.copy(other)?;
            all_patterns.push(self.both(pattern.clone(), other, level + 1)?);
        }
        let rest = self.both_rests(rest, rests, level)?;
        Ok(part(Kind::Object { named: both, by_pattern: all_patterns, rest }))
    }
}
