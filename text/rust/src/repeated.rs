//! What stands in a schema more than once is put where the compiler reads it once: it takes 0.3 ms for the expression of a
//! date, and a schema may have a date in each of its fields.

use crate::schema::each_schema;
use serde_json::{json, Map, Value};
use std::collections::HashMap;

/// They say nothing about what fits.
const NOTES: [&str; 8] =
    ["title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"];

/// Of a schema of texts by expressions, what it says of them; of others nothing.
fn texts(members: &Map<String, Value>) -> Option<Value> {
    let said: Map<String, Value> = members
        .iter()
        .filter(|(key, _)| !NOTES.contains(&key.as_str()))
        .map(|(key, member)| (key.clone(), member.clone()))
        .collect();
    let is_known =
        |key: &String| matches!(key.as_str(), "type" | "format" | "pattern" | "allOf" | "minLength" | "maxLength");
    let is_pattern = |part: &Value| part.as_object().is_some_and(|all| all.len() == 1 && all.contains_key("pattern"));
    let all_of = said.get("allOf").is_none_or(|all| all.as_array().is_some_and(|all| all.iter().all(is_pattern)));
    let has_expression = ["format", "pattern", "allOf"].iter().any(|key| said.contains_key(*key));
    let is_text = said.get("type").and_then(Value::as_str) == Some("string");
    (is_text && has_expression && all_of && said.keys().all(is_known)).then_some(Value::Object(said))
}

/// The same schema, which has each of these once.
pub fn put_once(schema: &mut Value) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut has_bases = false; // "#/" leads elsewhere behind one
    each_schema(schema, &mut |members| {
        has_bases = has_bases || members.contains_key("$id");
        if let Some(texts) = texts(members) {
            *counts.entry(texts.to_string()).or_default() += 1;
        }
    });
    counts.retain(|_, count| *count > 1);
    if counts.is_empty() || has_bases {
        return;
    }
    let own = schema.get("$defs").and_then(Value::as_object);
    let mut prefix = String::from("repeated");
    while own.is_some_and(|own| own.keys().any(|name| name.starts_with(&prefix))) {
        prefix.push('_');
    }
    let (mut names, mut definitions): (HashMap<String, String>, Vec<(String, Value)>) = Default::default();
    each_schema(schema, &mut |members| {
        let Some(texts) = texts(members) else { return };
        let key = texts.to_string();
        if !counts.contains_key(&key) {
            return;
        }
        let name = names.entry(key).or_insert_with(|| {
            definitions.push((format!("{prefix}{}", definitions.len()), texts));
            definitions[definitions.len() - 1].0.clone()
        });
        *members = Map::from_iter([("$ref".to_string(), json!(format!("#/$defs/{name}")))]);
    });
    if let Value::Object(root) = schema {
        if let Value::Object(all) = root.entry("$defs").or_insert_with(|| json!({})) {
            all.extend(definitions);
        }
    }
}
