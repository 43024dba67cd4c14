//! The C ABI of baton-text (declared in baton_text.h): tokenizers and chat templates behind opaque handles.
//! Every entry goes through `ffi::guard` or `ffi::quiet`, so no panic crosses into C++.
#![allow(clippy::missing_safety_doc)] // the contract of every entry is in baton_text.h

mod budget;
mod decoder;
mod ffi;
mod gguf;
mod methods;
mod operators;
mod pretokenizer;
mod python;
mod strftime;
mod template;
mod tokenizer;

use ffi::{guard, quiet, reading, slice, ErrorOut, Owned, Str};
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
    error: *mut ErrorOut,
) -> Owned<i32> {
    guard(error, Owned::EMPTY, || {
        Ok(Owned::new((*handle).encode(text.bytes(), add_special != 0, parse_special != 0)?))
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
pub unsafe extern "C" fn bt_buf_free(buf: Owned<u8>) {
    buf.free();
}

#[no_mangle]
pub unsafe extern "C" fn bt_ids_free(ids: Owned<i32>) {
    ids.free();
}
