//! Schemas that no value fits, however large: those that ask for themselves within themselves, without a way out.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// So many schemas are looked at, and no more: of one that takes longer nothing is said.
const WORK: usize = 1_000_000;

/// True: certainly. References that lead nowhere are for the compiler to refuse.
pub fn is_endless(schema: &Value) -> bool {
    let mut references = HashSet::new();
    collect(schema, &mut references);
    if references.is_empty() {
        return false;
    }
    let mut search = Search { ending: HashSet::new(), work: 0 };
    let mut open: Vec<&str> = references.into_iter().collect();
    open.sort_unstable();
    loop {
        let before = open.len();
        open.retain(|reference| {
            let target = reference.strip_prefix('#').and_then(|pointer| schema.pointer(pointer));
            let ends = target.is_none_or(|target| search.ends(target));
            if ends {
                search.ending.insert(reference);
            }
            !ends
        });
        if search.work > WORK {
            return false;
        }
        if open.len() == before {
            return !search.ends(schema);
        }
    }
}

fn collect<'a>(value: &'a Value, out: &mut HashSet<&'a str>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                out.insert(reference);
            }
            members.values().for_each(|member| collect(member, out));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, out)),
        _ => {}
    }
}

struct Search<'a> {
    ending: HashSet<&'a str>, // references to schemas that some value fits
    work: usize,
}

impl Search<'_> {
    /// Whether some value may fit, as far as is known of references.
    fn ends(&mut self, schema: &Value) -> bool {
        self.work += 1;
        let Value::Object(members) = schema else { return schema != &Value::Bool(false) };
        if self.work > WORK {
            return true;
        }
        let refers_on = |reference: &Value| reference.as_str().is_some_and(|r| !self.ending.contains(r));
        if members.get("$ref").is_some_and(refers_on) {
            return false;
        }
        if let Some(Value::Array(all)) = members.get("allOf") {
            if !all.iter().all(|one| self.ends(one)) {
                return false;
            }
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(any)) = members.get(key) {
                if !any.iter().any(|one| self.ends(one)) {
                    return false;
                }
            }
        }
        let may_be = |name: &str| match members.get("type") {
            Some(Value::String(only)) => only == name,
            Some(Value::Array(names)) => names.iter().any(|one| one == name),
            _ => true,
        };
        members.contains_key("const")
            || members.contains_key("enum")
            || ["string", "number", "integer", "boolean", "null"].iter().any(|name| may_be(name))
            || (may_be("object") && self.object_ends(members))
            || (may_be("array") && self.array_ends(members))
    }

    fn object_ends(&mut self, members: &Map<String, Value>) -> bool {
        let Some(Value::Array(required)) = members.get("required") else { return true };
        let properties = members.get("properties");
        required.iter().all(|name| {
            let property = name.as_str().and_then(|name| properties?.get(name));
            property.is_none_or(|property| self.ends(property))
        })
    }

    fn array_ends(&mut self, members: &Map<String, Value>) -> bool {
        let least = members.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let prefix: &[Value] = members.get("prefixItems").and_then(Value::as_array).map_or(&[], Vec::as_slice);
        let rest = if least > prefix.len() { members.get("items") } else { None };
        prefix.iter().take(least).chain(rest).all(|item| self.ends(item))
    }
}
