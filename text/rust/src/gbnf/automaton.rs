//! What a regular expression may begin with and how it may go on, by the automaton of its sets of positions (Thompson's
//! construction, then the subsets that texts lead to).

use super::bits::{Alphabet, Bits};
use super::Expr;
use std::collections::HashSet;

/// What is larger is no terminal: the lexer makes such an automaton, too, while texts come.
const MOST_POSITIONS: usize = 4_000;
const MOST_SETS: usize = 2_000;
const DEEPEST: usize = 200;

pub struct Terminal {
    pub first: Bits,
    /// Characters that may follow one of its texts of one character or more within it.
    pub more: Bits,
    pub may_be_empty: bool,
}

/// `alternatives`: sequences, with rules that no recursion reaches. `steps`: those that are left, of some 10 ns each.
/// None: its automaton would be too large.
pub fn terminal(alternatives: &[&[Expr]], rules: &[Expr], alphabet: &Alphabet, steps: &mut usize) -> Option<Terminal> {
    let mut positions = Positions { rules, alphabet, all: Vec::new() };
    let (begin, end) = (positions.add()?, positions.add()?);
    for sequence in alternatives {
        positions.sequence(sequence.iter(), begin, end, 0)?;
    }
    positions.terminal(begin, end, steps)
}

#[derive(Default)]
struct Position {
    empty: Vec<usize>,
    on: Option<(Bits, usize)>,
}

struct Positions<'a> {
    rules: &'a [Expr],
    alphabet: &'a Alphabet,
    all: Vec<Position>,
}

impl Positions<'_> {
    fn add(&mut self) -> Option<usize> {
        self.all.push(Position::default());
        (self.all.len() <= MOST_POSITIONS).then_some(self.all.len() - 1)
    }

    fn sequence<'e>(
        &mut self,
        all: impl Iterator<Item = &'e Expr>,
        from: usize,
        to: usize,
        depth: usize,
    ) -> Option<()> {
        let mut at = from;
        for one in all {
            let next = self.add()?;
            self.expr(one, at, next, depth)?;
            at = next;
        }
        self.all[at].empty.push(to);
        Some(())
    }

    fn expr(&mut self, expr: &Expr, from: usize, to: usize, depth: usize) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match expr {
            Expr::Class(ranges) => {
                let next = self.add()?; // of its own: `from` may lead on otherwise
                self.all[next].on = Some((self.alphabet.bits(ranges), to));
                self.all[from].empty.push(next);
            }
            Expr::Rule(rule) => self.expr(&self.rules[*rule], from, to, depth + 1)?,
            Expr::Sequence(all) => self.sequence(all.iter(), from, to, depth + 1)?,
            Expr::Choice(all) => all.iter().try_for_each(|one| self.expr(one, from, to, depth + 1))?,
            Expr::Repeat(inner, least, most) => {
                let mut at = from;
                for _ in 0..*least {
                    let next = self.add()?;
                    self.expr(inner, at, next, depth + 1)?;
                    at = next;
                }
                match most {
                    None => {
                        let round = self.add()?;
                        self.all[at].empty.push(round);
                        self.expr(inner, round, round, depth + 1)?;
                        at = round;
                    }
                    Some(most) => {
                        for _ in *least..*most {
                            self.all[at].empty.push(to);
                            let next = self.add()?;
                            self.expr(inner, at, next, depth + 1)?;
                            at = next;
                        }
                    }
                }
                self.all[at].empty.push(to);
            }
        }
        Some(())
    }

    /// All that no character leads to from `set`, in order.
    fn closed(&self, mut set: Vec<usize>, steps: &mut usize) -> Option<Vec<usize>> {
        let mut is_in = vec![false; self.all.len()];
        set.retain(|&position| !std::mem::replace(&mut is_in[position], true));
        let mut next = 0;
        while next < set.len() {
            let empty = &self.all[set[next]].empty;
            *steps = steps.checked_sub(1 + empty.len())?;
            set.extend(empty.iter().copied().filter(|&position| !std::mem::replace(&mut is_in[position], true)));
            next += 1;
        }
        set.sort_unstable();
        Some(set)
    }

    fn terminal(&self, begin: usize, end: usize, steps: &mut usize) -> Option<Terminal> {
        let start = self.closed(vec![begin], steps)?;
        let may_be_empty = start.binary_search(&end).is_ok();
        let first = self.leads_on(&start);
        let mut more = self.alphabet.none();
        let (mut known, mut sets) = (HashSet::from([start.clone()]), vec![start]);
        let mut next = 0;
        while next < sets.len() {
            for index in 0..self.alphabet.size() {
                let on = sets[next].iter().filter_map(|&position| self.all[position].on.as_ref());
                let reached: Vec<usize> = on.filter(|(bits, _)| bits.has(index)).map(|&(_, to)| to).collect();
                *steps = steps.checked_sub(1 + sets[next].len() + self.all.len() / 64)?;
                if reached.is_empty() {
                    continue;
                }
                let reached = self.closed(reached, steps)?;
                if reached.binary_search(&end).is_ok() {
                    more.add(&self.leads_on(&reached));
                }
                if sets.len() > MOST_SETS {
                    return None;
                }
                if known.insert(reached.clone()) {
                    sets.push(reached);
                }
            }
            next += 1;
        }
        Some(Terminal { first, more, may_be_empty })
    }

    fn leads_on(&self, set: &[usize]) -> Bits {
        let mut bits = self.alphabet.none();
        for (on, _) in set.iter().filter_map(|&position| self.all[position].on.as_ref()) {
            bits.add(on);
        }
        bits
    }
}
