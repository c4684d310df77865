//! Copies between system calls and a program's memory: values, arrays, strings, the vectors of execve. The target tries
//! them at every address and compares them byte by byte.

use crate::Input;
use crate::memory::Memory;
use quire_linux::exec::strings::{Strings, lay_out};
use quire_linux_state::Errno;
use quire_linux_state::user::{USER_END, UserMemory};
use quire_vm::PAGE_SIZE;

/// Addresses near which copies are tried: the ends of user space, places within it, and the kernel's half.
const NEAR: [u64; 6] = [0, 0x40_0000, 0x7000_0000_0000, USER_END - 2 * PAGE_SIZE, 1 << 47, u64::MAX - PAGE_SIZE + 1];

fn address(input: &mut Input<'_>) -> u64 {
    let near = NEAR[input.below(NEAR.len())];
    near.wrapping_add(u64::from(input.short()) % (3 * PAGE_SIZE))
}

/// Runs the bytes as copies.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = Memory::default();
    while !input.is_over() {
        step(&memory, &mut input);
    }
}

/// Returns the bytes from `at` on; `None` for a byte that is not mapped. All are `None` if any lies outside of user
/// space.
fn there(memory: &Memory, at: u64, len: usize) -> Vec<Option<u8>> {
    let inside = at.checked_add(len as u64).is_some_and(|end| end <= USER_END);
    (0..len as u64).map(|i| if inside { memory.byte(at + i) } else { None }).collect()
}

fn step(memory: &Memory, input: &mut Input<'_>) {
    let user = UserMemory(memory);
    let operation = input.below(9);
    let at = address(input);
    match operation {
        0 if at < USER_END => memory.map(at),
        1 if at < USER_END => memory.unmap(at),
        0 | 1 => {}
        2 => {
            let len = input.below(600);
            let before = there(memory, at, len);
            let mut got = vec![0xee; len];
            let read = user.read_bytes(at, &mut got);
            assert_eq!(read.is_ok(), before.iter().all(Option::is_some) && inside(at, len));
            if read.is_ok() {
                assert!(got.iter().zip(before).all(|(g, b)| Some(*g) == b));
            }
        }
        3 => {
            let bytes = input.take(64);
            let before = there(memory, at, bytes.len());
            let wrote = user.write_bytes(at, bytes);
            // The copy stops at the first missing byte.
            let done = before.iter().take_while(|b| b.is_some()).count();
            assert_eq!(
                wrote.map_err(|bad| bad.left),
                if done == bytes.len() && inside(at, bytes.len()) { Ok(()) } else { Err(bytes.len() - done) }
            );
            let after = there(memory, at, bytes.len());
            assert!(after[..done].iter().zip(bytes).all(|(a, b)| *a == Some(*b)));
            assert_eq!(after[done..], before[done..]);
        }
        4 => {
            let len = input.below(5000);
            let cleared = user.clear(at, len);
            assert_eq!(cleared.is_ok(), inside(at, len) && there(memory, at, len).iter().all(|b| *b == Some(0)));
        }
        5 => {
            let (count, most) = (input.below(300), input.below(300));
            let read = user.read_many::<u64>(at, count, most);
            let bytes = there(memory, at, count * 8);
            match read {
                Ok(words) => {
                    let words = words.iter().flat_map(|w| w.to_le_bytes()).map(Some).collect::<Vec<_>>();
                    assert!(count <= most && words == bytes);
                }
                Err(Errno::EINVAL) => assert!(count > most),
                Err(e) => assert!(e == Errno::EFAULT && (bytes.iter().any(Option::is_none) || !inside(at, count * 8))),
            }
        }
        6 => {
            let most = input.below(5000);
            let read = user.read_string(at, most, Errno::ENAMETOOLONG).map(|s| s.to_vec());
            assert_eq!(read, string(memory, at, most));
        }
        7 => {
            let value = input.long();
            let was = there(memory, at, 8);
            match user.write(at, &value) {
                Ok(()) => assert_eq!(user.read::<u64>(at), Ok(value)),
                Err(_) => assert!(was.contains(&None) || !inside(at, 8)),
            }
        }
        _ => vectors(memory, at),
    }
}

fn inside(at: u64, len: usize) -> bool {
    at.checked_add(len as u64).is_some_and(|end| end <= USER_END)
}

/// Reads the string at `at`, of at most `most` bytes, as the copy should.
fn string(memory: &Memory, at: u64, most: usize) -> Result<Vec<u8>, Errno> {
    let mut out = Vec::new();
    loop {
        if out.len() > most {
            return Err(Errno::ENAMETOOLONG);
        }
        let next = at.checked_add(out.len() as u64).filter(|a| *a < USER_END).ok_or(Errno::EFAULT)?;
        match memory.byte(next).ok_or(Errno::EFAULT)? {
            0 => return Ok(out),
            byte => out.push(byte),
        }
    }
}

/// Checks a vector of strings as execve takes it, and the stack that is made from it.
fn vectors(memory: &Memory, array: u64) {
    const STACK: u64 = 8 << 20;
    const TOP: u64 = 0x7fff_0000_0000;
    let mut strings = Strings::new(STACK);
    if strings.collect(&UserMemory(memory), array).is_err() {
        return;
    }
    strings.arguments_end();
    let mut wanted = Vec::new();
    let mut at = array;
    // Address 0 stands for an empty list.
    while at != 0 {
        let word = there(memory, at, 8).into_iter().map(|b| b.expect("it was read")).collect::<Vec<u8>>();
        match u64::from_le_bytes(word.try_into().expect("eight bytes")) {
            0 => break,
            from => wanted.push(string(memory, from, 128 << 10).expect("it was read")),
        }
        at += 8;
    }
    assert_eq!(strings.argument_count(), wanted.len());
    let stack = lay_out(&strings, TOP, b"/x", &[7; 16], &mut quire_heap::Vec::new()).expect("there is room");
    assert!(stack.pointer.is_multiple_of(16) && stack.pointer + stack.bytes.len() as u64 == TOP);
    let byte = |at: u64| stack.bytes[(at - stack.pointer) as usize];
    let word = |at: u64| u64::from_le_bytes(std::array::from_fn(|i| byte(at + i as u64)));
    assert_eq!(word(stack.pointer), wanted.len() as u64);
    for (i, wanted) in wanted.iter().enumerate() {
        let at = word(stack.pointer + 8 + 8 * i as u64);
        let there: Vec<u8> = (at..).map(byte).take_while(|b| *b != 0).collect();
        assert_eq!(there, *wanted);
    }
}
