//! Formatting into memory that grows.

use crate::{OutOfMemory, Vec};
use core::fmt::{self, Write};

/// Returns the result of `format!` as bytes.
///
/// ```
/// let text = quire_heap::try_format(format_args!("pipe:[{}]", 7))?;
/// assert_eq!(&text[..], b"pipe:[7]");
/// # Ok::<(), quire_heap::OutOfMemory>(())
/// ```
pub fn try_format(arguments: fmt::Arguments<'_>) -> Result<Vec<u8>, OutOfMemory> {
    let mut out = Vec::new();
    out.write_fmt(arguments)?;
    Ok(out)
}
