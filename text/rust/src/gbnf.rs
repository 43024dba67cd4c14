//! GBNF, the grammars of llama.cpp (`root ::= "a" [0-9]+ | other-rule`), as Lark. Terminals are as long as they may be
//! (`terminals`), or of one character each, so that no longest match of a lexer changes the language.

mod automaton;
mod bits;
mod lark;
mod terminals;

use crate::chains::check_gbnf;
use crate::ffi::{invalid, Outcome};
use std::collections::HashMap;
use std::fmt::Write;

/// What a rule consists of.
pub enum Expr {
    /// A character: ranges of code points, both ends in them.
    Class(Vec<(u32, u32)>),
    Rule(usize),
    Sequence(Vec<Expr>),
    Choice(Vec<Expr>),
    /// At least, at most, if there is a bound.
    Repeat(Box<Expr>, u32, Option<u32>),
}

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
    let (rules, root) = read(text)?;
    Ok(match terminals::long(&rules, root) {
        Some(nodes) => write(root, nodes.iter().map(|node| node.as_ref().map(|node| lark::of_node(node, &rules)))),
        None => of_characters(&rules, root),
    })
}

/// As a part of another grammar: what stands before, beside and behind it is not known.
pub fn to_lark_of_characters(text: &str) -> Outcome<String> {
    let (rules, root) = read(text)?;
    Ok(of_characters(&rules, root))
}

fn of_characters(rules: &[Expr], root: usize) -> String {
    write(root, rules.iter().map(|rule| Some(lark::of_characters(rule))))
}

/// `bodies`: of the rules; None where one is written where it is a part of terminals.
fn write(root: usize, bodies: impl Iterator<Item = Option<String>>) -> String {
    let mut lark = format!("start: rule_{root}\n");
    for (index, body) in bodies.enumerate() {
        if let Some(body) = body {
            let _ = writeln!(lark, "rule_{index}: {body}");
        }
    }
    lark
}

/// The rules, and which of them is `root`.
fn read(text: &str) -> Outcome<(Vec<Expr>, usize)> {
    let mut reader = Reader { chars: text.chars().collect(), at: 0, rules: HashMap::new(), names: Vec::new() };
    let mut bodies: HashMap<usize, Expr> = HashMap::new();
    reader.skip();
    while reader.peek().is_some() {
        let name = reader.name()?;
        reader.expect("::=")?;
        let body = reader.alternatives(0)?;
        if bodies.insert(reader.rule(&name), body).is_some() {
            return reader.wrong(format!("the rule `{name}` is defined twice"));
        }
    }
    let mut rules = Vec::with_capacity(reader.names.len());
    for (index, name) in reader.names.iter().enumerate() {
        match bodies.remove(&index) {
            Some(body) => rules.push(body),
            None => return invalid(format!("the rule `{name}` is used and not defined")),
        }
    }
    match reader.rules.get("root") {
        Some(&root) => {
            check_gbnf(&rules, root)?;
            Ok((rules, root))
        }
        None => invalid("there is no rule `root`"),
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    rules: HashMap<String, usize>, // by their names
    names: Vec<String>,            // in order
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

    fn rule(&mut self, name: &str) -> usize {
        if let Some(&rule) = self.rules.get(name) {
            return rule;
        }
        self.rules.insert(name.to_string(), self.names.len());
        self.names.push(name.to_string());
        self.names.len() - 1
    }

    /// Up to the closing parenthesis, or to the next rule.
    fn alternatives(&mut self, depth: usize) -> Outcome<Expr> {
        const DEEPEST: usize = 64;
        if depth > DEEPEST {
            return self.wrong(format!("parentheses are nested more than {DEEPEST} deep"));
        }
        let first = self.sequence(depth)?;
        if self.peek() != Some('|') {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.peek() == Some('|') {
            self.expect("|")?;
            all.push(self.sequence(depth)?);
        }
        Ok(Expr::Choice(all))
    }

    fn sequence(&mut self, depth: usize) -> Outcome<Expr> {
        let mut items = Vec::new();
        while let Some(c) = self.peek() {
            let item = match c {
                '|' | ')' => break,
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.expect(".")?;
                    Expr::Class(vec![(0, LAST)])
                }
                '(' => {
                    self.expect("(")?;
                    let inner = self.alternatives(depth + 1)?;
                    self.expect(")")?;
                    inner
                }
                c if is_name(c) => {
                    let begin = self.at;
                    let name = self.name()?;
                    if self.chars[self.at..].starts_with(&[':', ':', '=']) {
                        self.at = begin; // the next rule
                        break;
                    }
                    Expr::Rule(self.rule(&name))
                }
                c => return self.wrong(format!("`{c}` is not expected")),
            };
            items.push(self.repeated(item)?);
        }
        if depth == 0 && self.peek() == Some(')') {
            return self.wrong("`)` is not expected");
        }
        Ok(Expr::Sequence(items))
    }

    fn repeated(&mut self, item: Expr) -> Outcome<Expr> {
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.bounded(item),
            _ => return Ok(item),
        };
        self.at += 1;
        self.skip();
        Ok(Expr::Repeat(Box::new(item), least, most))
    }

    /// {3}, {3,}, {,5} or {3,5}.
    fn bounded(&mut self, item: Expr) -> Outcome<Expr> {
        let begin = self.at + 1;
        while self.peek().is_some_and(|c| c != '}') {
            self.at += 1;
        }
        let bounds: String = self.chars[begin..self.at].iter().filter(|c| !c.is_whitespace()).collect();
        self.expect("}")?;
        let (least, most) = bounds.split_once(',').unwrap_or((&bounds, &bounds));
        let number = |text: &str| text.parse::<u32>().ok();
        let least = if least.is_empty() && !most.is_empty() { Some(0) } else { number(least) };
        match (least, most.is_empty(), number(most)) {
            (Some(least), true, _) => Ok(Expr::Repeat(Box::new(item), least, None)),
            (Some(least), false, Some(most)) if least <= most => Ok(Expr::Repeat(Box::new(item), least, Some(most))),
            _ => self.wrong(format!("{{{bounds}}} is no number of times")),
        }
    }

    fn literal(&mut self) -> Outcome<Expr> {
        self.at += 1;
        let mut items = Vec::new();
        while self.peek() != Some('"') {
            let c = self.character()? as u32;
            items.push(Expr::Class(vec![(c, c)]));
        }
        self.at += 1;
        self.skip();
        Ok(Expr::Sequence(items))
    }

    fn class(&mut self) -> Outcome<Expr> {
        self.at += 1;
        let is_negated = self.peek() == Some('^');
        self.at += usize::from(is_negated);
        let mut ranges = Vec::new();
        while self.peek() != Some(']') {
            let first = self.character()?;
            let mut last = first;
            if self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|&c| c != ']') {
                self.at += 1;
                last = self.character()?;
                if last < first {
                    return self.wrong(format!("the range {first}-{last} is empty"));
                }
            }
            ranges.push((first as u32, last as u32));
        }
        let ranges = if is_negated && !ranges.is_empty() { all_but(ranges) } else { ranges };
        if ranges.is_empty() {
            return self.wrong("an empty class");
        }
        self.at += 1;
        self.skip();
        Ok(Expr::Class(ranges))
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

const LAST: u32 = char::MAX as u32;
/// Code points that are no characters.
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

fn all_but(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.push(SURROGATES);
    ranges.sort_unstable();
    let (mut others, mut next) = (Vec::new(), 0);
    for (first, last) in ranges {
        if next < first {
            others.push((next, first - 1));
        }
        next = next.max(last + 1);
    }
    if next <= LAST {
        others.push((next, LAST));
    }
    others
}
