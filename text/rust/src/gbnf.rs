//! GBNF, the grammars of llama.cpp (`root ::= "a" [0-9]+ | other-rule`), as Lark. Every terminal is one character, so
//! that no longest match of a lexer changes the language.

use crate::ffi::{invalid, Outcome};
use std::collections::HashMap;
use std::fmt::Write;

/// Whether a grammar is GBNF: Lark has no `::=` outside of quotes and comments.
pub fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let name = line.trim_start().trim_start_matches(|c: char| is_name(c));
        name.len() < line.trim_start().len() && name.trim_start().starts_with("::=")
    })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

pub fn to_lark(text: &str) -> Outcome<String> {
    let mut reader = Reader { chars: text.chars().collect(), at: 0, rules: HashMap::new(), names: Vec::new() };
    let mut lark = String::new();
    let mut defined = Vec::new();
    reader.skip();
    while reader.peek().is_some() {
        let name = reader.name()?;
        reader.expect("::=")?;
        let body = reader.alternatives(0)?;
        let rule = reader.rule(&name);
        if defined.contains(&rule) {
            return reader.wrong(format!("the rule `{name}` is defined twice"));
        }
        let _ = writeln!(lark, "{rule}: {body}");
        defined.push(rule);
    }
    if let Some(name) = reader.names.iter().find(|name| !defined.contains(&reader.rules[*name])) {
        return invalid(format!("the rule `{name}` is used and not defined"));
    }
    if !defined.iter().any(|rule| rule == "start") {
        return invalid("there is no rule `root`");
    }
    Ok(lark)
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    rules: HashMap<String, String>, // by their names in GBNF
    names: Vec<String>,             // in order
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn wrong<T>(&self, what: impl std::fmt::Display) -> Outcome<T> {
        let line = 1 + self.chars[..self.at.min(self.chars.len())].iter().filter(|&&c| c == '\n').count();
        invalid(format!("line {line}: {what}"))
    }

    /// White space and comments.
    fn skip(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            } else if c.is_whitespace() {
                self.at += 1;
            } else {
                return;
            }
        }
    }

    fn expect(&mut self, token: &str) -> Outcome<()> {
        if !token.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c)) {
            return self.wrong(format!("`{token}` is expected"));
        }
        self.at += token.chars().count();
        self.skip();
        Ok(())
    }

    fn name(&mut self) -> Outcome<String> {
        let begin = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        if begin == self.at {
            return self.wrong("the name of a rule is expected");
        }
        let name: String = self.chars[begin..self.at].iter().collect();
        self.skip();
        Ok(name)
    }

    fn rule(&mut self, name: &str) -> String {
        if let Some(rule) = self.rules.get(name) {
            return rule.clone();
        }
        let rule = if name == "root" { "start".to_string() } else { format!("rule_{}", self.names.len()) };
        self.rules.insert(name.to_string(), rule.clone());
        self.names.push(name.to_string());
        rule
    }

    /// Up to the closing parenthesis, or to the next rule.
    fn alternatives(&mut self, depth: usize) -> Outcome<String> {
        const DEEPEST: usize = 64;
        if depth > DEEPEST {
            return self.wrong(format!("parentheses are nested more than {DEEPEST} deep"));
        }
        let mut all = vec![self.sequence(depth)?];
        while self.peek() == Some('|') {
            self.expect("|")?;
            all.push(self.sequence(depth)?);
        }
        Ok(all.join(" | "))
    }

    fn sequence(&mut self, depth: usize) -> Outcome<String> {
        let mut items = Vec::new();
        while let Some(c) = self.peek() {
            let item = match c {
                '|' | ')' => break,
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.expect(".")?;
                    "/(?s:.)/".to_string()
                }
                '(' => {
                    self.expect("(")?;
                    let inner = self.alternatives(depth + 1)?;
                    self.expect(")")?;
                    format!("({inner})")
                }
                c if is_name(c) => {
                    let begin = self.at;
                    let name = self.name()?;
                    if self.chars[self.at..].starts_with(&[':', ':', '=']) {
                        self.at = begin; // the next rule
                        break;
                    }
                    self.rule(&name)
                }
                c => return self.wrong(format!("`{c}` is not expected")),
            };
            items.push(self.repeated(item)?);
        }
        if depth == 0 && self.peek() == Some(')') {
            return self.wrong("`)` is not expected");
        }
        Ok(if items.is_empty() { "\"\"".to_string() } else { items.join(" ") })
    }

    fn repeated(&mut self, item: String) -> Outcome<String> {
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.expect(&c.to_string())?;
                Ok(format!("({item}){c}"))
            }
            Some('{') => {
                let begin = self.at;
                while self.peek().is_some_and(|c| c != '}') {
                    self.at += 1;
                }
                let bounds: String = self.chars[begin..self.at].iter().filter(|c| !c.is_whitespace()).collect();
                self.expect("}")?;
                Ok(format!("({item}){bounds}}}"))
            }
            _ => Ok(item),
        }
    }

    fn literal(&mut self) -> Outcome<String> {
        self.at += 1;
        let mut items = Vec::new();
        while self.peek() != Some('"') {
            let c = self.character()?;
            items.push(serde_json::Value::from(c.to_string()).to_string());
        }
        self.at += 1;
        self.skip();
        Ok(if items.is_empty() { "\"\"".to_string() } else { format!("({})", items.join(" ")) })
    }

    fn class(&mut self) -> Outcome<String> {
        self.at += 1;
        let mut regex = String::from("/[");
        if self.peek() == Some('^') {
            self.at += 1;
            regex.push('^');
        }
        let mut empty = true;
        while self.peek() != Some(']') {
            let first = self.character()?;
            let _ = write!(regex, "\\x{{{:x}}}", first as u32);
            if self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|&c| c != ']') {
                self.at += 1;
                let last = self.character()?;
                if last < first {
                    return self.wrong(format!("the range {first}-{last} is empty"));
                }
                let _ = write!(regex, "-\\x{{{:x}}}", last as u32);
            }
            empty = false;
        }
        if empty {
            return self.wrong("an empty class");
        }
        self.at += 1;
        self.skip();
        regex.push_str("]/");
        Ok(regex)
    }

    /// One of a literal or class, with its escapes.
    fn character(&mut self) -> Outcome<char> {
        let Some(c) = self.peek() else { return self.wrong("a literal or class is not closed") };
        if c == '\n' {
            return self.wrong("a literal or class is not closed");
        }
        self.at += 1;
        if c != '\\' {
            return Ok(c);
        }
        let Some(escape) = self.peek() else { return self.wrong("an escape is not closed") };
        self.at += 1;
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c if c.is_ascii_alphanumeric() => return self.wrong(format!("there is no escape \\{c}")),
            c => return Ok(c),
        };
        let hex: String = self.chars[self.at..].iter().take(digits).collect();
        self.at += digits.min(self.chars.len() - self.at);
        match u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32) {
            Some(c) if hex.len() == digits => Ok(c),
            _ => self.wrong(format!("\\{escape}{hex} is no character")),
        }
    }
}
