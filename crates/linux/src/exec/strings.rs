//! Arguments and environment, which are collected from the old program's memory and laid out on the new program's
//! stack.

use quire_heap::Vec;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::UserAccess;
use quire_linux_state::user::UserMemory;

/// The most bytes of a string (Linux's MAX_ARG_STRLEN).
const LONGEST: usize = 128 << 10;
/// The most bytes of all strings together with their pointers, for any stack limit. As on Linux, three quarters of 8
/// MiB.
const MOST: usize = 6 << 20;
/// The bytes that are allowed for any stack limit.
const LEAST: usize = 128 << 10;

/// Strings in one buffer: `bytes` has all strings, each with its zero byte, and `starts` has the offset of each string.
#[derive(Default)]
pub struct Strings {
    bytes: Vec<u8>,
    starts: Vec<u32>,
    /// The number of arguments. The other strings are the environment.
    arguments: usize,
    budget: usize,
}

impl Strings {
    /// An empty list. `stack` is the soft limit of the stack in bytes, a quarter of which the strings may use.
    pub fn new(stack: u64) -> Strings {
        let budget = (stack / 4).clamp(LEAST as u64, MOST as u64) as usize;
        Strings { budget, ..Strings::default() }
    }

    /// The number of arguments.
    pub fn argument_count(&self) -> usize {
        self.arguments
    }

    fn charge(&self) -> Result<(), Errno> {
        if self.bytes.len() + self.starts.len() * 8 > self.budget { Err(Errno::E2BIG) } else { Ok(()) }
    }

    fn begin(&mut self) -> Result<(), Errno> {
        self.starts.try_push(self.bytes.len() as u32)?;
        self.charge()
    }

    /// Adds a string.
    pub fn push(&mut self, string: &[u8]) -> Result<(), Errno> {
        self.begin()?;
        self.bytes.try_reserve(string.len() + 1)?;
        self.bytes.extend_reserved(string);
        self.bytes.push_reserved(0);
        self.charge()
    }

    /// Ends the arguments. Strings that are added later are the environment.
    pub fn arguments_end(&mut self) {
        self.arguments = self.starts.len();
    }

    /// Inserts a script's interpreter and its argument before the arguments, and replaces the first argument by `name`.
    pub fn prepend(&mut self, before: &[&[u8]], name: &[u8]) -> Result<(), Errno> {
        let mut new = Strings { budget: self.budget, ..Strings::default() };
        for string in before {
            new.push(string)?;
        }
        new.push(name)?;
        for i in 0..self.starts.len() {
            if i == self.arguments {
                new.arguments_end();
            }
            if i == 0 && self.arguments > 0 {
                continue;
            }
            let end = self.starts.get(i + 1).map_or(self.bytes.len(), |s| *s as usize);
            new.push(&self.bytes[self.starts[i] as usize..end - 1])?;
        }
        if self.arguments == self.starts.len() {
            new.arguments_end();
        }
        *self = new;
        Ok(())
    }

    /// Adds the strings of the null-terminated array of pointers at user address `array`. A null `array` has no
    /// strings.
    pub fn collect<A: UserAccess>(&mut self, memory: &UserMemory<'_, A>, array: u64) -> Result<(), Errno> {
        if array == 0 {
            return Ok(());
        }
        let mut at = array;
        loop {
            let string: u64 = memory.read(at)?;
            if string == 0 {
                return Ok(());
            }
            self.begin()?;
            self.collect_one(memory, string)?;
            at = at.checked_add(8).ok_or(Errno::EFAULT)?;
        }
    }

    fn collect_one<A: UserAccess>(&mut self, memory: &UserMemory<'_, A>, from: u64) -> Result<(), Errno> {
        const STEP: usize = 256;
        let start = self.bytes.len();
        loop {
            let len = self.bytes.len() - start;
            if len >= LONGEST {
                return Err(Errno::E2BIG);
            }
            self.bytes.try_reserve(STEP)?;
            let at = from.checked_add(len as u64).ok_or(Errno::EFAULT)?;
            let got = memory.read_string_step(at, &mut self.bytes, STEP)?;
            self.charge()?;
            if got < STEP {
                // The string has ended within this step.
                self.bytes.push_reserved(0);
                return Ok(());
            }
        }
    }
}

/// The initial stack of a new program: the strings and the vectors.
pub struct Stack {
    /// The bytes, from the stack pointer up.
    pub bytes: Vec<u8>,
    /// The stack pointer.
    pub pointer: u64,
    /// The start and the end of the arguments' strings.
    pub arguments: (u64, u64),
    /// The start and the end of the environment's strings.
    pub environment: (u64, u64),
}

/// Auxiliary vector types.
#[allow(missing_docs)]
pub mod aux {
    pub const PHDR: u64 = 3;
    pub const PHENT: u64 = 4;
    pub const PHNUM: u64 = 5;
    pub const PAGESZ: u64 = 6;
    pub const BASE: u64 = 7;
    pub const FLAGS: u64 = 8;
    pub const ENTRY: u64 = 9;
    pub const UID: u64 = 11;
    pub const EUID: u64 = 12;
    pub const GID: u64 = 13;
    pub const EGID: u64 = 14;
    pub const PLATFORM: u64 = 15;
    pub const HWCAP: u64 = 16;
    pub const CLKTCK: u64 = 17;
    pub const SECURE: u64 = 23;
    pub const RANDOM: u64 = 25;
    pub const HWCAP2: u64 = 26;
    pub const RSEQ_FEATURE_SIZE: u64 = 27;
    pub const RSEQ_ALIGN: u64 = 28;
    pub const EXECFN: u64 = 31;
    pub const SYSINFO_EHDR: u64 = 33;
    pub const MINSIGSTKSZ: u64 = 51;
}

/// Lays the stack out below `top`, by the x86-64 ABI. From the stack pointer up, there are the argument count, the
/// arguments, the environment and the auxiliary vector, each list ended by zero. Then follow 16 random bytes and the
/// strings. The entries of `vector` that point to the stack are added here.
pub fn lay_out(
    strings: &Strings,
    top: u64,
    path: &[u8],
    random: &[u8; 16],
    vector: &mut Vec<(u64, u64)>,
) -> Result<Stack, Errno> {
    const PLATFORM: &[u8] = b"x86_64\0";
    let tail_len = strings.bytes.len() + path.len() + 1 + 8;
    let strings_at = (top.checked_sub(tail_len as u64).ok_or(Errno::ENOMEM)?) & !15;
    let path_at = strings_at + strings.bytes.len() as u64;
    let random_at = strings_at - 16;
    let platform_at = random_at - 16;
    let last = [(aux::RANDOM, random_at), (aux::EXECFN, path_at), (aux::PLATFORM, platform_at), (0, 0)];
    vector.try_extend_from_slice(&last)?;
    let words = 1 + strings.starts.len() + 2 + 2 * vector.len();
    let pointer = (platform_at.checked_sub(words as u64 * 8).ok_or(Errno::ENOMEM)?) & !15;

    let mut bytes = Vec::new();
    bytes.try_reserve_exact((top - pointer) as usize)?;
    let mut word = |value: u64| bytes.extend_reserved(&value.to_le_bytes());
    word(strings.arguments as u64);
    for (i, start) in strings.starts.iter().enumerate() {
        if i == strings.arguments {
            word(0);
        }
        word(strings_at + u64::from(*start));
    }
    if strings.arguments == strings.starts.len() {
        word(0);
    }
    word(0);
    for (kind, value) in vector.iter() {
        word(*kind);
        word(*value);
    }
    bytes.resize_reserved((platform_at - pointer) as usize, 0);
    bytes.extend_reserved(PLATFORM);
    bytes.resize_reserved((random_at - pointer) as usize, 0);
    bytes.extend_reserved(random);
    bytes.extend_reserved(&strings.bytes);
    bytes.extend_reserved(path);
    bytes.resize_reserved((top - pointer) as usize, 0);

    let environment = strings.starts.get(strings.arguments).map_or(path_at, |s| strings_at + u64::from(*s));
    Ok(Stack { bytes, pointer, arguments: (strings_at, environment), environment: (environment, path_at) })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(stack: &Stack, at: u64) -> u64 {
        let i = (at - stack.pointer) as usize;
        u64::from_le_bytes(stack.bytes[i..i + 8].try_into().expect("eight bytes"))
    }

    fn string(stack: &Stack, at: u64) -> std::vec::Vec<u8> {
        let i = (at - stack.pointer) as usize;
        stack.bytes[i..].iter().copied().take_while(|b| *b != 0).collect()
    }

    proptest! {
        #[test]
        fn a_program_finds_its_arguments_environment_and_vector(
            arguments in proptest::collection::vec("[a-z]{0,40}", 0..8),
            environment in proptest::collection::vec("[A-Z]{1,9}=[a-z]{0,40}", 0..8),
        ) {
            let mut s = Strings::new(8 << 20);
            for a in &arguments {
                s.push(a.as_bytes()).expect("room");
            }
            s.arguments_end();
            for e in &environment {
                s.push(e.as_bytes()).expect("room");
            }
            let top = 0x7fff_0000_0000;
            let mut vector = Vec::try_copy(&[(aux::PAGESZ, 4096)]).expect("memory");
            let stack = lay_out(&s, top, b"/bin/x", &[7; 16], &mut vector).expect("a stack");
            prop_assert_eq!(stack.pointer % 16, 0);
            prop_assert_eq!(stack.pointer + stack.bytes.len() as u64, top);
            prop_assert_eq!(word(&stack, stack.pointer), arguments.len() as u64);
            let mut at = stack.pointer + 8;
            for list in [&arguments, &environment] {
                for wanted in list {
                    prop_assert_eq!(string(&stack, word(&stack, at)), wanted.as_bytes());
                    at += 8;
                }
                prop_assert_eq!(word(&stack, at), 0);
                at += 8;
            }
            let mut seen = std::vec::Vec::new();
            while word(&stack, at) != 0 {
                seen.push((word(&stack, at), word(&stack, at + 8)));
                at += 16;
            }
            prop_assert_eq!(seen[0], (aux::PAGESZ, 4096));
            let find = |kind| seen.iter().find(|e| e.0 == kind).expect("in the vector").1;
            prop_assert_eq!(string(&stack, find(aux::EXECFN)), b"/bin/x");
            prop_assert_eq!(string(&stack, find(aux::PLATFORM)), b"x86_64");
            let r = (find(aux::RANDOM) - stack.pointer) as usize;
            prop_assert_eq!(&stack.bytes[r..r + 16], &[7; 16]);
        }
    }

    #[test]
    fn a_script_puts_its_interpreter_in_front() {
        let mut s = Strings::new(8 << 20);
        for a in ["name", "one"] {
            s.push(a.as_bytes()).expect("room");
        }
        s.arguments_end();
        s.push(b"K=V").expect("room");
        s.prepend(&[b"/bin/sh", b"-e"], b"/x/script").expect("room");
        assert_eq!((s.arguments, s.starts.len()), (4, 5));
        assert_eq!(s.bytes, b"/bin/sh\0-e\0/x/script\0one\0K=V\0");
    }

    #[test]
    fn too_much_is_refused() {
        let mut s = Strings::new(0);
        let big = vec![b'x'; LEAST / 2];
        assert_eq!(s.push(&big), Ok(()));
        assert_eq!(s.push(&big), Err(Errno::E2BIG));
    }
}
