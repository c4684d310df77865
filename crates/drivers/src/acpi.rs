//! Reads ACPI's tables for boot: CPUs and interrupt controllers (MADT), virtio devices in memory (DSDT), and the memory
//! near each CPU (SRAT).
//!
//! The tables are untrusted. Every length and every table's checksum is checked. An invalid part is an error or is left
//! out; no code here panics.

mod affinity;

pub use affinity::{Affinity, MAX_DOMAINS, affinity};

/// Access to physical memory.
pub trait Physical {
    /// Returns the `len` bytes at physical address `at`, or `None` if the range cannot be reached: tables may point
    /// anywhere.
    fn bytes(&self, at: u64, len: usize) -> Option<&[u8]>;
}

/// The reason that the tables could not be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcpiError {
    /// No root pointer was found.
    NoRoot,
    /// A table lies outside memory, or is shorter than a table of its kind must be.
    BadTable,
    /// A table's bytes do not add up to zero.
    BadChecksum,
    /// There is no MADT.
    NoMadt,
}

/// The most CPUs taken from the tables.
pub const MAX_CPUS: usize = 256;
const MAX_IO_APICS: usize = 8;
const MAX_OVERRIDES: usize = 24;
/// The size of the largest valid table in bytes. A longer length means a broken table.
const MAX_TABLE: usize = 1 << 20;

/// An I/O interrupt controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoApicInfo {
    /// Physical address of its registers.
    pub address: u64,
    /// The controller's first global interrupt.
    pub first: u32,
}

/// An ISA line that is not connected to the global interrupt with the line's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Override {
    /// The ISA line.
    pub line: u8,
    /// The global interrupt to which the line is connected.
    pub gsi: u32,
    /// Polarity (bits 0 and 1) and trigger mode (bits 2 and 3) in the MADT's encoding.
    pub flags: u16,
}

/// CPUs and interrupt controllers of a machine.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Physical address of the local APICs.
    pub local_apic: u64,
    cpus: [u32; MAX_CPUS],
    cpus_len: usize,
    io_apics: [IoApicInfo; MAX_IO_APICS],
    io_apics_len: usize,
    overrides: [Override; MAX_OVERRIDES],
    overrides_len: usize,
    /// Usable CPUs that were left out because there are more than [`MAX_CPUS`].
    pub cpus_left_out: usize,
}

impl Topology {
    /// Local APIC identifiers of the usable CPUs, each once.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus[..self.cpus_len]
    }
    /// The I/O interrupt controllers.
    pub fn io_apics(&self) -> &[IoApicInfo] {
        &self.io_apics[..self.io_apics_len]
    }
    /// The ISA lines that are not connected to the global interrupt with their number.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides[..self.overrides_len]
    }

    fn add_cpu(&mut self, id: u32) {
        if self.cpus().contains(&id) {
            return;
        }
        match self.cpus.get_mut(self.cpus_len) {
            Some(slot) => {
                *slot = id;
                self.cpus_len += 1;
            }
            None => self.cpus_left_out += 1,
        }
    }
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?))
}
fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}
fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}
fn adds_up(b: &[u8]) -> bool {
    b.iter().fold(0u8, |sum, x| sum.wrapping_add(*x)) == 0
}

/// Finds the root pointer at the usual places of PC firmware. The address `hint` is tried first, unless it is 0.
fn root(memory: &impl Physical, hint: u64) -> Option<&[u8]> {
    let valid = |at: u64| {
        let v1 = memory.bytes(at, 20)?;
        (v1.starts_with(b"RSD PTR ") && adds_up(v1)).then_some(())?;
        if v1[15] < 2 {
            return Some(v1);
        }
        let v2 = memory.bytes(at, 36)?;
        adds_up(v2).then_some(v2)
    };
    if hint != 0
        && let Some(r) = valid(hint)
    {
        return Some(r);
    }
    let extended_bios_data =
        memory.bytes(0x40e, 2).and_then(|b| u16_at(b, 0)).map_or(0, |segment| (segment as u64) << 4);
    let low = (extended_bios_data..extended_bios_data.saturating_add(1024)).step_by(16);
    let high = (0xe_0000..0x10_0000).step_by(16);
    low.filter(|at| *at >= 0x400).chain(high).find_map(valid)
}

/// Returns the whole table at `at`, after a check of its length and checksum.
fn table(memory: &impl Physical, at: u64) -> Result<&[u8], AcpiError> {
    let header = memory.bytes(at, 36).ok_or(AcpiError::BadTable)?;
    let len = u32_at(header, 4).ok_or(AcpiError::BadTable)? as usize;
    if !(36..=MAX_TABLE).contains(&len) {
        return Err(AcpiError::BadTable);
    }
    let whole = memory.bytes(at, len).ok_or(AcpiError::BadTable)?;
    if adds_up(whole) { Ok(whole) } else { Err(AcpiError::BadChecksum) }
}

/// Returns the whole table with `signature`, or `None` if the root table does not list it.
fn listed<'a>(memory: &'a impl Physical, root_hint: u64, signature: &[u8; 4]) -> Result<Option<&'a [u8]>, AcpiError> {
    let root = root(memory, root_hint).ok_or(AcpiError::NoRoot)?;
    let extended = u64_at(root, 24).filter(|at| *at != 0);
    let (list, width) = match extended {
        Some(at) => (table(memory, at)?, 8),
        None => (table(memory, u32_at(root, 16).ok_or(AcpiError::BadTable)? as u64)?, 4),
    };
    for pointer in list[36..].chunks_exact(width) {
        let at = if width == 8 { u64_at(pointer, 0) } else { u32_at(pointer, 0).map(u64::from) };
        let Some(at) = at else { continue };
        // Only the requested table must be valid.
        if memory.bytes(at, 4).is_some_and(|found| found == signature) {
            return table(memory, at).map(Some);
        }
    }
    Ok(None)
}

/// Reads the machine's topology. `root_hint` is the boot loader's address of the root pointer, or 0.
pub fn topology(memory: &impl Physical, root_hint: u64) -> Result<Topology, AcpiError> {
    madt(listed(memory, root_hint, b"APIC")?.ok_or(AcpiError::NoMadt)?)
}

/// A virtio device in memory, described by the DSDT.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VirtioDevice {
    /// Physical address of its registers.
    pub address: u64,
    /// The length of the registers in bytes.
    pub len: u64,
    /// The device's global interrupt.
    pub gsi: u32,
    /// Whether the device signals by edges, not by a level.
    pub edge: bool,
    /// Whether the device signals by a low level or a falling edge.
    pub low: bool,
}

/// Calls `found` for each virtio-mmio device of the DSDT, in its order.
///
/// No AML is interpreted, because microVMs describe these devices by constant data. The search is for a `_HID` of
/// "LNRO0005", followed by a `_CRS` buffer with one memory range and one interrupt (ACPI 6.4, 6.4.3.4 and 6.4.3.6).
pub fn virtio_devices(
    memory: &impl Physical,
    root_hint: u64,
    mut found: impl FnMut(VirtioDevice),
) -> Result<(), AcpiError> {
    let Some(fadt) = listed(memory, root_hint, b"FACP")? else { return Ok(()) };
    let at = match u64_at(fadt, 140).filter(|at| *at != 0) {
        Some(at) => at,
        None => u32_at(fadt, 40).ok_or(AcpiError::BadTable)? as u64,
    };
    if at == 0 {
        return Ok(());
    }
    let mut rest = &table(memory, at)?[36..];
    const IDENTIFIER: &[u8] = b"LNRO0005\0";
    while let Some(i) = rest.windows(IDENTIFIER.len()).position(|w| w == IDENTIFIER) {
        rest = &rest[i + IDENTIFIER.len()..];
        // The device's resources come before the next device's identifier.
        let end = rest.windows(IDENTIFIER.len()).position(|w| w == IDENTIFIER).unwrap_or(rest.len());
        if let Some(device) = resources(&rest[..end]) {
            found(device);
        }
    }
    Ok(())
}

/// The memory range and the interrupt in the first `_CRS` of `aml`.
fn resources(aml: &[u8]) -> Option<VirtioDevice> {
    let start = aml.windows(4).position(|w| w == b"_CRS")?;
    let aml = &aml[start..];
    // Memory32Fixed: tag, length 9, access, base, length.
    let at = aml.windows(3).position(|w| w == [0x86, 9, 0])?;
    let (address, len) = (u32_at(aml, at + 4)? as u64, u32_at(aml, at + 8)? as u64);
    // Extended interrupt follows: tag, length 6, flags, count 1, number.
    let next = aml.get(at + 12..)?;
    if next.get(..3)? != [0x89, 6, 0] || *next.get(4)? != 1 {
        return None;
    }
    let flags = *next.get(3)?;
    let gsi = u32_at(next, 5)?;
    (len >= 0x100).then_some(VirtioDevice { address, len, gsi, edge: flags & 2 != 0, low: flags & 4 != 0 })
}

fn madt(table: &[u8]) -> Result<Topology, AcpiError> {
    let mut t = Topology {
        local_apic: u32_at(table, 36).ok_or(AcpiError::BadTable)? as u64,
        cpus: [0; MAX_CPUS],
        cpus_len: 0,
        io_apics: [IoApicInfo::default(); MAX_IO_APICS],
        io_apics_len: 0,
        overrides: [Override::default(); MAX_OVERRIDES],
        overrides_len: 0,
        cpus_left_out: 0,
    };
    // Unknown kinds are skipped.
    each_entry(table, 44, |kind, entry| entry_of(&mut t, kind, entry))?;
    Ok(t)
}

/// Calls `f` with the kind and the bytes of each entry of `table`, from offset `start` on. If an entry is too short,
/// `f` returns `None`, and the table is broken.
fn each_entry(table: &[u8], start: usize, mut f: impl FnMut(u8, &[u8]) -> Option<()>) -> Result<(), AcpiError> {
    let mut rest = table.get(start..).ok_or(AcpiError::BadTable)?;
    while let [kind, len, ..] = *rest {
        let len = len as usize;
        if len < 2 || len > rest.len() {
            return Err(AcpiError::BadTable);
        }
        let (entry, after) = rest.split_at(len);
        rest = after;
        f(kind, entry).ok_or(AcpiError::BadTable)?;
    }
    Ok(())
}

fn entry_of(t: &mut Topology, kind: u8, e: &[u8]) -> Option<()> {
    match kind {
        // Local APIC: identifier 255 means none.
        0 => {
            let id = *e.get(3)?;
            if u32_at(e, 4)? & 1 != 0 && id != 0xff {
                t.add_cpu(id as u32);
            }
        }
        1 => {
            let info = IoApicInfo { address: u32_at(e, 4)? as u64, first: u32_at(e, 8)? };
            if let Some(slot) = t.io_apics.get_mut(t.io_apics_len) {
                *slot = info;
                t.io_apics_len += 1;
            }
        }
        2 => {
            let entry = Override { line: *e.get(3)?, gsi: u32_at(e, 4)?, flags: u16_at(e, 8)? };
            if let Some(slot) = t.overrides.get_mut(t.overrides_len) {
                *slot = entry;
                t.overrides_len += 1;
            }
        }
        5 => t.local_apic = u64_at(e, 4)?,
        9 => {
            let id = u32_at(e, 4)?;
            if u32_at(e, 8)? & 1 != 0 && id != u32::MAX {
                t.add_cpu(id);
            }
        }
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Image(Vec<u8>);
    impl Physical for Image {
        fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
            let at = usize::try_from(at).ok()?;
            self.0.get(at..at.checked_add(len)?)
        }
    }

    fn set_checksum(table: &mut [u8], checksum_at: usize) {
        table[checksum_at] = 0;
        let sum = table.iter().fold(0u8, |s, x| s.wrapping_add(*x));
        table[checksum_at] = 0u8.wrapping_sub(sum);
    }
    fn sdt(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut t = vec![0; 36];
        t[..4].copy_from_slice(signature);
        t.extend_from_slice(body);
        let len = t.len() as u32;
        t[4..8].copy_from_slice(&len.to_le_bytes());
        set_checksum(&mut t, 9);
        t
    }
    /// A machine image with the root pointer at `root`, an XSDT at 0x1000 and a MADT with `entries` at 0x2000.
    fn image(root: usize, entries: &[u8]) -> Image {
        let mut m = vec![0u8; 0x10_0000];
        let mut body = 0xfee0_0000u32.to_le_bytes().to_vec();
        body.extend_from_slice(&[1, 0, 0, 0]);
        body.extend_from_slice(entries);
        let madt = sdt(b"APIC", &body);
        m[0x2000..0x2000 + madt.len()].copy_from_slice(&madt);
        let xsdt = sdt(b"XSDT", &0x2000u64.to_le_bytes());
        m[0x1000..0x1000 + xsdt.len()].copy_from_slice(&xsdt);
        let mut r = vec![0u8; 36];
        r[..8].copy_from_slice(b"RSD PTR ");
        r[15] = 2;
        r[20..24].copy_from_slice(&36u32.to_le_bytes());
        r[24..32].copy_from_slice(&0x1000u64.to_le_bytes());
        set_checksum(&mut r[..20], 8);
        set_checksum(&mut r, 32);
        m[root..root + 36].copy_from_slice(&r);
        Image(m)
    }
    fn cpu(id: u8, enabled: bool) -> Vec<u8> {
        vec![0, 8, id, id, enabled as u8, 0, 0, 0]
    }
    fn io_apic() -> Vec<u8> {
        let mut e = vec![1, 12, 0, 0];
        e.extend_from_slice(&0xfec0_0000u32.to_le_bytes());
        e.extend_from_slice(&0u32.to_le_bytes());
        e
    }

    #[test]
    fn enabled_cpus_are_listed_once_and_disabled_ones_not() {
        let entries = [cpu(0, true), cpu(1, true), cpu(1, true), cpu(2, false), io_apic()].concat();
        let t = topology(&image(0xe_0000, &entries), 0).unwrap();
        assert_eq!(t.cpus(), [0, 1]);
        assert_eq!(t.io_apics(), [IoApicInfo { address: 0xfec0_0000, first: 0 }]);
        assert_eq!(t.local_apic, 0xfee0_0000);
    }

    #[test]
    fn the_hint_of_the_boot_loader_is_the_last_resort() {
        let m = image(0x5_0000, &cpu(3, true));
        assert_eq!(topology(&m, 0x5_0000).unwrap().cpus(), [3]);
        assert!(matches!(topology(&m, 0), Err(AcpiError::NoRoot)));
    }

    #[test]
    fn a_wrong_checksum_is_refused() {
        let mut m = image(0xe_0000, &cpu(0, true));
        m.0[0x2000 + 40] ^= 1;
        assert!(matches!(topology(&m, 0), Err(AcpiError::BadChecksum)));
    }

    #[test]
    fn an_entry_shorter_than_its_kind_or_of_no_length_is_refused() {
        for entries in [vec![0, 3, 0], vec![9, 8, 0, 0, 0, 0, 0, 0], vec![0, 0], vec![0, 1], vec![7, 200]] {
            assert!(matches!(topology(&image(0xe_0000, &entries), 0), Err(AcpiError::BadTable)), "{entries:?}");
        }
    }

    #[test]
    fn more_cpus_than_fit_are_counted_not_stored() {
        let mut entries = Vec::new();
        for id in 0..MAX_CPUS as u32 + 5 {
            entries.extend_from_slice(&[9, 16, 0, 0]);
            entries.extend_from_slice(&(id + 1000).to_le_bytes());
            entries.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        }
        let t = topology(&image(0xe_0000, &entries), 0).unwrap();
        assert_eq!((t.cpus().len(), t.cpus_left_out), (MAX_CPUS, 5));
    }

    /// As `image`, with a FADT at 0x3000 and a DSDT with `aml` at 0x4000.
    fn image_with_dsdt(aml: &[u8]) -> Image {
        let mut m = image(0xe_0000, &cpu(0, true));
        let mut put = |at: usize, t: Vec<u8>| m.0[at..at + t.len()].copy_from_slice(&t);
        let mut body = vec![0; 240];
        body[140 - 36..148 - 36].copy_from_slice(&0x4000u64.to_le_bytes());
        put(0x3000, sdt(b"FACP", &body));
        put(0x4000, sdt(b"DSDT", aml));
        put(0x1000, sdt(b"XSDT", &[0x2000u64.to_le_bytes(), 0x3000u64.to_le_bytes()].concat()));
        m
    }
    fn device(address: u32, gsi: u8) -> Vec<u8> {
        let mut aml = b"\x5b\x82VR00\x08_HID\x0dLNRO0005\0\x08_UID\x00\x08_CRS\x11\x0a\x86\x09\x00\x01".to_vec();
        aml.extend_from_slice(&address.to_le_bytes());
        aml.extend_from_slice(&512u32.to_le_bytes());
        aml.extend_from_slice(&[0x89, 6, 0, 1, 1, gsi, 0, 0, 0, 0x79, 0]);
        aml
    }
    fn devices(m: &Image) -> Vec<VirtioDevice> {
        let mut all = Vec::new();
        virtio_devices(m, 0, |d| all.push(d)).unwrap();
        all
    }

    #[test]
    fn virtio_devices_are_found_in_the_dsdt() {
        let m = image_with_dsdt(&[b"\x10\x20_SB_".to_vec(), device(0xfeb0_0000, 5), device(0xfeb0_0200, 6)].concat());
        let expected = |address, gsi| VirtioDevice { address, len: 512, gsi, edge: false, low: false };
        assert_eq!(devices(&m), [expected(0xfeb0_0000, 5), expected(0xfeb0_0200, 6)]);
    }

    #[test]
    fn a_device_without_resources_does_not_take_its_neighbours() {
        let m = image_with_dsdt(&[b"LNRO0005\0".to_vec(), device(0xfeb0_0200, 6)].concat());
        assert_eq!(devices(&m).len(), 1);
    }

    proptest! {
        #[test]
        fn hostile_aml_never_panics(
            aml in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..40, cut in 0usize..80,
        ) {
            let mut m = [device(0x1000_0000, 1), device(0x1000_0200, 2)].concat();
            m.truncate(cut.max(1));
            for (i, b) in aml.iter().enumerate().take(at) {
                let slot = (i * 7) % m.len();
                m[slot] = *b;
            }
            let _count = devices(&image_with_dsdt(&[m, aml].concat())).len();
        }
    }

    proptest! {
        #[test]
        fn hostile_entries_never_panic(entries in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _result = topology(&image(0xe_0000, &entries), 0);
        }

        #[test]
        fn hostile_bytes_in_any_table_never_panic(
            edits in proptest::collection::vec((0usize..0x90, any::<u8>(), 0usize..3), 1..12), fix_checksum: bool,
        ) {
            let mut m = image(0xe_0000, &[cpu(0, true), io_apic()].concat());
            for (at, byte, which) in edits {
                m.0[[0xe_0000, 0x1000, 0x2000][which] + at] = byte;
            }
            if fix_checksum {
                let len = (u32_at(&m.0, 0x2004).unwrap() as usize).clamp(36, 0x2000);
                set_checksum(&mut m.0[0x2000..0x2000 + len], 9);
            }
            let _result = topology(&m, 0);
        }
    }
}
