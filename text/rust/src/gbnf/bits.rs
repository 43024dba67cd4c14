//! Sets of characters: one bit for each interval of code points that the classes of a grammar do not tell apart.

use super::Expr;

/// Where each interval begins, in order.
pub struct Alphabet(Vec<u32>);

impl Alphabet {
    pub fn of(rules: &[Expr]) -> Alphabet {
        let mut begins = Vec::new();
        rules.iter().for_each(|rule| add_begins(rule, &mut begins));
        begins.sort_unstable();
        begins.dedup();
        Alphabet(begins)
    }

    pub fn size(&self) -> usize {
        self.0.len()
    }

    pub fn none(&self) -> Bits {
        Bits(vec![0; self.size().div_ceil(64)])
    }

    /// `ranges`: of one class of the grammar.
    pub fn bits(&self, ranges: &[(u32, u32)]) -> Bits {
        let mut bits = self.none();
        for &(first, last) in ranges {
            let begin = self.0.partition_point(|&code| code < first);
            let end = self.0.partition_point(|&code| code <= last);
            (begin..end).for_each(|index| bits.0[index / 64] |= 1 << (index % 64));
        }
        bits
    }
}

fn add_begins(expr: &Expr, begins: &mut Vec<u32>) {
    match expr {
        Expr::Class(ranges) => begins.extend(ranges.iter().flat_map(|&(first, last)| [first, last + 1])),
        Expr::Rule(_) => {}
        Expr::Sequence(all) | Expr::Choice(all) => all.iter().for_each(|one| add_begins(one, begins)),
        Expr::Repeat(inner, ..) => add_begins(inner, begins),
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Whether that brought anything.
    pub fn add(&mut self, others: &Bits) -> bool {
        let before = self.0.clone();
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word |= other);
        self.0 != before
    }

    pub fn meets(&self, others: &Bits) -> bool {
        self.0.iter().zip(&others.0).any(|(word, other)| word & other != 0)
    }

    pub fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 != 0
    }
}
