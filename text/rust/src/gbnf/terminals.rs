//! Terminals as long as they may be. A lexer takes the longest match of the terminals that may come; that leaves the
//! language as it is where each character tells which of them has begun (LL(1) over characters) and none of them can go
//! on with what may follow it. Everything that no recursion reaches may be a part of one.

use super::automaton::{terminal, Terminal};
use super::bits::{Alphabet, Bits};
use super::Expr;

const MOST_RULES: usize = 2_000;
const MOST_INTERVALS: usize = 512;
const MOST_EXPRS: usize = 20_000;
const MOST_ROUNDS: usize = 64;
const MOST_STEPS: usize = 5_000_000;

/// An expression in which all that may be a terminal is one.
pub enum Node<'a> {
    /// Alternatives, each a sequence.
    Terminal(Vec<&'a [Expr]>, Terminal),
    Rule(usize),
    Sequence(Vec<Node<'a>>),
    Choice(Vec<Node<'a>>),
    /// At least, at most, if there is a bound.
    Repeat(Box<Node<'a>>, u32, Option<u32>),
}

/// The rules, None where one is a part of terminals only. None at all: characters do not tell, or it is too large.
pub fn long(rules: &[Expr], root: usize) -> Option<Vec<Option<Node<'_>>>> {
    let alphabet = Alphabet::of(rules);
    if rules.len() > MOST_RULES
        || alphabet.size() > MOST_INTERVALS
        || rules.iter().map(size).sum::<usize>() > MOST_EXPRS
    {
        return None;
    }
    let mut split = Split { rules, regular: regular(rules)?, alphabet: &alphabet, steps: MOST_STEPS };
    let mut nodes = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let is_left = index == root || !split.regular[index];
        nodes.push(if is_left { Some(split.node(rule)?) } else { None });
    }
    is_told_by_a_character(&nodes, &alphabet)?.then_some(nodes)
}

fn size(expr: &Expr) -> usize {
    match expr {
        Expr::Class(_) | Expr::Rule(_) => 1,
        Expr::Sequence(all) | Expr::Choice(all) => 1 + all.iter().map(size).sum::<usize>(),
        Expr::Repeat(inner, ..) => 1 + size(inner),
    }
}

/// The rules that no recursion reaches.
fn regular(rules: &[Expr]) -> Option<Vec<bool>> {
    let mut regular = vec![false; rules.len()];
    for _ in 0..MOST_ROUNDS {
        let is_new = |&(index, rule): &(usize, &Expr)| !regular[index] && is_regular(rule, &regular);
        let found: Vec<usize> = rules.iter().enumerate().filter(is_new).map(|(index, _)| index).collect();
        if found.is_empty() {
            return Some(regular);
        }
        found.iter().for_each(|&index| regular[index] = true);
    }
    None
}

fn is_regular(expr: &Expr, regular: &[bool]) -> bool {
    match expr {
        Expr::Class(_) => true,
        Expr::Rule(rule) => regular[*rule],
        Expr::Sequence(all) | Expr::Choice(all) => all.iter().all(|one| is_regular(one, regular)),
        Expr::Repeat(inner, ..) => is_regular(inner, regular),
    }
}

struct Split<'a, 'b> {
    rules: &'a [Expr],
    regular: Vec<bool>,
    alphabet: &'b Alphabet,
    steps: usize, // that are left
}

impl<'a> Split<'a, '_> {
    fn terminal(&mut self, alternatives: Vec<&'a [Expr]>) -> Option<Node<'a>> {
        let read = terminal(&alternatives, self.rules, self.alphabet, &mut self.steps)?;
        Some(Node::Terminal(alternatives, read))
    }

    fn nodes(&mut self, all: impl IntoIterator<Item = &'a Expr>) -> Option<Vec<Node<'a>>> {
        all.into_iter().map(|one| self.node(one)).collect()
    }

    fn node(&mut self, expr: &'a Expr) -> Option<Node<'a>> {
        let is_part = |one: &Expr| is_regular(one, &self.regular);
        if is_part(expr) {
            return self.terminal(vec![std::slice::from_ref(expr)]);
        }
        Some(match expr {
            Expr::Sequence(all) => {
                let runs: Vec<&[Expr]> = all.chunk_by(|a, b| is_part(a) && is_part(b)).collect();
                let node = |run: &'a [Expr]| if run.len() > 1 { self.terminal(vec![run]) } else { self.node(&run[0]) };
                Node::Sequence(runs.into_iter().map(node).collect::<Option<_>>()?)
            }
            Expr::Choice(all) => {
                let (parts, others): (Vec<&Expr>, Vec<&Expr>) = all.iter().partition(|one| is_part(one));
                let mut nodes = self.nodes(others)?;
                if !parts.is_empty() {
                    nodes.push(self.terminal(parts.into_iter().map(std::slice::from_ref).collect())?);
                }
                Node::Choice(nodes)
            }
            Expr::Repeat(inner, least, most) => Node::Repeat(Box::new(self.node(inner)?), *least, *most),
            Expr::Rule(rule) => Node::Rule(*rule),
            Expr::Class(_) => unreachable!("a class is a terminal"),
        })
    }
}

/// What an expression may begin with.
#[derive(Clone)]
struct Begin {
    bits: Bits,
    may_be_empty: bool,
}

/// Whether a character tells at each place of the rules what begins or goes on there. None: that takes too many rounds.
fn is_told_by_a_character(rules: &[Option<Node>], alphabet: &Alphabet) -> Option<bool> {
    let begins = begins(rules, alphabet)?;
    let mut follow = vec![alphabet.none(); rules.len()];
    for _ in 0..MOST_ROUNDS {
        let mut places = Places { begins: &begins, follow: follow.clone(), alphabet, is_told: true };
        for (index, node) in rules.iter().enumerate() {
            node.iter().for_each(|node| places.visit(node, &follow[index]));
        }
        if places.follow == follow || !places.is_told {
            return Some(places.is_told);
        }
        follow = places.follow;
    }
    None
}

/// Of each rule.
fn begins(rules: &[Option<Node>], alphabet: &Alphabet) -> Option<Vec<Begin>> {
    let mut begins = vec![Begin { bits: alphabet.none(), may_be_empty: false }; rules.len()];
    for _ in 0..MOST_ROUNDS {
        let mut is_new = false;
        for (index, node) in rules.iter().enumerate() {
            let Some(node) = node else { continue };
            let now = begin(node, &begins, alphabet);
            is_new |= begins[index].bits.add(&now.bits) | (now.may_be_empty && !begins[index].may_be_empty);
            begins[index].may_be_empty |= now.may_be_empty;
        }
        if !is_new {
            return Some(begins);
        }
    }
    None
}

fn begin(node: &Node, rules: &[Begin], alphabet: &Alphabet) -> Begin {
    match node {
        Node::Terminal(_, read) => Begin { bits: read.first.clone(), may_be_empty: read.may_be_empty },
        Node::Rule(rule) => rules[*rule].clone(),
        Node::Repeat(inner, least, _) => {
            let inner = begin(inner, rules, alphabet);
            Begin { may_be_empty: inner.may_be_empty || *least == 0, ..inner }
        }
        Node::Sequence(all) => {
            let mut begun = Begin { bits: alphabet.none(), may_be_empty: true };
            for one in all {
                let next = begin(one, rules, alphabet);
                begun.bits.add(&next.bits);
                if !next.may_be_empty {
                    return Begin { may_be_empty: false, ..begun };
                }
            }
            begun
        }
        Node::Choice(all) => {
            let mut begun = Begin { bits: alphabet.none(), may_be_empty: false };
            for next in all.iter().map(|one| begin(one, rules, alphabet)) {
                begun.bits.add(&next.bits);
                begun.may_be_empty |= next.may_be_empty;
            }
            begun
        }
    }
}

struct Places<'a> {
    begins: &'a [Begin],
    follow: Vec<Bits>, // of each rule
    alphabet: &'a Alphabet,
    is_told: bool,
}

impl Places<'_> {
    /// `after`: what may follow `node`.
    fn visit(&mut self, node: &Node, after: &Bits) {
        match node {
            Node::Terminal(_, read) => {
                self.is_told &= !read.more.meets(after) && !(read.may_be_empty && read.first.meets(after));
            }
            Node::Rule(rule) => {
                self.follow[*rule].add(after);
            }
            Node::Sequence(all) => {
                let mut after = after.clone();
                for one in all.iter().rev() {
                    self.visit(one, &after);
                    let begun = begin(one, self.begins, self.alphabet);
                    if begun.may_be_empty {
                        after.add(&begun.bits);
                    } else {
                        after = begun.bits;
                    }
                }
            }
            Node::Choice(all) => {
                let (mut taken, mut may_be_empty) = (self.alphabet.none(), false);
                for one in all {
                    self.visit(one, after);
                    let begun = begin(one, self.begins, self.alphabet);
                    self.is_told &= !taken.meets(&begun.bits) && !(may_be_empty && begun.may_be_empty);
                    taken.add(&begun.bits);
                    may_be_empty |= begun.may_be_empty;
                }
                self.is_told &= !(may_be_empty && taken.meets(after));
            }
            Node::Repeat(inner, least, most) => {
                let begun = begin(inner, self.begins, self.alphabet);
                let is_free = *most != Some(*least); // to end or to go on
                self.is_told &= !begun.may_be_empty && !(is_free && begun.bits.meets(after));
                let mut after = after.clone();
                if *most != Some(1) {
                    after.add(&begun.bits);
                }
                self.visit(inner, &after);
            }
        }
    }
}
