//! Values that a schema gives, and the patterns beside them: those that fit stay, and the patterns go. So it is left to
//! the compiler only to find one of some texts, however many there are.

use llguidance::derivre::{Regex, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

/// Of matching the values of one schema: 0.05 to 0.1 us each. With more the compiler does it in its own way.
const MOST_WORK: u64 = 1_000_000;
const CHECKED_BYTES: usize = 256;

pub struct Sieve {
    left: u64,
}

impl Sieve {
    pub fn new() -> Sieve {
        Sieve { left: MOST_WORK }
    }

    /// Takes the pattern of a schema whose values are given, where that leaves some.
    pub fn use_pattern(&mut self, members: &mut Map<String, Value>) {
        let Some(pattern) = members.get("pattern").and_then(Value::as_str).map(String::from) else { return };
        if self.keep_fitting(members, &pattern) {
            members.shift_remove("pattern");
        }
    }

    /// False: they are all there as before; there are none, or none fits, or it is not found out.
    pub fn keep_fitting(&mut self, members: &mut Map<String, Value>, pattern: &str) -> bool {
        let Some(Value::Array(values)) = members.get_mut("enum") else { return false };
        // As the compiler reads it.
        let mut builder = RegexBuilder::new();
        let Ok(expression) = builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw")) else { return false };
        let Ok(mut regex) = builder.to_regex_limited(expression, self.left) else { return false };
        let begun = regex.cost();
        let fits: Option<Vec<bool>> = values
            .iter()
            .map(|value| value.as_str().map_or(Some(true), |text| fits(&mut regex, text, begun + self.left)))
            .collect();
        self.left = self.left.saturating_sub(regex.cost() - begun);
        match fits {
            Some(fits) if fits.contains(&true) => {
                let mut fits = fits.into_iter();
                values.retain(|_| fits.next().unwrap_or(true));
                true
            }
            _ => false,
        }
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
