//! Escaping. Text from a file of results is untrusted input, so none of it may become markup.

use std::fmt::{self, Write};

/// A text for an element or a quoted attribute of HTML, SVG or XML. Control characters, which such documents must not
/// contain, are replaced.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_it_is_markup() {
        assert_eq!(
            Escaped("<a b='c'>\"&\u{0}\u{1b}\n").to_string(),
            "&lt;a b=&#39;c&#39;&gt;&quot;&amp;\u{fffd}\u{fffd}\n"
        );
    }
}
