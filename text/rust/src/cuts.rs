//! Where a long text may be cut so that the ids of its parts, one after the other, are those of the whole. The crate keeps
//! more than a hundred bytes for each byte that it reads at once; of a text in parts it does so for one of them.
//!
//! A cut is between a letter or digit and a space (or what `Cuts::lines` adds). It is safe where, at each step:
//! - added tokens: none has a letter or digit before a space, looks at its neighbours, or takes the space behind it;
//! - normalizer: none, or one that maps both sides alike whatever is beside them;
//! - pre-tokenizer: every match of an alternative that is known here ends before the space, as none has a space behind
//!   anything but white space, and each finds its match without a look behind it. A step that splits less (digits alone)
//!   may leave both sides in one split; a later one splits them;
//! - model: sees splits alone. Without a pre-tokenizer it is a BPE in whose vocabulary no token has a space behind
//!   something else, so that no merge reaches over one.
//!
//! What is not known here is not cut.

use crate::growth::Parts;
use serde_json::Value;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

const SPACE: char = '\u{2581}';

/// Where the ids of a text's parts are those of the whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cuts {
    /// Also before a new line, and behind an ideograph before its punctuation.
    lines: bool,
    /// The normalizer puts a space before each part: the one that stands there is left out.
    drops_space: bool,
}

/// The parts of a text: none is empty, each but the last has at least `least` bytes.
pub struct Pieces<'a> {
    cuts: Cuts,
    rest: &'a str,
    least: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let cut = self.cuts.first(self.rest, self.least.max(1));
        let (end, begin) = cut.unwrap_or((self.rest.len(), self.rest.len()));
        let piece = &self.rest[..end];
        self.rest = &self.rest[begin..];
        Some(piece)
    }
}

pub fn pieces(cuts: Cuts, text: &str, least: usize) -> Pieces<'_> {
    Pieces { cuts, rest: text, least }
}

impl Cuts {
    /// The first cut from byte `from` on: where the one part ends, and where the next begins.
    fn first(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let from = (from..text.len()).find(|&at| text.is_char_boundary(at))?;
        let mut before = text[..from].chars().next_back();
        let mut rest = text[from..].char_indices().peekable();
        while let Some((at, c)) = rest.next() {
            let behind = rest.peek().map(|&(_, next)| next);
            if before.is_some_and(|b| self.may_cut(b, c, behind)) {
                let end = from + at;
                return Some((end, end + self.drops_space as usize));
            }
            before = Some(c);
        }
        None
    }

    fn may_cut(&self, before: char, at: char, behind: Option<char>) -> bool {
        if self.drops_space {
            return at == ' ' && before.is_alphanumeric() && behind.is_some_and(|c| c.is_ascii_alphanumeric());
        }
        match at {
            ' ' => before.is_alphanumeric(),
            '\n' => self.lines && (before.is_ascii_alphanumeric() || is_ideograph(before)),
            '。' | '、' | '，' | '！' | '？' | '；' | '：' => self.lines && is_ideograph(before),
            _ => false,
        }
    }
}

fn is_ideograph(c: char) -> bool {
    ('\u{4e00}'..='\u{9fa5}').contains(&c)
}

/// None: a text stays whole. Whether special tokens in it are text makes no difference.
pub fn of(tokenizer: &Tokenizer, parts: &Parts) -> Option<Cuts> {
    let normal = normalizer(&parts.normalizer)?;
    let most = if parts.pre_tokenizer.is_null() || normal != Normal::Composed && is_idle(&parts.pre_tokenizer) {
        let spaced = normal != Normal::Composed && no_merge_reaches_over_a_space(tokenizer);
        spaced.then_some(Cuts { lines: false, drops_space: normal == Normal::Prefixed })
    } else {
        // Of a space that has become another character the steps know nothing.
        (normal == Normal::Composed).then(|| split_by(&parts.pre_tokenizer)).flatten()
    }?;
    let added = tokenizer.get_added_tokens_decoder();
    let fewer = Cuts { lines: false, ..most };
    [most, fewer].into_iter().find(|cuts| added.values().all(|token| lets_cut(token, *cuts)))
}

/// Splits where a space is, in texts that have none.
fn is_idle(pre_tokenizer: &Value) -> bool {
    pre_tokenizer["type"] == "Split" && pre_tokenizer["pattern"]["String"] == " "
}

#[derive(Clone, Copy, PartialEq)]
enum Normal {
    Composed, // NFC at most
    Spaced,   // a space becomes SPACE
    Prefixed, // the same, with one before each text
}

fn normalizer(step: &Value) -> Option<Normal> {
    let steps: Vec<&Value> = match step["type"].as_str() {
        None if step.is_null() => Vec::new(),
        Some("Sequence") => step["normalizers"].as_array()?.iter().collect(),
        _ => vec![step],
    };
    let space = SPACE.to_string();
    let prepends = |s: &Value| s["type"] == "Prepend" && s["prepend"] == space;
    let replaces = |s: &Value| s["type"] == "Replace" && s["pattern"]["String"] == " " && s["content"] == space;
    match steps[..] {
        [] => Some(Normal::Composed),
        [one] if one["type"] == "NFC" => Some(Normal::Composed),
        [one] if replaces(one) => Some(Normal::Spaced),
        [first, second] if prepends(first) && replaces(second) => Some(Normal::Prefixed),
        _ => None,
    }
}

fn lets_cut(token: &AddedToken, cuts: Cuts) -> bool {
    let text = &token.content;
    let next = text.chars().skip(1);
    let reaches_over = text.chars().zip(next).any(|(before, at)| cuts.may_cut(before, at, Some('a')));
    let takes_space = token.rstrip && text.ends_with(char::is_alphanumeric);
    // Looked for in what the normalizer made of the text: nothing but ASCII is the same there and here.
    let is_elsewhere = token.normalized && !text.is_ascii();
    // A part without its first space must begin as the whole goes on there.
    let begins_part = cuts.drops_space && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    !reaches_over && !takes_space && !is_elsewhere && !begins_part && !token.single_word
}

fn no_merge_reaches_over_a_space(tokenizer: &Tokenizer) -> bool {
    let ModelWrapper::BPE(model) = tokenizer.get_model() else { return false };
    let plain = model.continuing_subword_prefix.as_deref().unwrap_or("").is_empty()
        && model.end_of_word_suffix.as_deref().unwrap_or("").is_empty()
        && !model.ignore_merges
        && model.dropout.unwrap_or(0.0) == 0.0;
    let reaches_over = |token: &str| {
        let mut before = SPACE;
        token.chars().any(|c| std::mem::replace(&mut before, c) != SPACE && c == SPACE)
    };
    let vocabulary = tokenizer.get_vocab(false);
    plain && vocabulary.contains_key("\u{2581}") && !vocabulary.keys().any(|token| reaches_over(token))
}

/// What a pre-tokenizer does where a text may be cut.
struct Step {
    /// Both sides are splits of their own behind it.
    splits: bool,
    /// It may put a space before a part that begins with none.
    prefixes: bool,
}

fn split_by(pre_tokenizer: &Value) -> Option<Cuts> {
    let steps: Vec<&Value> = match pre_tokenizer["pretokenizers"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![pre_tokenizer],
    };
    let mut all = Step { splits: false, prefixes: false };
    for (at, step) in steps.iter().enumerate() {
        if step["type"] == "ByteLevel" && at + 1 < steps.len() {
            return None; // the steps behind it see no space
        }
        let one = of_step(step)?;
        all = Step { splits: all.splits || one.splits, prefixes: all.prefixes || one.prefixes };
    }
    all.splits.then_some(Cuts { lines: !all.prefixes, drops_space: false })
}

fn of_step(step: &Value) -> Option<Step> {
    match step["type"].as_str()? {
        "ByteLevel" => Some(Step { splits: step["use_regex"] != false, prefixes: step["add_prefix_space"] != false }),
        "Digits" => Some(Step { splits: false, prefixes: false }),
        "Split" => {
            let isolates = step["behavior"] == "Isolated" && step["invert"] == false;
            let keeps_matches = step["behavior"] == "Removed" && step["invert"] == true;
            let alternatives = alternatives(step["pattern"]["Regex"].as_str()?);
            let known = alternatives.iter().all(|one| is_known(one));
            // Isolated, what no alternative matches may be one split with both sides in it, unless spaces are matched.
            let splits = alternatives.contains(&r"\s+");
            ((isolates || keeps_matches && splits) && known).then_some(Step { splits, prefixes: false })
        }
        _ => None,
    }
}

/// The alternatives of a regular expression, at its `|` outside of groups and classes.
fn alternatives(regex: &str) -> Vec<&str> {
    let (mut out, mut begin, mut depth, mut in_class, mut escaped) = (Vec::new(), 0, 0, false, false);
    for (at, c) in regex.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => in_class = false,
            '[' => in_class = true,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth -= 1,
            '|' if !in_class && depth == 0 => {
                out.push(&regex[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    out.push(&regex[begin..]);
    out
}

/// Whether, of the texts that the alternative matches, none has a space behind anything but white space, nor a new line
/// behind a letter or digit, nor punctuation behind a letter; and it looks at one character behind its match at most,
/// and then for white space.
fn is_known(alternative: &str) -> bool {
    const CONTRACTIONS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";
    const LEAD: &str = r"[^\r\n\p{L}\p{N}]?";
    const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    let fixed = [
        CONTRACTIONS,
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r"\p{N}{1,2}",
        r"\p{N}{1,3}",
        r"\p{N}+",
        r" ?\p{L}+",
        r" ?\p{N}+",
        r" ?[^\s\p{L}\p{N}]+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        r"\s+",
        // DeepSeek's
        r"[一-龥぀-ゟ゠-ヿ]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        " ?[\\p{P}\\p{S}]+[\r\n]*",
    ];
    let words = [format!("{LEAD}{UPPER}*{LOWER}+"), format!("{LEAD}{UPPER}+{LOWER}*")];
    let is_word = words.iter().any(|word| {
        let suffix = alternative.strip_prefix(word.as_str());
        suffix.is_some_and(|s| s.is_empty() || s.strip_suffix('?') == Some(CONTRACTIONS))
    });
    is_word || fixed.contains(&alternative) || matches!(alternative, "'s" | "'t" | "'re" | "'ve" | "'m" | "'ll" | "'d")
}
