//! What drafts of JSON Schema differ in. Lists of schemas, one for each place of an array: draft 2020-12 has them as `prefixItems`; older ones as `items`, and the
//! compiler takes a schema for an older one where it sees a list there or `additionalItems`, whatever its `$schema`.

use crate::ffi::{invalid, Outcome};
use crate::schema::{has_values, step};
use serde_json::{Map, Value};

/// Whether a schema says that it is of a draft before 2020-12.
pub fn is_older(schema: &Value) -> bool {
    const OLDER: [&str; 5] = ["/draft-03/", "/draft-04/", "/draft-06/", "/draft-07/", "/draft/2019-09/"];
    let draft = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    OLDER.iter().any(|name| draft.contains(name))
}

/// Whether some draft has this keyword.
pub fn is_known(key: &str) -> bool {
    const KNOWN: [&str; 61] = [
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$dynamicRef",
        "$id",
        "$recursiveAnchor",
        "$recursiveRef",
        "$ref",
        "$schema",
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "contains",
        "contentEncoding",
        "contentMediaType",
        "default",
        "definitions",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "description",
        "else",
        "enum",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "id",
        "if",
        "items",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "properties",
        "propertyNames",
        "readOnly",
        "required",
        "then",
        "title",
        "type",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "writeOnly",
        "x-guidance",
    ];
    KNOWN.contains(&key)
}

/// Refuses `items` that are a list. Of schemas that are not older.
pub fn check(value: &Value, path: &str) -> Outcome<()> {
    match value {
        Value::Object(members) => members.iter().filter(|(key, _)| !has_values(key)).try_for_each(|(key, member)| {
            let here = step(path, key);
            if key == "items" && member.is_array() {
                return invalid(format!(
                    "the schema's {here} is a list: draft 2020-12 has one of schemas as `prefixItems`, and older drafts \
                     are read where `$schema` names one"
                ));
            }
            check(member, &here)
        }),
        Value::Array(items) => items.iter().enumerate().try_for_each(|(i, item)| check(item, &format!("{path}/{i}"))),
        _ => Ok(()),
    }
}

/// Draft 2020-12 knows nothing of `additionalItems`, beside which the compiler would read no `prefixItems`.
pub fn mend(members: &mut Map<String, Value>) {
    members.shift_remove("additionalItems");
}
