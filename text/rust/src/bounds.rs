//! Bounds and steps of numbers, put so that the compiler lets nothing through that is outside them and leaves out no
//! plain decimal that is inside. It reads exclusive bounds as decimals, and lets those through whose whole part the other
//! bound has, too ((0, 0.5] as [0, 0.5]); readers of JSON make doubles of what was written, of which
//! 0.49999999999999999999 is 0.5. So an exclusive bound becomes the next double within it, inclusive. Of such and other
//! bounds with several decimals the compiler then leaves out what ends before their last digit (0.4 below 0.45), and of
//! steps what has fewer decimals (0.5 of 0.25): those are named beside them.

use serde_json::{json, Map, Value};

/// Of a zero that is not allowed, the next number is so many times smaller than the other bounds: the compiler needs a
/// state for each of its zeros.
const NEXT_TO_ZERO: f64 = 1e-15;
/// What is beyond it the compiler does not read: an upper bound there is as good as this one, a lower one is refused.
pub const FARTHEST: f64 = 1e18;
/// Steps of more digits stay as they are: each of their digits costs as many states.
const LARGEST_SPLIT_STEP: u64 = 1_000;

/// Doubles keep whole numbers up to here.
pub const EXACT: u64 = 1 << 53;

const LOW: (&str, &str) = ("minimum", "exclusiveMinimum");
const HIGH: (&str, &str) = ("maximum", "exclusiveMaximum");

/// The least number above an exclusive bound of zero that a schema of such other bounds asks for; None where it asks for
/// no number below 1, and the compiler reads such a bound right. `bounds`: of all its parts, as `inner_bounds` says them.
pub fn next_to_zero(bounds: impl Iterator<Item = f64>) -> Option<f64> {
    let least = bounds.map(f64::abs).filter(|&b| b > 0.0 && b < 1.0).min_by(f64::total_cmp)?;
    let next = 10f64.powi((least * NEXT_TO_ZERO).log10().floor() as i32);
    Some(if next > 0.0 { next } else { f64::from_bits(1) })
}

/// The bounds that stand in a schema, exclusive ones as the next number within.
pub fn inner_bounds(members: &Map<String, Value>) -> impl Iterator<Item = f64> + '_ {
    [(LOW, 1.0), (HIGH, -1.0)].into_iter().filter_map(|(keys, inward)| Some(bound(members, keys, inward)?.value))
}

/// Puts the bounds and the step of `members`, a schema, as the compiler understands them. `next_to_zero`: as above, of
/// the whole.
pub fn mend(members: &mut Map<String, Value>, next_to_zero: Option<f64>) {
    let (numbers, others) = types(members);
    if numbers == Numbers::None || !are_valid(members) {
        return;
    }
    let (mut low, mut high) = (bound(members, LOW, 1.0), bound(members, HIGH, -1.0));
    for (one, inward) in [(&mut low, 1.0), (&mut high, -1.0)] {
        if let Some(b) = one {
            if let (true, Some(next)) = (b.open, next_to_zero) {
                *b = Bound { value: inward * next, open: false };
            }
            b.value = b.value.clamp(-FARTHEST, FARTHEST);
        }
    }
    // Of whole numbers the compiler reads exclusive bounds right.
    let is_kept = |b: Bound| numbers == Numbers::All || b.value.abs() >= EXACT as f64;
    put(members, LOW, low.filter(|&b| is_kept(b)));
    put(members, HIGH, high.filter(|&b| is_kept(b)));
    if numbers == Numbers::All && !members.contains_key("const") && !members.contains_key("enum") {
        split_range(members, &others, low.map(|b| b.value), high.map(|b| b.value));
        split_step(members, &others);
    }
}

/// Faults are the compiler's to name.
fn are_valid(members: &Map<String, Value>) -> bool {
    [LOW, HIGH].into_iter().all(|(key, exclusive)| {
        members.get(key).is_none_or(Value::is_number)
            && members.get(exclusive).is_none_or(|value| value.is_number() || value.is_boolean())
    })
}

#[derive(PartialEq)]
enum Numbers {
    None,
    Whole,
    All,
}

/// What numbers a schema's types allow, and the other types.
fn types(members: &Map<String, Value>) -> (Numbers, Vec<&'static str>) {
    let has = |name: &str| match members.get("type") {
        Some(Value::String(only)) => only == name,
        Some(Value::Array(names)) => names.iter().any(|one| one == name),
        _ => true,
    };
    let others = ["null", "boolean", "string", "array", "object"].into_iter().filter(|name| has(name)).collect();
    let numbers = match (has("number"), has("integer")) {
        (true, _) => Numbers::All,
        (false, true) => Numbers::Whole,
        _ => Numbers::None,
    };
    (numbers, others)
}

/// `open`: zero, which is not allowed itself.
#[derive(Clone, Copy)]
struct Bound {
    value: f64,
    open: bool,
}

/// The stricter one of a schema's two bounds on one side, inclusive except for zero. `inward`: 1 for a lower, -1 for an
/// upper bound. Before draft 6 an exclusive bound is true or false.
fn bound(members: &Map<String, Value>, (key, exclusive): (&str, &str), inward: f64) -> Option<Bound> {
    let number = |key| members.get(key).and_then(|n| rounded(n, inward));
    let excluded = match members.get(exclusive) {
        Some(Value::Bool(true)) => number(key),
        _ => number(exclusive),
    };
    let excluded = excluded.map(|value| match value {
        0.0 => Bound { value: 0.0, open: true },
        _ if inward > 0.0 => Bound { value: value.next_up(), open: false },
        _ => Bound { value: value.next_down(), open: false },
    });
    let included = number(key).map(|value| Bound { value, open: false });
    match (included, excluded) {
        (Some(a), Some(b)) => Some(if a.value * inward > b.value * inward { a } else { b }),
        (a, b) => a.or(b),
    }
}

/// A number as a double, within it where no double is it.
fn rounded(number: &Value, inward: f64) -> Option<f64> {
    let value = number.as_f64()?;
    let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    let outside = whole.is_some_and(|exact| if inward > 0.0 { (value as i128) < exact } else { value as i128 > exact });
    Some(match (outside, inward > 0.0) {
        (false, _) => value,
        (true, true) => value.next_up(),
        (true, false) => value.next_down(),
    })
}

fn put(members: &mut Map<String, Value>, (key, exclusive): (&str, &str), bound: Option<Bound>) {
    let Some(bound) = bound else { return };
    members.shift_remove(if bound.open { key } else { exclusive });
    members.insert(String::from(if bound.open { exclusive } else { key }), json!(bound.value));
}

type Range = (Option<f64>, Option<f64>);

/// Ranges that together are all of `low` to `high`, the whole first: the others are for numbers that end where the digits
/// of a bound go on. `single`: of these numbers alone, which costs the compiler less; it does not see that one is a
/// multiple of a step.
fn ranges(low: Option<f64>, high: Option<f64>, single: bool) -> Vec<Range> {
    let mut all = vec![(low, high)];
    let is_inside = |number: &f64| low.is_none_or(|low| low <= *number) && high.is_none_or(|high| *number <= high);
    if let Some(high) = high.filter(|&high| high > 0.0) {
        let low = low.unwrap_or(0.0).max(0.0);
        all.extend(cuts(high).filter(is_inside).map(|cut| (Some(if single { cut } else { low }), Some(cut))));
    }
    if let Some(low) = low.filter(|&low| low < 0.0) {
        let high = high.unwrap_or(0.0).min(0.0);
        all.extend(cuts(low).filter(is_inside).map(|cut| (Some(cut), Some(if single { cut } else { high }))));
    }
    if let (Some(low), Some(high)) = (low, high) {
        let near = if low > 0.0 { low } else { high };
        if low * high > 0.0 && low.trunc() == high.trunc() && low < high && near != near.trunc() {
            all.push((Some(near), Some(near)));
        }
    }
    all
}

/// `bound` with fewer decimals, one for each number of them, from one on.
fn cuts(bound: f64) -> impl Iterator<Item = f64> {
    let text = bound.to_string();
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let mut all = Vec::new();
    for end in (1..decimals.len()).filter(|&end| !decimals[..end].ends_with('0')) {
        all.extend(format!("{whole}.{}", &decimals[..end]).parse::<f64>());
    }
    all.into_iter().filter(move |cut| cut.abs() < bound.abs())
}

/// The bounds of `members` are these; where that takes several ranges, as a list of them.
fn split_range(members: &mut Map<String, Value>, others: &[&str], low: Option<f64>, high: Option<f64>) {
    let ranges = ranges(low, high, !members.contains_key("multipleOf"));
    if ranges.len() == 1 {
        return;
    }
    members.shift_remove(LOW.0);
    members.shift_remove(HIGH.0);
    let schema = |(low, high): Range| {
        let mut range = json!({"type": "number"});
        low.iter().for_each(|&b| range[LOW.0] = json!(b));
        high.iter().for_each(|&b| range[HIGH.0] = json!(b));
        range
    };
    add_any_of(members, others, ranges.into_iter().map(schema).collect());
}

/// A step and, beside it, those of its multiples that have fewer decimals.
fn split_step(members: &mut Map<String, Value>, others: &[&str]) {
    let Some(step) = members.get("multipleOf").and_then(Value::as_f64) else { return };
    let text = step.abs().to_string();
    let Some((whole, decimals)) = text.split_once('.') else { return };
    let Ok(digits) = format!("{whole}{decimals}").parse::<u64>() else { return };
    if digits > LARGEST_SPLIT_STEP || decimals.len() > 9 {
        return;
    }
    let mut steps = vec![step.abs()];
    for places in 1..decimals.len() {
        let fewer = digits / gcd(digits, 10u64.pow((decimals.len() - places) as u32));
        let Ok(step) = format!("{fewer}e-{places}").parse::<f64>() else { continue };
        if spelled(step).is_some() && !steps.contains(&step) {
            steps.push(step);
        }
    }
    if steps.len() > 1 {
        members.shift_remove("multipleOf");
        add_any_of(members, others, steps.iter().map(|step| json!({"type": "number", "multipleOf": step})).collect());
    }
}

/// A double that the compiler, which shifts a step's point by multiplying, takes for the digits of `step`: this one, or
/// one so near that no other digits are meant. None for some 7 of 100 steps of two decimals (0.53: the products 0.53,
/// 5.3, 53 are rounded, and no double is rounded to 5.3).
pub fn spelled(step: f64) -> Option<f64> {
    let (mut above, mut below) = (step, step);
    if is_read_as(step, step) {
        return Some(step);
    }
    for _ in 0..NEAR {
        (above, below) = (above.next_up(), below.next_down());
        if let Some(near) = [above, below].into_iter().find(|&near| is_read_as(near, step)) {
            return Some(near);
        }
    }
    None
}

/// So many doubles above and below a step: rounding moves a product by no more.
const NEAR: usize = 4;

fn is_read_as(double: f64, step: f64) -> bool {
    let (mut value, mut places) = (double, 0);
    while value.fract() != 0.0 && places < 20 {
        value *= 10.0;
        places += 1;
    }
    value <= f64::from(u32::MAX) && format!("{value}e-{places}").parse() == Ok(step)
}

/// The step of `members` in a double that the compiler reads as its digits. After everything else that reads it.
pub fn spell_step(members: &mut Map<String, Value>) {
    if let Some(step) = members.get_mut("multipleOf") {
        if let Some(near) = step.as_f64().and_then(|value| spelled(value.abs())).filter(|_| step.is_f64()) {
            *step = json!(near);
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

/// Of the numbers that `members` allow, those of one of `numbers`; values of `others`, types that are no numbers, as before.
fn add_any_of(members: &mut Map<String, Value>, others: &[&str], mut numbers: Vec<Value>) {
    if !others.is_empty() {
        numbers.push(json!({"type": others}));
    }
    add_all_of(members, json!({"anyOf": numbers}));
}

/// One more schema that values of `members` fit.
pub fn add_all_of(members: &mut Map<String, Value>, schema: Value) {
    if let Value::Array(all) = members.entry("allOf").or_insert_with(|| json!([])) {
        all.push(schema);
    }
}
