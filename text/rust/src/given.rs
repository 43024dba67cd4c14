//! Values that a schema gives, and the patterns and formats beside them: those that fit stay, and the patterns and formats
//! go. So it is left to the compiler only to find one of some texts, however many there are.

use crate::formats::Format;
use llguidance::derivre::{Regex, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Of matching the values of one schema: 0.05 to 0.1 us each. With more the compiler does it in its own way.
const MOST_WORK: u64 = 1_000_000;
const CHECKED_BYTES: usize = 256;

pub struct Sieve {
    left: u64,
    formats: HashMap<String, Option<Format>>, // by names; None: there is none
}

impl Sieve {
    pub fn new() -> Sieve {
        Sieve { left: MOST_WORK, formats: HashMap::new() }
    }

    /// Takes the pattern of a schema whose values are given, where that leaves some.
    pub fn use_pattern(&mut self, members: &mut Map<String, Value>) {
        let Some(pattern) = members.get("pattern").and_then(Value::as_str).map(String::from) else { return };
        if self.keep_fitting(members, &pattern) {
            members.shift_remove("pattern");
        }
    }

    /// The same of its format, if that is one of the compiler's own.
    pub fn use_format(&mut self, members: &mut Map<String, Value>) {
        let Some(name) = members.get("format").and_then(Value::as_str).map(String::from) else { return };
        let Some(Value::Array(values)) = members.get_mut("enum") else { return };
        let Some(format) = self.formats.entry(name).or_insert_with_key(|name| Format::named(name)) else { return };
        if keep(values, |text| format.has(text, &mut self.left)) {
            members.shift_remove("format");
        }
    }

    /// False: what the compiler does with the pattern says the same; there are no values, or none fits, or it is not found
    /// out.
    pub fn keep_fitting(&mut self, members: &mut Map<String, Value>, pattern: &str) -> bool {
        let Some(Value::Array(values)) = members.get_mut("enum") else { return false };
        // As the compiler reads it.
        let mut builder = RegexBuilder::new();
        let Ok(expression) = builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw")) else { return false };
        let Ok(mut regex) = builder.to_regex_limited(expression, self.left) else { return false };
        let begun = regex.cost();
        let kept = keep(values, |text| fits(&mut regex, text, begun + self.left));
        self.left = self.left.saturating_sub(regex.cost() - begun);
        kept
    }
}

/// Leaves of `values` those texts that fit, and what is no text. False: none would be left, and one that does not fit is;
/// or whether one fits is not found out, and they are all there.
fn keep(values: &mut Vec<Value>, mut fits: impl FnMut(&str) -> Option<bool>) -> bool {
    let fit: Option<Vec<bool>> = values.iter().map(|value| value.as_str().map_or(Some(true), &mut fits)).collect();
    match fit {
        Some(fit) if fit.contains(&true) => {
            let mut fit = fit.into_iter();
            values.retain(|_| fit.next().unwrap_or(true));
            true
        }
        Some(_) => {
            values.truncate(1); // as good for saying so as all of them
            false
        }
        None => false,
    }
}

/// None: finding out costs more than `most`.
fn fits(regex: &mut Regex, text: &str, most: u64) -> Option<bool> {
    let mut state = regex.initial_state();
    for some in text.as_bytes().chunks(CHECKED_BYTES) {
        state = regex.transition_bytes(state, some);
        if regex.cost() > most {
            return None;
        }
    }
    Some(regex.is_accepting(state))
}
