//! Tokenizers from GGUF metadata.

use crate::ffi::{invalid, slice, Failure, Outcome, Str, INVALID_ARGUMENT};
use crate::pretokenizer;
use crate::tokenizer::{set_affixes, Affixes, Handle};
use std::collections::HashMap;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::{byte_level::ByteLevel, fuse::Fuse, sequence::Sequence as Decoders, strip::Strip};
use tokenizers::models::{bpe::BPE, unigram::Unigram};
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::{prepend::Prepend, Precompiled, Sequence as Normalizers, Strip as StripNormalizer};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, Tokenizer};

const SPACE: &str = "\u{2581}";

#[repr(C)]
pub struct Gguf {
    model: Str,
    pre: Str,
    tokens: *const Str,
    token_count: usize,
    scores: *const f32,
    types: *const i32,
    merges: *const Str,
    merge_count: usize,
    charsmap: Str,
    unk_id: i64,
    add_space_prefix: i32,
    remove_extra_whitespaces: i32,
    affixes: Affixes,
}

// tokenizer.ggml.token_type
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// The metadata with its texts checked.
struct Parts<'a> {
    tokens: Vec<&'a str>,
    scores: &'a [f32],
    types: &'a [i32],
    merges: Vec<(String, String)>,
    ids: HashMap<String, u32>, // the first id of every token
    charsmap: &'a [u8],
    unk: Option<usize>,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
}

fn failed(what: &str, e: impl std::fmt::Display) -> Failure {
    Failure { code: INVALID_ARGUMENT, message: format!("{what}: {e}") }
}

pub unsafe fn build(gguf: &Gguf) -> Outcome<Handle> {
    let parts = read(gguf)?;
    let model = gguf.model.text("tokenizer.ggml.model")?;
    let pre = gguf.pre.text("tokenizer.ggml.pre")?;
    let mut default_bos = false;
    let mut tokenizer = match model {
        "gpt2" => byte_level(&parts, pre, &mut default_bos)?,
        "llama" => {
            default_bos = true;
            sentencepiece_bpe(&parts)?
        }
        "t5" => sentencepiece_unigram(&parts)?,
        _ => return invalid(format!("tokenizer.ggml.model {model:?} is not known (gpt2, llama and t5 are)")),
    };
    add_tokens(&mut tokenizer, &parts);
    set_affixes(&mut tokenizer, &gguf.affixes.with_defaults(default_bos, model == "t5"))?;
    Handle::new(tokenizer, &parts.tokens)
}

unsafe fn read(gguf: &Gguf) -> Outcome<Parts<'_>> {
    let count = gguf.token_count;
    let mut tokens = Vec::with_capacity(count);
    let mut ids = HashMap::with_capacity(count);
    for (id, raw) in slice(gguf.tokens, count).iter().enumerate() {
        let token = raw.text(&format!("token {id}"))?;
        tokens.push(token);
        ids.entry(token.to_string()).or_insert(id as u32);
    }
    let mut merges = Vec::with_capacity(gguf.merge_count);
    for (rank, raw) in slice(gguf.merges, gguf.merge_count).iter().enumerate() {
        let text = raw.text(&format!("merge {rank}"))?;
        let Some((left, right)) = text.split_once(' ') else {
            return invalid(format!("merge {rank} is {text:?}, not two tokens with a space between"));
        };
        for part in [left, right, &format!("{left}{right}")] {
            if !ids.contains_key(part) {
                return invalid(format!("merge {rank} is {text:?}, but there is no token {part:?}"));
            }
        }
        merges.push((left.to_string(), right.to_string()));
    }
    Ok(Parts {
        tokens,
        scores: if gguf.scores.is_null() { &[] } else { slice(gguf.scores, count) },
        types: if gguf.types.is_null() { &[] } else { slice(gguf.types, count) },
        merges,
        ids,
        charsmap: gguf.charsmap.bytes(),
        unk: usize::try_from(gguf.unk_id).ok().filter(|&id| id < count),
        add_space_prefix: gguf.add_space_prefix != 0,
        remove_extra_whitespaces: gguf.remove_extra_whitespaces != 0,
    })
}

/// Control tokens are special; user-defined ones are found in the text before anything else, but are text. All are added
/// at once: each call builds the search for all of them anew.
fn add_tokens(tokenizer: &mut Tokenizer, parts: &Parts) {
    let added = parts.tokens.iter().zip(parts.types).filter_map(|(&token, &kind)| match kind {
        UNKNOWN | CONTROL => Some(AddedToken::from(token, true)),
        USER_DEFINED => Some(AddedToken::from(token, false).normalized(false)),
        _ => None,
    });
    tokenizer.add_tokens(&added.collect::<Vec<_>>());
}

fn byte_level(parts: &Parts, pre: &str, default_bos: &mut bool) -> Outcome<Tokenizer> {
    let pre = pretokenizer::by_name(pre)?;
    *default_bos = pre.add_bos;
    let bpe = BPE::builder()
        .vocab_and_merges(
            parts.ids.clone().into_iter().collect::<tokenizers::models::bpe::Vocab>(),
            parts.merges.clone(),
        )
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|e| failed("BPE", e))?;
    let mut tokenizer = Tokenizer::new(bpe);
    tokenizer.with_normalizer(pre.normalizer);
    tokenizer.with_pre_tokenizer(Some(pre.pre_tokenizer));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    Ok(tokenizer)
}

/// A token is looked up cut at every character, so that a file of long ones would take their length squared.
const MOST_BYTES_TO_CUT: usize = 1024;

/// SentencePiece BPE keeps scores instead of merges: every way to cut a token into two tokens is a merge, as good as the
/// token it makes.
fn merges_from_scores(parts: &Parts) -> Outcome<Vec<(String, String)>> {
    if let Some((id, token)) = parts.tokens.iter().enumerate().find(|(_, t)| t.len() > MOST_BYTES_TO_CUT) {
        return invalid(format!(
            "token {id} has {} bytes, at most {MOST_BYTES_TO_CUT} where merges are made of scores",
            token.len()
        ));
    }
    let mut ranked: Vec<(f32, u32, u32, &str, &str)> = Vec::new();
    for (&token, &score) in parts.tokens.iter().zip(parts.scores) {
        let first = ranked.len();
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if let (Some(&l), Some(&r)) = (parts.ids.get(left), parts.ids.get(right)) {
                ranked.push((score, l, r, left, right));
            }
        }
        ranked[first..].sort_by_key(|m| (m.1, m.2));
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0)); // stable
    Ok(ranked.into_iter().map(|m| (m.3.to_string(), m.4.to_string())).collect())
}

fn has_byte_tokens(parts: &Parts) -> bool {
    parts.types.contains(&BYTE) || parts.ids.contains_key("<0x0A>")
}

fn sentencepiece_bpe(parts: &Parts) -> Outcome<Tokenizer> {
    if parts.merges.is_empty() && parts.scores.is_empty() {
        return invalid("tokenizer.ggml.scores is missing: a \"llama\" tokenizer has scores or merges");
    }
    let merges = if parts.merges.is_empty() { merges_from_scores(parts)? } else { parts.merges.clone() };
    let mut builder = BPE::builder()
        .vocab_and_merges(parts.ids.clone().into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
        .fuse_unk(true)
        .byte_fallback(has_byte_tokens(parts));
    if let Some(unk) = parts.unk {
        builder = builder.unk_token(parts.tokens[unk].to_string());
    }
    let mut tokenizer = Tokenizer::new(builder.build().map_err(|e| failed("BPE", e))?);
    let mut normalizers: Vec<NormalizerWrapper> = vec![replace(" ", SPACE)?.into()];
    let mut decoders = vec![replace(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if parts.add_space_prefix {
        normalizers.insert(0, Prepend::new(SPACE.to_string()).into());
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers)));
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    Ok(tokenizer)
}

fn sentencepiece_unigram(parts: &Parts) -> Outcome<Tokenizer> {
    if parts.scores.is_empty() {
        return invalid("tokenizer.ggml.scores is missing: a \"t5\" tokenizer has scores");
    }
    let vocab = parts.tokens.iter().zip(parts.scores).map(|(t, &s)| (t.to_string(), f64::from(s))).collect();
    let byte_fallback = has_byte_tokens(parts);
    let model = Unigram::from(vocab, parts.unk, byte_fallback).map_err(|e| failed("unigram", e))?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::from(model));
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if !parts.charsmap.is_empty() {
        let map = Precompiled::from(parts.charsmap).map_err(|e| failed("tokenizer.ggml.precompiled_charsmap", e))?;
        normalizers.push(map.into());
    }
    if parts.remove_extra_whitespaces {
        let runs = ReplacePattern::Regex(" {2,}".to_string());
        normalizers.push(StripNormalizer::new(true, true).into());
        normalizers.push(Replace::new(runs, " ").map_err(|e| failed("normalizer", e))?.into());
    }
    let scheme = if parts.add_space_prefix { PrependScheme::Always } else { PrependScheme::Never };
    let metaspace = Metaspace::new('\u{2581}', scheme, true);
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers)));
    tokenizer.with_pre_tokenizer(Some(metaspace.clone()));
    tokenizer.with_decoder(Some(metaspace));
    Ok(tokenizer)
}

fn replace(from: &str, to: &str) -> Outcome<Replace> {
    Replace::new(ReplacePattern::String(from.to_string()), to).map_err(|e| failed("normalizer", e))
}
