//! White space between the parts of a JSON text. JSON has as much of it as one likes, and a weak model writes it until its
//! answer is cut: an answer has as much as people and programs lay JSON out with.

use serde_json::{json, Value};

const OWN: &str = "x-guidance";
const FLEXIBLE: &str = "whitespace_flexible";

/// Between two parts: a few spaces, or the ends of a line and of an empty one behind it, and an indentation of up to 16
/// levels of four.
pub const BOUNDED: &str = r"[ \t]{1,4}|[ \t]{0,4}(?:\r?\n){1,2}[ \t]{0,64}";

/// Of the compiler's own keyword only whether white space may stand between the parts, and then as much as one likes: by its
/// other members it can be told to leave out what it does not know.
pub fn own_keywords(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        let spaced = members.shift_remove(OWN).and_then(|own| own.get(FLEXIBLE).and_then(Value::as_bool));
        if let Some(spaced) = spaced {
            members.insert(OWN.into(), json!({ FLEXIBLE: spaced }));
        }
    }
    schema
}

/// Bounds the white space of a schema that does not say itself how much there may be.
pub fn bound(mut schema: Value) -> Value {
    let own = json!({ "whitespace_pattern": BOUNDED });
    match &mut schema {
        Value::Bool(true) => return json!({ OWN: own }),
        Value::Object(members) if !members.contains_key(OWN) => drop(members.insert(OWN.into(), own)),
        _ => {}
    }
    schema
}
