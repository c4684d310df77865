//! How many bytes of an address space entries cover, and as what. Kept with each change of the tree, so that no question needs a walk.

use super::entry::{Attributes, Entry, Flags};
use crate::machine::Machine;
use crate::types::Prot;
use quire_sync::atomic::{AtomicU64, Ordering};

/// What a range counts as, by its protection and flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// A program can store into it, and only the program sees that.
    Data,
    /// It grows downward.
    Stack,
    /// A program can execute it, and not store into it.
    Code,
    /// Anything else.
    Other,
}

/// Kinds that are counted one by one.
const CLASSES: usize = Class::Other as usize;

impl Class {
    /// As Linux tells them apart.
    pub fn of(a: &Attributes) -> Class {
        if a.flags.contains(Flags::GROWS_DOWN) {
            Class::Stack
        } else if a.prot.contains(Prot::WRITE) {
            if a.flags.contains(Flags::SHARED) { Class::Other } else { Class::Data }
        } else if a.prot.contains(Prot::EXEC) {
            Class::Code
        } else {
            Class::Other
        }
    }
}

/// Bytes that entries cover; or, by wrapping, by how much that changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Covered {
    /// All.
    pub bytes: u64,
    pub(super) classes: [u64; CLASSES],
}

impl Covered {
    /// Private memory that a program can store into, stacks apart.
    pub fn data(&self) -> u64 {
        self.classes[Class::Data as usize]
    }
    /// What grows downward.
    pub fn stack(&self) -> u64 {
        self.classes[Class::Stack as usize]
    }
    /// What a program can execute and not store into, stacks apart.
    pub fn code(&self) -> u64 {
        self.classes[Class::Code as usize]
    }

    /// `bytes` more with these attributes.
    pub(super) fn come(&mut self, bytes: u64, a: &Attributes) {
        self.bytes = self.bytes.wrapping_add(bytes);
        if let Some(class) = self.classes.get_mut(Class::of(a) as usize) {
            *class = class.wrapping_add(bytes);
        }
    }

    /// All of an entry.
    pub(super) fn come_entry<M: Machine>(&mut self, e: &Entry<M>) {
        self.come(e.range().len(), &e.attributes());
    }

    /// What it is more than `other`.
    pub(super) fn less(&self, other: &Covered) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].wrapping_sub(other.classes[i]));
        Covered { bytes: self.bytes.wrapping_sub(other.bytes), classes }
    }

    /// Both together.
    pub(super) fn and(&self, other: &Covered) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].wrapping_add(other.classes[i]));
        Covered { bytes: self.bytes.wrapping_add(other.bytes), classes }
    }
}

/// What an arena covers. Its writer's; read by anybody for limits and statistics.
pub(super) struct Counts {
    bytes: AtomicU64,
    classes: [AtomicU64; CLASSES],
}

impl Counts {
    pub fn new() -> Self {
        Counts { bytes: AtomicU64::new(0), classes: [const { AtomicU64::new(0) }; CLASSES] }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn data(&self) -> u64 {
        self.classes[Class::Data as usize].load(Ordering::Relaxed)
    }

    pub fn read(&self) -> Covered {
        let classes = core::array::from_fn(|i| self.classes[i].load(Ordering::Relaxed));
        Covered { bytes: self.bytes(), classes }
    }

    /// => caller is the arena's writer.
    pub fn change(&self, by: &Covered) {
        let add =
            |count: &AtomicU64, by: u64| count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        add(&self.bytes, by.bytes);
        for (count, by) in self.classes.iter().zip(by.classes) {
            // Most changes concern one class.
            if by != 0 {
                add(count, by);
            }
        }
    }
}
