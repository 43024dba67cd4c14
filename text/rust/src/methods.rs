//! Python's string methods that minijinja-contrib lacks, and those whose result can be much longer than what they get.

use crate::budget;
use crate::python::{text_of, to_str};
use minijinja::value::{from_args, Kwargs, Rest, ValueKind};
use minijinja::{format_filter, Environment, Error, ErrorKind, FormatStyle, State, Value};
use minijinja_contrib::pycompat;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

pub fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.add_filter("string", |value: &Value| to_str(value).map(Value::from));
    env.add_filter("join", join);
    env.add_filter("replace", |value: &Value, from: &Value, to: &Value, count: Option<i64>| {
        replace(&to_str(value)?, &to_str(from)?, &to_str(to)?, count)
    });
    env.add_filter("trim", |value: &Value, chars: Option<&str>| -> Result<String, Error> {
        let text = to_str(value)?;
        Ok(match chars {
            Some(chars) => text.trim_matches(|c| chars.contains(c)).to_string(),
            None => text.trim_matches(is_space).to_string(),
        })
    });
    env.add_filter("upper", |value: &Value| to_str(value).map(|text| text.to_uppercase()));
    env.add_filter("lower", |value: &Value| to_str(value).map(|text| text.to_lowercase()));
    env.add_filter("indent", indent);
    env.add_filter("format", |format: &str, args: Rest<Value>| percent_format(format, &args));
    env.add_filter("center", |value: &Value, width: Option<usize>| {
        let text = to_str(value)?;
        pad(&text, width.unwrap_or(80), ' ', 'c')
    });
}

/// What `str.strip` takes away: Unicode's white space and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) {
        if let Some(result) = string_method(text, name, args)? {
            return Ok(result);
        }
    }
    if let (ValueKind::Map, "copy") = (value.kind(), name) {
        return Ok(value.clone()); // nothing can change it
    }
    let result = pycompat::unknown_method_callback(state, value, name, args)?;
    budget::charge(result.as_str().map_or(0, str::len))?;
    Ok(result)
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match name {
        "format" => {
            charge_format(text, args)?;
            return Ok(None); // pycompat's
        }
        "replace" => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(text, from, to, count)?
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            joined(items, text, None)?
        }
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            let text = if name == "rstrip" { text } else { text.trim_start_matches(cut) };
            Value::from(if name == "lstrip" { text } else { text.trim_end_matches(cut) })
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            rsplit(text, separator, most)
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, name == "rpartition")?
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if name == "index" { text.find(what) } else { text.rfind(what) };
            let at = at.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            Value::from(pad(text, width, fill.unwrap_or(' '), name.chars().next().unwrap_or('l'))?)
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            Value::from(format!("{sign}{}", pad(digits, width.saturating_sub(sign.len()), '0', 'r')?))
        }
        "casefold" => Value::from(text.to_lowercase()),
        "swapcase" => Value::from(
            text.chars()
                .flat_map(|c| {
                    if c.is_uppercase() { c.to_lowercase().collect::<String>() } else { c.to_uppercase().collect() }
                        .chars()
                        .collect::<Vec<_>>()
                })
                .collect::<String>(),
        ),
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// Charges for every width and precision of a format; those that come from arguments are charged as such.
fn charge_format(format: &str, args: &[Value]) -> Result<(), Error> {
    let mut bytes = format.len();
    for digits in format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        bytes = bytes.saturating_add(digits.parse().unwrap_or(usize::MAX));
    }
    let from_args = format.contains('*') || format.contains(":{");
    for arg in args {
        bytes = bytes.saturating_add(arg.as_str().map_or(0, str::len));
        if from_args {
            bytes = bytes.saturating_add(arg.as_usize().unwrap_or(0));
        }
    }
    budget::charge(bytes)
}

/// `format % args`.
pub fn percent_format(format: &str, args: &[Value]) -> Result<String, Error> {
    charge_format(format, args)?;
    format_filter(FormatStyle::Printf, format, args)
}

fn replace(text: &str, from: &str, to: &str, count: Option<i64>) -> Result<Value, Error> {
    let most = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let places = text.matches(from).take(most).count();
    budget::charge((text.len() - places * from.len()).saturating_add(places.saturating_mul(to.len())))?;
    Ok(Value::from(text.replacen(from, to, most)))
}

fn joined(items: &Value, separator: &str, attribute: Option<&str>) -> Result<Value, Error> {
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        out.push_str(if i > 0 { separator } else { "" });
        let item = match attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        out.push_str(&text_of(&item)?);
        if out.len() > budget::MAX_VALUE_BYTES {
            break; // charge() says it
        }
    }
    budget::charge(out.len())?;
    Ok(Value::from(out))
}

fn join(value: &Value, separator: Option<&str>, kwargs: Kwargs) -> Result<Value, Error> {
    let attribute: Option<String> = kwargs.get("attribute")?;
    let keyword: Option<String> = kwargs.get("d")?;
    kwargs.assert_all_used()?;
    joined(value, separator.or(keyword.as_deref()).unwrap_or(""), attribute.as_deref())
}

/// Jinja's indent: `width` spaces (or a text) before every line but the first, which `first` includes; blank lines only
/// with `blank`.
fn indent(value: &Value, width: Option<&Value>, first: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let named: Option<Value> = kwargs.get("width")?;
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let by = match width.cloned().or(named) {
        None => " ".repeat(4),
        Some(text) if text.as_str().is_some() => text.as_str().unwrap_or_default().to_string(),
        Some(number) => {
            let width = number.as_usize().ok_or_else(|| invalid("indent: width is neither a number nor a text"))?;
            budget::charge(width)?;
            " ".repeat(width)
        }
    };
    let text = to_str(value)?;
    budget::charge(text.len().saturating_add(by.len().saturating_mul(text.matches('\n').count() + 1)))?;
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.split('\n').enumerate() {
        out.push_str(if i > 0 { "\n" } else { "" });
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Value {
    let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        Some(separator) => parts.extend(text.rsplitn(most.saturating_add(1), separator)),
        None => {
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let Some((at, space)) =
                    rest.char_indices().rev().find(|(_, c)| is_space(*c)).filter(|_| parts.len() < most)
                else {
                    parts.push(rest.trim_start_matches(is_space));
                    break;
                };
                parts.push(&rest[at + space.len_utf8()..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            parts.retain(|part| !part.is_empty());
        }
    }
    parts.into_iter().rev().map(Value::from).collect()
}

fn partition(text: &str, separator: &str, last: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let cut = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match cut {
        Some((left, right)) => [left, separator, right],
        None if last => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `side`: where the text goes, 'l', 'r' or 'c'.
fn pad(text: &str, width: usize, fill: char, side: char) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    budget::charge(text.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
    let left = match side {
        'l' => 0,
        'r' => missing,
        _ => missing / 2 + (missing & width & 1), // Python's str.center
    };
    let fills = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    Ok(fills(left) + text + &fills(missing - left))
}
