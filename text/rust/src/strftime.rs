//! `strftime_now`: the C library's strftime in local time, which is what Python's datetime.now().strftime is.

use std::ffi::CString;

/// Formats longer than this are no dates.
const MAX_FORMAT_BYTES: usize = 256;
const MAX_OUTPUT_BYTES: usize = 4096;

/// None: the format cannot be used (too long, NUL inside, output too long).
pub fn strftime(format: &str, unix_s: i64) -> Option<String> {
    if format.is_empty() {
        return Some(String::new());
    }
    if format.len() > MAX_FORMAT_BYTES {
        return None;
    }
    let format = CString::new(format).ok()?;
    let mut out = vec![0u8; MAX_OUTPUT_BYTES];
    // SAFETY: every pointer is to a live local; `tm` is filled by localtime_r before strftime reads it.
    let written = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&unix_s, &mut tm).is_null() {
            return None;
        }
        libc::strftime(out.as_mut_ptr().cast(), out.len(), format.as_ptr(), &tm)
    };
    out.truncate(written);
    String::from_utf8(out).ok()
}
