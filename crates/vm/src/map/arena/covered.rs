//! Counts of the bytes that the entries of an address space cover, by class. Each change of a tree updates the counts,
//! so no query walks the tree.

use crate::machine::Machine;
use crate::map::entry::{Attributes, Entry, Flags};
use crate::types::Prot;
use quire_sync::atomic::{AtomicU64, Ordering};

/// The class of a range, by its protection and flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::map) enum Class {
    /// Private memory that a program can store into, except stacks.
    Data,
    /// Memory that grows downward.
    Stack,
    /// Memory that a program can execute but not store into, except stacks.
    Code,
    /// Anything else.
    Other,
}

/// The number of classes.
const CLASSES: usize = Class::Other as usize + 1;

/// The class for each value of the flags `SHARED` and `GROWS_DOWN` (the two lowest bits of the index) and of the rights
/// (the bits above).
static CLASS_OF: [Class; 32] = {
    let mut all = [Class::Other; 32];
    let mut at = 0;
    while at < all.len() {
        let (flags, prot) = (at as u16 & KIND, at as u8 >> KIND.count_ones());
        all[at] = if flags & Flags::GROWS_DOWN.bits() != 0 {
            Class::Stack
        } else if prot & Prot::WRITE.bits() != 0 {
            if flags & Flags::SHARED.bits() != 0 { Class::Other } else { Class::Data }
        } else if prot & Prot::EXEC.bits() != 0 {
            Class::Code
        } else {
            Class::Other
        };
        at += 1;
    }
    all
};
/// The flags that select a class. They are the two lowest flags.
const KIND: u16 = Flags::SHARED.bits() | Flags::GROWS_DOWN.bits();
const _: () = assert!(KIND == 3 && Prot::all().bits() == 7);

impl Class {
    /// Whether the class counts in the commit charge, because a store into it allocates a private page.
    #[inline(always)]
    pub fn is_committed(self) -> bool {
        matches!(self, Class::Data | Class::Stack)
    }

    /// The class by Linux's rules.
    #[inline(always)]
    pub fn of(a: &Attributes) -> Class {
        CLASS_OF[usize::from(a.flags.bits() & KIND | u16::from(a.prot.bits() & 7) << KIND.count_ones())]
    }
}

/// Bytes that entries cover, or a change of that number. A negative change is stored modulo 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Covered {
    /// Bytes of all classes.
    pub bytes: u64,
    pub(in crate::map) classes: [u64; CLASSES],
}

impl Covered {
    /// Private memory that a program can store into, except stacks.
    pub fn data(&self) -> u64 {
        self.classes[Class::Data as usize]
    }
    /// Memory that grows downward.
    pub fn stack(&self) -> u64 {
        self.classes[Class::Stack as usize]
    }
    /// Memory that a program can execute but not store into, except stacks.
    pub fn code(&self) -> u64 {
        self.classes[Class::Code as usize]
    }

    /// Adds `bytes` with these attributes.
    pub(in crate::map) fn come(&mut self, bytes: u64, a: &Attributes) {
        self.bytes = self.bytes.wrapping_add(bytes);
        let class = &mut self.classes[Class::of(a) as usize];
        *class = class.wrapping_add(bytes);
    }

    /// Adds all of an entry.
    pub(in crate::map) fn come_entry<M: Machine>(&mut self, e: &Entry<M>) {
        self.come(e.range().bytes(), &e.attributes());
    }

    /// The difference, `self` minus `other`.
    pub(in crate::map) fn less(&self, other: &Covered) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].wrapping_sub(other.classes[i]));
        Covered { bytes: self.bytes.wrapping_sub(other.bytes), classes }
    }

    /// The sum of both.
    pub(in crate::map) fn and(&self, other: &Covered) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].wrapping_add(other.classes[i]));
        Covered { bytes: self.bytes.wrapping_add(other.bytes), classes }
    }
}

/// The bytes that the entries of an arena (a part of the map with its own lock) cover. Only the arena's writer writes
/// these counts. Limits and statistics read them without a lock.
pub(in crate::map) struct Counts {
    bytes: AtomicU64,
    classes: [AtomicU64; CLASSES],
}

impl Counts {
    pub fn new() -> Self {
        Counts { bytes: AtomicU64::new(0), classes: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn data(&self) -> u64 {
        self.classes[Class::Data as usize].load(Ordering::Relaxed)
    }

    /// Private memory that a program can store into: data and stacks.
    #[inline(always)]
    pub fn committed(&self) -> u64 {
        self.data() + self.classes[Class::Stack as usize].load(Ordering::Relaxed)
    }

    pub fn read(&self) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].load(Ordering::Relaxed));
        Covered { bytes: self.bytes(), classes }
    }

    /// Adds an entry.
    ///
    /// # Requires
    /// The caller is the arena's writer.
    #[inline]
    pub fn come<M: Machine>(&self, e: &Entry<M>) {
        let bytes = e.range().bytes();
        add(&self.bytes, bytes);
        add(&self.classes[Class::of(&e.attributes()) as usize], bytes);
    }

    /// Subtracts an entry.
    ///
    /// # Requires
    /// The caller is the arena's writer.
    #[inline]
    pub fn go<M: Machine>(&self, e: &Entry<M>) {
        let bytes = e.range().bytes().wrapping_neg();
        add(&self.bytes, bytes);
        add(&self.classes[Class::of(&e.attributes()) as usize], bytes);
    }

    /// Moves `bytes` from one class to another.
    ///
    /// # Requires
    /// The caller is the arena's writer.
    #[inline]
    pub fn change_class(&self, bytes: u64, from: Class, to: Class) {
        if from != to {
            add(&self.classes[from as usize], bytes.wrapping_neg());
            add(&self.classes[to as usize], bytes);
        }
    }

    /// # Requires
    /// The caller is the arena's writer.
    pub fn change(&self, by: &Covered) {
        add(&self.bytes, by.bytes);
        self.classes.iter().zip(by.classes).for_each(|(count, by)| add(count, by));
    }
}

/// # Requires
/// No other thread writes `count`.
#[inline(always)]
fn add(count: &AtomicU64, by: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
