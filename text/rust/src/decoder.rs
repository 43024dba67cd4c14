//! Which kind of decoder a tokenizer has, and the bytes each token stands for under it.
//!
//! Byte-level and SentencePiece decoders add up token by token, so C++ can decode from a table of bytes. Whatever this
//! does not recognise is `Whole`: the crate's decoder must see the neighbours.

use serde_json::Value;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(i32)]
pub enum Assembly {
    ByteLevel = 0,
    ByteTokens = 1,
    Whole = 2,
}

#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(i32)]
pub enum TextStart {
    Keep = 0,
    StripSpace = 1,
    StripFirst = 2,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DecoderKind {
    pub assembly: Assembly,
    pub start: TextStart,
    byte_tokens: bool, // "<0x0A>" is a byte
}

const SPACE: char = '\u{2581}';

/// Reads the decoder's description in tokenizer.json's form.
pub fn classify(decoder: &Value) -> DecoderKind {
    let whole = DecoderKind { assembly: Assembly::Whole, start: TextStart::Keep, byte_tokens: false };
    let mut kind = DecoderKind { assembly: Assembly::ByteTokens, start: TextStart::Keep, byte_tokens: false };
    match decoder["type"].as_str() {
        Some("ByteLevel") => DecoderKind { assembly: Assembly::ByteLevel, ..whole },
        Some("Metaspace") if decoder["replacement"] == SPACE.to_string() => {
            if decoder["prepend_scheme"] != "never" {
                kind.start = TextStart::StripFirst;
            }
            kind
        }
        Some("Sequence") => {
            let mut replaced = false;
            for step in decoder["decoders"].as_array().into_iter().flatten() {
                match step["type"].as_str() {
                    Some("ByteLevel") if !replaced => return classify(step),
                    Some("Replace") if step["pattern"]["String"] == SPACE.to_string() && step["content"] == " " => {
                        replaced = true
                    }
                    Some("ByteFallback") => kind.byte_tokens = true,
                    Some("Fuse") => {}
                    Some("Strip") if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 => {
                        kind.start = TextStart::StripSpace
                    }
                    _ => return whole,
                }
            }
            if replaced {
                kind
            } else {
                whole
            }
        }
        _ => whole,
    }
}

/// The inverse of byte-level BPE's printable alphabet.
pub fn byte_of_char() -> HashMap<char, u8> {
    let mut next = 256;
    (0..=255u8)
        .map(|byte| {
            let printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
            let code = if printable {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).expect("below U+0200"), byte)
        })
        .collect()
}

/// The bytes of `token`. `alphabet` is `byte_of_char()`.
pub fn token_bytes(kind: DecoderKind, alphabet: &HashMap<char, u8>, token: &str) -> Vec<u8> {
    match kind.assembly {
        // A token with a character outside the alphabet (an added token) stands for itself.
        Assembly::ByteLevel => token
            .chars()
            .map(|c| alphabet.get(&c).copied())
            .collect::<Option<Vec<u8>>>()
            .unwrap_or_else(|| token.as_bytes().to_vec()),
        Assembly::ByteTokens => {
            if let Some(byte) = kind.byte_tokens.then(|| byte_token(token)).flatten() {
                return vec![byte];
            }
            token.replace(SPACE, " ").into_bytes()
        }
        Assembly::Whole => token.as_bytes().to_vec(),
    }
}

/// 0x0A of "<0x0A>".
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if token.len() != 6 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
