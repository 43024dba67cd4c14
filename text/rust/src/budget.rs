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

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(MAX_TOTAL_BYTES) };
}

/// A rendering begins on this thread. `more`: what it may make beyond the usual.
pub fn reset(more: usize) {
    LEFT.with(|left| left.set(MAX_TOTAL_BYTES.saturating_add(more)));
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
            (MAX_TOTAL_BYTES, "all values together")
        };
        let text = format!("{what} would have more than {} MB", limit >> 20);
        return Err(Error::new(ErrorKind::OutOfFuel, text));
    }
    LEFT.with(|cell| cell.set(left - bytes));
    Ok(())
}
