//! What every entry of the C ABI shares: views of foreign memory, owned buffers, errors, and the panic barrier.

use std::panic::{catch_unwind, AssertUnwindSafe};

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

/// Runs `body`; an error or a panic is written to `error` and `fallback` is returned.
///
/// # Safety
/// `error` must be null or writable.
pub unsafe fn guard<T>(error: *mut ErrorOut, fallback: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Failure { code: INTERNAL, message: format!("text library panicked: {}", text.unwrap_or("no message")) })
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

/// Runs `body` where nothing can be reported; a panic gives `fallback`.
pub fn quiet<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}
