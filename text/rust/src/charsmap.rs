//! SentencePiece's `precompiled_charsmap`: 4 bytes that say how long its trie is (little endian), the trie, texts, all in
//! base64. The crate that reads it allocates for the trie what those bytes say.

use crate::ffi::{invalid, Outcome};
use memchr::{memchr, memmem};

const KEY: &[u8] = b"\"precompiled_charsmap\"";

/// Refuses a map whose trie would be longer than the map, before anybody reads it.
pub fn check(json: &[u8]) -> Outcome<()> {
    let mut rest = json;
    while let Some(at) = memmem::find(rest, KEY) {
        rest = &rest[at + KEY.len()..];
        if let Some(map) = string_value(rest) {
            check_map(map)?;
        }
    }
    Ok(())
}

/// What stands between the quotes behind `: `. None: no string.
fn string_value(text: &[u8]) -> Option<&[u8]> {
    let text = text.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    Some(&text[..memchr(b'"', text)?])
}

fn check_map(map: &[u8]) -> Outcome<()> {
    const HEAD: usize = 8; // characters: 6 bytes
    let head = std::str::from_utf8(&map[..map.len().min(HEAD)]).unwrap_or("\\");
    if head.contains('\\') || !head.is_ascii() {
        return invalid("precompiled_charsmap is not base64".to_string());
    }
    let Ok(bytes) = base64::decode(head) else { return Ok(()) }; // the reader's own error says more
    if bytes.len() < 4 {
        return Ok(());
    }
    let trie = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    let there = (map.len() / 4 * 3).saturating_sub(4);
    if trie > there {
        return invalid(format!("precompiled_charsmap has a trie of {trie} bytes in {there}"));
    }
    Ok(())
}
