//! Builds inputs of the target `calls` from whole calls and the memory that they read. Bytes that choose freely among
//! all calls and all memory hardly ever form a control message or a netlink request. The inputs here consist of likely
//! parts, some of which are wrong.

use crate::Input;
use crate::calls::{DATA, MOST_CALLS, OBJECTS_FIRST};

/// The addresses of the memory that steps use: the program's second and third page.
const FIRST: u64 = DATA + 0x1000;
const END: u64 = DATA + 0x3000;
/// The most bytes of one poke.
const POKE: usize = 64;
/// The most steps of an input.
const MOST: usize = 400;

/// A list of steps for the target `calls`.
pub struct Steps {
    bytes: Vec<u8>,
    steps: usize,
    next: u64,
}

impl Steps {
    fn new() -> Self {
        Steps { bytes: Vec::new(), steps: 0, next: FIRST }
    }

    /// Returns the input that does these steps.
    fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn is_full(&self) -> bool {
        self.steps >= MOST
    }

    /// Adds a value in the encoding of nine bytes.
    fn value(&mut self, value: u64) {
        self.bytes.push(0xff);
        self.bytes.extend(value.to_le_bytes());
    }

    /// Puts `bytes` where no recent step has put any. Returns the address.
    pub fn poke(&mut self, bytes: &[u8]) -> u64 {
        let room = bytes.len().max(1).next_multiple_of(16) as u64;
        if self.next + room > END {
            self.next = FIRST;
        }
        let at = self.next;
        self.next += room;
        for (n, part) in bytes.chunks(POKE).enumerate() {
            self.bytes.extend([0, part.len() as u8]);
            self.value(at + (n * POKE) as u64);
            self.bytes.extend(part);
            self.steps += 1;
        }
        at
    }

    /// Adds a call.
    pub fn call(&mut self, number: u16, arguments: &[u64]) {
        self.bytes.push(2);
        self.bytes.extend(number.to_le_bytes());
        (0..6).for_each(|n| self.value(arguments.get(n).copied().unwrap_or(0)));
        self.steps += 1;
    }

    /// Makes the next call use an object of its kind. Object 0 is the last one made or found, 1 the one before, and so
    /// on.
    pub fn name(&mut self, object: usize) {
        self.bytes.push(2);
        self.bytes.extend((OBJECTS_FIRST as u16 + object as u16 % 4).to_le_bytes());
        self.steps += 1;
    }

    /// Makes the next call's allocation of that number fail, counted from 0.
    pub fn refuse(&mut self, number: usize) {
        self.bytes.push(2);
        self.bytes.extend((MOST_CALLS as u16 + number as u16 % 32).to_le_bytes());
        self.steps += 1;
    }
}

/// Returns the input for the target `calls` that `step` makes from `data`.
pub fn of(data: &[u8], step: fn(&mut Input<'_>, &mut Steps)) -> Vec<u8> {
    let (mut input, mut steps) = (Input::new(data), Steps::new());
    while !input.is_over() && !steps.is_full() {
        step(&mut input, &mut steps);
    }
    steps.into_bytes()
}

/// Returns the numbers of the calls that succeeded in at least one of many random inputs.
#[cfg(test)]
pub fn done_by_random_inputs(step: fn(&mut Input<'_>, &mut Steps)) -> std::collections::BTreeSet<u16> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let mut done = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let data: Vec<u8> = (0..1500).map(|_| random()).collect();
        let results = crate::calls::results(&of(&data, step));
        let error = |result: u64| (1..4096).contains(&result.wrapping_neg());
        done.extend(results.iter().filter(|(_, result)| !error(*result)).map(|(number, _)| *number as u16));
    }
    done
}

/// Returns one of `likely`, or sometimes any number.
pub fn one_of(input: &mut Input<'_>, likely: &[u64]) -> u64 {
    match input.byte() {
        255 => input.long(),
        254 => u64::from(input.short()),
        choice => likely[usize::from(choice) % likely.len()],
    }
}

/// Returns `right`, or sometimes a little more or less, or any number.
pub fn about(input: &mut Input<'_>, right: usize) -> u64 {
    match input.byte() {
        0..216 => right as u64,
        216..232 => u64::from(input.byte()),
        232..240 => (right as u64).wrapping_sub(u64::from(input.byte()) % 8),
        240..252 => right as u64 + u64::from(input.byte()) % 8,
        252..254 => input.long() & 0xffff_ffff,
        _ => input.long(),
    }
}
