//! A tokenizer handle: the crate's tokenizer plus tables by token id that C++ reads directly.

use crate::charsmap;
use crate::cuts::{self, Cuts};
use crate::decoder::{byte_of_char, classify, token_bytes, Assembly, TextStart};
use crate::ffi::{invalid, Failure, Outcome, Str, INTERNAL, INVALID_ARGUMENT};
use crate::growth::{self, Growth};
use crate::room::Room;
use std::sync::OnceLock;
use tokenizers::processors::template::{SpecialToken, TemplateProcessing};
use tokenizers::{AddedToken, Encoding, PostProcessorWrapper, Token, Tokenizer};

/// A greater id is a lie: the tables are as long as the greatest id.
const MAX_IDS: usize = 1 << 24;
/// Of pieces that are read at once, by all threads: the crate keeps some 130 bytes for each. A longer one waits until
/// nothing else is read.
const MOST_BYTES_AT_ONCE: usize = 8 << 20;

#[repr(C)]
pub struct Affixes {
    add_bos: i32,
    add_eos: i32,
    bos: Str,
    eos: Str,
}

impl Affixes {
    /// The same with what was left open (-1) decided.
    pub fn with_defaults(&self, bos: bool, eos: bool) -> Affixes {
        let open = |value: i32, default: bool| if value < 0 { default as i32 } else { value };
        Affixes { add_bos: open(self.add_bos, bos), add_eos: open(self.add_eos, eos), bos: self.bos, eos: self.eos }
    }
}

#[repr(C)]
pub struct Table {
    count: usize,
    bytes: *const u8,
    byte_ends: *const u64,
    names: *const u8,
    name_ends: *const u64,
    special: *const u8,
    begins_piece: *const u8,
    assembly: i32,
    text_start: i32,
}

/// Strings of all ids, one after the other.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    ends: Vec<u64>,
}

impl Strings {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as u64);
    }

    fn at(&self, id: usize) -> &[u8] {
        let begin = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[begin as usize..self.ends[id] as usize]
    }
}

/// Where a match of an added token that begins earlier in a text could end: the proper suffixes of all of them, sorted.
struct Overlaps<'a> {
    suffixes: Option<Vec<&'a [u8]>>, // None: too many or too long to look at
}

impl<'a> Overlaps<'a> {
    fn new(tokens: impl Iterator<Item = &'a AddedToken> + Clone) -> Self {
        const MAX_SUFFIXES: usize = 1 << 20;
        const MAX_TOKEN_BYTES: usize = 1 << 10;
        let count: usize = tokens.clone().map(|t| t.content.len()).sum();
        if count > MAX_SUFFIXES || tokens.clone().any(|t| t.content.len() > MAX_TOKEN_BYTES) {
            return Overlaps { suffixes: None };
        }
        let mut suffixes: Vec<&[u8]> = Vec::with_capacity(count);
        for token in tokens {
            let text = token.content.as_bytes();
            suffixes.extend((1..text.len()).map(|i| &text[i..]));
        }
        suffixes.sort_unstable();
        Overlaps { suffixes: Some(suffixes) }
    }

    /// Whether a token that begins before `text` could cover its first byte: a suffix begins with it, or begins it.
    fn cover(&self, text: &[u8]) -> bool {
        let Some(suffixes) = &self.suffixes else { return true };
        let at = suffixes.partition_point(|s| *s < text);
        let goes_on = suffixes.get(at).is_some_and(|s| s.starts_with(text));
        goes_on || (1..text.len()).any(|n| suffixes.binary_search(&&text[..n]).is_ok())
    }
}

/// Wherever `token` stands in a text, it is read as itself, and what is before it is tokenized as if the text ended there:
/// it takes no space from its left, needs no word boundary, is looked for in the text as it is, and no added token that
/// begins earlier can cover its first byte.
fn begins_a_piece(token: &AddedToken, overlaps: &Overlaps) -> bool {
    let plain = token.special && !token.normalized && !token.lstrip && !token.single_word;
    plain && !token.content.is_empty() && !overlaps.cover(token.content.as_bytes())
}

pub struct Handle {
    tokenizer: Tokenizer,
    plain: OnceLock<Tokenizer>, // reads special tokens in the text as ordinary text; made when first asked for
    bytes: Strings,
    names: Strings,
    special: Vec<u8>,
    begins_piece: Vec<u8>,
    assembly: Assembly,
    start: TextStart,
    growth: Growth,
    cuts: Option<Cuts>,
    around: Option<Around>,
    room: Room,
}

/// What the post-processor puts around every text.
struct Around {
    before: Vec<i32>,
    behind: Vec<i32>,
}

impl Around {
    /// None: it does something else, too.
    fn of(tokenizer: &Tokenizer) -> Option<Around> {
        const TEXT: u32 = u32::MAX;
        let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
        let ids = tokenizer.post_process(text, None, true).ok()?.get_ids().to_vec();
        let at = ids.iter().position(|&id| id == TEXT)?;
        let signed = |ids: &[u32]| ids.iter().map(|&id| id as i32).collect();
        let (before, behind) = (&ids[..at], &ids[at + 1..]);
        (!behind.contains(&TEXT)).then(|| Around { before: signed(before), behind: signed(behind) })
    }
}

impl Handle {
    /// `spellings`: how the vocabulary spells its first ids, where the model may have dropped duplicates (GGUF).
    pub fn new(mut tokenizer: Tokenizer, spellings: &[&str]) -> Outcome<Handle> {
        // The caller's limits are the only ones: nothing is padded or cut by what tokenizer.json was saved with.
        let _ = tokenizer.with_truncation(None);
        tokenizer.with_padding(None);
        let greatest = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let count = greatest.max(spellings.len());
        if count == 0 || count > MAX_IDS {
            return invalid(format!("the greatest token id makes {count} ids, 1 to {MAX_IDS} are possible"));
        }
        let parts = parts(&tokenizer);
        let growth = growth::of(&parts)?;
        let kind = classify(&parts.decoder);
        let alphabet = byte_of_char();
        let added = tokenizer.get_added_tokens_decoder();
        let (mut bytes, mut names, mut special) = (Strings::default(), Strings::default(), Vec::with_capacity(count));
        for id in 0..count {
            let known = tokenizer.id_to_token(id as u32);
            let name = known.as_deref().or(spellings.get(id).copied()).unwrap_or("");
            bytes.push(&token_bytes(kind, &alphabet, name));
            names.push(name.as_bytes());
            special.push(added.get(&(id as u32)).is_some_and(|t| t.special) as u8);
        }
        let mut begins_piece = vec![0; count];
        let overlaps = Overlaps::new(added.values());
        for (id, token) in &added {
            begins_piece[*id as usize] = begins_a_piece(token, &overlaps) as u8;
        }
        let (cuts, around) = (cuts::of(&tokenizer, &parts), Around::of(&tokenizer));
        Ok(Handle {
            tokenizer,
            plain: OnceLock::new(),
            bytes,
            names,
            special,
            begins_piece,
            assembly: kind.assembly,
            start: kind.start,
            growth,
            cuts,
            around,
            room: Room::new(MOST_BYTES_AT_ONCE),
        })
    }

    pub fn table(&self) -> Table {
        Table {
            count: self.special.len(),
            bytes: self.bytes.bytes.as_ptr(),
            byte_ends: self.bytes.ends.as_ptr(),
            names: self.names.bytes.as_ptr(),
            name_ends: self.names.ends.as_ptr(),
            special: self.special.as_ptr(),
            begins_piece: self.begins_piece.as_ptr(),
            assembly: self.assembly as i32,
            text_start: self.start as i32,
        }
    }

    /// Whether a text is its tokens' bytes, one after the other.
    pub fn joins_bytes(&self) -> bool {
        !matches!(self.assembly, Assembly::Whole)
    }

    /// The bytes that a grammar sees of token `id`: of a special token its name behind the byte 0xFF, so that no text
    /// matches it; none where there is no such token.
    pub fn grammar_bytes(&self, id: usize) -> Vec<u8> {
        match self.special.get(id) {
            None => Vec::new(),
            Some(0) => self.bytes.at(id).to_vec(),
            Some(_) => [b"\xff", self.names.at(id)].concat(),
        }
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// A text of more than `piece_bytes` is read in pieces of so many bytes and a few more, where it may be cut.
    pub fn encode(&self, text: &[u8], add_special: bool, parse_special: bool, piece_bytes: usize) -> Outcome<Vec<i32>> {
        let text = String::from_utf8_lossy(text);
        self.growth.check(text.as_bytes())?;
        let tokenizer = if parse_special {
            &self.tokenizer
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.tokenizer.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        let mut ids = Vec::new();
        let (Some(cuts), Some(around), true) = (self.cuts, &self.around, text.len() > piece_bytes) else {
            self.read(tokenizer, &text, add_special, piece_bytes, &mut ids)?;
            return Ok(ids);
        };
        if add_special {
            ids.extend_from_slice(&around.before);
        }
        for piece in cuts::pieces(cuts, &text, piece_bytes) {
            self.read(tokenizer, piece, false, piece_bytes, &mut ids)?;
        }
        if add_special {
            ids.extend_from_slice(&around.behind);
        }
        Ok(ids)
    }

    /// Puts the ids of `text`, which is read at once, behind `ids`.
    fn read(&self, by: &Tokenizer, text: &str, add_special: bool, usual: usize, ids: &mut Vec<i32>) -> Outcome<()> {
        let _room = (text.len() / 2 > usual).then(|| self.room.take(text.len()));
        match by.encode_fast(text, add_special) {
            Ok(encoding) => ids.extend(encoding.get_ids().iter().map(|&id| id as i32)),
            Err(e) => return Err(Failure { code: INVALID_ARGUMENT, message: format!("cannot tokenize: {e}") }),
        }
        Ok(())
    }

    pub fn decode(&self, ids: &[i32]) -> Outcome<String> {
        let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let text = self.tokenizer.decode(&ids, false);
        text.map_err(|e| Failure { code: INTERNAL, message: format!("cannot decode: {e}") })
    }
}

/// What makes texts longer, in tokenizer.json's form; of the added tokens nothing.
fn parts(tokenizer: &Tokenizer) -> growth::Parts {
    fn described<T: serde::Serialize>(part: Option<&T>) -> serde_json::Value {
        part.and_then(|p| serde_json::to_value(p).ok()).unwrap_or_default()
    }
    growth::Parts {
        normalizer: described(tokenizer.get_normalizer()),
        pre_tokenizer: described(tokenizer.get_pre_tokenizer()),
        post_processor: described(tokenizer.get_post_processor()),
        decoder: described(tokenizer.get_decoder()),
        added_tokens: serde_json::Value::Null,
    }
}

/// From tokenizer.json. `extra_tokens`: a JSON array of added tokens that other files name; known ones are left alone.
pub unsafe fn from_json(json: &[u8], extra_tokens: &[u8], affixes: &Affixes) -> Outcome<Handle> {
    let extra: Vec<AddedToken> =
        match serde_json::from_slice(if extra_tokens.is_empty() { b"[]" } else { extra_tokens }) {
            Ok(extra) => extra,
            Err(e) => return invalid(format!("added tokens: {e}")),
        };
    charsmap::check(json)?;
    growth::check_json(json, extra.iter().map(|token| token.content.len()).sum())?;
    let mut tokenizer = match Tokenizer::from_bytes(json) {
        Ok(tokenizer) => tokenizer,
        Err(e) => return invalid(e.to_string()),
    };
    if !extra.is_empty() {
        let known: std::collections::HashSet<String> =
            tokenizer.get_added_tokens_decoder().into_values().map(|t| t.content).collect();
        let fresh: Vec<AddedToken> = extra.into_iter().filter(|t| !known.contains(&t.content)).collect();
        tokenizer.add_tokens(&fresh); // at once: each call builds the search for all of them anew
    }
    if affixes.add_bos >= 0 || affixes.add_eos >= 0 {
        set_affixes(&mut tokenizer, affixes)?;
    }
    Handle::new(tokenizer, &[])
}

/// Replaces the post-processor by one that puts BOS and EOS as asked.
pub unsafe fn set_affixes(tokenizer: &mut Tokenizer, affixes: &Affixes) -> Outcome<()> {
    let bos = if affixes.add_bos > 0 { affixes.bos.text("BOS token")? } else { "" };
    let eos = if affixes.add_eos > 0 { affixes.eos.text("EOS token")? } else { "" };
    let mut pieces = Vec::new();
    let mut tokens = Vec::new();
    for (token, is_bos) in [(bos, true), (eos, false)] {
        if is_bos && token.is_empty() {
            pieces.push("$A".to_string());
            continue;
        }
        if token.is_empty() {
            continue;
        }
        let Some(id) = tokenizer.token_to_id(token) else {
            return invalid(format!("{} token {token:?} is not in the vocabulary", if is_bos { "BOS" } else { "EOS" }));
        };
        // A piece is written by index, not by text: a token's text may contain what the syntax reserves.
        let name = format!("t{id}");
        let special = SpecialToken::new(name.clone(), vec![id], vec![token.to_string()]);
        tokens.push(special.map_err(|e| Failure { code: INTERNAL, message: e.to_string() })?);
        pieces.push(name);
        if is_bos {
            pieces.push("$A".to_string());
        }
    }
    tokens.dedup_by(|a, b| serde_json::to_string(a).ok() == serde_json::to_string(b).ok());
    let internal = |e: String| Failure { code: INTERNAL, message: format!("post-processor: {e}") };
    let template = TemplateProcessing::builder()
        .try_single(pieces)
        .map_err(|e| internal(e.to_string()))?
        .special_tokens(tokens)
        .build()
        .map_err(|e| internal(e.to_string()))?;
    tokenizer.with_post_processor(Some(PostProcessorWrapper::Template(template)));
    Ok(())
}
