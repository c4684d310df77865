//! The kernel's command line: words with optional values. It comes from outside; what is not understood is skipped.

/// A virtio device in memory, as Linux's `virtio_mmio.device=SIZE@ADDRESS:LINE[:ID]` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtioDevice {
    /// Physical address of the registers.
    pub address: u64,
    /// Length of the registers in bytes.
    pub len: u64,
    /// The interrupt line.
    pub line: u32,
}

/// The words of a command line.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty())
}

/// The value of the last word `name=value`.
pub fn value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    words(line).filter_map(|w| w.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).last()
}

/// Whether the word `name` is there.
pub fn flag(line: &[u8], name: &str) -> bool {
    words(line).any(|w| w == name.as_bytes())
}

/// The virtio devices that are announced, in their order on the line.
pub fn virtio_devices(line: &[u8]) -> impl Iterator<Item = VirtioDevice> {
    words(line).filter_map(|w| device(w.strip_prefix(b"virtio_mmio.device=")?))
}

fn device(spec: &[u8]) -> Option<VirtioDevice> {
    let spec = core::str::from_utf8(spec).ok()?;
    let (len, rest) = spec.split_once('@')?;
    let mut rest = rest.split(':');
    let (address, line) = (number(rest.next()?)?, number(rest.next()?)?);
    let device = VirtioDevice { address, len: number(len)?, line: line.try_into().ok()? };
    // A register block spans at least the fixed registers, and does not wrap.
    (device.len >= 0x100 && device.address.checked_add(device.len).is_some() && device.address != 0).then_some(device)
}

/// A number in decimal or, after 0x, in hexadecimal, with an optional K, M or G.
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
            line.splice(0..0, b"virtio_mmio.device=".iter().copied());
            let _count = virtio_devices(&line).count();
        }

        #[test]
        fn hostile_device_words_never_panic(len in "[0-9a-fxKMG]{0,12}", at in "[0-9a-fx]{0,20}", line in "[0-9:@]{0,8}") {
            let word = std::format!("virtio_mmio.device={len}@{at}:{line}");
            let _count = virtio_devices(word.as_bytes()).count();
        }
    }
}
