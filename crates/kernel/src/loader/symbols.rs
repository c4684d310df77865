//! The kernel's symbols for backtraces. They are the first file of the initial file system. Each line is
//! `ADDRESS NAME`, with a hexadecimal address; the lines are sorted by address.

/// The name of the file, without a leading slash.
pub const FILE: &[u8] = b".quire/symbols";

/// A symbol table. It is text that is searched by bisection, so that no memory must be allocated for it.
#[derive(Clone, Copy, Debug)]
pub struct Symbols<'a>(&'a [u8]);

impl<'a> Symbols<'a> {
    /// Finds the table in a cpio archive (format "newc"); `None` if the table is not the first member.
    pub fn in_archive(archive: &'a [u8]) -> Option<Symbols<'a>> {
        Self::find_in(archive).map(|(text, _)| Symbols(text))
    }

    /// The offset in the archive of the end of the table; 0 if there is no table.
    pub fn end_in_archive(archive: &[u8]) -> usize {
        Symbols::find_in(archive).map_or(0, |(_, end)| end)
    }

    fn find_in(archive: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let header = archive.get(..110).filter(|h| h.starts_with(b"070701"))?;
        let field = |i: usize| {
            let digits = core::str::from_utf8(header.get(6 + 8 * i..14 + 8 * i)?).ok()?;
            usize::from_str_radix(digits, 16).ok()
        };
        let (size, name_size) = (field(6)?, field(11)?);
        let name = archive.get(110..110usize.checked_add(name_size)?)?;
        let name = name.strip_suffix(&[0]).unwrap_or(name);
        let name = name.strip_prefix(b"./").or(name.strip_prefix(b"/")).unwrap_or(name);
        if name != FILE {
            return None;
        }
        let data = (110 + name_size).next_multiple_of(4);
        let end = data.checked_add(size)?;
        Some((archive.get(data..end)?, end))
    }

    /// The symbol table with this text.
    pub fn new(text: &'a [u8]) -> Symbols<'a> {
        Symbols(text)
    }

    /// The last symbol at or below `address`, and the offset of `address` from it, in bytes. `None` if all symbols are
    /// above `address`.
    pub fn find(&self, address: u64) -> Option<(&'a str, u64)> {
        let text = self.0;
        // Invariant: `low` is the beginning of a line, and the wanted line begins in `low..high`, or is `best`.
        let (mut low, mut high) = (0, text.len());
        let mut best = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let start = text[low..middle].iter().rposition(|b| *b == b'\n').map_or(low, |i| low + i + 1);
            let end = text[start..].iter().position(|b| *b == b'\n').map_or(text.len(), |i| start + i);
            match parse(&text[start..end]) {
                Some((at, name)) if at <= address => {
                    best = Some((name, address - at));
                    low = end + 1;
                }
                _ => high = start,
            }
        }
        best
    }
}

fn parse(line: &[u8]) -> Option<(u64, &str)> {
    let (address, name) = core::str::from_utf8(line).ok()?.split_once(' ')?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"ffffffff80100000 a\nffffffff80100010 bb\nffffffff80100400 c\n";

    #[test]
    fn the_nearest_symbol_below_is_found() {
        let s = Symbols::new(TEXT);
        assert_eq!(s.find(0xffff_ffff_8010_0000), Some(("a", 0)));
        assert_eq!(s.find(0xffff_ffff_8010_000f), Some(("a", 15)));
        assert_eq!(s.find(0xffff_ffff_8010_0010), Some(("bb", 0)));
        assert_eq!(s.find(0xffff_ffff_9000_0000).unwrap().0, "c");
        assert_eq!(s.find(5), None);
    }

    fn archive(name: &str, data: &[u8]) -> Vec<u8> {
        let mut out = b"070701".to_vec();
        for i in 0..13 {
            let v = match i {
                6 => data.len(),
                11 => name.len() + 1,
                _ => 0,
            };
            out.extend_from_slice(std::format!("{v:08x}").as_bytes());
        }
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend_from_slice(data);
        out
    }

    #[test]
    fn only_the_first_member_of_that_name_is_the_table() {
        assert_eq!(
            Symbols::in_archive(&archive(".quire/symbols", TEXT)).unwrap().find(0xffff_ffff_8010_0011),
            Some(("bb", 1))
        );
        assert!(Symbols::in_archive(&archive("bin/sh", TEXT)).is_none());
        let mut short = archive(".quire/symbols", TEXT);
        short.pop();
        assert!(Symbols::in_archive(&short).is_none());
    }

    proptest! {
        #[test]
        fn bisection_agrees_with_a_linear_search(mut at in proptest::collection::vec(any::<u64>(), 0..50), probe: u64) {
            at.sort();
            at.dedup();
            let text: String = at.iter().enumerate().map(|(i, a)| std::format!("{a:016x} s{i}\n")).collect();
            let expected = at.iter().rposition(|a| *a <= probe).map(|i| (std::format!("s{i}"), probe - at[i]));
            let found = Symbols::new(text.as_bytes()).find(probe).map(|(n, o)| (n.to_string(), o));
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn hostile_tables_and_archives_never_panic(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), Just(b'0'), any::<u8>()], 0..300),
            probe: u64,
        ) {
            let _found = Symbols::new(&text).find(probe);
            let mut a = archive(".quire/symbols", &text);
            let _table = Symbols::in_archive(&a).map(|s| s.find(probe));
            for (i, b) in text.iter().enumerate() {
                if let Some(slot) = a.get_mut(6 + i * 3) {
                    *slot = *b;
                }
            }
            let _table = Symbols::in_archive(&a).map(|s| s.find(probe));
        }
    }
}
