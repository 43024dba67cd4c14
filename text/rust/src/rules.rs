//! A grammar of rules, Lark or GBNF, as a part of another one: its first rule gets another name.

use crate::ffi::{invalid, Outcome};
use crate::gbnf;
use serde_json::Value;

/// What holds for a whole grammar cannot be said in a part.
const OF_THE_WHOLE: [&str; 3] = ["%ignore", "%llguidance", "%override"];

/// Lark for the rules of `text`, where `name` stands for the rule it begins with.
pub fn begun_by(name: &str, text: &str) -> Outcome<String> {
    let lark = if gbnf::is_gbnf(text) { gbnf::to_lark_of_characters(text)? } else { text.to_string() };
    let (mut out, mut rest, mut found) = (String::with_capacity(lark.len()), lark.as_str(), false);
    while let Some(first) = rest.chars().next() {
        let end = word_end(rest, first);
        let word = &rest[..end];
        if let Some(whole) = OF_THE_WHOLE.iter().find(|whole| word.starts_with(**whole)) {
            return invalid(format!("{whole} holds for a whole grammar"));
        }
        if word == "start" {
            found = true;
            out += name;
        } else {
            out += word;
        }
        rest = &rest[end..];
    }
    if found {
        Ok(out)
    } else {
        invalid("there is no rule `start`")
    }
}

/// Where the schemas of a text of Lark begin, behind their `%json`, those of grammars in braces among them.
pub fn schema_places(text: &str) -> Vec<usize> {
    const SCHEMA: &str = "%json";
    const GRAMMAR: &str = "%lark";
    let (mut at, mut places) = (0, Vec::new());
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if rest.starts_with(SCHEMA) {
            places.push(at + SCHEMA.len());
        }
        at += if rest.starts_with(GRAMMAR) { GRAMMAR.len() } else { word_end(rest, first) };
    }
    places
}

/// Where what begins `rest` ends: a name, or what no name is looked for in (texts, expressions, comments, schemas).
pub fn word_end(rest: &str, first: char) -> usize {
    let line = || rest.find('\n').unwrap_or(rest.len());
    match first {
        '"' => quoted_end(rest, '"'),
        '#' => line(),
        '/' if rest.starts_with("//") => line(),
        '/' => quoted_end(rest, '/'),
        '<' => match rest[1..].find(|c: char| matches!(c, '<' | '>') || c.is_whitespace()) {
            Some(end) if rest[1 + end..].starts_with('>') => end + 2,
            _ => 1,
        },
        '@' => 1 + name_end(&rest[1..]),
        '%' => {
            let end = 1 + name_end(&rest[1..]);
            end + match &rest[..end] {
                "%json" | "%regex" | "%llguidance" => json_end(&rest[end..]),
                "%lark" => block_end(&rest[end..]),
                _ => 0,
            }
        }
        _ => name_end(rest).max(first.len_utf8()),
    }
}

fn name_end(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(text.len())
}

fn quoted_end(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// Of a grammar in braces, whose rules have names of their own.
fn block_end(text: &str) -> usize {
    let (mut at, mut open) = (0, 0);
    while let Some(first) = text[at..].chars().next() {
        at += match first {
            '{' | '}' | '%' => 1,
            _ => word_end(&text[at..], first),
        };
        open += i32::from(first == '{') - i32::from(first == '}');
        if first == '}' && open == 0 {
            break;
        }
    }
    at
}

fn json_end(text: &str) -> usize {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values.next();
    values.byte_offset()
}
