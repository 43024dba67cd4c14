//! What one rendering may allocate. Fuel bounds instructions, but a string that is joined to itself doubles with each of
//! them; so every operation that makes text is charged for its bytes.

use minijinja::{Error, ErrorKind, Value};
use std::cell::Cell;

/// No value is longer.
pub const MAX_VALUE_BYTES: usize = 64 << 20;
const ITEM_BYTES: usize = std::mem::size_of::<Value>();
/// No list is longer.
pub const MAX_VALUE_ITEMS: usize = MAX_VALUE_BYTES / ITEM_BYTES;
/// All values of a rendering together, also those that are gone again.
const MAX_TOTAL_BYTES: usize = 256 << 20;
/// Beyond that, for what grows with the request: a second or two of copying.
const MAX_MORE_BYTES: usize = 2 << 30;

thread_local! {
    static TOTAL: Cell<usize> = const { Cell::new(MAX_TOTAL_BYTES) };
    static LEFT: Cell<usize> = const { Cell::new(MAX_TOTAL_BYTES) };
}

/// A rendering begins on this thread. `more`: what it may make beyond the usual, if it is not too much.
pub fn reset(more: usize) {
    let total = MAX_TOTAL_BYTES + more.min(MAX_MORE_BYTES);
    TOTAL.set(total);
    LEFT.set(total);
}

/// A list of `items` is about to be made.
pub fn charge_items(items: usize) -> Result<(), Error> {
    charge(items.saturating_mul(ITEM_BYTES))
}

/// A value of `bytes` is about to be made.
pub fn charge(bytes: usize) -> Result<(), Error> {
    let left = LEFT.with(Cell::get);
    if bytes > MAX_VALUE_BYTES || bytes > left {
        let (limit, what) = if bytes > MAX_VALUE_BYTES {
            (MAX_VALUE_BYTES, "a value")
        } else {
            (TOTAL.get(), "all values together")
        };
        let text = format!("{what} would have more than {} MB", limit >> 20);
        return Err(Error::new(ErrorKind::OutOfFuel, text));
    }
    LEFT.with(|cell| cell.set(left - bytes));
    Ok(())
}
