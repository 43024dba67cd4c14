//! How much longer a text may become while it is tokenized. The normalizers, pre-tokenizers and decoders of a
//! tokenizer.json form chains of any length, and each link may write many bytes for one: ten that write eight for one
//! make a gigabyte of one byte. What follows is a bound for each link, and products of them.

use crate::ffi::{invalid, Outcome};
use serde::Deserialize;
use serde_json::Value;

/// Of one byte of a text; no tokenizer of a language model that was looked at comes to more than some hundreds.
const MOST_OF_TEXT: f64 = 4096.0;
/// Of one byte of a token, where the crate's decoder joins them.
const MOST_OF_TOKENS: f64 = 64.0;
/// Of a whole text, in bytes. The crate keeps 18 bytes for each.
const MOST_BYTES: f64 = (256 << 20) as f64;
/// Tokens that are put around a text.
const MOST_AROUND: usize = 4096;

/// The parts of a tokenizer.json that make texts longer.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Parts {
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub post_processor: Value,
    pub decoder: Value,
    pub added_tokens: Value,
}

/// At most so many bytes, or tokens, become of one byte of a text.
#[derive(Clone, Copy)]
pub struct Growth(f64);

impl Growth {
    /// Refuses a text that may become too long.
    pub fn check(&self, text: &[u8]) -> Outcome<()> {
        if text.len() as f64 * self.0 > MOST_BYTES {
            return invalid(format!(
                "the text has {} bytes, of each of which the tokenizer's normalizers, pre-tokenizers and post-processors \
                 may make {:.0}: at most {MOST_BYTES:.0} in all",
                text.len(),
                self.0.ceil()
            ));
        }
        Ok(())
    }
}

/// Refuses a tokenizer.json before anybody makes a tokenizer of it: that normalizes the added tokens already, its own and
/// `more` bytes of others.
pub fn check_json(json: &[u8], more: usize) -> Outcome<()> {
    let parts: Parts = match serde_json::from_slice(json) {
        Ok(parts) => parts,
        Err(e) => return invalid(e.to_string()),
    };
    of(&parts)?;
    let normalized = product(&parts.normalizer, of_text);
    let tokens = parts.added_tokens.as_array().into_iter().flatten();
    let added = more + tokens.map(|token| length(token, "content")).sum::<usize>();
    if added as f64 * normalized > MOST_BYTES {
        return invalid(format!(
            "added tokens have {added} bytes, of each of which normalizers may make {:.0}: at most {MOST_BYTES:.0} in all",
            normalized.ceil()
        ));
    }
    Ok(())
}

/// The bound of a whole tokenizer; refused where it is too great.
pub fn of(parts: &Parts) -> Outcome<Growth> {
    let split = product(&parts.normalizer, of_text) * product(&parts.pre_tokenizer, of_text);
    within("normalizers and pre-tokenizers", split, "a text", MOST_OF_TEXT)?;
    within("decoders", product(&parts.decoder, of_tokens), "a token", MOST_OF_TOKENS)?;
    let around = tokens_around(&parts.post_processor);
    if around > MOST_AROUND {
        return invalid(format!(
            "post-processors put {around} tokens around a text, at most {MOST_AROUND} are possible"
        ));
    }
    let all = split * product(&parts.post_processor, times_in_template);
    within("normalizers, pre-tokenizers and post-processors", all, "a text", MOST_OF_TEXT)?;
    Ok(Growth(all))
}

fn within(what: &str, factor: f64, whole: &str, most: f64) -> Outcome<()> {
    if factor > most {
        return invalid(format!("{what} may make {factor:.0} bytes of one of {whole}, at most {most} are possible"));
    }
    Ok(())
}

/// Of `step`, an element of a chain or the chain itself, and of all that stand in it.
fn product(step: &Value, factor: fn(&Value) -> f64) -> f64 {
    match step {
        Value::Array(steps) => steps.iter().map(|step| product(step, factor)).product(),
        Value::Object(members) => factor(step) * members.values().map(|m| product(m, factor)).product::<f64>(),
        _ => 1.0,
    }
}

fn length(step: &Value, key: &str) -> usize {
    step[key].as_str().map_or(0, str::len)
}

/// Of one normalizer or pre-tokenizer.
fn of_text(step: &Value) -> f64 {
    let by_type = match step["type"].as_str().unwrap_or("") {
        "NFC" | "NFD" => 3.0, // as Unicode has it, in UTF-8
        "NFKC" | "NFKD" => 11.0,
        "Lowercase" => 1.5,
        "BertNormalizer" | "Bert" => 3.0 * 1.5 * 5.0 / 3.0, // decomposed, lower case, spaces around ideographs
        "ByteLevel" if step["add_prefix_space"] == true => 4.0,
        "ByteLevel" => 2.0, // a byte is a character of at most two
        _ => 1.0,
    };
    let charsmap = step["precompiled_charsmap"].as_str().map_or(1, |map| longest_of_charsmap(map).max(1));
    let prefix = 1 + length(step, "prepend") + length(step, "replacement");
    by_type * of_replace(step) * charsmap as f64 * prefix as f64
}

/// Of one decoder.
fn of_tokens(step: &Value) -> f64 {
    let by_type = match step["type"].as_str().unwrap_or("") {
        "ByteLevel" => 3.0,                        // what is no UTF-8 is a replacement character
        "WordPiece" | "BPEDecoder" | "CTC" => 2.0, // a space for each token
        _ => 1.0,
    };
    let replacement = length(step, "replacement").max(1); // of a metaspace; decoded it is one byte
    by_type * of_replace(step) * replacement as f64
}

/// What has a pattern and a content writes the one for the other.
fn of_replace(step: &Value) -> f64 {
    let (pattern, Some(content)) = (&step["pattern"], step["content"].as_str()) else { return 1.0 };
    let least = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => text.len(),
        (_, Some(regex)) => {
            let parsed = regex_syntax::parse(regex).ok(); // None: of another dialect
            parsed.and_then(|hir| hir.properties().minimum_len()).unwrap_or(0)
        }
        _ => return 1.0,
    };
    match least {
        0 => 1.0 + content.len() as f64, // also where nothing stands, at every character
        _ => (content.len() as f64 / least as f64).max(1.0),
    }
}

/// The longest text that a map of SentencePiece's writes, in bytes. Behind the trie its texts end in zeros.
fn longest_of_charsmap(map: &str) -> usize {
    let Ok(bytes) = base64::decode(map) else { return 0 }; // no tokenizer becomes of it
    let trie = bytes.get(..4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let texts = bytes.get(4 + trie..).unwrap_or_default();
    texts.split(|&b| b == 0).map(<[u8]>::len).max().unwrap_or(0)
}

/// How often a template of a post-processor says the text, or the second of two.
fn times_in_template(step: &Value) -> f64 {
    let said =
        |key: &str| step[key].as_array().into_iter().flatten().filter(|piece| piece.get("Sequence").is_some()).count();
    said("single").max(said("pair") / 2).max(1) as f64
}

/// The tokens of all templates that stand in `step`.
fn tokens_around(step: &Value) -> usize {
    let inner = match step {
        Value::Array(steps) => steps.iter().map(tokens_around).sum(),
        Value::Object(members) => members.values().map(tokens_around).fold(0, usize::saturating_add),
        _ => 0,
    };
    let ids = |piece: &Value| {
        let name = piece["SpecialToken"]["id"].as_str()?;
        Some(step["special_tokens"][name]["ids"].as_array()?.len())
    };
    let of = |key: &str| step[key].as_array().into_iter().flatten().filter_map(ids).sum::<usize>();
    of("single").max(of("pair")).saturating_add(inner)
}
