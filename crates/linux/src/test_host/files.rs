//! Makes the initial files of a test machine, among them programs.

use quire_vm::PAGE_SIZE;

/// A member of an archive: its name, its mode with the type, and its bytes.
pub type Member<'a> = (&'a str, u32, &'a [u8]);

/// Makes an archive with these members. `/init` is the first program.
pub fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut number = 0;
    let mut member = |name: &str, mode: u32, bytes: &[u8]| {
        number += 1;
        let fields = [number, mode, 0, 0, 1, 0, bytes.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        archive.extend(b"070701");
        fields.iter().for_each(|f| archive.extend(format!("{f:08x}").bytes()));
        archive.extend(name.bytes().chain([0]));
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
    };
    let hex = |text: &str| text.bytes().map(|b| format!("{b:02x}")).collect::<String>();
    member(".quire", 0o40_755, b"");
    member(".quire/run", 0o100_644, format!("arg {}\ncwd {}\n", hex("/init"), hex("/")).as_bytes());
    members.iter().for_each(|(name, mode, bytes)| member(name, *mode, bytes));
    member("TRAILER!!!", 0, b"");
    archive
}

/// Makes a program without an interpreter. It has one segment of `pages` pages at `base` with all rights. The first
/// page begins with `first`.
pub fn elf(entry: u64, base: u64, pages: u64, first: &[u8]) -> Vec<u8> {
    let load = [PAGE_SIZE, base, base, PAGE_SIZE, pages * PAGE_SIZE, PAGE_SIZE];
    program(entry, first, &[(1, 7, load)])
}

/// Makes a program that needs the interpreter at `path`.
pub fn interpreted(base: u64, path: &str) -> Vec<u8> {
    let len = path.len() as u64 + 1;
    let load = [PAGE_SIZE, base, base, PAGE_SIZE, PAGE_SIZE, PAGE_SIZE];
    let interpreter = [PAGE_SIZE, base, base, len, len, 1];
    program(base, &[path.as_bytes(), &[0]].concat(), &[(3, 4, interpreter), (1, 7, load)])
}

/// A program header: its type, its flags, and its other words.
type Header = (u32, u32, [u64; 6]);

/// Makes an executable file of two pages: a page with the headers, and a page that begins with `first`.
fn program(entry: u64, first: &[u8], headers: &[Header]) -> Vec<u8> {
    assert!(first.len() <= PAGE_SIZE as usize);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let half = |file: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    let word = |file: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    let long = |file: &mut Vec<u8>, values: &[u64]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
    // The header says: an executable for x86-64, version 1. Then it has the entry address, the offset of the program
    // headers, and 0 for no sections.
    half(&mut file, &[2, 62]);
    word(&mut file, &[1]);
    long(&mut file, &[entry, 64, 0]);
    word(&mut file, &[0]);
    half(&mut file, &[64, 56, headers.len() as u16, 0, 0, 0]);
    for (kind, flags, rest) in headers {
        word(&mut file, &[*kind, *flags]);
        long(&mut file, rest);
    }
    file.resize(PAGE_SIZE as usize, 0);
    file.extend(first);
    file.resize(2 * PAGE_SIZE as usize, 0);
    file
}
