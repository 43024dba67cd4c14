//! The formats that the compiler has itself: whether a text is of one.

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::derivre::StateID;
use llguidance::earley::regexvec::RegexVec;
use serde_json::json;

pub struct Format {
    automaton: RegexVec,
    start: StateID,
}

impl Format {
    /// None: the compiler has none of that name.
    pub fn named(name: &str) -> Option<Format> {
        let schema = json!({"type": "string", "format": name, "x-guidance": {"whitespace_flexible": false}});
        let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema));
        let mut limits = ParserLimits::default();
        let (_, terminals) = grammar.to_internal(None, limits.clone()).ok()?;
        let mut automaton = terminals.to_regex_vec(&mut limits).ok()?;
        let start = automaton.initial_state(&terminals.all_lexemes());
        Some(Format { automaton, start })
    }

    /// Takes what it costs off `fuel`. None: that is more than there is.
    pub fn has(&mut self, text: &str, fuel: &mut u64) -> Option<bool> {
        self.automaton.set_fuel(*fuel);
        let mut state = self.start;
        for byte in json!(text).to_string().bytes() {
            state = self.automaton.transition(state, byte);
        }
        *fuel = self.automaton.get_fuel();
        let end = self.automaton.state_desc(state);
        (!self.automaton.has_error()).then(|| end.greedy_accepting.is_some() || end.lazy_accepting.is_some())
    }
}
