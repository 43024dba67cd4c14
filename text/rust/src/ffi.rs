//! What every entry of the C ABI shares: views of foreign memory, owned buffers, errors, and the panic barrier.

use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::Once;

pub const INVALID_ARGUMENT: i32 = 3;
pub const RESOURCE_EXHAUSTED: i32 = 8;
pub const INTERNAL: i32 = 13;

/// An error with an absl status code.
pub struct Failure {
    pub code: i32,
    pub message: String,
}

pub type Outcome<T> = Result<T, Failure>;

pub fn invalid<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Failure { code: INVALID_ARGUMENT, message: message.into() })
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    ptr: *const u8,
    len: usize,
}

impl Str {
    pub fn of(text: &'static str) -> Str {
        Str { ptr: text.as_ptr(), len: text.len() }
    }
    /// # Safety
    /// `ptr` must point at `len` readable bytes, or `len` be 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        slice(self.ptr, self.len)
    }
    /// # Safety
    /// As `bytes`.
    pub unsafe fn text<'a>(self, what: &str) -> Outcome<&'a str> {
        match std::str::from_utf8(self.bytes()) {
            Ok(s) => Ok(s),
            Err(e) => invalid(format!("{what} is not UTF-8 at byte {}", e.valid_up_to())),
        }
    }
}

/// # Safety
/// `ptr` must point at `len` readable values, or `len` be 0.
pub unsafe fn slice<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(ptr, len)
    }
}

/// A boxed slice handed to the caller, who gives it back to `bt_buf_free` or `bt_ids_free`.
#[repr(C)]
pub struct Owned<T> {
    ptr: *mut T,
    len: usize,
}

impl<T> Owned<T> {
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    pub fn new(values: Vec<T>) -> Self {
        let boxed = values.into_boxed_slice();
        let len = boxed.len();
        Self { ptr: Box::into_raw(boxed) as *mut T, len }
    }
    /// # Safety
    /// `self` must come from `new` and not have been freed.
    pub unsafe fn free(self) {
        if !self.ptr.is_null() {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.ptr, self.len)));
        }
    }
}

#[repr(C)]
pub struct ErrorOut {
    code: i32,
    message: Owned<u8>,
}

thread_local! {
    static GUARDED: Cell<u32> = const { Cell::new(0) }; // catches around what runs here
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) }; // the last one's message and place
}

/// Err: what it panicked with, and where. Nothing is printed: who called says it.
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            if GUARDED.get() == 0 {
                return others(info);
            }
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
            let place = info.location().map_or(String::new(), |l| {
                let file = l.file().rsplit('/').next().unwrap_or_default();
                format!(" ({file}:{})", l.line())
            });
            PANIC.set(format!("{}{place}", text.unwrap_or("no message")));
        }));
    });
    GUARDED.set(GUARDED.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    GUARDED.set(GUARDED.get() - 1);
    outcome.map_err(|_| PANIC.take())
}

/// Runs `body`; an error or a panic is written to `error` and `fallback` is returned.
///
/// # Safety
/// `error` must be null or writable.
pub unsafe fn guard<T>(error: *mut ErrorOut, fallback: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = caught(body).unwrap_or_else(|panic| {
        Err(Failure { code: INTERNAL, message: format!("text library panicked: {panic}") })
    });
    match outcome {
        Ok(value) => value,
        Err(failure) => {
            if !error.is_null() {
                error.write(ErrorOut { code: failure.code, message: Owned::new(failure.message.into_bytes()) });
            }
            fallback
        }
    }
}

/// As `body`, which reads a file that somebody else wrote: the crates panic at some contents, and then it is the file that
/// is wrong.
pub fn reading<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    caught(body).unwrap_or_else(|panic| invalid(format!("the tokenizer library cannot read it: {panic}")))
}

/// Runs `body` where nothing can be reported; a panic gives `fallback`.
pub fn quiet<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    caught(body).unwrap_or(fallback)
}
