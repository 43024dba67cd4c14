//! Classes of characters in regular expressions. The compiler makes an automaton of UTF-8 of each, and only looks at what
//! that has cost when an expression is whole: 4,000 that differ took it 2.7 s. So their ranges are counted before.

use crate::ffi::{invalid, Outcome};
use regex_syntax::hir::{Class, Hir, HirKind};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Of classes that differ: 0.5 us each, twice that in JSON. `\p{L}` has 677.
const MOST_RANGES: usize = 400_000;

#[derive(Default)]
pub struct Classes {
    seen: HashSet<u64>,
    ranges: usize,
}

impl Classes {
    /// Adds those of `hir` that did not come before; refuses what is too much.
    pub fn add(&mut self, hir: &Hir) -> Outcome<()> {
        let mut open = vec![hir];
        while let Some(part) = open.pop() {
            match part.kind() {
                HirKind::Concat(parts) | HirKind::Alternation(parts) => open.extend(parts),
                HirKind::Capture(capture) => open.push(&capture.sub),
                HirKind::Repetition(repeated) => open.push(&repeated.sub),
                HirKind::Class(Class::Unicode(class)) => {
                    let mut hasher = DefaultHasher::new();
                    class.ranges().iter().for_each(|range| (range.start(), range.end()).hash(&mut hasher));
                    if self.seen.insert(hasher.finish()) {
                        self.ranges += class.ranges().len();
                    }
                    if self.ranges > MOST_RANGES {
                        return invalid(format!(
                            "its classes of characters have more than {MOST_RANGES} ranges in all (\\p{{L}} has 677), \
                             those that are the same counted once"
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
