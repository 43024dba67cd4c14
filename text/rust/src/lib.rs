//! The C ABI of baton-text (declared in baton_text.h): tokenizers, chat templates and grammars behind opaque handles.
//! Every entry goes through `ffi::guard` or `ffi::quiet`, so no panic crosses into C++.
#![allow(clippy::missing_safety_doc)] // the contract of every entry is in baton_text.h

mod bounds;
mod budget;
mod chains;
mod charsmap;
mod classes;
mod cuts;
mod decoder;
mod drafts;
mod endless;
mod expansion;
mod faults;
mod ffi;
mod formats;
mod gbnf;
mod gguf;
mod given;
mod grammar;
mod growth;
mod guide;
mod methods;
mod operators;
mod pretokenizer;
mod python;
mod regexes;
mod repeated;
mod room;
mod rules;
mod schema;
mod sizes;
mod spaces;
mod strftime;
mod template;
mod tokenizer;
mod wholes;

use ffi::{guard, quiet, reading, slice, ErrorOut, Owned, Str};
use grammar::{Matcher, Vocabulary};
use template::{RenderInput, Template};
use tokenizer::{Affixes, Handle, Table};

#[no_mangle]
pub unsafe extern "C" fn bt_tokenizer_from_json(
    json: Str,
    extra_tokens_json: Str,
    affixes: *const Affixes,
    error: *mut ErrorOut,
) -> *mut Handle {
    guard(error, std::ptr::null_mut(), || {
        let handle = reading(|| tokenizer::from_json(json.bytes(), extra_tokens_json.bytes(), &*affixes))?;
        Ok(Box::into_raw(Box::new(handle)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn bt_tokenizer_from_gguf(gguf: *const gguf::Gguf, error: *mut ErrorOut) -> *mut Handle {
    guard(error, std::ptr::null_mut(), || Ok(Box::into_raw(Box::new(reading(|| gguf::build(&*gguf))?))))
}

#[no_mangle]
pub unsafe extern "C" fn bt_tokenizer_free(handle: *mut Handle) {
    if !handle.is_null() {
        quiet((), || drop(Box::from_raw(handle)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn bt_tokenizer_table(handle: *const Handle) -> Table {
    (*handle).table()
}

#[no_mangle]
pub unsafe extern "C" fn bt_tokenizer_token_to_id(handle: *const Handle, token: Str) -> i64 {
    quiet(-1, || {
        let id = std::str::from_utf8(token.bytes()).ok().and_then(|t| (*handle).token_to_id(t));
        id.map_or(-1, i64::from)
    })
}

#[no_mangle]
pub unsafe extern "C" fn bt_tokenizer_encode(
    handle: *const Handle,
    text: Str,
    add_special: i32,
    parse_special: i32,
    piece_bytes: usize,
    error: *mut ErrorOut,
) -> Owned<i32> {
    guard(error, Owned::EMPTY, || {
        Ok(Owned::new((*handle).encode(text.bytes(), add_special != 0, parse_special != 0, piece_bytes)?))
    })
}

#[no_mangle]
pub unsafe extern "C" fn bt_tokenizer_decode(
    handle: *const Handle,
    ids: *const i32,
    count: usize,
    error: *mut ErrorOut,
) -> Owned<u8> {
    guard(error, Owned::EMPTY, || Ok(Owned::new((*handle).decode(slice(ids, count))?.into_bytes())))
}

#[no_mangle]
pub unsafe extern "C" fn bt_template_new(source: Str, tokens_json: Str, error: *mut ErrorOut) -> *mut Template {
    guard(error, std::ptr::null_mut(), || {
        let made = Template::new(source.text("chat template")?, tokens_json.bytes())?;
        Ok(Box::into_raw(Box::new(made)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn bt_template_free(template: *mut Template) {
    if !template.is_null() {
        quiet((), || drop(Box::from_raw(template)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn bt_template_render(
    template: *const Template,
    request: *const RenderInput,
    error: *mut ErrorOut,
) -> Owned<u8> {
    guard(error, Owned::EMPTY, || Ok(Owned::new((*template).render(&*request)?)))
}

#[no_mangle]
pub unsafe extern "C" fn bt_vocabulary_new(
    tokenizer: *const Handle,
    eos: *const i32,
    eos_count: usize,
    size: usize,
    error: *mut ErrorOut,
) -> *mut Vocabulary {
    guard(error, std::ptr::null_mut(), || {
        Ok(Box::into_raw(Box::new(Vocabulary::new(&*tokenizer, slice(eos, eos_count), size)?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn bt_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        quiet((), || drop(Box::from_raw(vocabulary)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn bt_grammar_check_form(kind: i32, text: Str, error: *mut ErrorOut) {
    guard(error, (), || grammar::check_form(kind, text.text("grammar")?))
}

#[no_mangle]
pub extern "C" fn bt_json_space() -> Str {
    Str::of(spaces::BOUNDED)
}

#[no_mangle]
pub unsafe extern "C" fn bt_json_space_check(pattern: Str, error: *mut ErrorOut) {
    guard(error, (), || spaces::check(pattern.text("pattern")?))
}

#[no_mangle]
pub unsafe extern "C" fn bt_rules_begun_by(name: Str, text: Str, error: *mut ErrorOut) -> Owned<u8> {
    guard(error, Owned::EMPTY, || {
        Ok(Owned::new(rules::begun_by(name.text("name")?, text.text("grammar")?)?.into_bytes()))
    })
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_new(
    vocabulary: *const Vocabulary,
    kind: i32,
    text: Str,
    error: *mut ErrorOut,
) -> *mut Matcher {
    guard(error, std::ptr::null_mut(), || {
        Ok(Box::into_raw(Box::new((*vocabulary).compile(kind, text.text("grammar")?)?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_copy(matcher: *const Matcher, error: *mut ErrorOut) -> *mut Matcher {
    guard(error, std::ptr::null_mut(), || Ok(Box::into_raw(Box::new((*matcher).copy()))))
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_free(matcher: *mut Matcher) {
    if !matcher.is_null() {
        quiet((), || drop(Box::from_raw(matcher)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_consume(
    matcher: *mut Matcher,
    ids: *const i32,
    count: usize,
    error: *mut ErrorOut,
) -> usize {
    guard(error, 0, || (*matcher).consume(slice(ids, count)))
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_mask(matcher: *mut Matcher, mask: *mut u32, words: usize, error: *mut ErrorOut) {
    guard(error, (), || (*matcher).mask(std::slice::from_raw_parts_mut(mask, words)))
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_may_end(matcher: *mut Matcher) -> i32 {
    quiet(0, || (*matcher).may_end() as i32)
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_has_ended(matcher: *const Matcher) -> i32 {
    quiet(1, || (*matcher).has_ended() as i32)
}

#[no_mangle]
pub unsafe extern "C" fn bt_matcher_work(matcher: *const Matcher) -> u64 {
    quiet(0, || (*matcher).work())
}

#[no_mangle]
pub unsafe extern "C" fn bt_buf_free(buf: Owned<u8>) {
    buf.free();
}

#[no_mangle]
pub unsafe extern "C" fn bt_ids_free(ids: Owned<i32>) {
    ids.free();
}
