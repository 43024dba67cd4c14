//! What one rendering may allocate. Fuel bounds instructions, but a string that is joined to itself doubles with each of
//! them; so every operation that makes text is charged for its bytes.

use minijinja::{Error, ErrorKind};
use std::cell::Cell;

/// No value is longer.
pub const MAX_VALUE_BYTES: usize = 64 << 20;
/// All values of a rendering together, also those that are gone again.
const MAX_TOTAL_BYTES: usize = 1 << 30;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(MAX_TOTAL_BYTES) };
}

/// A rendering begins on this thread.
pub fn reset() {
    LEFT.with(|left| left.set(MAX_TOTAL_BYTES));
}

/// A value of `bytes` is about to be made.
pub fn charge(bytes: usize) -> Result<(), Error> {
    let left = LEFT.with(Cell::get);
    if bytes > MAX_VALUE_BYTES || bytes > left {
        let (limit, what) =
            if bytes > MAX_VALUE_BYTES { (MAX_VALUE_BYTES, "a value") } else { (MAX_TOTAL_BYTES, "all values together") };
        let text = format!("{what} would have more than {} MB", limit >> 20);
        return Err(Error::new(ErrorKind::OutOfFuel, text));
    }
    LEFT.with(|cell| cell.set(left - bytes));
    Ok(())
}
