//! The structure that a PVH boot loader passes: Xen's `hvm_start_info` (public/arch-x86/hvm/start_info.h), version 0 or
//! 1.

/// The magic number that begins the structure.
pub const MAGIC: u32 = 0x336e_c578;
/// The most bytes of the command line. A longer one is truncated.
const MAX_COMMAND_LINE: usize = 4096;
/// The most memory ranges. Further ones are ignored.
pub const MAX_RANGES: usize = 128;
/// The most modules. Further ones are ignored.
const MAX_MODULES: usize = 4;

/// A range of physical memory of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Range {
    /// The physical address of the first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The kind of memory in E820's numbering: 1 is usable RAM.
    pub kind: u32,
}

/// A file that the boot loader put into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Module {
    /// The physical address of the first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
}

/// The contents of the structure, which was read and checked.
#[derive(Clone, Copy, Debug)]
pub struct StartInfo<'a> {
    modules: [Module; MAX_MODULES],
    modules_len: usize,
    ranges: [Range; MAX_RANGES],
    ranges_len: usize,
    /// The kernel's command line, without the final zero.
    pub command_line: &'a [u8],
    /// The physical address of ACPI's root pointer (RSDP); 0 if the loader does not provide it.
    pub root_pointer: u64,
}

/// The reason that the structure cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartInfoError {
    /// The structure, or data to which it points, is outside readable memory.
    Unreachable,
    /// The structure does not begin with [`MAGIC`].
    BadMagic,
    /// The structure has no memory map, which this kernel needs. Version 0 of the structure has none.
    NoMemoryMap,
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl<'a> StartInfo<'a> {
    /// Reads the structure at physical address `at`. `bytes` returns the bytes at a physical address, or `None` if they
    /// cannot be read.
    pub fn read(at: u64, bytes: impl Fn(u64, usize) -> Option<&'a [u8]>) -> Result<Self, StartInfoError> {
        use StartInfoError::*;
        let head = bytes(at, 40).ok_or(Unreachable)?;
        if u32_at(head, 0) != MAGIC {
            return Err(BadMagic);
        }
        if u32_at(head, 4) < 1 {
            return Err(NoMemoryMap);
        }
        let whole = bytes(at, 56).ok_or(Unreachable)?;
        let mut info = StartInfo {
            modules: Default::default(),
            modules_len: 0,
            ranges: [Range::default(); MAX_RANGES],
            ranges_len: 0,
            command_line: &[],
            root_pointer: u64_at(whole, 32),
        };
        let count = (u32_at(whole, 12) as usize).min(MAX_MODULES);
        if count > 0 {
            let list = bytes(u64_at(whole, 16), count * 32).ok_or(Unreachable)?;
            for (slot, entry) in info.modules.iter_mut().zip(list.chunks_exact(32)) {
                *slot = Module { start: u64_at(entry, 0), len: u64_at(entry, 8) };
            }
            info.modules_len = count;
        }
        let count = (u32_at(whole, 48) as usize).min(MAX_RANGES);
        if count == 0 {
            return Err(NoMemoryMap);
        }
        let list = bytes(u64_at(whole, 40), count * 24).ok_or(Unreachable)?;
        for (slot, entry) in info.ranges.iter_mut().zip(list.chunks_exact(24)) {
            *slot = Range { start: u64_at(entry, 0), len: u64_at(entry, 8), kind: u32_at(entry, 16) };
        }
        info.ranges_len = count;
        let line = u64_at(whole, 24);
        if line != 0 {
            info.command_line = string(line, &bytes).ok_or(Unreachable)?;
        }
        Ok(info)
    }

    /// The loaded files. The first one is the initial file system.
    pub fn modules(&self) -> &[Module] {
        &self.modules[..self.modules_len]
    }
    /// The memory map.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges[..self.ranges_len]
    }
}

/// The zero-terminated string at `at`. It is read byte by byte, because it may end near the end of readable memory.
fn string<'a>(at: u64, bytes: &impl Fn(u64, usize) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let mut len = 0;
    while len < MAX_COMMAND_LINE {
        if bytes(at.checked_add(len as u64)?, 1)? == [0] {
            break;
        }
        len += 1;
    }
    bytes(at, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image() -> Vec<u8> {
        let mut m = vec![0u8; 4096];
        let put = |m: &mut Vec<u8>, at: usize, v: &[u8]| m[at..at + v.len()].copy_from_slice(v);
        put(&mut m, 0, &MAGIC.to_le_bytes());
        put(&mut m, 4, &1u32.to_le_bytes());
        put(&mut m, 12, &1u32.to_le_bytes());
        put(&mut m, 16, &0x100u64.to_le_bytes());
        put(&mut m, 24, &0x200u64.to_le_bytes());
        put(&mut m, 40, &0x300u64.to_le_bytes());
        put(&mut m, 48, &2u32.to_le_bytes());
        put(&mut m, 0x100, &0x8000u64.to_le_bytes());
        put(&mut m, 0x108, &0x1234u64.to_le_bytes());
        put(&mut m, 0x200, b"hello world\0");
        put(&mut m, 0x308, &0x9_fc00u64.to_le_bytes());
        put(&mut m, 0x310, &1u32.to_le_bytes());
        put(&mut m, 0x318, &0x10_0000u64.to_le_bytes());
        put(&mut m, 0x320, &0x700_0000u64.to_le_bytes());
        put(&mut m, 0x328, &1u32.to_le_bytes());
        m
    }
    fn reader<'a>(m: &'a [u8]) -> impl Fn(u64, usize) -> Option<&'a [u8]> {
        |at, len| m.get(at as usize..usize::try_from(at).ok()?.checked_add(len)?)
    }

    #[test]
    fn modules_ranges_and_the_command_line_are_read() {
        let m = image();
        let info = StartInfo::read(0, reader(&m)).unwrap();
        assert_eq!(info.modules(), [Module { start: 0x8000, len: 0x1234 }]);
        assert_eq!(info.command_line, b"hello world");
        assert_eq!(info.ranges()[1], Range { start: 0x10_0000, len: 0x700_0000, kind: 1 });
    }

    #[test]
    fn a_structure_without_magic_or_map_is_refused() {
        let mut m = image();
        m[0] ^= 1;
        assert_eq!(StartInfo::read(0, reader(&m)).unwrap_err(), StartInfoError::BadMagic);
        let mut m = image();
        m[48] = 0;
        assert_eq!(StartInfo::read(0, reader(&m)).unwrap_err(), StartInfoError::NoMemoryMap);
        assert_eq!(StartInfo::read(4090, reader(&m)).unwrap_err(), StartInfoError::Unreachable);
    }

    proptest! {
        #[test]
        fn hostile_structures_never_panic(
            edits in proptest::collection::vec((0usize..0x340, any::<u8>()), 0..40),
            at in 0u64..0x40,
        ) {
            let mut m = image();
            for (i, b) in edits {
                m[i] = b;
            }
            let _result = StartInfo::read(at & !3, reader(&m));
        }
    }
}
