//! What tokens a grammar allows next: llguidance behind opaque handles. A `Vocabulary` is made once for a tokenizer, a
//! `Matcher` follows one answer token by token.

use crate::chains;
use crate::faults;
use crate::ffi::{invalid, Failure, Outcome, INTERNAL, INVALID_ARGUMENT};
use crate::gbnf;
use crate::guide::Guide;
use crate::regexes::plain_groups;
use crate::rules::schema_places;
use crate::schema;
use crate::spaces;
use crate::tokenizer::Handle;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::Grammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser};
use serde_json::Value;
use std::sync::Arc;

/// As GrammarKind in text/grammar_kind.h.
const JSON_SCHEMA: i32 = 1;
const REGEX: i32 = 2;
const LARK: i32 = 3;
const CHOICE: i32 = 4;

/// Of the expressions of all terminals, as they are built: 0.05 to 0.1 us each. Most of it goes into constants that JSON
/// writes with escapes, and into classes of characters.
const BUILD_FUEL: u64 = 8_000_000;
/// And as they are then: compiling takes seven to nine times as much, 64 MiB.
const MOST_EXPRESSION_BYTES: usize = 7_900_000;
/// Of finding out what they take: more of it, and the worst regular expressions are 18 s and 1 GB.
const LEXER_FUEL: u64 = 300_000;
/// More than that of a multipleOf of 20,000: of what each terminal leaves behind a first byte.
const FIRST_BYTES_FUEL: u64 = 2_000_000;
/// 1 to 2 KB each.
const LEXER_STATES: usize = 40_000;

pub struct Vocabulary {
    factory: ParserFactory,
    eos: Arc<[u32]>,
    words: usize, // of a mask
}

impl Vocabulary {
    /// `size`: ids that the model scores; those the tokenizer does not know are never allowed.
    pub fn new(tokenizer: &Handle, eos: &[i32], size: usize) -> Outcome<Vocabulary> {
        if !tokenizer.joins_bytes() {
            return invalid("grammars need a tokenizer whose tokens are bytes of the text");
        }
        let eos: Vec<u32> = eos.iter().filter(|&&id| id >= 0 && (id as usize) < size).map(|&id| id as u32).collect();
        if eos.is_empty() {
            return invalid("grammars need a model with an end-of-text token");
        }
        let words: Vec<Vec<u8>> = (0..size).map(|id| tokenizer.grammar_bytes(id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, eos[0]), &words).with_eos_tokens(&eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(internal)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.initial_lexer_fuel = LEXER_FUEL;
        limits.max_lexer_states = LEXER_STATES;
        Ok(Vocabulary { factory, eos: eos.into(), words: size.div_ceil(32) })
    }

    fn create_parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        let (env, limits) = (self.factory.tok_env().clone(), self.factory.limits().clone());
        let (rules, terminals) = build(grammar, Some(env), limits.clone(), BUILD_FUEL)?;
        check_expressions(&terminals, limits)?;
        self.factory.create_parser_from_init_default(GrammarInit::Internal(rules, terminals)).map_err(|e| e.to_string())
    }

    pub fn compile(&self, kind: i32, text: &str) -> Outcome<Matcher> {
        let most_items = self.factory.limits().max_items_in_row;
        let create = |grammar| Guide::new(self.create_parser(grammar)?, kind == JSON_SCHEMA, most_items);
        let guide = match create(read(kind, text)?) {
            Ok(guide) => guide,
            Err(error) => {
                let says = |part| self.create_parser(part).err();
                return invalid(explain(kind, text, &error, says));
            }
        };
        // What cannot even begin is said now.
        match begin(guide.deep_clone()) {
            Ok(()) => Ok(Matcher { guide, eos: self.eos.clone(), words: self.words }),
            Err(error) if is_dead_end(&error) => invalid("no text fits it"),
            Err(error) => Err(limit(error)),
        }
    }
}

/// Begins what is said of a grammar whose expressions are too many.
const TOO_LARGE: &str = "it is too large";

/// Rules, and terminals of which nothing is found out yet.
fn build(
    grammar: TopLevelGrammar,
    env: Option<TokEnv>,
    mut limits: ParserLimits,
    fuel: u64,
) -> Result<(Grammar, LexerSpec), String> {
    limits.initial_lexer_fuel = fuel;
    let built = GrammarInit::Serialized(grammar).to_internal(env, limits).map_err(|e| e.to_string());
    built.map_err(|error| match error.contains("initial lexer configuration") {
        true => format!(
            "{TOO_LARGE}: its constants, where a character that JSON writes with a backslash counts as many, classes of \
             characters and expressions come to more than {fuel} steps of building them"
        ),
        false => error,
    })
}

/// llguidance bounds what it finds out of terminals, but neither how large they are nor what is left of them behind their
/// first bytes: without this it seeks texts of 223 million bytes for `(.{2})*` & `(.{3})*` & ... & `(.{23})*`, and keeps
/// them all.
fn check_expressions(terminals: &LexerSpec, mut limits: ParserLimits) -> Result<(), String> {
    let mut automaton = terminals.to_regex_vec(&mut limits).map_err(|e| e.to_string())?;
    if automaton.num_bytes() > MOST_EXPRESSION_BYTES {
        return Err(format!(
            "{TOO_LARGE}: its constants and regular expressions take {} bytes as they are compiled, at most \
             {MOST_EXPRESSION_BYTES} are possible",
            automaton.num_bytes()
        ));
    }
    automaton.set_fuel(FIRST_BYTES_FUEL);
    let start = automaton.initial_state(&terminals.all_lexemes());
    for byte in 0..=255 {
        automaton.transition(start, byte);
        if let Some(error) = automaton.get_error() {
            return Err(format!("its terminals are too costly behind their first bytes: {error}"));
        }
    }
    Ok(())
}

fn read(kind: i32, text: &str) -> Outcome<TopLevelGrammar> {
    Ok(match kind {
        JSON_SCHEMA => TopLevelGrammar::from_json_schema(schema::prepare(parse(text)?)?),
        REGEX => {
            chains::check_regex(text)?;
            TopLevelGrammar::from_regex(&plain_groups(text))
        }
        LARK if gbnf::is_gbnf(text) => TopLevelGrammar::from_lark(checked(gbnf::to_lark(text)?)?),
        LARK => TopLevelGrammar::from_lark(checked(prepare_embedded(text)?)?),
        CHOICE => TopLevelGrammar::from_lark(any_of(text)?),
        _ => return invalid(format!("there is no grammar kind {kind}")),
    })
}

fn checked(lark: String) -> Outcome<String> {
    chains::check_lark(&lark)?;
    Ok(lark)
}

/// What is wrong with the text of a grammar, as far as that is seen without the costly part of compiling it: many
/// expressions, and the automaton. Not of Lark, whose texts may name tokens of a vocabulary.
pub fn check_form(kind: i32, text: &str) -> Outcome<()> {
    if kind == LARK {
        return Ok(());
    }
    let fault = |grammar| build(grammar, None, ParserLimits::default(), LEXER_FUEL).err();
    match fault(read(kind, text)?) {
        None => Ok(()),
        Some(error) if error.starts_with(TOO_LARGE) => Ok(()),
        Some(error) => invalid(explain(kind, text, &error, fault)),
    }
}

/// Kinds of tokens that a mask allows as a whole where the grammar does, without asking it about each: those of JSON
/// strings, and of these the ones of letters and spaces, which most tokens of a vocabulary are and which regular
/// expressions of sentences and words allow: 0.02 ms a mask in place of 0.45.
fn slices() -> Vec<String> {
    let mut slices = llguidance::earley::SlicedBiasComputer::general_slices();
    slices.extend(["[A-Za-z ]{1,30}", "[A-Za-z ]{1,10}", "[a-z]{1,10}"].map(String::from));
    slices
}

pub struct Matcher {
    guide: Guide,
    eos: Arc<[u32]>,
    words: usize,
}

impl Matcher {
    /// One that goes on from here on its own.
    pub fn copy(&self) -> Matcher {
        Matcher { guide: self.guide.deep_clone(), eos: self.eos.clone(), words: self.words }
    }

    /// How many of `ids` the grammar takes, from the first on. Behind its end it takes the tokens that end a text.
    pub fn consume(&mut self, ids: &[i32]) -> Outcome<usize> {
        let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let taken = self.guide.try_consume(&ids).map_err(limit)?;
        let ends = |id: &&u32| self.guide.is_stopped() && self.eos.contains(id);
        Ok(taken + ids[taken..].iter().take_while(ends).count())
    }

    /// One bit per id. Where the grammar is at its end: the tokens that end a text. None where nothing can follow.
    pub fn mask(&mut self, out: &mut [u32]) -> Outcome<()> {
        let mask: SimpleVob = match self.guide.mask() {
            Ok(mask) => mask,
            Err(error) if is_dead_end(&error) => SimpleVob::new(),
            Err(error) => return Err(limit(error)),
        };
        let words = mask.as_slice();
        let count = words.len().min(out.len()).min(self.words);
        out[..count].copy_from_slice(&words[..count]);
        out[count..].fill(0);
        Ok(())
    }

    pub fn may_end(&mut self) -> bool {
        self.guide.is_stopped() || self.guide.is_accepting()
    }
    pub fn has_ended(&self) -> bool {
        self.guide.is_stopped()
    }
    pub fn work(&self) -> u64 {
        self.guide.work()
    }
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure { code: INTERNAL, message: format!("grammar: {error:#}") }
}

/// The first token, and the mask behind it.
fn begin(mut guide: Guide) -> Result<(), String> {
    let mask = guide.mask()?;
    if let Some(first) = mask.first_bit_set() {
        guide.try_consume(&[first as u32])?;
        guide.mask()?;
    }
    Ok(())
}

/// No token can follow, and the text may not end either.
fn is_dead_end(error: &impl std::fmt::Display) -> bool {
    error.to_string().contains("NoExtension")
}

/// A compiled grammar fails later only where a mask takes more work than the limits allow.
fn limit(error: impl std::fmt::Display) -> Failure {
    let error = error.to_string();
    let why = error.lines().next().unwrap_or_default();
    Failure { code: INVALID_ARGUMENT, message: format!("the grammar is too costly here: {why}") }
}

fn parse(text: &str) -> Outcome<Value> {
    serde_json::from_str(text).or_else(|e| invalid(format!("not JSON: {e}")))
}

/// Schemas may stand in a Lark grammar: `%json {...}`. Each, and where its text ends.
fn embedded(text: &str) -> impl Iterator<Item = (Value, std::ops::Range<usize>)> + '_ {
    schema_places(text).into_iter().filter_map(|begin| {
        let mut values = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        let value = values.next()?.ok()?;
        Some((value, begin..begin + values.byte_offset()))
    })
}

fn prepare_embedded(text: &str) -> Outcome<String> {
    let (mut prepared, mut written) = (String::with_capacity(text.len()), 0);
    for (schema, place) in embedded(text) {
        let as_understood = schema::prepare(schema.clone())?; // what needs no change keeps its spelling
        if as_understood != schema {
            prepared += &text[written..place.start];
            prepared += &format!(" {as_understood}");
            written = place.end;
        }
    }
    Ok(prepared + &text[written..])
}

/// A grammar of one of the strings in a JSON array; as one terminal, thousands of them are no work.
fn any_of(text: &str) -> Outcome<String> {
    let Value::Array(choices) = parse(text)? else { return invalid("choices are not an array of strings") };
    let mut quoted = Vec::with_capacity(choices.len());
    for choice in &choices {
        match choice {
            // Lark has no place for a bare U+007F, which JSON has.
            Value::String(s) if !s.is_empty() => quoted.push(choice.to_string().replace('\u{7f}', "\\u007f")),
            _ => return invalid(format!("a choice is a string that is not empty, not {choice}")),
        }
    }
    if quoted.is_empty() {
        return invalid("there is no choice");
    }
    chains::check_constants(quoted.len())?;
    Ok(format!("start: CHOICE\nCHOICE: {}", quoted.join(" | ")))
}

/// What the compiler says, with the place of what it does not know or take. `says`: what it says of another grammar.
fn explain(kind: i32, text: &str, error: &str, says: impl Fn(TopLevelGrammar) -> Option<String>) -> String {
    let error = error.trim();
    let schemas: Vec<Value> = match kind {
        JSON_SCHEMA => parse(text).map(spaces::own_keywords).into_iter().collect(),
        LARK => embedded(text).map(|(schema, _)| schema).collect(),
        _ => Vec::new(),
    };
    if let Some(places) = faults::places_of_keywords(&schemas, error) {
        return places;
    }
    match (kind, schemas.first()) {
        (JSON_SCHEMA, Some(whole)) => {
            let says = |part| says(TopLevelGrammar::from_json_schema(part)).map(|e| e.trim().to_string());
            // Bounds are named as they stand in the schema, where that is as wrong as what the compiler was given.
            let of_bounds = |e: &str| e.contains("imum") || e.contains("atisfiable");
            let as_written = |part: &Value| says(part.clone()).filter(|e| of_bounds(e));
            let own = if of_bounds(error) { as_written(whole) } else { None };
            let (path, error) = match &own {
                Some(own) => faults::narrow(whole, own, as_written),
                None => faults::narrow(whole, error, |part| says(schema::prepare(part.clone()).ok()?)),
            };
            format!("the schema's {path}: {}", faults::first_line(&error))
        }
        (REGEX, _) => faults::of_regex(text, error),
        _ => faults::first_line(error),
    }
}
