//! The parser of the kernel's command line, which has words with optional values. It is untrusted input. Unknown words
//! are ignored. An amount or a time with an unusable value is an error ([`Unusable`]). If the kernel ignored the value,
//! the machine would differ from the requested one.

use core::fmt;

/// A virtio-mmio device, from a word in Linux's syntax: `virtio_mmio.device=SIZE@ADDRESS:LINE[:ID]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtioDevice {
    /// The physical address of the registers.
    pub address: u64,
    /// The length of the registers in bytes.
    pub len: u64,
    /// The interrupt line.
    pub line: u32,
}

/// The words of a command line.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty())
}

/// The value of the last word `name=value`; `None` if there is no such word.
pub fn value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    words(line).filter_map(|w| w.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).last()
}

/// The reason that the value of a word cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// The word has no value, but needs one.
    Missing,
    /// The value is not a number, or does not fit in 64 bits.
    NoNumber,
    /// The value is zero.
    Zero,
    /// The value is greater than this limit.
    MoreThan(u64),
    /// The value is less than this limit.
    LessThan(u64),
    /// The value is greater than this number of bytes, which is the most that can be reserved.
    SetAside(u64),
    /// The value is not a time from [`SHORTEST`] to [`LONGEST`].
    NoTime,
}

/// A word whose value cannot be used. `Display` prints a sentence with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unusable<'a> {
    /// The name of the word.
    pub name: &'static str,
    /// The word's value.
    pub value: &'a [u8],
    /// Why the value cannot be used.
    pub problem: Problem,
}

impl fmt::Display for Unusable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.problem != Problem::Missing {
            write!(f, "={}", self.value.escape_ascii())?;
        }
        match self.problem {
            Problem::Missing => f.write_str(" needs a value: a number, with K, M or G for units of 1024"),
            Problem::NoNumber => f.write_str(" is not a number, which may end in K, M or G for units of 1024"),
            Problem::Zero => f.write_str(" is zero, which leaves no memory to use"),
            Problem::MoreThan(most) => write!(f, " is more than {most}, the most that this machine can hold"),
            Problem::LessThan(least) => write!(f, " is less than {least}, the least that can be used"),
            Problem::SetAside(bytes) => {
                write!(f, " is more than the {} MiB that this machine can set aside", bytes >> 20)
            }
            Problem::NoTime => f.write_str(" is not a time from 100us to 1s: a number that ends in us, ms or s"),
        }
    }
}

/// The value of the last word `name=value` as a number; `None` if there is no such word. Zero is an error.
pub fn amount<'a>(line: &'a [u8], name: &'static str) -> Result<Option<u64>, Unusable<'a>> {
    let Some(value) = value(line, name) else {
        let missing = Unusable { name, value: &[], problem: Problem::Missing };
        return if flag(line, name) { Err(missing) } else { Ok(None) };
    };
    let problem = match core::str::from_utf8(value).ok().and_then(number) {
        None => Problem::NoNumber,
        Some(0) => Problem::Zero,
        Some(amount) => return Ok(Some(amount)),
    };
    Err(Unusable { name, value, problem })
}

/// As [`amount`]. A value greater than `most` is an error.
pub fn amount_up_to<'a>(line: &'a [u8], name: &'static str, most: u64) -> Result<Option<u64>, Unusable<'a>> {
    match amount(line, name)? {
        Some(n) if n > most => {
            Err(Unusable { name, value: value(line, name).unwrap_or_default(), problem: Problem::MoreThan(most) })
        }
        n => Ok(n),
    }
}

/// As [`amount`], for a number of bytes of memory to reserve. A value outside `least..=most` is an error.
pub fn set_aside<'a>(line: &'a [u8], name: &'static str, least: u64, most: u64) -> Result<Option<u64>, Unusable<'a>> {
    let Some(bytes) = amount(line, name)? else { return Ok(None) };
    let problem = match bytes {
        n if n < least => Problem::LessThan(least),
        n if n > most => Problem::SetAside(most),
        n => return Ok(Some(n)),
    };
    Err(Unusable { name, value: value(line, name).unwrap_or_default(), problem })
}

/// The shortest time that a word may have, in nanoseconds. With a shorter timer interval, a CPU would do nothing but
/// serve its timer.
pub const SHORTEST: u64 = 100_000;
/// The longest time that a word may have, in nanoseconds.
pub const LONGEST: u64 = 1_000_000_000;

/// The value of the last word `name=value` in nanoseconds; `None` if there is no such word. The value is a number with
/// the unit us, ms or s.
pub fn time<'a>(line: &'a [u8], name: &'static str) -> Result<Option<u64>, Unusable<'a>> {
    let Some(value) = value(line, name) else {
        let missing = Unusable { name, value: &[], problem: Problem::NoTime };
        return if flag(line, name) { Err(missing) } else { Ok(None) };
    };
    let units = [("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let ns = core::str::from_utf8(value).ok().and_then(|text| {
        let (digits, unit) = units.iter().find_map(|(end, unit)| Some((text.strip_suffix(end)?, *unit)))?;
        digits.parse::<u64>().ok()?.checked_mul(unit)
    });
    match ns {
        Some(ns) if (SHORTEST..=LONGEST).contains(&ns) => Ok(Some(ns)),
        _ => Err(Unusable { name, value, problem: Problem::NoTime }),
    }
}

/// Whether the line has the word `name`.
pub fn flag(line: &[u8], name: &str) -> bool {
    words(line).any(|w| w == name.as_bytes())
}

/// The virtio devices of the command line, in their order on the line. Invalid words are ignored.
pub fn virtio_devices(line: &[u8]) -> impl Iterator<Item = VirtioDevice> {
    words(line).filter_map(|w| device(w.strip_prefix(b"virtio_mmio.device=")?))
}

fn device(spec: &[u8]) -> Option<VirtioDevice> {
    let spec = core::str::from_utf8(spec).ok()?;
    let (len, rest) = spec.split_once('@')?;
    let mut rest = rest.split(':');
    let (address, line) = (number(rest.next()?)?, number(rest.next()?)?);
    let device = VirtioDevice { address, len: number(len)?, line: line.try_into().ok()? };
    // A register block contains at least the fixed registers (256 bytes), and does not wrap around.
    (device.len >= 0x100 && device.address.checked_add(device.len).is_some() && device.address != 0).then_some(device)
}

/// Parses a number: decimal, or hexadecimal after 0x. It may end in K, M or G for units of 1024, 1024^2 or 1024^3
/// bytes. `None` if the text is not a number, or does not fit in 64 bits.
pub fn number(text: &str) -> Option<u64> {
    let (digits, scale) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    value.ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn devices_come_in_the_order_of_the_line() {
        let line = b" verbose virtio_mmio.device=512@0xfeb00e00:12 x=1 virtio_mmio.device=0x200@0xfeb00c00:11:3 x=2";
        let devices: Vec<_> = virtio_devices(line).collect();
        assert_eq!(devices[0], VirtioDevice { address: 0xfeb0_0e00, len: 512, line: 12 });
        assert_eq!(devices[1], VirtioDevice { address: 0xfeb0_0c00, len: 512, line: 11 });
        assert_eq!(value(line, "x"), Some(&b"2"[..]));
        assert!(flag(line, "verbose") && !flag(line, "verb"));
    }

    #[test]
    fn an_amount_that_cannot_be_used_is_named_with_the_reason() {
        let of = |line: &'static str| amount(line.as_bytes(), "swap").map_err(|e| std::format!("{e}"));
        assert_eq!(of("verbose swaps=3"), Ok(None));
        assert_eq!(of("swap=1 swap=64M"), Ok(Some(64 << 20)));
        let refused = |line, start: &str| assert!(of(line).is_err_and(|e| e.starts_with(start)), "{line}");
        refused("swap", "swap needs a value");
        refused("swap=", "swap= is not a number");
        refused("swap=much", "swap=much is not a number");
        refused("swap=-1", "swap=-1 is not a number");
        refused("swap=99999999999G", "swap=99999999999G is not a number");
        refused("swap=0", "swap=0 is zero");
        refused("swap=64M swap=0G", "swap=0G is zero");
        let raw = amount(b"swap=\xff\x07", "swap").map_err(|e| std::format!("{e}"));
        assert!(raw.is_err_and(|e| e.starts_with("swap=\\xff\\x07 is not a number")));
        let aside = |line: &'static [u8]| set_aside(line, "swap", 4096, 5 << 20).map_err(|e| std::format!("{e}"));
        assert_eq!((aside(b"x"), aside(b"swap=4K"), aside(b"swap=5M")), (Ok(None), Ok(Some(4096)), Ok(Some(5 << 20))));
        assert_eq!(aside(b"swap=4095"), Err("swap=4095 is less than 4096, the least that can be used".into()));
        let more = "swap=6M is more than the 5 MiB that this machine can set aside";
        assert_eq!(aside(b"swap=6M"), Err(more.into()));
        assert_eq!(amount_up_to(b"swap=7", "swap", 7), Ok(Some(7)));
        let more = amount_up_to(b"swap=8", "swap", 7).map_err(|e| std::format!("{e}"));
        assert_eq!(more, Err("swap=8 is more than 7, the most that this machine can hold".into()));
    }

    #[test]
    fn a_time_has_a_unit_and_bounds() {
        assert_eq!(time(b"ticks=4ms", "tick"), Ok(None));
        for (line, ns) in [("tick=4ms", 4_000_000), ("tick=2ms tick=100us", 100_000), ("tick=1s", 1_000_000_000)] {
            assert_eq!(time(line.as_bytes(), "tick"), Ok(Some(ns)), "{line}");
        }
        for word in
            ["tick", "tick=", "tick=4", "tick=ms", "tick=0ms", "tick=99us", "tick=1001ms", "tick=-1s", "tick=1m"]
        {
            let refused = time(word.as_bytes(), "tick").map_err(|e| std::format!("{e}"));
            let word = if word == "tick" { "tick=" } else { word };
            assert!(refused.is_err_and(|e| e.starts_with(&std::format!("{word} is not a time"))), "{word}");
        }
        assert!(time(b"tick=18446744073709551615s", "tick").is_err());
        assert!(time(b"tick=\xffms", "tick").is_err());
    }

    #[test]
    fn sizes_take_a_unit() {
        assert_eq!(number("64K"), Some(65536));
        assert_eq!(number("0x10"), Some(16));
        assert_eq!(number("99999999999999999999"), None);
        assert_eq!(number("18446744073709551615G"), None);
        assert_eq!(number("K"), None);
    }

    proptest! {
        #[test]
        fn hostile_lines_never_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut line = line;
            let _count = virtio_devices(&line).count();
            let _time = time(&line, "tick");
            line.splice(0..0, b"virtio_mmio.device=".iter().copied());
            let _count = virtio_devices(&line).count();
        }

        #[test]
        fn hostile_device_words_never_panic(
            len in "[0-9a-fxKMG]{0,12}",
            at in "[0-9a-fx]{0,20}",
            line in "[0-9:@]{0,8}",
        ) {
            let word = std::format!("virtio_mmio.device={len}@{at}:{line}");
            let _count = virtio_devices(word.as_bytes()).count();
        }
    }
}
