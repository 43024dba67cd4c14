//! One answer's way through a grammar: llguidance's parser, and the work that it has done so far. Work is counted, never
//! timed, so that whoever follows the same tokens ends at the same one.

use crate::ffi::caught;
use llguidance::api::StopReason;
use llguidance::earley::{CGrammar, CSymIdx};
use llguidance::toktrie::SimpleVob;
use llguidance::TokenParser;
use std::collections::HashSet;

/// Units of 0.05 to 0.15 us of a core, of one answer behind the compiling: 0.2 to 0.7 s. The fuel of llguidance alone
/// is no measure: a unit of it may take five times as long as another, and it has no end but for each mask.
pub const MOST_WORK: u64 = 6_400_000;
const OF_DERIVATIVE: u64 = 5;
const OF_STATE: u64 = 10;
/// A step from a state of the lexer costs as much as there are terminals in it, 0.2 us each: what it keeps of them.
const OF_TERMINAL: u64 = 2;
const BYTES_OF_TERMINAL: u64 = 8;
const FEW_TERMINALS: u64 = 32;
/// Where a text can be read in many ways, rows grow with it. Items that there are more than such that begin together end
/// what others began, each at all the rows between: their cubes count. Other rows are as long at one place of the grammar
/// every time (2,000 items of 500 optional properties: 1 ms), and cost no more with each token.
const ITEM_TRIPLES_OF_UNIT: u64 = 2_500;
/// Items of a row for what ends there and goes on, beside those that begin: the levels of a sum of products of powers.
const ENDING: u64 = 32;

/// What a parser has done since it was made.
#[derive(Clone, Copy)]
struct Done {
    lexer: u64, // in units
    rows: u64,
    items: u64,
}

fn done(parser: &TokenParser) -> Done {
    let lexer = parser.parser.lexer_stats();
    let states = OF_DERIVATIVE * lexer.num_derivatives as u64 + OF_STATE * lexer.num_states as u64;
    // What llguidance adds for tables of states and derivatives; the rest are expressions, and the terminals in states.
    let tables = lexer.num_states * (100 + 4 * lexer.alphabet_size) + lexer.num_derivatives * 64;
    let kept = lexer.num_bytes.saturating_sub(tables) as u64;
    let of_state = kept / BYTES_OF_TERMINAL / (lexer.num_states as u64).max(1);
    let of_state = of_state.min(lexer.num_regexps as u64).saturating_sub(FEW_TERMINALS);
    let terminals = OF_TERMINAL * of_state * lexer.num_transitions as u64;
    let lexer = lexer.total_fuel_spent as u64 + states + terminals;
    let stats = parser.parser.stats();
    Done { lexer, rows: stats.rows as u64, items: stats.all_items as u64 }
}

pub struct Guide {
    parser: TokenParser,
    together: u64, // items of a row that begin together, at most
    longest: u64,  // the most items that rows of a token had beyond those
    seen: Done,
    work: u64,
    failed: Option<String>,
}

impl Guide {
    /// `is_schema`: no text can be read in many ways, however wide the rows are. `most_items`: of a row, as the parser
    /// has it.
    pub fn new(mut parser: TokenParser, is_schema: bool, most_items: usize) -> Result<Guide, String> {
        let grammar = parser.parser.grammar();
        let widest = widest(grammar);
        if widest.inside > most_items as u64 && !grammar.parametric() {
            let ways = widest.inside;
            return Err(format!(
                "it is too costly: a place of it may go on in {ways} ways, at most {most_items} are possible"
            ));
        }
        let together = if is_schema { places(grammar) } else { widest.anywhere + ENDING };
        caught(|| parser.start_without_prompt())?;
        let seen = done(&parser);
        Ok(Guide { parser, together, longest: 0, seen, work: 0, failed: None })
    }

    pub fn deep_clone(&self) -> Guide {
        let (parser, failed) = (self.parser.deep_clone(), self.failed.clone());
        Guide { parser, failed, ..*self }
    }

    /// The tokens that may come next; those that end a text where nothing else follows.
    pub fn mask(&mut self) -> Result<SimpleVob, String> {
        self.charged(|parser| {
            if parser.stopped() {
                return Ok(parser.token_env.tok_trie().eos_token_set());
            }
            parser.compute_mask().map_err(|e| e.to_string())
        })
    }

    /// How many of `tokens` it takes, from the first on.
    pub fn try_consume(&mut self, tokens: &[u32]) -> Result<usize, String> {
        for (index, &token) in tokens.iter().enumerate() {
            let before = done(&self.parser);
            let is_valid = self.charged(|parser| parser.validate_token(token).map_err(|e| e.to_string()))?;
            if !is_valid {
                return Ok(index);
            }
            self.longest = self.longest.max(self.more(&before));
            self.charged(|parser| {
                parser.consume_token(token).map_err(|e| e.to_string())?;
                parser.check_stop().map_err(|e| e.to_string())
            })?;
        }
        Ok(tokens.len())
    }

    pub fn is_accepting(&mut self) -> bool {
        self.failed.is_none() && caught(|| self.parser.is_accepting()).unwrap_or(false)
    }

    /// Nothing can follow: at its end, or because it failed.
    pub fn is_stopped(&self) -> bool {
        self.failed.is_some() || self.parser.stop_reason() != StopReason::NotStopped
    }

    pub fn work(&self) -> u64 {
        self.work
    }

    /// Does `step`, and counts what it took. An error is the last.
    fn charged<T>(&mut self, step: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Result<T, String> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let parser = &mut self.parser;
        let mut outcome = caught(|| step(parser)).unwrap_or_else(Err);
        self.charge();
        if outcome.is_ok() && self.work > MOST_WORK {
            outcome = Err(format!("{} units of work, at most {MOST_WORK}", self.work));
        }
        self.failed = outcome.as_ref().err().cloned();
        outcome
    }

    /// Items in the rows since `before` beyond those that may begin together in each.
    fn more(&self, before: &Done) -> u64 {
        let now = done(&self.parser);
        (now.items - before.items).saturating_sub((now.rows - before.rows) * self.together)
    }

    /// Rows of a mask are as long as those of the answer, but only some of them: their average says too little.
    fn charge(&mut self) {
        let now = done(&self.parser);
        let (rows, items) = (now.rows - self.seen.rows, now.items - self.seen.items);
        let more = (items / rows.max(1)).saturating_sub(self.together).max(self.longest.min(items));
        self.work += now.lexer.saturating_sub(self.seen.lexer) + items * more * more / ITEM_TRIPLES_OF_UNIT;
        self.seen = now;
    }
}

/// The places between the symbols of all rules: a row has no more items that began together.
fn places(grammar: &CGrammar) -> u64 {
    let rules = symbols(grammar).into_iter().flat_map(|symbol| grammar.rules_of(symbol));
    rules.map(|&rule| grammar.rule_rhs(rule).0.len() as u64 + 1).sum()
}

/// The most items that a symbol of the grammar puts into a row by itself, whatever was before it.
struct Widest {
    anywhere: u64,
    inside: u64, // behind another symbol: the parser does not bound the first row
}

/// The search stops where the grammar is too large for it.
fn widest(grammar: &CGrammar) -> Widest {
    const MOST_STEPS: u64 = 1_000_000;
    let symbols = symbols(grammar);
    let rules = symbols.iter().flat_map(|&symbol| grammar.rules_of(symbol));
    let inside: HashSet<usize> =
        rules.flat_map(|&rule| grammar.rule_rhs(rule).0.iter().skip(1)).map(|s| s.as_index()).collect();
    let (mut widest, mut steps) = (Widest { anywhere: 0, inside: 0 }, 0);
    for symbol in symbols {
        if steps < MOST_STEPS {
            let begun = begun_by(grammar, symbol);
            widest.anywhere = widest.anywhere.max(begun);
            if inside.contains(&symbol.as_index()) {
                widest.inside = widest.inside.max(begun);
            }
            steps += begun;
        }
    }
    widest
}

/// Those that the start leads to.
fn symbols(grammar: &CGrammar) -> Vec<CSymIdx> {
    let (mut known, mut found) = (HashSet::from([grammar.start().as_index()]), vec![grammar.start()]);
    let mut next = 0;
    while let Some(&symbol) = found.get(next) {
        for &rule in grammar.rules_of(symbol) {
            found.extend(grammar.rule_rhs(rule).0.iter().filter(|symbol| known.insert(symbol.as_index())));
        }
        next += 1;
    }
    found
}

/// Items of a row in which `symbol` may begin: of its rules, and of all that those may begin with.
fn begun_by(grammar: &CGrammar, symbol: CSymIdx) -> u64 {
    let (mut begun, mut open, mut items) = (HashSet::from([symbol.as_index()]), vec![symbol], 0);
    while let Some(symbol) = open.pop() {
        for &rule in grammar.rules_of(symbol) {
            items += 1;
            for &first in grammar.rule_rhs(rule).0 {
                if begun.insert(first.as_index()) {
                    open.push(first);
                }
                if !grammar.sym_data(first).is_nullable {
                    break;
                }
                items += 1;
            }
        }
    }
    items
}
