//! Values as Python prints them: templates are written for Jinja on Python, where {{ list }} is its repr.

use crate::budget::{self, MAX_VALUE_BYTES};
use crate::wholes::digits_of;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::borrow::Cow;
use std::fmt::Write;

/// Deeper values are refused: printing recurses.
const MAX_DEPTH: usize = 200;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn check(out: &str, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value is nested more than {MAX_DEPTH} deep")));
    }
    if out.len() > MAX_VALUE_BYTES {
        return budget::charge(out.len());
    }
    Ok(())
}

/// `str(value)` to read; what had to be made is charged.
pub fn text_of(value: &Value) -> Result<Cow<'_, str>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::new();
    repr(value, &mut out, 0)?;
    budget::charge(out.len())?;
    Ok(Cow::Owned(out))
}

/// `str(value)` to keep; charged.
pub fn to_str(value: &Value) -> Result<String, Error> {
    let text = text_of(value)?;
    if let Cow::Borrowed(kept) = text {
        budget::charge(kept.len())?;
    }
    Ok(text.into_owned())
}

/// `repr(value)`.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check(out, depth)?;
    if let Some(text) = value.as_str() {
        repr_text(text, out);
        return Ok(());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => scalar(value, out),
    }
    Ok(())
}

fn scalar(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if value.kind() == ValueKind::Number && !value.is_integer() => out.push_str(&float(number)),
        _ => write!(out, "{value}").expect("a String can be written"),
    }
}

/// `repr` of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_string();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').expect("{:e} has an exponent");
    let exponent: i32 = exponent.parse().expect("an integer");
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

/// Characters that `str.isprintable` denies, as far as chat text goes: controls, separators, invisible formatting.
fn unprintable(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}' | '\u{f0000}'..)
}

fn repr_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => {
                out.push('\\');
                out.push(c);
            }
            _ if unprintable(c) => {
                let _ = match c as u32 {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code @ 0..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
            _ => out.push(c),
        }
    }
    out.push(quote);
}

/// How `json.dumps` writes.
struct Dumps {
    ensure_ascii: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    sort_keys: bool,
}

/// The `tojson` filter that chat templates get: `json.dumps`, by default without ASCII escapes.
pub fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(v) if v.is_integer() => Some(" ".repeat(v.as_usize().unwrap_or(0).min(64))),
        Some(v) => v.as_str().map(str::to_string),
        None => None,
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        Some(_) => return Err(invalid("tojson: separators are two strings")),
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let dumps = Dumps {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        comma,
        colon,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    dumps.value(value, &mut out, 0)?;
    budget::charge(out.len())?;
    Ok(Value::from(out))
}

impl Dumps {
    fn newline(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn value(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        check(out, depth)?;
        if let Some(text) = value.as_str() {
            self.text(text, out);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match f64::try_from(value.clone()) {
                Ok(x) if !value.is_integer() && x.is_nan() => "NaN".to_string(),
                Ok(x) if !value.is_integer() && x.is_infinite() => {
                    if x > 0.0 { "Infinity" } else { "-Infinity" }.to_string()
                }
                _ => to_str(value)?,
            }),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(out, depth, ('[', ']'), items.len(), |out, i| self.value(&items[i], out, depth + 1))?
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(out, depth, ('{', '}'), keys.len(), |out, i| {
                    self.key(&keys[i], out)?;
                    out.push_str(&self.colon);
                    self.value(&value.get_item(&keys[i])?, out, depth + 1)
                })?
            }
            kind => match digits_of(value) {
                Some(digits) => out.push_str(&digits),
                None => return Err(invalid(format!("{kind} cannot be written as JSON"))),
            },
        }
        Ok(())
    }

    fn list(
        &self,
        out: &mut String,
        depth: usize,
        brackets: (char, char),
        count: usize,
        mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(brackets.0);
        for i in 0..count {
            out.push_str(if i > 0 { &self.comma } else { "" });
            self.newline(out, depth + 1);
            item(out, i)?;
        }
        if count > 0 {
            self.newline(out, depth);
        }
        out.push(brackets.1);
        Ok(())
    }

    /// Keys that are not strings become strings, as json.dumps makes them.
    fn key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::None => "null".to_string(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
            ValueKind::String | ValueKind::Number => to_str(key)?,
            kind => return Err(invalid(format!("{kind} cannot be a JSON key"))),
        };
        self.text(&text, out);
        Ok(())
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
