//! What a grammar has so much of that the compiler would take too long: how deep its rules lead into one another, for it
//! calls itself for each rule that it comes to first; how many terminals stand in rules, for it looks for each among all
//! others; how many texts there are; and how many parts of a regular expression in a row may be empty.

use crate::classes::Classes;
use crate::ffi::{invalid, Outcome};
use crate::gbnf::Expr;
use crate::rules::word_end;
use regex_syntax::hir::{Hir, HirKind};
use std::collections::{HashMap, HashSet};

/// Rules and parentheses within one another: at most 3 KB of a stack of 8 MiB each.
const MOST_NESTED: usize = 1_500;
/// Their square counts: 0.1 s of these.
const MOST_TERMINALS: usize = 10_000;
/// As well: parts of a rule or a regular expression that follow each other and may be empty. What may come first are all of
/// them, and of that each has another rest.
const MOST_OPTIONAL: usize = 2_000;
/// A grammar has 65,525 symbols at most in the compiler, which makes them at 10 us each: of a rule, of each of its groups,
/// alternatives and repetitions, and of what stands in GBNF.
const MOST_SYMBOLS: usize = 40_000;
const OF_TEXT: usize = 4;
/// Values of all enums, choices, texts of terminals: 1.2 KB each while they are compiled.
const MOST_CONSTANTS: usize = 50_000;
/// Grammars within one another; the compiler refuses more.
const MOST_GRAMMARS: usize = 32;

/// A rule's mention of another, and how many parentheses are around it.
type Mention = (usize, usize);

/// Refuses Lark whose rules lead too deep, or have too many terminals.
pub fn check_lark(text: &str) -> Outcome<()> {
    check_inner(text, 0)
}

fn check_inner(text: &str, within: usize) -> Outcome<()> {
    let mut reader = Reader { within, ..Reader::default() };
    reader.read(text)?;
    if reader.terminals.len() > MOST_TERMINALS {
        return invalid(format!(
            "the rules have {} terminals (texts, regular expressions and names in capitals), at most {MOST_TERMINALS} are \
             possible; a terminal of many alternatives is one",
            reader.terminals.len()
        ));
    }
    check_constants(reader.texts)?;
    if reader.symbols > MOST_SYMBOLS {
        return invalid(format!(
            "it has {} rules, alternatives, groups and repetitions in rules, at most {MOST_SYMBOLS} are possible",
            reader.symbols
        ));
    }
    let known: HashMap<&str, usize> = reader.names.iter().enumerate().map(|(rule, name)| (*name, rule)).collect();
    let rules: Vec<Vec<Mention>> = reader
        .mentions
        .iter()
        .map(|all| all.iter().filter_map(|(name, around)| Some((*known.get(name)?, *around))).collect())
        .collect();
    // What is ignored is compiled first.
    let ignored = reader.names.iter().enumerate().filter(|(_, name)| name.is_empty()).map(|(rule, _)| rule);
    check(&rules, ignored.chain(known.get("start").copied()))
}

/// Refuses a regular expression with too many parts in a row that may be empty, or too many classes. What it cannot read
/// is the compiler's to name.
pub fn check_regex(text: &str) -> Outcome<()> {
    if text.len() <= MOST_OPTIONAL {
        return Ok(());
    }
    check_long_regex(text, &mut Classes::default())
}

/// `classes`: of the expressions before it in a grammar.
fn check_long_regex(text: &str, classes: &mut Classes) -> Outcome<()> {
    match regex_syntax::parse(text) {
        Ok(hir) if longest_optional(&hir) > MOST_OPTIONAL => too_many_optional(),
        Ok(hir) => classes.add(&hir),
        Err(_) => Ok(()),
    }
}

/// Refuses more values or choices than compile in little memory.
pub fn check_constants(count: usize) -> Outcome<()> {
    match count > MOST_CONSTANTS {
        true => invalid(format!("there are {count} values, at most {MOST_CONSTANTS} are possible")),
        false => Ok(()),
    }
}

fn too_many_optional<T>() -> Outcome<T> {
    invalid(format!("more than {MOST_OPTIONAL} parts that may be empty follow each other"))
}

/// The most parts in a row, here or further within, that may be empty.
fn longest_optional(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Concat(_) | HirKind::Capture(_) => {
            let (mut parts, mut longest, mut row) = (vec![hir], 0, 0);
            while let Some(part) = parts.pop() {
                match part.kind() {
                    HirKind::Concat(inner) => parts.extend(inner.iter().rev()),
                    HirKind::Capture(capture) => parts.push(&capture.sub),
                    _ => {
                        row = if part.properties().minimum_len() == Some(0) { row + 1 } else { 0 };
                        longest = longest.max(row).max(longest_optional(part));
                    }
                }
            }
            longest
        }
        HirKind::Alternation(options) => options.iter().map(longest_optional).max().unwrap_or(0),
        HirKind::Repetition(repeated) => longest_optional(&repeated.sub),
        _ => 0,
    }
}

/// Refuses GBNF whose rules lead too deep from `root`.
pub fn check_gbnf(rules: &[Expr], root: usize) -> Outcome<()> {
    let mut size = 0;
    let mentions: Vec<Vec<Mention>> = rules
        .iter()
        .map(|rule| {
            let mut all = Vec::new();
            size += collect(rule, 0, &mut all);
            all
        })
        .collect();
    if size > MOST_SYMBOLS {
        return invalid(format!(
            "it has {size} names, classes and texts (a text counts as {OF_TEXT}), at most {MOST_SYMBOLS} are possible"
        ));
    }
    check(&mentions, std::iter::once(root))
}

/// What `expr` mentions goes to `out`; how large it is.
fn collect(expr: &Expr, around: usize, out: &mut Vec<Mention>) -> usize {
    match expr {
        Expr::Class(_) => 1,
        Expr::Rule(rule) => {
            out.push((*rule, around));
            1
        }
        Expr::Sequence(items) if items.iter().all(|item| matches!(item, Expr::Class(_))) => OF_TEXT + items.len() / 64,
        Expr::Sequence(items) => items.iter().map(|item| collect(item, around, out)).sum(),
        Expr::Choice(items) => 1 + items.iter().map(|item| collect(item, around + 1, out)).sum::<usize>(),
        Expr::Repeat(item, _, _) => 1 + collect(item, around + 1, out),
    }
}

/// Follows rules from `roots` as the compiler does: each where it is mentioned first.
fn check(rules: &[Vec<Mention>], roots: impl Iterator<Item = usize>) -> Outcome<()> {
    let mut seen = vec![false; rules.len()];
    for root in roots {
        let mut open = vec![(root, 0, 1)]; // rule, its next mention, how deep
        seen[root] = true;
        while let Some((rule, next, depth)) = open.pop() {
            let Some(&(mentioned, around)) = rules[rule].get(next) else { continue };
            open.push((rule, next + 1, depth));
            if std::mem::replace(&mut seen[mentioned], true) {
                continue;
            }
            let deeper = depth + 1 + around;
            if deeper > MOST_NESTED {
                return invalid(format!(
                    "its rules lead too deep into one another: more than {MOST_NESTED} rules and parentheses"
                ));
            }
            open.push((mentioned, 0, deeper));
        }
    }
    Ok(())
}

/// What a text of Lark defines, in its order.
#[derive(Default)]
struct Reader<'a> {
    within: usize,       // so many other grammars
    optional: usize,     // parts of the terminal that is being read
    symbols: usize,      // that rules become
    names: Vec<&'a str>, // "": what is ignored
    mentions: Vec<Vec<(&'a str, usize)>>,
    terminals: HashSet<&'a str>, // in rules
    texts: usize,
    classes: Classes,
}

impl<'a> Reader<'a> {
    fn read(&mut self, text: &'a str) -> Outcome<()> {
        let (mut rest, mut around, mut in_rule) = (text, 0usize, false);
        let mut last: Vec<(&'a str, usize)> = Vec::new(); // of attributes, which are read behind the body
        while let Some(first) = rest.chars().next() {
            let word = &rest[..lexeme_end(rest, first)];
            rest = &rest[word.len()..];
            if first.is_ascii_alphabetic() || first == '_' {
                if let Some(end) = definition_end(rest).filter(|_| around == 0) {
                    self.finish(&mut last);
                    self.begin(word);
                    in_rule = word.trim_start_matches('_').starts_with(|c: char| c.is_ascii_lowercase());
                    self.symbols += usize::from(in_rule);
                    last = attributes(&rest[..end]);
                    rest = &rest[end..];
                    continue;
                }
                self.mention(word, around);
            }
            self.symbols += usize::from(in_rule && matches!(first, '(' | '[' | '|' | '?' | '*' | '+'));
            match first {
                '(' => around += 1,
                '[' => {
                    around += 1;
                    self.may_be_empty()?;
                }
                ')' | ']' => around = around.saturating_sub(1),
                '?' | '*' => self.may_be_empty()?,
                '|' => self.optional = 0,
                '%' if word == "%ignore" => {
                    self.finish(&mut last);
                    self.begin("");
                    in_rule = false;
                }
                '%' if word.starts_with("%lark") && self.within < MOST_GRAMMARS => {
                    let inside = word["%lark".len()..].trim().trim_start_matches('{');
                    check_inner(inside.strip_suffix('}').unwrap_or(inside), self.within + 1)?;
                }
                _ => {}
            }
            if first == '/' && !word.starts_with("//") {
                let end = word.rfind('/').unwrap_or(word.len());
                if text.len() > MOST_OPTIONAL {
                    check_long_regex(&word[1..end.max(1)], &mut self.classes)?;
                }
            }
            self.texts += usize::from(first == '"');
            let is_terminal = matches!(first, '"' | '/' | '<') || first.is_ascii_uppercase();
            if in_rule && is_terminal && !word.starts_with("//") {
                self.terminals.insert(word);
            }
        }
        self.finish(&mut last);
        Ok(())
    }

    fn may_be_empty(&mut self) -> Outcome<()> {
        self.optional += 1;
        if self.optional > MOST_OPTIONAL {
            return too_many_optional();
        }
        Ok(())
    }

    fn begin(&mut self, name: &'a str) {
        self.optional = 0;
        self.names.push(name);
        self.mentions.push(Vec::new());
    }

    fn mention(&mut self, name: &'a str, around: usize) {
        if let Some(mentions) = self.mentions.last_mut() {
            mentions.push((name, around));
        }
    }

    fn finish(&mut self, last: &mut Vec<(&'a str, usize)>) {
        last.drain(..).for_each(|(name, around)| self.mention(name, around));
    }
}

/// Where a name or number ends as Lark has them, small letters or capitals; other words as elsewhere.
fn lexeme_end(rest: &str, first: char) -> usize {
    let behind =
        |from: usize, is_in: fn(char) -> bool| from + rest[from..].find(|c| !is_in(c)).unwrap_or(rest[from..].len());
    let begin = usize::from(first == '_');
    match rest[begin..].chars().next() {
        Some('a'..='z') => behind(begin, |c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-')),
        Some('A'..='Z') => behind(begin, |c| matches!(c, 'A'..='Z' | '0'..='9' | '_' | '-')),
        Some('0'..='9') if begin == 0 && rest[1..].starts_with(['x', 'X']) => behind(2, |c| c.is_ascii_hexdigit()),
        Some('0'..='9') if begin == 0 => behind(0, |c| c.is_ascii_digit()),
        _ if begin == 1 || first == '-' => 1,
        _ => word_end(rest, first),
    }
}

/// Where the body begins, if what is behind a name makes a definition of it: `: `, or parameters, a priority and
/// attributes before that.
fn definition_end(behind: &str) -> Option<usize> {
    let mut at = 0;
    let skip = |at: &mut usize| *at += behind[*at..].len() - behind[*at..].trim_start_matches([' ', '\t']).len();
    skip(&mut at);
    if behind[at..].starts_with("::") {
        at += 2;
        skip(&mut at);
        at += behind[at..].starts_with('_').then_some(1)?;
        skip(&mut at);
    }
    if behind[at..].starts_with('.') {
        at += 1 + behind[at + 1..].find(|c: char| !(c.is_ascii_digit() || " +-\t".contains(c)))?;
    }
    if behind[at..].starts_with('[') {
        let mut first = Some('[');
        while let Some(c) = first.filter(|c| *c != ']') {
            at += lexeme_end(&behind[at..], c);
            first = behind[at..].chars().next();
        }
        at = (at + 1).min(behind.len());
        skip(&mut at);
    }
    let is_colon = behind[at..].starts_with(':') && !behind[at..].starts_with("::");
    is_colon.then_some(at + 1)
}

/// The terminals that attributes name.
fn attributes(text: &str) -> Vec<(&str, usize)> {
    let (mut rest, mut named) = (text, Vec::new());
    while let Some(first) = rest.chars().next() {
        let end = lexeme_end(rest, first);
        if first.is_ascii_alphabetic() || first == '_' {
            named.push((&rest[..end], 0));
        }
        rest = &rest[end..];
    }
    named
}
