//! How GBNF's rules are written in Lark.

use super::terminals::Node;
use super::Expr;
use std::fmt::Write;

/// With terminals of one character each.
pub fn of_characters(expr: &Expr) -> String {
    match expr {
        Expr::Class(ranges) => format!("/{}/", class(ranges)),
        Expr::Rule(rule) => format!("rule_{rule}"),
        Expr::Sequence(all) => sequence(all.iter().map(of_characters)),
        Expr::Choice(all) => choice(all.iter().map(of_characters)),
        Expr::Repeat(inner, least, most) => format!("({}){}", of_characters(inner), times(*least, *most)),
    }
}

/// With the terminals that it has.
pub fn of_node(node: &Node, rules: &[Expr]) -> String {
    match node {
        Node::Terminal(alternatives, _) => {
            let all: Vec<String> = alternatives.iter().map(|all| regexes(all, rules)).collect();
            match all.concat().is_empty() {
                true => "\"\"".to_string(),
                false => format!("/{}/", all.join("|")),
            }
        }
        Node::Rule(rule) => format!("rule_{rule}"),
        Node::Sequence(all) => sequence(all.iter().map(|one| of_node(one, rules))),
        Node::Choice(all) => choice(all.iter().map(|one| of_node(one, rules))),
        Node::Repeat(inner, least, most) => format!("({}){}", of_node(inner, rules), times(*least, *most)),
    }
}

fn sequence(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    if all.is_empty() {
        return "\"\"".to_string();
    }
    all.join(" ")
}

fn choice(all: impl Iterator<Item = String>) -> String {
    format!("({})", all.collect::<Vec<String>>().join(" | "))
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_string(),
        (1, None) => "+".to_string(),
        (0, Some(1)) => "?".to_string(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

fn regexes(all: &[Expr], rules: &[Expr]) -> String {
    all.iter().map(|one| regex(one, rules)).collect()
}

/// `expr`: with rules that no recursion reaches.
fn regex(expr: &Expr, rules: &[Expr]) -> String {
    match expr {
        Expr::Class(ranges) => class(ranges),
        Expr::Rule(rule) => regex(&rules[*rule], rules),
        Expr::Sequence(all) => regexes(all, rules),
        Expr::Choice(all) => format!("(?:{})", all.iter().map(|one| regex(one, rules)).collect::<Vec<_>>().join("|")),
        Expr::Repeat(inner, least, most) => format!("(?:{}){}", regex(inner, rules), times(*least, *most)),
    }
}

fn class(ranges: &[(u32, u32)]) -> String {
    let mut text = String::from("[");
    for &(first, last) in ranges {
        let _ = write!(text, "\\x{{{first:x}}}-\\x{{{last:x}}}");
    }
    text + "]"
}
