//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, as their models' own tokenizer.json defines them.

use crate::ffi::{invalid, Failure, Outcome, INTERNAL};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::pre_tokenizers::{byte_level::ByteLevel, digits::Digits, sequence::Sequence, split::Split};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// What `pre` means for a byte-level BPE.
pub struct Pre {
    pub pre_tokenizer: PreTokenizerWrapper,
    pub normalizer: Option<NormalizerWrapper>,
    /// A whole word that is in the vocabulary is one token, whatever the merges say.
    pub ignore_merges: bool,
    /// BOS is put unless the file says otherwise.
    pub add_bos: bool,
}

const CONTRACTIONS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const WORD_TAIL: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";

/// The family of cl100k: contractions, words with one leading symbol, numbers of up to `digits` digits, symbols, spaces.
fn cl100k(digits: &str) -> String {
    format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{WORD_TAIL}")
}

/// The family of o200k: words split at a change from lower to upper case.
fn o200k(suffix: &str, digits: &str) -> String {
    let lead = r"[^\r\n\p{L}\p{N}]?";
    format!(
        r"{lead}{UPPER}*{LOWER}+{suffix}|{lead}{UPPER}+{LOWER}*{suffix}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{WORD_TAIL}"
    )
}

fn split(regex: &str) -> Outcome<PreTokenizerWrapper> {
    let split = Split::new(SplitPattern::Regex(regex.to_string()), SplitDelimiterBehavior::Isolated, false);
    match split {
        Ok(split) => Ok(split.into()),
        Err(e) => Err(Failure { code: INTERNAL, message: format!("pre-tokenizer regex: {e}") }),
    }
}

/// Splits by each regex in turn, then maps to bytes.
fn by_regexes(regexes: &[&str]) -> Outcome<Pre> {
    let mut steps = Vec::new();
    for regex in regexes {
        steps.push(split(regex)?);
    }
    steps.push(ByteLevel::new(false, true, false).into());
    Ok(Pre { pre_tokenizer: Sequence::new(steps).into(), normalizer: None, ignore_merges: false, add_bos: false })
}

pub fn by_name(pre: &str) -> Outcome<Pre> {
    match pre {
        // ByteLevel's own regex is GPT-2's.
        "" | "default" | "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jais" => Ok(Pre {
            pre_tokenizer: ByteLevel::new(false, true, true).into(),
            normalizer: None,
            ignore_merges: false,
            add_bos: false,
        }),
        "smollm" | "starcoder" | "refact" => Ok(Pre {
            pre_tokenizer: Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()])
                .into(),
            normalizer: None,
            ignore_merges: false,
            add_bos: false,
        }),
        "llama3" | "llama-v3" | "llama-bpe" => {
            Ok(Pre { ignore_merges: true, add_bos: true, ..by_regexes(&[&cl100k(r"\p{N}{1,3}")])? })
        }
        "smaug-bpe" | "dbrx" => by_regexes(&[&cl100k(r"\p{N}{1,3}")]),
        "qwen2" | "deepseek-r1-qwen" => Ok(Pre { normalizer: Some(NFC.into()), ..by_regexes(&[&cl100k(r"\p{N}")])? }),
        "tekken" => Ok(Pre { ignore_merges: true, add_bos: true, ..by_regexes(&[&o200k("", r"\p{N}")])? }),
        "gpt-4o" | "llama4" => by_regexes(&[&o200k(&format!("{CONTRACTIONS}?"), r"\p{N}{1,3}")]),
        "deepseek-v3" => by_regexes(&[
            r"\p{N}{1,3}",
            r"[一-龥぀-ゟ゠-ヿ]+",
            concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
                r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ]),
        _ => invalid(format!("tokenizer.ggml.pre {pre:?} is not known: its words would be split by a guess")),
    }
}
